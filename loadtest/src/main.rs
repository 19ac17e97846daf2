//! The program `rollcall-loadtest`: the conformance run, the matrix, the capacity run, the recall of the search, and parts of a test bed to be started by hand.

mod matrix;

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Parser, Subcommand};
use rollcall_loadtest::hop::Hop;
use rollcall_loadtest::upstream::fast::{self, Fast, Shape};
use rollcall_loadtest::upstream::{Reply, Speaks, Upstream, tool};
use rollcall_loadtest::{capacity, compare, conformance, recall};
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
        /// Every so manieth call is answered with an error.
        #[arg(long, default_value_t = 0)]
        errors_every: u64,
        /// The fast one: both eras at once, answers made beforehand. The query of a request's URL can say otherwise for
        /// that request, as in `/mcp?tools=2000&result_bytes=65536`.
        #[arg(long)]
        fast: bool,
    },
    /// A bare hyper hop, which forwards bytes and does nothing else: the floor under every gateway.
    Hop {
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
        /// `http://host:port` to forward to.
        #[arg(long)]
        to: url::Url,
    },
    /// The same work straight, over bare hops, through Rollcall and through other gateways, as one table. Build it for
    /// release.
    Compare(compare::Options),
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
        Command::Upstream { listen, legacy, tools, latency_ms, result_bytes, errors_every, fast } => {
            let latency = Duration::from_millis(latency_ms);
            let shape = Shape { tools: tools as usize, result_bytes, latency, errors_every, legacy };
            if fast { fast_upstream(listen, shape).await } else { upstream(listen, &shape).await }
        }
        Command::Hop { listen, to } => bare_hop(listen, &to).await,
        Command::Compare(options) => {
            let say = |line: &str| drop(writeln!(std::io::stdout(), "{line}"));
            exit_code(compare::run(&options, say).await)
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

/// Says where it is, and waits until the terminal or the parent ends it.
async fn stay(url: &str) -> ExitCode {
    writeln!(std::io::stdout(), "{url}").ok();
    tokio::signal::ctrl_c().await.ok();
    ExitCode::SUCCESS
}

fn unavailable(listen: SocketAddr, error: &std::io::Error) -> ExitCode {
    writeln!(std::io::stderr(), "rollcall-loadtest: {listen}: {error}").ok();
    ExitCode::from(69)
}

async fn fast_upstream(listen: SocketAddr, shape: Shape) -> ExitCode {
    match Fast::start(listen, shape).await {
        Ok(upstream) => stay(&upstream.url("")).await,
        Err(error) => unavailable(listen, &error),
    }
}

async fn bare_hop(listen: SocketAddr, to: &url::Url) -> ExitCode {
    let Some(address) = to.socket_addrs(|| None).ok().and_then(|found| found.first().copied()) else {
        writeln!(std::io::stderr(), "rollcall-loadtest: {to} has no address").ok();
        return ExitCode::from(64);
    };
    match Hop::start(listen, address).await {
        Ok(hop) => stay(&format!("http://{}", hop.address)).await,
        Err(error) => unavailable(listen, &error),
    }
}

async fn upstream(listen: SocketAddr, shape: &Shape) -> ExitCode {
    let speaks = if shape.legacy { Speaks::Legacy } else { Speaks::Modern };
    let upstream = match Upstream::start_at(listen, speaks, &[]).await {
        Ok(upstream) => upstream,
        Err(error) => return unavailable(listen, &error),
    };
    upstream.set_tools((0..shape.tools).map(|n| tool(&fast::tool_name(n))).collect());
    let result = json!({"content": [{"type": "text", "text": "x".repeat(shape.result_bytes)}]}).to_string();
    let (latency, errors_every, calls) = (shape.latency, shape.errors_every, AtomicU64::new(0));
    upstream.answers(move |_| {
        let number = calls.fetch_add(1, Ordering::Relaxed) + 1;
        let reply = match errors_every {
            0 => Reply::Result(result.clone()),
            every if number.is_multiple_of(every) => {
                Reply::Error(r#"{"code":-32603,"message":"an error, as was asked for"}"#.to_owned())
            }
            _ => Reply::Result(result.clone()),
        };
        if latency.is_zero() { reply } else { Reply::After(latency, Box::new(reply)) }
    });
    stay(&upstream.url()).await
}
