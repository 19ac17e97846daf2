//! Descriptions of APIs as tools: what becomes of each operation, and why one is left out.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::document::from_json;
use crate::ids::ApiId;
use crate::model::http_call::{BodyOf, Style};

fn api(options: &str) -> Api {
    let problems = Problems::new();
    let node = from_json(options, &problems).expect("options");
    let mut fields = node.fields("", &problems).expect("a map");
    let api = Api::read_fields(&mut fields, ApiId::parse("shop").ok(), &problems);
    fields.finish();
    let problems = problems.into_list();
    assert!(problems.is_empty(), "{problems:?}");
    api.expect("an API")
}

/// A description of these paths, at `https://h/v1`.
fn described(version: &str, paths: Value, more: Value) -> Value {
    let mut out = json!({"openapi": version, "info": {"title": "t", "version": "1"},
                         "servers": [{"url": "https://h/v1/"}], "paths": paths});
    let members = out.as_object_mut().expect("an object");
    members.extend(more.as_object().cloned().unwrap_or_default());
    out
}

fn only(description: &Value) -> PlatformTool {
    let import = import(description, &api("{}")).expect("an import");
    let [tool] = &import.tools[..] else { panic!("{:?}", import.skipped) };
    tool.clone()
}

fn schema(tool: &PlatformTool) -> Value {
    serde_json::from_str(&tool.input_schema).expect("JSON")
}

fn names(description: &Value, options: &str) -> Vec<String> {
    let import = import(description, &api(options)).expect("an import");
    import.tools.iter().map(|tool| format!("{} {}", tool.name, tool.http.method)).collect()
}

#[test]
fn an_operation_is_a_tool() {
    let description = described(
        "3.1.0",
        json!({"/shops/{shop id}/orders": {
        "parameters": [{"name": "shop id", "in": "path", "required": true, "schema": {"type": "integer"}},
                       {"name": "q", "in": "query", "schema": {"type": "string"}, "description": "of the path"}],
        "post": {
            "operationId": "orders/create", "summary": "Orders something.", "description": "At once.",
            "parameters": [{"name": "q", "in": "query", "schema": {"type": "object"}, "description": "its own"},
                           {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                           {"name": "Authorization", "in": "header", "required": true},
                           {"name": "crumb", "in": "cookie"}],
            "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}},
        }}}),
        json!({"components": {"schemas": {
            "Order": {"type": "object", "required": ["item", "id"], "properties": {
                "id": {"type": "string", "readOnly": true}, "item": {"$ref": "#/components/schemas/Item"}}},
            "Item": {"type": "object", "properties": {"parts": {"type": "array", "items": {"$ref": "#/components/schemas/Item"}}}},
        }}}),
    );
    let tool = only(&description);
    assert_eq!((tool.name.as_str(), tool.read_only), ("orders_create", false));
    assert_eq!(tool.description, "Orders something.\n\nAt once.");
    assert_eq!(tool.group.as_ref().map(ToString::to_string).as_deref(), Some("shop"));
    assert_eq!(
        schema(&tool),
        json!({
            "type": "object",
            "properties": {
                "shop_id": {"type": "integer"},
                "q": {"type": "object", "description": "its own"},
                "X-Trace": {"type": "string"},
                "item": {"$ref": "#/$defs/Item"},
            },
            "required": ["item", "shop_id"],
            "$defs": {"Item": {"type": "object", "properties": {"parts": {"type": "array", "items": {"$ref": "#/$defs/Item"}}}}},
        })
    );
    let http = &tool.http;
    assert_eq!((http.method.as_str(), http.url.as_str()), ("POST", "https://h/v1/shops/{shop_id}/orders"));
    assert_eq!(http.query, BTreeMap::from([("q".to_owned(), "q".to_owned())]));
    assert_eq!(http.styles, BTreeMap::from([("q".to_owned(), Style::Spread)]));
    assert_eq!(http.header_arguments, BTreeMap::from([("x-trace".to_owned(), "X-Trace".to_owned())]));
    assert_eq!((&http.body, &http.content_type), (&BodyOf::Rest, &None));
}

#[test]
fn names_are_those_of_the_description_and_never_meet() {
    let get = |id: &str| json!({"get": {"operationId": id}});
    let long = "x".repeat(70);
    let description = described(
        "3.0.3",
        json!({"/a": get("list/all"), "/b": get("list.all"), "/c": get(&long), "/d/{id}/": {"get": {
                   "parameters": [{"name": "id", "in": "path", "required": true, "schema": {}}]},
                   "delete": {"operationId": "…", "parameters": [{"name": "id", "in": "path", "required": true}]}},
               "/e": get("list_all_2")}),
        json!({}),
    );
    let all = names(&description, "{}");
    let hash = |text: &str, digits| crate::digest::Digest::of(text.as_bytes()).hex(digits);
    let mut expected = vec![
        format!("list_all_{} GET", hash("GET /a", 6)),
        format!("list_all_{} GET", hash("GET /b", 6)),
        "list_all_2 GET".to_owned(),
        format!("{}_{} GET", "x".repeat(55), hash("GET /c", 8)),
        "get_d_id GET".to_owned(),
        "delete_d_id DELETE".to_owned(),
    ];
    expected.sort();
    assert_eq!(all, expected);
    let filtered = names(&description, r#"{"include": ["GET /b"]}"#);
    assert_eq!(filtered, [format!("list_all_{} GET", hash("GET /b", 6))], "a filter renames nothing");
    let prefixed = names(&description, r#"{"prefix": "shop_", "include": ["shop_get_d_id"]}"#);
    assert_eq!(prefixed, ["shop_get_d_id GET"]);
    assert!(names(&description, r#"{"prefix": "shop_"}"#).iter().all(|name| name.starts_with("shop_")));
}

#[test]
fn operations_are_picked_by_route_tag_and_name() {
    let operation = |id: &str, tag: &str| json!({"operationId": id, "tags": [tag]});
    let description = described(
        "3.1.0",
        json!({"/a": {"get": operation("a_get", "read only"), "post": operation("a_post", "write")},
               "/a/b": {"get": operation("ab_get", "read only"), "head": {}}}),
        json!({}),
    );
    let case = |options: &str, expected: &[&str]| assert_eq!(names(&description, options), expected, "{options}");
    case("{}", &["a_get GET", "a_post POST", "ab_get GET"]);
    case(r#"{"include": ["GET *"]}"#, &["a_get GET", "ab_get GET"]);
    case(r#"{"include": ["* /a"], "exclude": ["post /*"]}"#, &["a_get GET"]);
    case(r#"{"include": ["tag:read*"], "exclude": ["ab_*"]}"#, &["a_get GET"]);
    case(r#"{"include": ["tag:read only", "a_post"]}"#, &["a_get GET", "a_post POST", "ab_get GET"]);
    let import = import(&description, &api(r#"{"include": ["a_get", "nothing*"]}"#)).expect("an import");
    assert_eq!(import.warnings, ["include: `nothing*` matches no operation"]);
    assert_eq!(import.skipped.first().map(|s| s.operation.as_str()), Some("HEAD /a/b"));
    for bad in ["FETCH /a", "GET a", "", "a*b*c*d"] {
        assert!(Pick::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_cannot_be_called_as_described_is_left_out_with_its_reason() {
    let parameter = |place: &str, more: Value| {
        let mut out = json!({"name": "p", "in": place, "required": true});
        out.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        json!({"get": {"parameters": [out]}})
    };
    let body = |media: &str, schema: Value| json!({"post": {"requestBody": {"required": true, "content": {media: {"schema": schema}}}}});
    let json_body = |schema: Value| body("application/json", schema);
    let case = |path: &str, item: Value, expected: &str| {
        let description = described("3.1.0", json!({path: item}), json!({}));
        let import = import(&description, &api("{}")).expect("an import");
        let [skipped] = &import.skipped[..] else { panic!("{path} {expected}: {:?}", import.tools) };
        assert!(skipped.reason.contains(expected), "{path}: {}", skipped.reason);
    };
    case("/a", parameter("cookie", json!({})), "cookies");
    case("/a", parameter("header", json!({"name": "Host"})), "no caller may set");
    case("/a", parameter("header", json!({"content": {"application/json": {}}})), "`content`");
    case("/a", parameter("query", json!({"content": {"text/csv": {}}})), "`content` of text/csv");
    case("/a", parameter("query", json!({"style": "matrix"})), "style matrix");
    case("/a/{p}", parameter("path", json!({"style": "label"})), "style label");
    case("/a/{p}", parameter("path", json!({"schema": {"type": "object"}})), "an object");
    case("/a", parameter("path", json!({})), "not in the path");
    case("/a/{q}", json!({"get": {}}), "not declared");
    case("/a?b=1", json!({"get": {}}), "query or a fragment");
    case("/a", body("multipart/form-data", json!({})), "multipart/form-data");
    case("/a", json_body(json!({"$ref": "https://evil.example/x.json"})), "leads out");
    case("/a", json_body(json!({"$ref": "other.yaml#/X"})), "leads out");
    case("/a", json_body(json!({"properties": {"x": {"$ref": "#/nowhere"}}})), "leads nowhere");
    case("/a", json_body(json!({"$dynamicRef": "#x"})), "$dynamicRef");
    case("/a", json_body(json!({"type": "strin"})), "not valid");
    case("/a", json!({"get": {"servers": [{"url": "/v2"}]}}), "no whole address");
    case("/a", json!({"get": {"servers": [{"url": "ftp://h"}]}}), "http or https");
    case("/a", json!({"get": {"servers": [{"url": "https://{x}", "variables": {"x": {}}}]}}), "no default");
    let circle = described(
        "3.1.0",
        json!({"/a": {"get": {"parameters": [{"$ref": "#/components/parameters/a"}]}}}),
        json!({"components": {"parameters": {"a": {"$ref": "#/components/parameters/b"}, "b": {"$ref": "#/components/parameters/a"}}}}),
    );
    let import = import(&circle, &api("{}")).expect("an import");
    assert_eq!(import.skipped.first().map(|s| s.reason.as_str()), Some("references lead in a circle"));
}

#[test]
fn a_description_that_is_none_is_refused_whole() {
    let case = |text: &str, expected: &str| {
        let result = parse(text).and_then(|value| super::import(&value, &api("{}")));
        let error = result.err().unwrap_or_default();
        assert!(error.contains(expected), "{text}: {error}");
    };
    case(r#"{"swagger": "2.0"}"#, "Swagger 2.0");
    case("openapi: 3.2.0", "3.0 and 3.1");
    case("a: 1", "`openapi`");
    case("openapi: 3.1.0\npaths: {}", "no operation");
    case("{", "not JSON");
    case("a: [", "line 1");
}

#[test]
fn schemas_of_both_versions_become_one_dialect() {
    let converted = |version: &str, schema: Value| {
        let content = json!({"application/json": {"schema": schema}});
        let paths = json!({"/a": {"post": {"requestBody": {"content": content}}}});
        let more =
            json!({"components": {"schemas": {"A": {"type": "string", "nullable": true}, "p q": {"type": "integer"}}}});
        schema_of_body(&only(&described(version, paths, more)))
    };
    fn schema_of_body(tool: &PlatformTool) -> Value {
        schema(tool)["properties"]["body"].clone()
    }
    let case = |version: &str, given: Value, expected: Value| {
        assert_eq!(converted(version, given.clone()), expected, "{version}: {given}");
    };
    case(
        "3.0.3",
        json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}),
        json!({"type": "integer", "exclusiveMinimum": 1}),
    );
    case(
        "3.0.3",
        json!({"type": "integer", "maximum": 9, "exclusiveMaximum": false}),
        json!({"type": "integer", "maximum": 9}),
    );
    case("3.1.0", json!({"exclusiveMinimum": 1}), json!({"exclusiveMinimum": 1}));
    case(
        "3.0.3",
        json!({"type": "string", "enum": ["a"], "nullable": true}),
        json!({"type": ["string", "null"], "enum": ["a", null]}),
    );
    case(
        "3.0.3",
        json!({"nullable": true, "allOf": [{"$ref": "#/components/schemas/A", "description": "ignored"}]}),
        json!({"anyOf": [{"allOf": [{"$ref": "#/$defs/A"}]}, {"type": "null"}]}),
    );
    case(
        "3.1.0",
        json!({"$ref": "#/components/schemas/p%20q", "description": "kept"}),
        json!({"$ref": "#/$defs/p_q", "description": "kept"}),
    );
    let noise = json!({"type": "object", "x-y": 1, "xml": {}, "example": {}, "discriminator": {"propertyName": "t"}, "oneOf": [true],
                       "properties": {"$ref": {"type": "string"}, "example": {"type": "array", "items": {"readOnly": true}}, "ro": {"readOnly": true}},
                       "required": ["$ref", "ro"]});
    case(
        "3.1.0",
        noise,
        json!({"type": "object", "oneOf": [true], "properties": {"$ref": {"type": "string"}, "example": {"type": "array", "items": {}}},
               "required": ["$ref"]}),
    );
    let description = described(
        "3.1.0",
        json!({"/a": {"post": {"requestBody": {"content": {"application/json": {"schema": {"pattern": "(?=a)b", "properties": {"pattern": {"pattern": "(a)\\1"}}}}}}}}}),
        json!({}),
    );
    let import = import(&description, &api("{}")).expect("an import");
    assert_eq!(import.warnings, ["patterns that need more than linear time are left out (1 operation)"]);
    assert_eq!(schema_of_body(&import.tools[0]), json!({"properties": {"pattern": {}}}));
}

#[test]
fn a_body_is_opened_only_where_that_loses_nothing() {
    let case = |method: &str, request: Value, of: BodyOf, required: Value| {
        let description = described(
            "3.1.0",
            json!({"/a/{id}": {method: {"requestBody": request,
            "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]}}}),
            json!({}),
        );
        let tool = only(&description);
        assert_eq!((&tool.http.body, &schema(&tool)["required"]), (&of, &required), "{method} {request}");
    };
    let of = |schema: Value, required: bool| json!({"required": required, "content": {"application/json": {"schema": schema}}});
    let whole = || BodyOf::Argument("body".to_owned());
    let open = json!({"type": "object", "properties": {"a": {}}});
    let strict = json!({"type": "object", "properties": {"a": {}}, "required": ["a"]});
    case("post", of(open.clone(), true), BodyOf::Rest, json!(["id"]));
    case("post", of(open.clone(), false), BodyOf::Rest, json!(["id"]));
    case("post", of(strict.clone(), true), BodyOf::Rest, json!(["a", "id"]));
    case("post", of(strict, false), whole(), json!(["id"]));
    case("delete", of(open, true), whole(), json!(["body", "id"]));
    case("post", of(json!({"type": "object", "properties": {"id": {}}}), true), whole(), json!(["body", "id"]));
    case("post", of(json!({"type": "object", "properties": {"a b": {}}}), true), whole(), json!(["body", "id"]));
    case(
        "post",
        of(json!({"type": "object", "properties": {"a": {}}, "oneOf": [{}]}), true),
        whole(),
        json!(["body", "id"]),
    );
    case("post", of(json!({"type": "object", "additionalProperties": {}}), true), whole(), json!(["body", "id"]));
    case("post", of(json!({"type": "array"}), true), whole(), json!(["body", "id"]));
    let form = json!({"content": {"application/x-www-form-urlencoded": {"encoding": {"a": {"style": "deepObject"}},
        "schema": {"type": "object", "properties": {"a": {"type": "object"}}}}}});
    let tool = only(&described("3.0.0", json!({"/f": {"post": {"requestBody": form}}}), json!({})));
    assert!(tool.http.is_form());
    assert_eq!(tool.http.styles, BTreeMap::from([("a".to_owned(), Style::Deep)]));
    let patch = json!({"content": {"application/merge-patch+json": {}}, "required": true});
    let tool = only(&described("3.0.0", json!({"/f": {"patch": {"requestBody": patch}}}), json!({})));
    assert_eq!(tool.http.content_type.as_deref(), Some("application/merge-patch+json"));
}

#[test]
fn servers_and_authorization_are_the_operators_to_give() {
    let description = described(
        "3.1.0",
        json!({"/a": {"get": {"security": [{"key": []}, {"bearer": []}]}},
               "/b": {"servers": [{"url": "https://{host}/b", "variables": {"host": {"default": "other"}}}], "get": {}},
               "/c": {"get": {"security": []}, "parameters": [{"name": "X-Key", "in": "header", "required": true}]}}),
        json!({"security": [{"query": []}],
               "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"},
                   "bearer": {"type": "http", "scheme": "bearer"}, "query": {"type": "apiKey", "in": "query", "name": "k"}}}}),
    );
    let urls = |options: &str| -> Vec<String> {
        import(&description, &api(options)).expect("an import").tools.into_iter().map(|tool| tool.http.url).collect()
    };
    assert_eq!(urls("{}"), ["https://h/v1/a", "https://other/b/b", "https://h/v1/c"]);
    assert_eq!(urls(r#"{"url": "http://mine:1/x/"}"#), ["http://mine:1/x/a", "http://mine:1/x/b", "http://mine:1/x/c"]);
    let import_with = |options: &str| import(&description, &api(options)).expect("an import");
    let query = "the security scheme `query` needs a key in the query, which is not supported (1 operation)";
    let key = "the security scheme `key` needs a header `x-key` in `headers` (1 operation)";
    assert_eq!(import_with("{}").warnings, [key, query]);
    let given = import_with(r#"{"headers": {"X-Key": "${KEY}"}, "timeout": "3s", "requires": ["s"], "group": "g"}"#);
    assert_eq!(given.warnings, [query]);
    for tool in &given.tools {
        assert!(tool.http.headers.contains_key("x-key") && tool.http.header_arguments.is_empty());
        assert_eq!((tool.http.timeout_ms, tool.requires.len()), (Some(3000), 1));
        assert_eq!(tool.group.as_ref().map(ToString::to_string).as_deref(), Some("g"));
    }
}
