//! What the client does: it lists and uses whatever the mock offers, and answers what it is asked.
//!
//! One course for all scenarios: they differ in what their mocks offer. What a scenario wants beyond that is in `calls`.

use serde_json::{Value, json};

use super::caller::Caller;
use super::replies::{filled, mirrored, next_round};
use crate::client::Client;

/// Rounds of one call, at most.
const ROUNDS: usize = 8;

/// Plays a scenario to its end. Fails where anything is refused that a client of the mock itself would get.
pub(super) async fn play(
    client: &Client,
    path: &str,
    revision: &str,
    scenario: &str,
    context: &Value,
) -> Result<(), String> {
    let mut caller = Caller::open(client, path, revision).await?;
    let offered = caller.offered().await?;
    let tools = listed(&mut caller, "tools").await?;
    use_tools(&mut caller, calls(scenario, context, &tools)?).await?;
    for (kind, method, by) in [("resources", "resources/read", "uri"), ("prompts", "prompts/get", "name")] {
        if offered.get(kind).is_some() {
            for entry in listed(&mut caller, kind).await? {
                caller.request(method, json!({by: member(&entry, by)?}), &[]).await?;
            }
        }
    }
    caller.end().await
}

async fn listed(caller: &mut Caller, kind: &str) -> Result<Vec<Value>, String> {
    let result = caller.request(&format!("{kind}/list"), json!({}), &[]).await?;
    result.get(kind).and_then(Value::as_array).cloned().ok_or_else(|| format!("{kind}/list: {result}"))
}

fn member<'a>(value: &'a Value, name: &str) -> Result<&'a Value, String> {
    value.get(name).ok_or_else(|| format!("no `{name}` in {value}"))
}

/// One call: its params, and the headers that repeat its arguments.
struct Call {
    params: Value,
    mirrored: Vec<(String, String)>,
}

impl Call {
    fn of(tool: &Value, arguments: Option<Value>) -> Result<Self, String> {
        let schema = member(tool, "inputSchema")?;
        let arguments = arguments.unwrap_or_else(|| filled(schema));
        let mirrored = mirrored(schema, &arguments);
        Ok(Self { params: json!({"name": member(tool, "name")?, "arguments": arguments}), mirrored })
    }
}

fn calls(scenario: &str, context: &Value, tools: &[Value]) -> Result<Vec<Call>, String> {
    let named = |name: &Value| {
        let tool = tools.iter().find(|tool| tool.get("name") == Some(name));
        tool.ok_or_else(|| format!("Rollcall does not list the tool {name}"))
    };
    if let Some(wanted) = context.get("toolCalls").and_then(Value::as_array) {
        let call =
            |wanted: &Value| Call::of(named(member(wanted, "name")?)?, Some(member(wanted, "arguments")?.clone()));
        return wanted.iter().map(call).collect();
    }
    match scenario {
        // Its mock lists this tool and serves no call.
        "json-schema-ref-no-deref" => named(&json!("lookup_user")).map(|_| Vec::new()),
        // It wants to see the schema that has arrived.
        "json-schema-2020-12-preservation" => {
            let seen = member(named(&json!("json_schema_2020_12_tool"))?, "inputSchema")?;
            Ok(vec![Call::of(named(&json!("json_schema_echo"))?, Some(json!({"schema": seen})))?])
        }
        _ => tools.iter().map(|tool| Call::of(tool, None)).collect(),
    }
}

/// The first rounds of all calls come before the second of any: what belongs to one must not come with another.
async fn use_tools(caller: &mut Caller, mut calls: Vec<Call>) -> Result<(), String> {
    for _ in 0..ROUNDS {
        let mut again = Vec::new();
        for Call { params, mirrored } in calls {
            let result = caller.request("tools/call", params.clone(), &mirrored).await?;
            if result.get("isError") == Some(&Value::Bool(true)) {
                return Err(format!("{params}: {result}"));
            }
            if result.get("resultType").and_then(Value::as_str) == Some("input_required") {
                again.push(Call { params: next_round(params, &result), mirrored });
            }
        }
        if again.is_empty() {
            return Ok(());
        }
        calls = again;
    }
    Err("a call asks again and again".to_owned())
}
