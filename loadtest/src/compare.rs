//! `rollcall-loadtest compare`: the same work over several ways, in turns within one run, as one table.
//!
//! The ways are: straight to the upstream, over a bare hyper hop, over two of them, through Rollcall in one process, through
//! a gateway and a worker, and through whatever other gateway its URL names. Rounds of all ways alternate, so that what else
//! the machine does meets all alike; each figure is the median of the rounds, each ratio the median of the rounds' ratios.
//!
//! Two parts. The first has every process on one core and one connection: nobody waits for a core to wake up, so that
//! latency is what the work costs, and processor time per request is steady. The second uses the cores that there are, for
//! the rate at several connections; load, upstream and what is measured share them.

mod measure;
mod scene;
mod table;

use std::time::Duration;

use serde_json::{Value, json};

use crate::lane::Shot;
use crate::processor;
use measure::{Round, closed_loop};
use scene::{Dialect, Scene, Way};
use table::{Figures, Row};

/// What the command runs.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Fewer and shorter rounds: under five minutes.
    #[arg(long)]
    quick: bool,
    /// Another gateway: `NAME=URL`, then, each behind a comma, `token=TOKEN`, `pid=PROCESS` (for its processor time; may
    /// come several times) and `work=WORK` (only this one of the workloads). May be given several times.
    #[arg(long, value_name = "PEER")]
    peer: Vec<scene::Peer>,
    /// A fast upstream that runs already, for peers stand before it: its `http://host:port`.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Only workloads whose names contain this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Rounds of each way and workload, instead of the usual number.
    #[arg(long)]
    rounds: Option<usize>,
    /// Writes all figures there, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

/// What is asked for in a row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Call,
    Result64K,
    List160,
    List2000,
    Spec10,
}

impl Work {
    const ALL: [Self; 5] = [Self::Call, Self::Result64K, Self::List160, Self::List2000, Self::Spec10];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Work::Call => "call",
            Work::Result64K => "result-64k",
            Work::List160 => "list-160",
            Work::List2000 => "list-2000",
            Work::Spec10 => "spec-10-of-5000",
        }
    }

    /// The upstream's shape, as a query of its URL.
    fn shape(self) -> &'static str {
        match self {
            Work::Call => "tools=10",
            Work::Result64K => "tools=10&result_bytes=65536",
            Work::List160 => "tools=160",
            Work::List2000 => "tools=2000",
            Work::Spec10 => "tools=5000",
        }
    }

    fn shot(self, way: &Way) -> Result<Option<Shot>, String> {
        let (path, dialect) = (way.path(self), way.dialect.words());
        let (method, params) = match (self, &way.dialect) {
            (Work::Call | Work::Result64K, _) => {
                let arguments = json!({"project": "ROLL", "query": "open since Monday", "limit": 20});
                ("tools/call", json!({"name": way.tool_name(7), "arguments": arguments}))
            }
            (Work::List160 | Work::List2000, _) => ("tools/list", json!({})),
            (Work::Spec10, Dialect::Rollcall) => {
                let names: Vec<String> = (0..10).map(|n| way.tool_name(n * 499)).collect();
                ("tools/call", json!({"name": "get_api_spec", "arguments": {"tool_names": names}}))
            }
            (Work::Spec10, Dialect::Upstream | Dialect::Peer { .. }) => return Ok(None),
        };
        let shot = Shot::mcp(&path, dialect, method, params)?.with_token(way.token(self).as_deref())?;
        match way.session() {
            Some(session) => shot.with_header("mcp-session-id", session).map(Some),
            None => Ok(Some(shot)),
        }
    }

    /// What a good answer holds, so that a refusal is not taken for a fast one.
    fn check(self, answer: &Value) -> Result<(), String> {
        let length = |pointer: &str| answer.pointer(pointer).and_then(Value::as_array).map_or(0, Vec::len);
        let text = answer.pointer("/result/content/0/text").and_then(Value::as_str).unwrap_or_default();
        let good = match self {
            Work::Call => text.len() == 64,
            Work::Result64K => text.len() == 65_536,
            Work::List160 => length("/result/tools") >= 160,
            Work::List2000 => length("/result/tools") >= 2_000,
            Work::Spec10 => text.matches("\"s__tool_").count() >= 10 || text.matches("s__tool_").count() >= 10,
        };
        let shown: String = answer.to_string().chars().take(400).collect();
        if good { Ok(()) } else { Err(format!("not the answer to {}: {shown}", self.name())) }
    }
}

struct Pace {
    rounds: usize,
    each: Duration,
    connections: &'static [usize],
}

impl Options {
    fn pace(&self) -> Pace {
        let (rounds, each, connections): (_, _, &[usize]) =
            if self.quick { (7, 120, &[16]) } else { (20, 400, &[16, 64]) };
        Pace { rounds: self.rounds.unwrap_or(rounds), each: Duration::from_millis(each), connections }
    }

    fn works(&self) -> Vec<Work> {
        let wanted = |work: &Work| self.only.as_ref().is_none_or(|text| work.name().contains(text));
        Work::ALL.into_iter().filter(wanted).collect()
    }
}

/// Runs everything, and prints as it goes.
pub async fn run(options: &Options, say: fn(&str)) -> Result<bool, String> {
    let cores = processor::cores()?;
    let scene = Scene::set(options.upstream.as_deref(), &options.peer).await?;
    let pace = options.pace();
    let mut rows: Vec<Row> = Vec::new();
    say(&table::heading(&cores, pace.rounds, pace.each));
    for work in options.works() {
        scene.pin(cores.get(..1).unwrap_or_default())?;
        let measured = rounds(&scene, work, 1, &pace).await?;
        let row = Row { work, connections: 1, cores: 1, figures: measured };
        say(&row.to_string());
        rows.push(row);
    }
    scene.pin(&cores)?;
    for work in options.works() {
        for connections in pace.connections {
            let measured = rounds(&scene, work, *connections, &pace).await?;
            let row = Row { work, connections: *connections, cores: cores.len(), figures: measured };
            say(&row.to_string());
            rows.push(row);
        }
    }
    say(&scene.memory());
    say(&table::goals(&rows));
    if let Some(path) = &options.json {
        std::fs::write(path, table::json(&rows).to_string()).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    scene.stop().await;
    Ok(true)
}

/// Rounds of all ways in turns.
async fn rounds(scene: &Scene, work: Work, connections: usize, pace: &Pace) -> Result<Vec<Figures>, String> {
    let mut runners = Vec::new();
    for way in &scene.ways {
        if !way.does(work) {
            continue;
        }
        let Some(shot) = work.shot(way)? else { continue };
        let mut lanes = vec![way.road.lane()];
        let first = lanes.first_mut().ok_or("no lane")?.send(&shot).await;
        let first = first.map_err(|lost| format!("{}: {} ({})", way.name, lost.kind, lost.detail))?;
        work.check(&first.rpc()).map_err(|why| format!("{}: {why}", way.name))?;
        lanes.extend((1..connections).map(|_| way.road.lane()));
        // What was never asked before is made now: views, lists, connections.
        let warm = closed_loop(&mut lanes, &shot, pace.each, &way.processes).await?;
        warm.good(&way.name)?;
        runners.push((way, shot, lanes, Vec::<Round>::new()));
    }
    for _ in 0..pace.rounds {
        for (way, shot, lanes, done) in &mut runners {
            let round = closed_loop(lanes, shot, pace.each, &way.processes).await?;
            round.good(&way.name)?;
            done.push(round);
        }
    }
    Ok(runners
        .into_iter()
        .map(|(way, _, _, rounds)| Figures { way: way.name.clone(), kind: way.kind, rounds })
        .collect())
}
