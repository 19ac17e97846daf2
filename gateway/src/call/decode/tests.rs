//! Eras and `_meta`, message by message.

use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::*;

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(
            HeaderName::from_bytes(name.as_bytes()).expect("a name"),
            HeaderValue::from_str(value).expect("a value"),
        );
    }
    map
}

/// The era of a message, or the label of its refusal.
fn era(body: &Value, pairs: &[(&str, &str)]) -> Result<Era, &'static str> {
    decode(body.to_string().as_bytes(), &headers(pairs)).map(|d| d.era).map_err(|m| m.refusal.label())
}

const VERSION: (&str, &str) = ("mcp-protocol-version", "2026-07-28");

#[test]
fn the_body_decides_the_era_and_the_header_must_agree() {
    let meta = json!({META_VERSION: MODERN, META_CAPABILITIES: {}});
    let modern = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}});
    let legacy = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let method = ("mcp-method", "tools/list");
    assert_eq!(era(&modern, &[VERSION, method]), Ok(Era::Modern));
    assert_eq!(era(&modern, &[method]), Err("header_mismatch"));
    assert_eq!(era(&modern, &[("mcp-protocol-version", "2025-11-25"), method]), Err("header_mismatch"));
    assert_eq!(era(&modern, &[VERSION]), Err("header_mismatch"));
    assert_eq!(era(&legacy, &[]), Ok(Era::Legacy));
    assert_eq!(era(&legacy, &[("mcp-protocol-version", "2025-03-26")]), Ok(Era::Legacy));
    assert_eq!(era(&legacy, &[("mcp-protocol-version", "2020-01-01")]), Err("version"));
    assert_eq!(era(&legacy, &[VERSION]), Err("meta"), "a modern header without a modern body");
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}});
    assert_eq!(era(&initialize, &[VERSION]), Ok(Era::Legacy));
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled"});
    assert_eq!(era(&note, &[VERSION]), Ok(Era::Modern), "a notification makes no claim: the header decides");
    assert_eq!(era(&note, &[]), Ok(Era::Legacy));
}

#[test]
fn malformed_meta_is_never_taken_for_legacy() {
    let with = |meta: Value| json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}});
    let all = [VERSION, ("mcp-method", "tools/list")];
    for meta in [
        json!({META_VERSION: 7}),
        json!({META_VERSION: null}),
        json!([]),
        json!({META_VERSION: MODERN}),
        json!({META_VERSION: MODERN, META_CAPABILITIES: []}),
    ] {
        assert_eq!(era(&with(meta.clone()), &all), Err("meta"), "{meta}");
    }
    let twice = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{{"{META_VERSION}":"x","{META_VERSION}":"y"}}}}}}"#
    );
    assert!(decode(twice.as_bytes(), &headers(&all)).is_err_and(|m| m.refusal.label() == "meta"));
}

#[test]
fn what_goes_upstream_of_meta_is_all_but_what_rollcall_sets() {
    let meta = json!({
        META_VERSION: MODERN, META_CAPABILITIES: {}, META_CLIENT: {"name": "c"}, META_LOG_LEVEL: "info",
        "progressToken": "p", "traceparent": "garbage", "tracestate": "x", "baggage": "y",
        "io.modelcontextprotocol/other": 1, "io.rollcall/view": "forged", "com.example/kept": [1],
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}).to_string();
    let decoded = decode(body.as_bytes(), &headers(&[VERSION, ("mcp-method", "tools/list")]))
        .unwrap_or_else(|_| panic!("{body}"));
    let meta = decoded.meta().expect("meta");
    assert!(meta.trace.is_none());
    let caller = meta.caller(Era::Modern).unwrap_or_else(|_| panic!("a caller"));
    let kept: Vec<_> = caller.meta.iter().map(|(key, value)| (key.as_str(), value.get())).collect();
    assert_eq!(kept, [("com.example/kept", "[1]"), ("io.modelcontextprotocol/other", "1")]);
    assert_eq!(caller.capabilities.map(|c| c.get().to_owned()).as_deref(), Some("{}"), "as the caller wrote them");
    assert_eq!(caller.info.map(|i| i.get().to_owned()).as_deref(), Some(r#"{"name":"c"}"#));
    for token in [json!(1.5), json!({}), json!("x".repeat(300))] {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"progressToken": token}}})
            .to_string();
        let decoded = decode(body.as_bytes(), &headers(&[])).unwrap_or_else(|_| panic!("{body}"));
        assert!(decoded.meta().is_some_and(|m| m.caller(Era::Legacy).is_err()), "{token}");
    }
}

#[test]
fn accept_is_read_as_it_is_sent() {
    let takes = |value: &str| {
        let accept = Accept::read(&headers(&[("accept", value)]));
        (accept.json, accept.stream)
    };
    assert_eq!(takes("application/json, text/event-stream"), (true, true));
    assert_eq!(takes("Application/JSON"), (true, false));
    assert_eq!(takes("text/event-stream;q=0.5"), (false, true));
    assert_eq!(takes("application/json;q=0, */*"), (true, true));
    assert_eq!(takes("text/html"), (false, false));
    let none = Accept::read(&HeaderMap::new());
    assert!(none.json && none.stream);
}
