//! Tokens that are good, tokens that are not, and keys that move.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use rollcall_loadtest::issuer::{Issuer, base64_url};
use rollcall_loadtest::upstream::{Reply, Speaks, Upstream};
use rollcall_shared::clock::unix_s;
use serde_json::{Value, json};

use crate::harness::{ISSUER, System, setup};

async fn status(system: &System, token: &str) -> u16 {
    let client = system.client().with_token(token);
    client.legacy("/mcp", "tools/list", json!({})).await.expect("an answer").status.as_u16()
}

#[tokio::test]
async fn no_forged_or_foreign_token_is_accepted() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let tenants =
        format!("{{acme: {{servers: [{{id: s, url: \"{}\"}}], default_policy: {{}}}}, other: {{}}}}", upstream.url());
    let second = Issuer::new("https://other.example", "rollcall", "k2").expect("an issuer");
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("other.json");
    std::fs::write(&keys, Issuer::jwks(&[&second]).to_string()).expect("a file");
    let issuers = format!(
        "issuers:\n  - {{issuer: \"{ISSUER}\", audience: rollcall, jwks_file: \"JWKS\", tenant_claim: tenant, tenants: [acme]}}\n  \
         - {{issuer: \"https://other.example\", audience: rollcall, jwks_file: \"{}\", tenant: other}}",
        keys.display()
    );
    let system = setup(&tenants).more(&issuers).start().await;
    let issuer = &system.issuer;
    assert_eq!(status(&system, &issuer.token("acme", "s").expect("a token")).await, 200);
    let touched = upstream.seen().len();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut claims = issuer.claims("acme", "s");
        change(&mut claims);
        issuer.sign(&claims).expect("a token")
    };
    let now = unix_s();
    let good = issuer.claims("acme", "s");
    let (mut bad, add) = (Vec::new(), |name: &'static str, token: String| (name, token));
    for (name, change) in [
        ("expired", Box::new(|c: &mut Value| c["exp"] = (now - 60).into()) as Box<dyn Fn(&mut Value)>),
        ("no exp", Box::new(|c| drop(c.as_object_mut().expect("claims").remove("exp")))),
        ("exp as text", Box::new(|c| c["exp"] = "tomorrow".into())),
        ("exp negative", Box::new(|c| c["exp"] = (-5).into())),
        ("lives for ever", Box::new(|c| c["exp"] = (now + 400 * 86_400).into())),
        ("not yet", Box::new(|c| c["nbf"] = (now + 600).into())),
        ("no aud", Box::new(|c| drop(c.as_object_mut().expect("claims").remove("aud")))),
        ("other aud", Box::new(|c| c["aud"] = "another".into())),
        ("empty aud", Box::new(|c| c["aud"] = json!([]))),
        ("no iss", Box::new(|c| drop(c.as_object_mut().expect("claims").remove("iss")))),
        ("iss of nobody", Box::new(|c| c["iss"] = "https://evil.example".into())),
        ("iss in a list", Box::new(|c| c["iss"] = json!([ISSUER]))),
        ("iss of the other issuer", Box::new(|c| c["iss"] = "https://other.example".into())),
        ("no tenant", Box::new(|c| drop(c.as_object_mut().expect("claims").remove("tenant")))),
        ("tenant that the issuer may not speak for", Box::new(|c| c["tenant"] = "other".into())),
        ("tenant as number", Box::new(|c| c["tenant"] = 7.into())),
        ("tenant with a slash", Box::new(|c| c["tenant"] = "acme/../other".into())),
        ("no session", Box::new(|c| drop(c.as_object_mut().expect("claims").remove("sid")))),
        ("empty session", Box::new(|c| c["sid"] = "".into())),
        ("session with a space", Box::new(|c| c["sid"] = "a b".into())),
    ] {
        bad.push(add(name, with(&*change)));
    }
    let header = |header: Value| issuer.sign_with_header(&header, &good).expect("a token");
    bad.push(add(
        "alg none",
        format!("{}.{}.", base64_url(br#"{"alg":"none"}"#), base64_url(good.to_string().as_bytes())),
    ));
    bad.push(add(
        "alg none with kid",
        format!("{}.{}.x", base64_url(br#"{"alg":"none","kid":"k1"}"#), base64_url(good.to_string().as_bytes())),
    ));
    bad.push(add("alg RS256", header(json!({"alg": "RS256", "kid": "k1"}))));
    bad.push(add("alg ES384", header(json!({"alg": "ES384", "kid": "k1"}))));
    bad.push(add("unknown kid", header(json!({"alg": "ES256", "kid": "nobody"}))));
    bad.push(add("kid with a path", header(json!({"alg": "ES256", "kid": "../../dev/null"}))));
    bad.push(add("crit", header(json!({"alg": "ES256", "kid": "k1", "crit": ["exp"]}))));
    bad.push(add("b64 false", header(json!({"alg": "ES256", "kid": "k1", "b64": false, "crit": ["b64"]}))));
    bad.push(add("another type", header(json!({"alg": "ES256", "kid": "k1", "typ": "dpop+jwt"}))));
    let hmac = jsonwebtoken::EncodingKey::from_secret(&issuer.public_bytes()).expect("a key");
    let mut hs = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256);
    hs.kid = Some("k1".into());
    bad.push(add("the public key as HMAC secret", jsonwebtoken::encode(&hs, &good, &hmac).expect("a token")));
    let stranger = Issuer::new(ISSUER, "rollcall", "k1").expect("an issuer");
    bad.push(add("another key under the same id", stranger.token("acme", "s").expect("a token")));
    let mine = issuer.token("acme", "s").expect("a token");
    let (head, signature) = mine.rsplit_once('.').expect("parts");
    bad.push(add("no signature", format!("{head}.")));
    bad.push(add("cut signature", format!("{head}.{}", &signature[..40])));
    bad.push(add("two parts", head.to_owned()));
    bad.push(add("four parts", format!("{mine}.x")));
    bad.push(add("garbage", "garbage".to_owned()));
    bad.push(add("very large", format!("{mine}{}", "x".repeat(20_000))));
    let mut other = second.claims("acme", "s");
    other["tenant"] = "acme".into();
    let fixed = second.sign(&other).expect("a token");
    for (name, token) in &bad {
        assert_eq!(status(&system, token).await, 401, "{name}");
    }
    let answer =
        system.client().with_token(fixed).legacy("/t/acme/mcp", "tools/list", json!({})).await.expect("an answer");
    assert_eq!(answer.status, 403, "an issuer bound to one tenant speaks for no other, whatever it claims");
    assert_eq!(upstream.seen().len(), touched, "nothing of all this reached an upstream");
    system.stop().await;
}

#[tokio::test]
async fn the_challenge_leads_to_the_issuers_of_the_tenant() {
    let system = setup("{acme: {}}").start().await;
    for (path, resource) in [("/mcp", "/mcp"), ("/t/acme/mcp/", "/t/acme/mcp"), ("/servers/x/mcp", "/servers/x/mcp")] {
        let answer = system.client().legacy(path, "tools/list", json!({})).await.expect("an answer");
        assert_eq!(answer.status, 401);
        let challenge = answer.headers["www-authenticate"].to_str().expect("text").to_owned();
        let url = challenge.split('"').nth(1).expect("a URL").to_owned();
        assert!(!challenge.contains("error="), "no token, no error: {challenge}");
        let document =
            system.client().send(Method::GET, url.strip_prefix(&system.url("")).expect("ours"), &[], "").await;
        let document = document.expect("an answer").json();
        assert_eq!(document["resource"], system.url(resource));
        assert_eq!(document["authorization_servers"], json!([ISSUER]));
    }
    let forged = system.client().with_token("x").legacy("/mcp", "tools/list", json!({})).await.expect("an answer");
    assert!(forged.headers["www-authenticate"].to_str().expect("text").contains(r#"error="invalid_token""#));
    system.stop().await;
}

#[tokio::test]
async fn keys_rotate_without_a_restart_and_made_up_key_ids_cost_nothing() {
    let first = Issuer::new(ISSUER, "rollcall", "k1").expect("an issuer");
    let second = Issuer::new(ISSUER, "rollcall", "k2").expect("an issuer");
    // The mock serves whatever it is told at any path: here a key set.
    let keys = Upstream::start(Speaks::Modern, &[]).await.expect("a server");
    let serve = |set: &[&Issuer]| keys.breaks(Some(Reply::Raw(200, "application/json", Issuer::jwks(set).to_string())));
    serve(&[&first]);
    let issuers = format!(
        "issuers: [{{issuer: \"{ISSUER}\", audience: rollcall, jwks_url: \"http://{}/jwks\", tenant_claim: tenant, tenants: [\"*\"]}}]",
        keys.address
    );
    let system = setup("{acme: {}}").more(&issuers).start().await;
    let token = first.token("acme", "s").expect("a token");
    let many = (0..20).map(|_| status(&system, &token));
    assert!(futures_util::future::join_all(many).await.iter().all(|s| *s == 200));
    assert_eq!(keys.seen().len(), 1, "one fetch for many waiting requests");
    let counted = Arc::new(AtomicUsize::new(0));
    for n in 0..50 {
        let forged = Issuer::new(ISSUER, "rollcall", &format!("made-up-{n}")).expect("an issuer");
        assert_eq!(status(&system, &forged.token("acme", "s").expect("a token")).await, 401);
        counted.fetch_add(1, Ordering::Relaxed);
    }
    assert!(keys.seen().len() <= 2, "{} fetches for made-up key ids", keys.seen().len());
    keys.breaks(Some(Reply::Raw(500, "text/plain", "down".into())));
    assert_eq!(status(&system, &token).await, 200, "the last good keys serve through an outage");
    serve(&[&second]);
    tokio::time::sleep(std::time::Duration::from_millis(10_500)).await;
    assert_eq!(status(&system, &second.token("acme", "s").expect("a token")).await, 200, "the new key is found");
    assert_eq!(status(&system, &token).await, 401, "a token of the key that was taken out is refused, cached or not");
    system.stop().await;
}

#[tokio::test]
async fn a_scope_that_a_tool_requires_must_be_in_the_token() {
    let upstream = Upstream::start(Speaks::Modern, &["t"]).await.expect("an upstream");
    let tenants = format!(
        "{{acme: {{servers: [{{id: s, url: \"{}\", requires: [\"db:read\"]}}], default_policy: {{}}}}}}",
        upstream.url()
    );
    let system = setup(&tenants).start().await;
    let mut claims = system.issuer.claims("acme", "s");
    claims["scope"] = "other db:read".into();
    let scoped = system.client().with_token(system.issuer.sign(&claims).expect("a token"));
    let plain = system.agent("acme", "s");
    assert!(plain.names().await.is_empty());
    let listed = scoped.legacy("/mcp", "tools/list", json!({})).await.expect("an answer").json();
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(2));
    let called = scoped.legacy("/mcp", "tools/call", json!({"name": "s__t"})).await.expect("an answer").json();
    assert!(called["result"].is_object(), "{called}");
    assert!(plain.call("s__t", json!({})).await["error"].is_object());
    system.stop().await;
}
