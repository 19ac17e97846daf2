//! The program's commands that ask a running Rollcall.

use rollcall_loadtest::upstream::{Speaks, Upstream};
use serde_json::{Value, json};

use crate::harness::{ADMIN_KEY, program, setup};

/// Runs the program, and gives its exit code and what it printed.
async fn run(arguments: &[&str]) -> (i32, String, String) {
    let mut command = tokio::process::Command::new(program());
    let output = command.args(arguments).kill_on_drop(true).output().await.expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("a code"), text(output.stdout), text(output.stderr))
}

/// The program against a live catalog and a saved one, by its exit codes and its three formats.
#[tokio::test]
async fn lint_finds_what_does_not_exist_and_what_checks_nothing() {
    let upstream = Upstream::start(Speaks::Modern, &["run_sql"]).await.expect("an upstream");
    let tenants = format!(
        "{{acme: {{servers: [{{id: neon, url: \"{}\"}}], defer_above: 0, default_policy: {{}}}}}}",
        upstream.url()
    );
    let system = setup(&tenants).start().await;
    let (url, token) = (system.url(""), system.token("acme", "s"));
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let lint = async |arguments: &[&str]| run(&[&["lint"], arguments].concat()).await;
    let good = write("good.md", "Ask neon__run_sql, or POST https://x/tools/mcp/neon/run_sql.");
    let bad = write("docs/bad.md", "first line\nAsk neon__run_sqll.");
    write("docs/.hidden.md", "neon__hidden_one");
    write("docs/node_modules/x.js", "neon__hidden_two");
    let live = ["--url", &url, "--token", &token];
    let (code, out, err) = lint(&[&[good.as_str(), "--at-least", "2"], &live[..]].concat()).await;
    // A deferred view hides nothing from it: one tool of the server, and four of our own.
    assert_eq!((code, out.as_str()), (0, "2 ids in 1 files against 5 names: 0 findings\n"), "{err}");
    let docs = folder.path().join("docs").display().to_string();
    let (code, out, _) = lint(&[&[docs.as_str()], &live[..]].concat()).await;
    assert_eq!(code, 1);
    assert!(
        out.starts_with(&format!(
            "{bad}:2:5: there is no tool neon__run_sqll; nearest: neon__run_sql\n1 ids in 1 files"
        )),
        "{out}"
    );
    let (code, _, err) = lint(&[&[good.as_str(), "--at-least", "3"], &live[..]].concat()).await;
    assert!(code == 2 && err.contains("at least 3"), "{code} {err}");
    let saved = write("saved.json", r#"{"tools": [{"name": "neon__run_sql"}]}"#);
    let exempt = write("exempt.md", "<!-- rollcall-lint: absent neon__run_sql -->\nneon__run_sql");
    assert_eq!(lint(&[&exempt, "--catalog", &saved]).await.0, 2, "declared absent, and there");
    let (_, out, _) = lint(&[&bad, "--catalog", &saved, "--format", "json"]).await;
    let found: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(found["findings"][0]["nearest"], "neon__run_sql");
    let (_, out, _) = lint(&[&bad, "--catalog", &saved, "--format", "sarif"]).await;
    let sarif: Value = serde_json::from_str(&out).expect("JSON");
    let region = &sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"];
    assert_eq!(region, &json!({"startLine": 2, "startColumn": 5}));
    for wrong in [
        &[good.as_str()][..],
        &[&good, "--catalog", "/no/such/file"],
        &["/no/such/file", "--catalog", &saved],
        &["--catalog", &saved],
    ] {
        assert_eq!(lint(wrong).await.0, 64, "{wrong:?}");
    }
    let (code, _, err) = lint(&[&good, "--url", &url, "--token", "wrong"]).await;
    assert!(code == 69 && err.contains("401"), "{code} {err}");
    system.stop().await;
}

#[tokio::test]
async fn an_exported_catalog_is_what_lint_reads() {
    let upstream = Upstream::start(Speaks::Modern, &["run_sql"]).await.expect("an upstream");
    let tenants = format!("{{acme: {{servers: [{{id: neon, url: \"{}\"}}], default_policy: {{}}}}}}", upstream.url());
    let system = setup(&tenants).start().await;
    let (url, token) = (system.url(""), system.token("acme", "s"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (saved, text) = (path("catalog.json"), path("a.md"));
    let export = ["catalog", "export", "--url", &url, "--token", &token];
    let (code, out, _) = run(&export).await;
    let printed: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &printed["mcp_servers"]["neon"]["tools"]), (0, &json!(["run_sql"])));
    assert_eq!(run(&[&export[..], &["--output", &saved]].concat()).await.0, 0);
    assert_eq!(std::fs::read_to_string(&saved).expect("a file"), out);
    std::fs::write(&text, "neon__run_sql and neon__run_sqll").expect("written");
    let (code, out, _) = run(&["lint", &text, "--catalog", &saved]).await;
    assert!(code == 1 && out.contains("there is no tool neon__run_sqll; nearest: neon__run_sql"), "{out}");
    let (code, _, err) = run(&["catalog", "export", "--url", &url, "--token", "none"]).await;
    assert!(code == 69 && err.contains("401"), "{err}");
    system.stop().await;
}

#[tokio::test]
async fn explain_says_why_in_its_code_and_its_words() {
    let upstream = Upstream::start(Speaks::Modern, &["run_sql", "drop"]).await.expect("an upstream");
    let tenants = format!(
        "{{acme: {{servers: [{{id: neon, url: \"{}\", requires: [db]}}], default_policy: {{allow: [\"neon__*\"], deny: [neon__drop]}}}}}}",
        upstream.url()
    );
    let system = setup(&tenants).start().await;
    system.agent("acme", "s").names().await;
    let admin = format!("http://{}", system.inner().gateway.admin.expect("an address"));
    let ask = async |more: &[&str]| {
        let words = ["explain", "--url", &admin, "--key", ADMIN_KEY, "--tenant", "acme", "--session", "s"];
        run(&[&words[..], more].concat()).await
    };
    let (code, out, err) = ask(&["--scope", "db", "neon__run_sql"]).await;
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("neon__run_sql: allowed\n") && out.contains("\n  allowed by: neon__*\n"), "{out}");
    let (code, out, _) = ask(&["neon__drop"]).await;
    assert!(code == 1 && out.starts_with("neon__drop: not_allowed\n"), "{out}");
    assert!(out.contains("\n  denied by: neon__drop\n") && out.contains("\n  missing scopes: db\n"), "{out}");
    let (code, out, _) = ask(&["--json", "neon__nothing"]).await;
    let body: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &body["verdict"]), (1, &json!("unknown")));
    let (code, _, err) =
        run(&["explain", "--url", &admin, "--key", "none", "--tenant", "acme", "--session", "s", "x"]).await;
    assert!(code == 69 && err.contains("401"), "{err}");
    system.stop().await;
}
