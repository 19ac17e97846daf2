//! The program `rollcall-loadtest`: the conformance run, the matrix, the capacity run, the recall of the search, and parts of a test bed to be started by hand.

mod matrix;

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rollcall_loadtest::upstream::{Reply, Speaks, Upstream, tool};
use rollcall_loadtest::{capacity, conformance, recall};
use serde_json::json;

/// Upstreams to test and load Rollcall with.
#[derive(Parser)]
#[command(name = "rollcall-loadtest", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A mock MCP server over Streamable HTTP.
    Upstream {
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// Speaks the legacy era, with sessions, instead of 2026-07-28.
        #[arg(long)]
        legacy: bool,
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=5000))]
        tools: u32,
        /// Milliseconds until a call is answered.
        #[arg(long, default_value_t = 0)]
        latency_ms: u64,
        /// Bytes of text in a result.
        #[arg(long, default_value_t = 64)]
        result_bytes: usize,
    },
    /// Real clients against real servers, through Rollcall or direct, as a table of what works.
    Matrix(matrix::Options),
    /// Runs the official conformance suite: the fixture and Rollcall as servers, and Rollcall as a client.
    Conformance(conformance::Options),
    /// What ten thousand tenants and a hundred thousand sessions cost a gateway. Build it for release.
    Capacity(capacity::Options),
    /// How well the search finds what people ask for.
    Recall(recall::Options),
    /// What the suite runs as its client.
    #[command(hide = true)]
    DriveClient(conformance::DriveOptions),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Upstream { listen, legacy, tools, latency_ms, result_bytes } => {
            let speaks = if legacy { Speaks::Legacy } else { Speaks::Modern };
            upstream(listen, speaks, tools, latency_ms, result_bytes).await
        }
        Command::Conformance(options) => conformance::run(&options).await,
        Command::DriveClient(options) => conformance::drive(&options).await,
        Command::Recall(options) => {
            let say = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
            exit_code(recall::run(&options, say).await)
        }
        Command::Matrix(options) => exit_code(matrix::run(options).await),
        Command::Capacity(options) => {
            let say = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
            exit_code(capacity::run(&options, say).await)
        }
    }
}

/// Whether all is well, or why it could not be found out.
fn exit_code(outcome: Result<bool, String>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            writeln!(std::io::stderr(), "rollcall-loadtest: {error}").ok();
            ExitCode::from(69)
        }
    }
}

async fn upstream(listen: SocketAddr, speaks: Speaks, tools: u32, latency_ms: u64, result_bytes: usize) -> ExitCode {
    let upstream = match Upstream::start_at(listen, speaks, &[]).await {
        Ok(upstream) => upstream,
        Err(error) => {
            writeln!(std::io::stderr(), "rollcall-loadtest: {listen}: {error}").ok();
            return ExitCode::from(69);
        }
    };
    upstream.set_tools((0..tools).map(|n| tool(&format!("tool_{n:04}"))).collect());
    let result = json!({"content": [{"type": "text", "text": "x".repeat(result_bytes)}]}).to_string();
    upstream.answers(move |_| match latency_ms {
        0 => Reply::Result(result.clone()),
        ms => Reply::After(Duration::from_millis(ms), Box::new(Reply::Result(result.clone()))),
    });
    writeln!(std::io::stdout(), "{}", upstream.url()).ok();
    // Until the terminal or the parent ends it.
    tokio::signal::ctrl_c().await.ok();
    ExitCode::SUCCESS
}
