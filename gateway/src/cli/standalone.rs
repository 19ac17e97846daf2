//! `rollcall standalone`: starts everything, says how to use it, serves until it is told to stop.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rollcall_shared::config::{Config, Environment};
use rollcall_shared::cores::Cores;
use rollcall_shared::task::Tasks;
use rollcall_shared::telemetry::{self, Traces};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::{UNAVAILABLE, USAGE, fail, parse_config, quickstart, read_config, say, token};
use crate::standalone::{Link, Standalone};

pub(super) async fn run(path: Option<&Path>, with_public: bool) -> ExitCode {
    let (config, is_quickstart) = match path {
        Some(path) => (read_config(path), false),
        None => match quickstart::Keys::load_or_make().and_then(|keys| quickstart::config(&keys, with_public)) {
            Ok(text) => (parse_config(&text, "the quickstart"), true),
            Err(error) => return fail(UNAVAILABLE, &format!("the quickstart's folder: {error}")),
        },
    };
    let config = match config {
        Ok(config) => config,
        Err(code) => return code,
    };
    let traces = match telemetry::start(&config.telemetry, if is_quickstart { "warn" } else { "info" }) {
        Ok(traces) => traces,
        Err(error) => return fail(USAGE, &error.to_string()),
    };
    let stops = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = stops else {
        return fail(UNAVAILABLE, "signals cannot be received");
    };
    let demo_token = is_quickstart.then(|| demo_token(&config)).transpose();
    let demo_token = match demo_token {
        Ok(token) => token,
        Err(what) => return fail(UNAVAILABLE, &what),
    };
    let tasks = match Cores::start() {
        Ok(cores) => Tasks::over(cores),
        Err(error) => return fail(UNAVAILABLE, &format!("no threads: {error}")),
    };
    let standalone = match Standalone::start(config, Environment::of_process(), Link::Direct, tasks).await {
        Ok(standalone) => standalone,
        Err(error) => {
            return fail(UNAVAILABLE, &format!("{error}; another address can be set: ROLLCALL__LISTEN=127.0.0.1:PORT"));
        }
    };
    say(&format!("MCP endpoint   {}", standalone.gateway.mcp_url()));
    for (name, address) in [("admin API", standalone.gateway.admin), ("operations", standalone.gateway.ops)] {
        if let Some(address) = address {
            say(&format!("{name:<14} http://{address}"));
        }
    }
    tokio::select! {
        () = connect_all(&standalone) => {}
        _ = terminate.recv() => return stop(standalone, traces).await,
        _ = interrupt.recv() => return stop(standalone, traces).await,
    }
    if let Some(token) = demo_token {
        say(&commands(&standalone.gateway.mcp_url(), &token));
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop(standalone, traces).await
}

fn demo_token(config: &Config) -> Result<String, String> {
    let request = token::Request {
        tenant: "demo".to_owned(),
        session: "demo-session".to_owned(),
        ttl: Duration::from_secs(24 * 3600),
        scope: String::new(),
        issuer: None,
    };
    token::mint(config, &request)
}

/// Connects the file's servers, a few at a time, and says how each does. One that fails stops nothing.
async fn connect_all(standalone: &Standalone) {
    use futures_util::StreamExt as _;
    const AT_ONCE: usize = 8;
    let servers = standalone.file_servers().await;
    if servers.is_empty() {
        return;
    }
    say(&format!("connecting {} server(s) ...", servers.len()));
    let connecting = servers.iter().map(|(tenant, server)| async move {
        let began = Instant::now();
        let connected = standalone.connect(tenant, server).await;
        let took = began.elapsed().as_secs_f32();
        match connected {
            Ok(()) => say(&format!("  {tenant}/{server}  ready ({took:.1} s)")),
            Err(failure) => {
                let cause = if failure.detail.is_empty() { String::new() } else { format!(": {}", failure.detail) };
                say(&format!("  {tenant}/{server}  {}{cause}; still trying", failure.reason.label()));
            }
        }
    });
    futures_util::stream::iter(connecting).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// Three commands to copy: list, call, get_api_spec.
fn commands(url: &str, token: &str) -> String {
    let curl = |body: &str| {
        format!("curl -sS {url} -H 'Content-Type: application/json' -H 'Authorization: Bearer {token}' -d '{body}'")
    };
    let list = curl(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    let call = curl(
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"demo__add","arguments":{"a":2,"b":40}}}"#,
    );
    let spec = curl(
        r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"get_api_spec","arguments":{"tool_names":["demo__add"]}}}"#,
    );
    format!(
        "\nsession token  {token}\n\n# list the tools\n{list}\n\n# call one\n{call}\n\n# describe one\n{spec}\n\n\
         Stop with Ctrl-C."
    )
}

async fn stop(standalone: Standalone, traces: Option<Traces>) -> ExitCode {
    say("stopping ...");
    let drained = standalone.stop().await;
    if let Some(traces) = traces {
        tokio::task::spawn_blocking(move || traces.shut_down()).await.ok();
    }
    if drained { ExitCode::SUCCESS } else { fail(UNAVAILABLE, "some calls did not end in time") }
}
