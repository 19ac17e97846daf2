//! The figures as text and as JSON.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::Work;
use super::measure::Round;
use super::scene::Kind;

/// All rounds of one way.
pub(super) struct Figures {
    pub(super) way: String,
    pub(super) kind: Kind,
    pub(super) rounds: Vec<Round>,
}

/// All ways of one workload.
pub(super) struct Row {
    pub(super) work: Work,
    pub(super) connections: usize,
    pub(super) cores: usize,
    pub(super) figures: Vec<Figures>,
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n.is_multiple_of(2) => {
            let at = |n: usize| values.get(n).copied().unwrap_or(f64::NAN);
            f64::midpoint(at(n / 2 - 1), at(n / 2))
        }
        n => values.get(n / 2).copied().unwrap_or(f64::NAN),
    }
}

impl Figures {
    fn of(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(figure))
    }

    /// The median of the rounds' ratios to another way's same rounds.
    fn ratio(&self, other: &Figures, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().zip(&other.rounds).map(|(own, others)| figure(own) / figure(others)))
    }

    /// How much longer it takes than `direct`, against how much longer another way does.
    fn added(&self, other: &Figures, direct: &Figures) -> f64 {
        let rounds = self.rounds.iter().zip(&other.rounds).zip(&direct.rounds);
        median(rounds.map(|((own, other), direct)| (own.p50() - direct.p50()) / (other.p50() - direct.p50())))
    }
}

impl Row {
    fn find(&self, kind: Kind) -> Option<&Figures> {
        self.figures.iter().find(|figures| figures.kind == kind)
    }

    /// The bare way that a way is compared with.
    fn floor(&self, kind: Kind) -> Option<&Figures> {
        match kind {
            Kind::Standalone => self.find(Kind::Hop),
            Kind::Distributed => self.find(Kind::TwoHops),
            Kind::Direct | Kind::Hop | Kind::TwoHops | Kind::Other => None,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { work, connections, cores, figures } = self;
        let place = if *cores == 1 { "all on one core".to_owned() } else { format!("{cores} cores") };
        let s = if *connections == 1 { "" } else { "s" };
        writeln!(f, "\n{}, {connections} connection{s}, {place}", work.name())?;
        writeln!(
            f,
            "  {:<24} {:>9} {:>9} {:>10} {:>10}  against its floor",
            "", "p50 us", "added us", "CPU us", "req/s"
        )?;
        let direct = self.find(Kind::Direct).map(|direct| direct.of(Round::p50));
        for way in figures {
            let added = direct.map_or(f64::NAN, |direct| way.of(Round::p50) - direct);
            let (p50, cost, rate) = (way.of(Round::p50), way.of(Round::cost), way.of(Round::rate));
            let cost = if cost > 0.0 { format!("{cost:.1}") } else { "-".to_owned() };
            write!(f, "  {:<24} {p50:>9.1} {added:>9.1} {cost:>10} {rate:>10.0}", way.way)?;
            if let Some(floor) = self.floor(way.kind) {
                let (cpu, rate) = (way.ratio(floor, Round::cost), way.ratio(floor, Round::rate));
                write!(f, "  CPU x{cpu:.2}, rate x{rate:.2}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

pub(super) fn heading(cores: &[usize], rounds: usize, each: Duration) -> String {
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("an unknown processor");
    let model = model.trim_start_matches([' ', '\t', ':']);
    let ms = each.as_millis();
    format!(
        "{} cores of {model}; medians of {rounds} rounds of {ms} ms each, all ways in turns\n\
         CPU: of the processes between client and upstream, per request",
        cores.len()
    )
}

/// What was aimed at, and what was reached.
pub(super) fn goals(rows: &[Row]) -> String {
    let row = |work, connections| rows.iter().find(|row| row.work == work && row.connections == connections);
    let mut lines = vec!["\ngoals".to_owned()];
    let mut goal = |what: String, at_most: bool, bound: f64, reached: Option<f64>| {
        let Some(reached) = reached.filter(|reached| reached.is_finite()) else { return };
        let met = if at_most { reached <= bound } else { reached >= bound };
        let (sign, said) = (if at_most { "<=" } else { ">=" }, if met { "met" } else { "not met" });
        lines.push(format!("  {what:<64} {sign} {bound:<5} {reached:>6.2}  {said}"));
    };
    for (kind, name) in [(Kind::Standalone, "standalone"), (Kind::Distributed, "distributed")] {
        let call = row(Work::Call, 1);
        let pair = call.and_then(|row| Some((row.find(kind)?, row.floor(kind)?, row.find(Kind::Direct)?)));
        let cost = pair.map(|(own, floor, _)| own.ratio(floor, Round::cost));
        goal(format!("CPU of a call, {name}, against its bare floor"), true, 1.5, cost);
        let added = pair.map(|(own, floor, direct)| own.added(floor, direct));
        goal(format!("added p50 of a call, {name}, against its bare floor"), true, 1.5, added);
        for (work, against) in [(Work::List160, Kind::Direct), (Work::List2000, Kind::Direct)] {
            let pair = row(work, 1).and_then(|row| Some((row.find(kind)?, row.find(against)?)));
            let rate = pair.map(|(own, other)| own.ratio(other, Round::rate));
            goal(format!("rate of {}, {name}, against direct", work.name()), false, 0.8, rate);
        }
        let pair = row(Work::Result64K, 1).and_then(|row| Some((row.find(kind)?, row.floor(kind)?)));
        let rate = pair.map(|(own, other)| own.ratio(other, Round::rate));
        goal(format!("rate of 64 KiB results, {name}, against its bare floor"), false, 0.8, rate);
    }
    for row in rows {
        let best = row.figures.iter().filter(|figures| figures.kind == Kind::Other);
        let best = best.max_by(|a, b| a.of(Round::rate).total_cmp(&b.of(Round::rate)));
        if let (Some(own), Some(best)) = (row.find(Kind::Standalone), best) {
            let bound = if matches!(row.work, Work::List160 | Work::List2000) { 15.0 } else { 4.0 };
            let what = format!("rate of {} at {}, against {}", row.work.name(), row.connections, best.way);
            goal(what, false, bound, Some(own.ratio(best, Round::rate)));
        }
    }
    lines.join("\n")
}

/// All figures, each round's.
pub(super) fn json(rows: &[Row]) -> Value {
    let round = |round: &Round| json!({"requests": round.requests, "p50_us": round.p50(), "cpu_us": round.cost(), "per_second": round.rate()});
    let of = |figures: &Figures| {
        let rounds: Vec<Value> = figures.rounds.iter().map(round).collect();
        json!({
            "way": figures.way, "p50_us": figures.of(Round::p50), "cpu_us": figures.of(Round::cost),
            "per_second": figures.of(Round::rate), "rounds": rounds,
        })
    };
    let rows = rows.iter().map(|row| {
        let figures: Vec<Value> = row.figures.iter().map(of).collect();
        json!({"work": row.work.name(), "connections": row.connections, "cores": row.cores, "ways": figures})
    });
    Value::Array(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_of_the_middle() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median([]).is_nan());
        assert!((median([f64::NAN, 5.0]) - 5.0).abs() < 1e-9, "what cannot be said is left out");
    }
}
