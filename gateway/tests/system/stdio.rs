//! Servers as children: framed, isolated, supervised, reaped.

use std::path::Path;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::harness::{over_both, peers_folder, program, setup, text_of, until};

fn scripted(id: &str, more: &str) -> String {
    format!("{{id: {id}, command: [python3, \"{}\"]{more}}}", peers_folder().join("scripted.py").display())
}

fn tenant(servers: &[String]) -> String {
    format!("{{acme: {{servers: [{}], default_policy: {{}}}}}}", servers.join(", "))
}

/// Whether a process runs; one that is dead but not reaped does not.
fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

#[tokio::test]
async fn our_own_demo_server_is_modern_and_does_all_that_it_offers() {
    over_both(async |link| {
        let server = format!("{{id: demo, command: [\"{}\", demo-server]}}", program());
        let system = setup(&tenant(&[server])).link(link).start().await;
        let agent = system.agent("acme", "s");
        let names = agent.names().await;
        assert_eq!(names, ["demo__add", "demo__countdown", "demo__echo", "demo__word_count", "get_api_spec"]);
        let sum = agent.call("demo__add", json!({"a": 2, "b": 40})).await;
        assert_eq!(sum["result"]["structuredContent"]["sum"], 42.0);
        assert_eq!(sum["result"]["resultType"], "complete", "a modern server was spoken to in its own era");
        assert_eq!(agent.call("demo__add", json!({"a": "x"})).await["result"]["isError"], true);
        let params = json!({"name": "demo__countdown", "arguments": {"steps": 3}, "_meta": {"progressToken": "p"}});
        let answer = agent.client.modern("/mcp", "tools/call", params).await.expect("an answer");
        let told = answer.events().iter().filter(|e| e["params"]["progressToken"] == "p").count();
        assert_eq!(told, 3);
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_callers_newlines_never_become_a_second_message() {
    over_both(async |link| {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let server = scripted("s", &format!(", env: {{LOG: \"{}\"}}", log.path().display()));
        let system = setup(&tenant(&[server])).link(link).start().await;
        let agent = system.agent("acme", "s");
        agent.names().await;
        let second = r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"die"}}"#;
        let bodies = [
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"s__echo\",\"arguments\":{\n}\n}\n}".to_owned(),
            format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":\"s__echo\",\"arguments\":{{\"a\":\r\n{second}\r\n}}}}}}"),
            format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":\"s__echo\",\"arguments\":{{}},\"_meta\":{{\"com.example/x\":\n{second}\n}}}}}}"),
        ];
        for body in bodies {
            let headers = [("content-type", "application/json")];
            let answer = agent.client.send(Method::POST, "/mcp", &headers, body.clone()).await.expect("an answer");
            assert!(answer.json()["result"].is_object(), "{body}: {}", answer.text());
        }
        let received = std::fs::read_to_string(log.path()).expect("a log");
        let calls = received.lines().filter(|line| {
            let message: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("a broken line: {line}"));
            message["method"] == "tools/call"
        });
        assert_eq!(calls.count(), 3, "{received}");
        assert!(!received.contains("\"id\": 9,") && received.lines().all(|line| !line.starts_with(r#"{"jsonrpc":"2.0","id":9"#)));
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_child_sees_what_it_was_given_and_nothing_of_the_worker() {
    let server = scripted("s", ", env: {GIVEN: \"${FROM_OUTSIDE}\"}");
    let system = setup(&tenant(&[server]))
        .environment("FROM_OUTSIDE", "given")
        .environment("AWS_SECRET_ACCESS_KEY", "canary")
        .environment("ROLLCALL_SEAL_1", "canary")
        .start()
        .await;
    let text = system.agent("acme", "s").text("s__env", json!({})).await;
    let seen: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(seen["GIVEN"], "given");
    assert!(seen["PATH"].is_string());
    assert!(!text.contains("canary"), "{text}");
    system.stop().await;
}

#[tokio::test]
async fn noise_on_a_childs_output_ends_nothing() {
    let system = setup(&tenant(&[scripted("s", "")])).start().await;
    let agent = system.agent("acme", "s");
    assert_eq!(agent.text("s__noise", json!({})).await, "noise made");
    assert_eq!(agent.text("s__echo", json!({"n": 1})).await, r#"{"n": 1}"#);
    system.stop().await;
}

#[tokio::test]
async fn a_child_that_dies_fails_its_call_once_and_the_next_call_finds_a_new_one() {
    over_both(async |link| {
        let system = setup(&tenant(&[scripted("s", "")])).link(link).start().await;
        let agent = system.agent("acme", "s");
        let first = agent.text("s__pid", json!({})).await;
        let died = agent.call("s__die", json!({})).await;
        assert!(text_of(&died).contains("(connection_lost). The call may have run."), "{died}");
        let second = agent.text("s__pid", json!({})).await;
        assert_ne!(first, second);
        // Killed from outside while nobody calls: the broken pipe is found by the next call, which is retried.
        std::process::Command::new("kill").args(["-9", &second]).status().expect("kill");
        until("it is gone", async || !is_alive(&second)).await;
        let third = agent.text("s__pid", json!({})).await;
        assert!(third != second && third.parse::<u32>().is_ok(), "{third}");
        system.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_crash_loop_backs_off_and_hurts_no_neighbour() {
    let broken = scripted("broken", ", env: {CRASH: \"1\"}");
    let system = setup(&tenant(&[broken, scripted("good", "")])).start().await;
    let agent = system.agent("acme", "s");
    assert!(agent.names().await.contains(&"good__echo".to_owned()));
    let refused = agent.call("broken__x", json!({})).await;
    assert_eq!(refused["result"]["structuredContent"]["unavailable"][0]["reason"], "start_failed", "{refused}");
    assert_eq!(agent.text("good__echo", json!({})).await, "{}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let metrics = system.metrics().await;
    let count = metrics
        .lines()
        .find(|line| line.contains(r#"reason="start_failed",server="broken""#))
        .and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
        .expect("a count");
    assert!(count < 10, "{count} attempts in a few seconds is a tight loop");
    system.stop().await;
}

#[tokio::test]
async fn children_and_their_children_end_with_the_program() {
    let system = setup(&tenant(&[scripted("s", "")])).start().await;
    let agent = system.agent("acme", "s");
    let leader = agent.text("s__pid", json!({})).await;
    let helper = agent.text("s__spawn", json!({})).await;
    assert!(is_alive(&leader) && is_alive(&helper));
    system.stop().await;
    until("the group has ended", async || !is_alive(&leader) && !is_alive(&helper)).await;
}

#[tokio::test]
async fn an_idle_child_is_closed_and_a_session_can_have_one_of_its_own() {
    let servers = [scripted("idle", ", idle_timeout: 1s"), scripted("own", ", isolation: session")];
    let system = setup(&tenant(&servers)).start().await;
    let (one, two) = (system.agent("acme", "one"), system.agent("acme", "two"));
    let pid = one.text("idle__pid", json!({})).await;
    assert_eq!(two.text("idle__pid", json!({})).await, pid, "shared by the tenant");
    until("the idle child is closed", async || !is_alive(&pid)).await;
    assert_ne!(one.text("idle__pid", json!({})).await, pid);
    let (first, second) = (one.text("own__pid", json!({})).await, two.text("own__pid", json!({})).await);
    assert_ne!(first, second);
    assert_eq!(one.text("own__pid", json!({})).await, first);
    system.stop().await;
}

#[tokio::test]
async fn a_slow_child_is_cut_at_its_deadline_and_told() {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let server = scripted("s", &format!(", call_timeout: 500ms, env: {{LOG: \"{}\"}}", log.path().display()));
    let system = setup(&tenant(&[server])).start().await;
    let agent = system.agent("acme", "s");
    agent.names().await;
    let answer = agent.call("s__sleep", json!({"s": 2})).await;
    assert!(text_of(&answer).contains("(timed_out). The call may have run."), "{answer}");
    until("the child is told", async || {
        std::fs::read_to_string(log.path()).is_ok_and(|log| log.contains("notifications/cancelled"))
    })
    .await;
    system.stop().await;
}

#[tokio::test]
async fn two_connections_of_one_server_share_a_name_and_outlive_a_broken_pipe() {
    over_both(async |link| {
        let logs = [tempfile::NamedTempFile::new().expect("a file"), tempfile::NamedTempFile::new().expect("a file")];
        let owner = "ue03d5aec0000000000000000000000aa__neon";
        let server = |id: &str, who: &str, log: &Path| {
            scripted(&format!("{owner}_{id}"), &format!(", env: {{WHO: {who}, LOG: \"{}\"}}", log.display()))
        };
        let servers = [server("46fb2cad6010", "one", logs[0].path()), server("9c1d00aa11bb", "two", logs[1].path())];
        let system = setup(&tenant(&servers)).link(link).start().await;
        let agent = system.agent("acme", "s");
        let delete =
            async |alias: &str, n: u32| agent.text(&format!("{alias}__delete_function"), json!({"n": n})).await;
        assert_eq!(delete("neon_46fb", 1).await, r#"deleted by one with {"n": 1}"#);
        assert_eq!(delete("neon_9c1d", 1).await, r#"deleted by two with {"n": 1}"#);
        let first = agent.text("neon_46fb__pid", json!({})).await;
        std::process::Command::new("kill").args(["-9", &first]).status().expect("kill");
        until("it is gone", async || !is_alive(&first)).await;
        // The next call meets a dead pipe or a dead connection, and runs on a new child, once.
        assert_eq!(delete("neon_46fb", 2).await, r#"deleted by one with {"n": 2}"#);
        assert_eq!(delete("neon_9c1d", 2).await, r#"deleted by two with {"n": 2}"#);
        for log in &logs {
            let received = std::fs::read_to_string(log.path()).expect("a log");
            let calls = received.lines().filter(|line| line.contains(r#""name":"delete_function""#)).count();
            assert_eq!(calls, 2, "each upstream sees its real name, once a call: {received}");
        }
        system.stop().await;
    })
    .await;
}
