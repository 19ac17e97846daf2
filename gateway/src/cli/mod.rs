//! The command line.

mod ask;
mod catalog;
mod demo_server;
mod explain;
mod gateway;
mod lint;
mod quickstart;
#[cfg(feature = "standalone")]
mod standalone;
mod token;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rollcall_shared::config::{Config, Environment};

/// Exit codes of sysexits.h: what scripts can tell apart.
const USAGE: u8 = 64;
const UNAVAILABLE: u8 = 69;

/// A distributed, multi-tenant MCP gateway: the tool name is the only address.
#[derive(Parser)]
#[command(name = "rollcall", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Gateway and worker in one process, with an embedded store.
    #[cfg(feature = "standalone")]
    Standalone {
        /// YAML configuration. Without it, a quickstart with a demo tenant and a demo server runs.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Adds public MCP servers to the quickstart, through npx and uvx.
        #[arg(long, conflicts_with = "config")]
        with_public: bool,
    },
    /// A gateway node among others: shares its store with them and with its workers.
    Gateway {
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Gives a new shared store its markers; without them it allows nothing, so that a store that lost everything is told
    /// apart from a new one.
    Seed {
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Also where there are markers: what the store holds now counts, and what it lost counts as never written.
        #[arg(long)]
        anew: bool,
    },
    /// Mints a session token for development, where the issuer's key is in the configuration (hs256_key).
    Token {
        /// YAML configuration. Without it, the quickstart's issuer signs.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[arg(long, default_value = "demo")]
        tenant: String,
        #[arg(long, default_value = "demo-session")]
        session: String,
        /// How long it is valid: 30s, 5m, 1h.
        #[arg(long, default_value = "1h", value_parser = token::parse_ttl)]
        ttl: std::time::Duration,
        /// Scopes, separated by spaces.
        #[arg(long, default_value = "")]
        scope: String,
        /// The issuer, where the configuration has several.
        #[arg(long)]
        issuer: Option<String>,
    },
    /// Finds tool ids in prompts, tests, docs and code, and names those that do not exist. Exits 0 where all is well, 1 where
    /// an id does not exist, 2 where too few were found or an exemption does not hold, 64 where it was called wrongly.
    Lint(lint::Options),
    /// What a session may use, from a running Rollcall.
    #[command(subcommand)]
    Catalog(catalog::Command),
    /// Why a session may, or may not, use a tool, prompt or resource. Exits 0 where it may, 1 where it may not.
    Explain(explain::Options),
    /// A small MCP server over standard input and output, for trying out.
    DemoServer,
}

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap prints to the right stream.
            error.print().ok();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(UNAVAILABLE, &format!("no runtime: {error}")),
    };
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    match cli.command {
        #[cfg(feature = "standalone")]
        Command::Standalone { config, with_public } => {
            runtime.block_on(standalone::run(config.as_deref(), with_public))
        }
        Command::Gateway { config } => runtime.block_on(gateway::run(&config)),
        Command::Seed { config, anew } => runtime.block_on(gateway::seed(&config, anew)),
        Command::Token { config, tenant, session, ttl, scope, issuer } => {
            let request = token::Request { tenant, session, ttl, scope, issuer };
            token::run(config.as_deref(), &request)
        }
        Command::Lint(options) => runtime.block_on(lint::run(options)),
        Command::Catalog(command) => runtime.block_on(catalog::run(command)),
        Command::Explain(options) => runtime.block_on(explain::run(options)),
        Command::DemoServer => runtime.block_on(demo_server::run()),
    }
}

/// Reads a configuration, or prints every problem and gives the exit code.
fn read_config(path: &Path) -> Result<Config, ExitCode> {
    Config::read_file(path, &Environment::of_process()).map_err(|report| fail(USAGE, &report))
}

fn parse_config(text: &str, name: &str) -> Result<Config, ExitCode> {
    Config::read(text, &Environment::of_process()).map_err(|problems| {
        let mut report = format!("{name} has {} problem(s):\n", problems.len());
        for problem in problems {
            report.push_str(&format!("  {problem}\n"));
        }
        fail(USAGE, report.trim_end())
    })
}

/// Says why on standard error.
fn fail(code: u8, what: &str) -> ExitCode {
    writeln!(std::io::stderr(), "rollcall: {what}").ok();
    ExitCode::from(code)
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // A closed standard output is the reader's choice; the program serves on.
    out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).ok();
}
