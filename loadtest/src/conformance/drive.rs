//! The client of the suite's mock servers: a plain client, and Rollcall between it and the mock.
//!
//! The suite runs this program with the mock's URL and, in the environment, the scenario, its revision and its context.
//! Whatever it starts ends with it, also where the suite gives up.

mod caller;
mod play;
mod replies;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use http::Uri;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::target;
use crate::client::Client;

/// The file in which it says why it gave up.
pub(super) const GAVE_UP: &str = "gave-up.txt";
/// Longest from start to end. A scenario takes a second or two; the machine may be busy.
const LONGEST: Duration = Duration::from_secs(75);

/// Its mock asks on the standing stream, without naming the call that it asks for. On a connection that several sessions
/// share nobody could say whom it means, so Rollcall lets that be asked only where each session has its own.
const ASKS_APART: &str = "elicitation-sep1034-client-defaults";

/// What the suite's command line says.
#[derive(Debug, clap::Args)]
pub struct DriveOptions {
    /// The program that stands before the mock.
    #[arg(long)]
    rollcall: PathBuf,
    /// Where its configuration and logs go.
    #[arg(long)]
    folder: PathBuf,
    /// Where the mock serves.
    url: Uri,
}

/// Runs the scenario that the environment names.
pub async fn drive(options: &DriveOptions) -> ExitCode {
    // The suite may be killed, and then tells nobody.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM)).ok();
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return ExitCode::FAILURE };
    let driven = tokio::select! {
        driven = tokio::time::timeout(LONGEST, run(options)) => {
            driven.unwrap_or_else(|_| Err(io::Error::other("it took too long")))
        }
        _ = terminate.recv() => Err(io::Error::other("the suite wants no more of it")),
    };
    let Err(error) = driven else { return ExitCode::SUCCESS };
    writeln!(io::stderr(), "{error}").ok();
    std::fs::write(options.folder.join(GAVE_UP), error.to_string()).ok();
    ExitCode::FAILURE
}

async fn run(options: &DriveOptions) -> io::Result<()> {
    let told = |name: &str| std::env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")));
    let scenario = told("MCP_CONFORMANCE_SCENARIO")?;
    let revision = told("MCP_CONFORMANCE_PROTOCOL_VERSION")?;
    let context: Value = match std::env::var("MCP_CONFORMANCE_CONTEXT") {
        Ok(context) => serde_json::from_str(&context)?,
        Err(_) => Value::Null,
    };
    let isolation = if scenario == ASKS_APART { "session" } else { "shared" };
    let server = format!("url: {}, isolation: {isolation}", json!(options.url.to_string()));
    let (mut running, url, token) = target::start_before(&options.rollcall, &server, &options.folder).await?;
    let reached = running.says("  acme/fixture").await?;
    if !reached.starts_with("ready") {
        return Err(io::Error::other(format!("Rollcall cannot use the mock: {reached}")));
    }
    let client = Client::new(format!("http://{}", target::authority(&url)?)).with_token(token);
    let played = play::play(&client, target::PATH, &revision, &scenario, &context).await;
    running.end().await;
    played.map_err(io::Error::other)
}
