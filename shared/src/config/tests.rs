//! The example of the README reads; every mistake is named with its place, all in one report.

use super::*;

const GOOD: &str = r#"
listen: 127.0.0.1:8080
public_url: http://127.0.0.1:8080
admin: {listen: 127.0.0.1:8081, keys: [{id: ops, secret: "${ADMIN_KEY}", tenants: ["*"], role: admin}]}
ops: {listen: 127.0.0.1:8082}
store: file:./rollcall-data
keys: {sealing: [{id: k1, secret: 0123456789abcdef}], wire: []}
worker: {listen: 127.0.0.1:8090, advertise: worker-0:8090}
limits: {body_bytes: 4MiB, buffered_bytes: 512MiB, calls_in_flight: 1000}
upstream: {allow_networks: [10.0.0.0/8]}
issuers:
  - {issuer: "https://id.example", audience: rollcall, jwks_url: "https://id.example/jwks", tenant_claim: tenant, session_claim: sid, tenants: [acme]}
tenants:
  acme:
    servers:
      - {id: neon_46fb2cad6010, url: "https://mcp.neon.example/mcp", headers: {Authorization: "Bearer ${NEON_TOKEN}"}}
      - {id: files, command: [npx, -y, server-filesystem, /srv], isolation: shared, catalog: shared}
    tools:
      - {name: query_db, group: db, description: Run a query, input_schema: {type: object}, http: {method: POST, url: "https://platform.example/q"}}
    bundles: {support: ["neon__*", query_db]}
    default_policy: {allow: ["bundle:support"]}
"#;

fn read(text: &str, pairs: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    Config::read(text, &Environment::from_pairs(pairs.iter().copied()))
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn the_whole_example_is_read() {
    let config = read(GOOD, &[("ADMIN_KEY", "0123456789abcdef0")]).expect("a configuration");
    let acme = config.tenants.get(&TenantId::parse("acme").expect("an id")).expect("the tenant");
    assert_eq!(acme.servers.len(), 2);
    let key = config.admin.and_then(|a| a.keys.into_iter().next()).expect("a key");
    assert_eq!(key.secret.expose(), "0123456789abcdef0");
    assert!(format!("{:?}", acme.servers).contains("[secret]"), "credentials stay unexpanded and unprinted");
}

#[test]
fn the_environment_overrides_keys() {
    let pairs = [
        ("ADMIN_KEY", "0123456789abcdef0"),
        ("ROLLCALL__LISTEN", "127.0.0.1:9"),
        ("ROLLCALL__LIMITS__CALLS_IN_FLIGHT", "7"),
        ("ROLLCALL__TELEMETRY__OTLP_ENDPOINT", "http://127.0.0.1:4317"),
    ];
    let config = read(GOOD, &pairs).expect("a configuration");
    assert_eq!((config.listen.port(), config.limits.calls_in_flight), (9, 7));
    assert!(config.telemetry.otlp_endpoint.is_some());
    let problems = read(GOOD, &[("ADMIN_KEY", "0123456789abcdef0"), ("ROLLCALL__LISSTEN", "x")]).expect_err("a typo");
    assert_eq!(problems, ["environment variable ROLLCALL__LISSTEN: unknown key `lissten`; did you mean `listen`?"]);
}

#[test]
fn every_problem_is_in_one_report() {
    let text = r#"
lisen: 127.0.0.1:8080
limits: {body_bytes: 4MB, calls_in_flight: 0}
store: rodis://x
issuers:
  - {issuer: a, audience: b, hs256_key: short, tenant: acme, tenant_claim: t}
tenants:
  acme:
    servers:
      - {id: a b, url: "ftp://x"}
      - {id: c, url: "http://x", command: [y]}
      - {id: d, url: "http://u:p@x/"}
      - {id: e, url: "http://x", headers: {Host: evil}}
    bundles: {b: ["bundle:c", "*a*b*"]}
    default_policy: {alow: []}
admin: {listen: nowhere, keys: [{id: x, secret: "${NOPE}", tenants: ["*"]}]}
"#;
    let problems = read(text, &[]).expect_err("a broken file");
    let expected = [
        "line 16 column 49: admin.keys.secret: the environment has no NOPE",
        "line 2 column 8: unknown key `lisen`; did you mean `listen`?",
        "line 3 column 22: limits.body_bytes: expected a size such as 4MiB, found \"4MB\"",
        "line 3 column 44: limits.calls_in_flight: expected a whole number from 1 to 10000000, found 0",
        "line 4 column 8: store: \"rodis://x\": expected memory:, file:FOLDER, redis://HOST:PORT, \
         redis+sentinel:// or redis+cluster://",
        "line 6 column 41: issuers[0].hs256_key: an HS256 key needs at least 32 characters (RFC 7518, section 3.2)",
        "line 6 column 5: issuers[0]: either `tenant_claim` with `tenants`, or `tenant`",
        "line 10 column 14: tenants.acme.servers[0].id: \"a b\": a server id must be 1 to 128 characters of \
         [A-Za-z0-9._-], the first a letter or digit",
        "line 10 column 24: tenants.acme.servers[0].url: \"ftp://x\": the scheme must be http or https",
        "line 11 column 9: tenants.acme.servers[1]: both `url` and `command`",
        "line 12 column 22: tenants.acme.servers[2].url: \"http://u:p@x/\": no user name or password inside a URL; \
         use headers",
        "line 13 column 50: tenants.acme.servers[3].headers: `Host` is computed by Rollcall",
        "line 14 column 31: tenants.acme.bundles.b[1]: \"*a*b*\": more than 2 stars",
        "line 15 column 28: tenants.acme.default_policy: unknown key `alow`; did you mean `allow`?",
        "line 16 column 17: admin.listen: \"nowhere\": expected an address and a port, such as 127.0.0.1:8080",
    ];
    for line in expected {
        assert!(problems.iter().any(|p| p == line), "missing: {line}\nin: {problems:#?}");
    }
}

#[test]
fn a_name_claimed_twice_breaks_its_tenant_alone() {
    let text = "tenants: {acme: {servers: [{id: a, url: 'http://x'}, {id: a, url: 'http://y'}]}, other: {}}";
    let config = read(text, &[]).expect("a configuration");
    let broken: Vec<_> = config.tenants.values().map(|t| t.broken.as_deref()).collect();
    assert_eq!(broken, [Some("two servers claim the id a"), None]);
}

#[test]
fn dollars_can_be_written() {
    let env = |name: &str| (name == "A").then(|| "x".to_owned());
    assert_eq!(expand("$${A} ${A} $ {A}", env).as_deref(), Ok("${A} x $ {A}"));
    assert!(expand("${B}", env).is_err_and(|e| e.contains("no B")));
    assert!(expand("${", env).is_err() && expand("${a b}", env).is_err());
}
