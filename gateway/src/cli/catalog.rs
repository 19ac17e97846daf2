//! `rollcall catalog export`: what a session may use, saved for `rollcall lint --catalog`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{UNAVAILABLE, ask, fail, say};

#[derive(Subcommand)]
pub(super) enum Command {
    /// Writes the manifest of a session with all its names, as JSON, for `lint --catalog`.
    Export(Export),
}

#[derive(Args)]
pub(super) struct Export {
    /// A running Rollcall, such as https://gateway.example
    #[arg(long)]
    url: String,
    /// A session token for it.
    #[arg(long, env = "ROLLCALL_TOKEN", hide_env_values = true)]
    token: String,
    /// Instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The manifest of a running Rollcall, with all its names.
pub(super) async fn of(url: &str, token: &str) -> Result<Value, String> {
    ask::get(url, "/v1/manifest?names=all", token).await
}

pub(super) async fn run(Command::Export(options): Command) -> ExitCode {
    let Export { url, token, output } = options;
    let text = match of(&url, &token).await {
        Ok(value) => format!("{value:#}"),
        Err(error) => return fail(UNAVAILABLE, &format!("{url}: {error}")),
    };
    match output {
        None => say(&text),
        Some(path) => {
            if let Err(error) = std::fs::write(&path, text + "\n") {
                return fail(UNAVAILABLE, &format!("{}: {error}", path.display()));
            }
        }
    }
    ExitCode::SUCCESS
}
