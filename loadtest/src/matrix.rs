//! The cross-era matrix: real clients × real servers × what MCP can do, through Rollcall or direct, as a table.
//!
//! The clients are scripts beside the pinned peers (`loadtest/peers`), each on a client library that Rollcall's users
//! have; so are two of the servers. A cell is `pass`, `FAIL` with the reason below the table, or `n/a` with the one reason
//! why it cannot be, which is data (`reasons.rs`), never guessed from what happened. Where a specification is the reason,
//! the attempt is made all the same, and must be refused with an error and in time. It knows none of the gateway's code.

mod cast;
mod cell;
mod driver;
mod inspector;
mod plan;
mod process;
mod reasons;
mod stage;
mod table;

use std::io::Write as _;

use cast::{Action, Client, Route, Server};
use cell::Row;
use clap::{Args, ValueEnum as _};
use stage::Stage;

/// What the command line may narrow.
#[derive(Args)]
pub(crate) struct Options {
    /// Each client against the servers themselves, without Rollcall.
    #[arg(long)]
    direct: bool,
    /// Only these clients.
    #[arg(long = "client", value_enum)]
    clients: Vec<Client>,
    /// Only these servers.
    #[arg(long = "server", value_enum)]
    servers: Vec<Server>,
}

/// Runs the matrix and prints its table. Whether every cell that can pass did.
pub(crate) async fn run(options: Options) -> Result<bool, String> {
    let route = if options.direct { Route::Direct } else { Route::Rollcall };
    let clients = some_or_all(options.clients);
    let servers = some_or_all(options.servers);
    let stage = Stage::set(route, &clients, &servers).await?;
    let mut rows = Vec::new();
    for &client in &clients {
        for &server in &servers {
            say_to_stderr(&format!("{} × {}", client.name(), server.name()));
            rows.push(play(&stage, route, client, server).await?);
        }
    }
    let good = rows.iter().all(Row::is_good);
    write!(std::io::stdout(), "{}", table::render(&rows)).map_err(|e| e.to_string())?;
    if !good {
        say_to_stderr(&format!("the logs are in {}", stage.keep().display()));
    }
    Ok(good)
}

async fn play(stage: &Stage, route: Route, client: Client, server: Server) -> Result<Row, String> {
    let planned = plan::of(server, &stage.repository());
    let tried: serde_json::Map<_, _> = planned
        .into_iter()
        .filter(|(action, _)| reasons::find(route, client, server, *action).is_none_or(|reason| reason.is_refused))
        .map(|(action, plan)| (action.name().to_owned(), plan))
        .collect();
    let report = if tried.is_empty() {
        Ok(serde_json::Value::Null)
    } else {
        let (url, token) = stage.reach(client, server).await?;
        driver::drive(stage, client, &url, &token, &tried).await
    };
    Ok(Row::judge(route, client, server, &report))
}

fn some_or_all<T: clap::ValueEnum + Clone>(some: Vec<T>) -> Vec<T> {
    if some.is_empty() { T::value_variants().to_vec() } else { some }
}

/// Progress of the run: the table alone is on standard output.
fn say_to_stderr(line: &str) {
    writeln!(std::io::stderr(), "matrix: {line}").ok();
}

/// All actions, in the order of the columns.
fn actions() -> &'static [Action] {
    Action::value_variants()
}
