//! `rollcall-loadtest conformance`: the official conformance suite against Rollcall, one command.
//!
//! It installs the pinned suite, builds the fixture (`examples/fixture`) and Rollcall, and runs each revision's
//! requirements against the fixture itself and through Rollcall, over HTTP and over stdio. A cluster of two gateways
//! and three workers, where each request comes to another gateway than the one before, must give the same. Then it runs the
//! scenarios in which the suite is the server and Rollcall its client. It fails where any check fails, and where a run through Rollcall
//! gives other numbers than the fixture itself.

mod clientside;
mod drive;
mod proxy;
mod report;
mod suite;
mod target;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use http::Uri;
use tokio::signal::unix::{SignalKind, signal};

pub use drive::{DriveOptions, drive};
pub use proxy::Proxy;
use report::{Row, report, say};
use target::Target;

use crate::programs::{self, Programs};

/// The revisions that the suite has frozen requirements for, both served by Rollcall.
const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];

/// Exit code of a run that was interrupted.
const INTERRUPTED: u8 = 130;
/// Exit code where a program is missing or does not start.
const UNAVAILABLE: u8 = 69;

/// What the command runs.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Tests the server at this URL instead of the fixture and Rollcall.
    #[arg(long)]
    url: Option<Uri>,
    /// The bearer token that goes with each request to the URL.
    #[arg(long, requires = "url")]
    token: Option<String>,
    /// Only the runs in which Rollcall reaches the fixture so.
    #[arg(long, conflicts_with = "url")]
    transport: Option<Transport>,
    /// Only the scenarios in which Rollcall is the suite's server.
    #[arg(long)]
    server_only: bool,
    /// Only the scenarios in which Rollcall is the suite's client.
    #[arg(long, visible_alias = "client", conflicts_with_all = ["server_only", "url", "transport"])]
    client_only: bool,
    /// Only this revision's requirements.
    #[arg(long, value_parser = PossibleValuesParser::new(REVISIONS))]
    requirements: Option<String>,
    /// Only this scenario.
    #[arg(long)]
    scenario: Option<String>,
    /// Keeps the suite's artifacts even where everything passes.
    #[arg(long)]
    keep: bool,
}

/// How Rollcall reaches the fixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    Http,
    Stdio,
    /// Over HTTP, through two gateways behind a round-robin and three workers, each request on a connection of its own.
    Cluster,
}

impl Options {
    fn revisions(&self) -> impl Iterator<Item = &'static str> {
        REVISIONS.into_iter().filter(|revision| self.requirements.as_deref().is_none_or(|only| only == *revision))
    }

    /// Whether the suite is run as a client. The name of a scenario says which side it is for.
    fn tests_the_server(&self) -> bool {
        !self.client_only && !self.scenario.as_deref().is_some_and(clientside::knows)
    }

    /// Whether the suite is run as a server, which Rollcall reaches over HTTP alone.
    fn tests_the_client(&self) -> bool {
        let narrowed = self.server_only || self.url.is_some() || self.transport.is_some();
        !narrowed && self.scenario.as_deref().is_none_or(clientside::knows)
    }

    fn covers(&self, transport: Transport) -> bool {
        self.transport.is_none_or(|only| only == transport)
    }
}

/// Runs the command. Children end with it, also where it is interrupted.
pub async fn run(options: &Options) -> ExitCode {
    let stops = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = stops else {
        return ExitCode::from(UNAVAILABLE);
    };
    // Dropped when a signal comes first, and with it every child.
    let ended = tokio::select! {
        ended = run_all(options) => ended,
        _ = terminate.recv() => return ExitCode::from(INTERRUPTED),
        _ = interrupt.recv() => return ExitCode::from(INTERRUPTED),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("conformance: {error}"));
            ExitCode::from(UNAVAILABLE)
        }
    }
}

/// Whether all is well.
async fn run_all(options: &Options) -> io::Result<bool> {
    if !options.tests_the_server() && !options.tests_the_client() {
        return Err(io::Error::other("nothing is left to run"));
    }
    programs::install_peers().await?;
    let programs = if options.url.is_none() { Some(programs::build().await?) } else { None };
    let folder = tempfile::Builder::new().prefix("rollcall-conformance-").tempdir()?;
    let mut good = true;
    if options.tests_the_server() {
        good &= run_server_side(options, programs.as_ref(), folder.path()).await?;
    }
    if let Some(programs) = programs.as_ref().filter(|_| options.tests_the_client()) {
        let revisions: Vec<_> = options.revisions().collect();
        good &= clientside::run(&programs.rollcall, &revisions, options.scenario.as_deref(), folder.path()).await?;
    }
    if options.keep || !good {
        say(&format!("artifacts: {}", folder.keep().display()));
    }
    Ok(good)
}

async fn run_server_side(options: &Options, programs: Option<&Programs>, folder: &Path) -> io::Result<bool> {
    let mut rows = Vec::new();
    for target in &targets(options, programs) {
        for revision in options.revisions() {
            say(&format!("running {} over {}, {revision}", target.name(), target.transport()));
            let place = folder.join(format!("{}-{}-{revision}", target.name(), target.transport()));
            let outcome = run_one(target, revision, options.scenario.as_deref(), &place).await;
            rows.push(Row { target: target.name(), transport: target.transport(), revision, outcome });
        }
    }
    let (lines, good) = report(&rows, options.scenario.is_some());
    lines.iter().for_each(|line| say(line));
    Ok(good)
}

/// The fixture itself comes first: what it gives is what Rollcall is measured against.
fn targets(options: &Options, programs: Option<&Programs>) -> Vec<Target> {
    if let Some(url) = &options.url {
        return vec![Target::Other { url: url.clone(), token: options.token.clone() }];
    }
    let Some(programs) = programs else { return Vec::new() };
    let mut targets = vec![Target::Fixture(programs.fixture.clone())];
    for transport in [Transport::Http, Transport::Stdio, Transport::Cluster] {
        if options.covers(transport) {
            targets.push(Target::Rollcall {
                transport,
                fixture: programs.fixture.clone(),
                rollcall: programs.rollcall.clone(),
            });
        }
    }
    targets
}

/// Each run has processes of its own, so that none meets what another has left behind.
async fn run_one(target: &Target, revision: &str, scenario: Option<&str>, folder: &Path) -> io::Result<suite::Outcome> {
    std::fs::create_dir_all(folder)?;
    let started = target.start(revision, folder).await?;
    let outcome = suite::run(&started.url, revision, scenario, folder).await;
    started.end().await;
    outcome
}
