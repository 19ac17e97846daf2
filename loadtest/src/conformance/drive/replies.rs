//! What the client fills in: arguments, headers that repeat them, and answers to what it is asked.

use rollcall_shared::mcp::headers;
use serde_json::{Map, Value, json};

fn object<'a>(value: &'a Value, member: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value.get(member).and_then(Value::as_object).into_iter().flatten()
}

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value.get(member).and_then(Value::as_str).unwrap_or_default()
}

/// The answer to what a server asks.
pub(super) fn answer(method: &str, params: &Value) -> Value {
    match method {
        "elicitation/create" => {
            json!({"action": "accept", "content": filled(params.get("requestedSchema").unwrap_or(&Value::Null))})
        }
        "sampling/createMessage" => {
            json!({"role": "assistant", "content": {"type": "text", "text": "so be it"}, "model": "none"})
        }
        "roots/list" => json!({"roots": []}),
        _ => json!({}),
    }
}

/// The params of the next round: the same again, with what was asked for, and the state as it came.
pub(super) fn next_round(mut params: Value, asked: &Value) -> Value {
    let answered = |(key, request): (&String, &Value)| {
        let reply = answer(text(request, "method"), request.get("params").unwrap_or(&Value::Null));
        (key.clone(), reply)
    };
    let answers: Map<_, _> = object(asked, "inputRequests").map(answered).collect();
    if let Some(params) = params.as_object_mut() {
        params.insert("inputResponses".to_owned(), answers.into());
        params.extend(asked.get("requestState").map(|state| ("requestState".to_owned(), state.clone())));
    }
    params
}

/// An object for a schema: defaults where it has them, else a value of the type.
pub(super) fn filled(schema: &Value) -> Value {
    object(schema, "properties").map(|(name, property)| (name.clone(), value(property))).collect::<Map<_, _>>().into()
}

fn value(property: &Value) -> Value {
    if let Some(default) = property.get("default").or_else(|| property.pointer("/enum/0")) {
        return default.clone();
    }
    match text(property, "type") {
        "boolean" => true.into(),
        "integer" | "number" => 2.into(),
        "object" => json!({}),
        "array" => json!([]),
        "null" => Value::Null,
        _ => "text".into(),
    }
}

/// The headers that repeat arguments, where the schema's own properties are annotated. Absent and null have none.
pub(super) fn mirrored(schema: &Value, arguments: &Value) -> Vec<(String, String)> {
    let header = |(name, property): (&String, &Value)| {
        let annotation = property.get("x-mcp-header")?.as_str()?;
        let argument = arguments.get(name).filter(|argument| !argument.is_null())?;
        let plain = argument.as_str().map_or_else(|| argument.to_string(), str::to_owned);
        Some((format!("{}{annotation}", headers::PARAM_PREFIX), headers::encode(&plain)))
    };
    object(schema, "properties").filter_map(header).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_with_its_defaults() {
        let schema = json!({"properties": {
            "name": {"type": "string", "default": "John"}, "status": {"type": "string", "enum": ["on", "off"]},
            "sure": {"type": "boolean"},
        }});
        let answered = answer("elicitation/create", &json!({"requestedSchema": schema}));
        assert_eq!(answered, json!({"action": "accept", "content": {"name": "John", "status": "on", "sure": true}}));
    }

    #[test]
    fn the_next_round_brings_the_state_as_it_came_or_none() {
        let request = json!({"method": "roots/list", "params": {}});
        let with = next_round(json!({"name": "t"}), &json!({"inputRequests": {"k": request}, "requestState": "s "}));
        assert_eq!(with, json!({"name": "t", "inputResponses": {"k": {"roots": []}}, "requestState": "s "}));
        let without = next_round(json!({"name": "t"}), &json!({"inputRequests": {"k": request}}));
        assert_eq!(without.get("requestState"), None);
    }

    #[test]
    fn annotated_arguments_are_mirrored_and_null_is_not() {
        let annotated = |name: &str| json!({"type": "string", "x-mcp-header": name});
        let schema = json!({"properties": {"a": annotated("A"), "b": annotated("B"), "c": {}}});
        let mirrored = mirrored(&schema, &json!({"a": "x", "b": null, "c": "y"}));
        assert_eq!(mirrored, [("mcp-param-A".to_owned(), "x".to_owned())]);
    }
}
