//! The program `rollcall-worker`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rollcall_shared::config::{Config, Environment};
use rollcall_shared::cores::Cores;
use rollcall_shared::task::{Signals, Tasks};
use rollcall_shared::telemetry;
use rollcall_worker::node::{Node, StartError};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit codes of sysexits.h: what scripts can tell apart.
const USAGE: u8 = 64;
const UNAVAILABLE: u8 = 69;

/// Rollcall's worker: owns the connections to MCP servers, a share of them among others of its kind.
#[derive(Parser)]
#[command(name = "rollcall-worker", version, about, max_term_width = 100)]
struct Cli {
    /// YAML configuration, the same as the gateways'.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(UNAVAILABLE, &format!("no runtime: {error}")),
    };
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    runtime.block_on(run(cli))
}

async fn run(cli: Cli) -> ExitCode {
    let environment = Environment::of_process();
    let config = match Config::read_file(&cli.config, &environment) {
        Ok(config) => config,
        Err(report) => return fail(USAGE, &report),
    };
    let traces = match telemetry::start(&config.telemetry, "info") {
        Ok(traces) => traces,
        Err(error) => return fail(USAGE, &error.to_string()),
    };
    let Ok(mut signals) = Signals::new() else { return fail(UNAVAILABLE, "signals cannot be received") };
    let tasks = match Cores::start() {
        Ok(cores) => Tasks::over(cores),
        Err(error) => return fail(UNAVAILABLE, &format!("no threads: {error}")),
    };
    let node = match Node::start(config, environment, tasks).await {
        Ok(node) => node,
        Err(error @ StartError::Configuration(_)) => return fail(USAGE, &error.to_string()),
        Err(error) => return fail(UNAVAILABLE, &error.to_string()),
    };
    say(&format!("link           {}", node.address));
    signals.received().await;
    say("draining ...");
    let drained = tokio::select! {
        drained = node.drain() => drained,
        // Asked twice, it does not wait.
        () = signals.received() => false,
    };
    if let Some(traces) = traces {
        tokio::task::spawn_blocking(move || traces.shut_down()).await.ok();
    }
    if drained { ExitCode::SUCCESS } else { fail(UNAVAILABLE, "some calls did not end in time") }
}

/// Says why on standard error.
fn fail(code: u8, what: &str) -> ExitCode {
    writeln!(std::io::stderr(), "rollcall-worker: {what}").ok();
    ExitCode::from(code)
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // A closed standard output is the reader's choice; the program serves on.
    writeln!(out, "{text}").and_then(|()| out.flush()).ok();
}
