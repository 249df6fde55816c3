//! `tombolo explain round N | node NAME | link A B`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::output::{fail, print_line, refuse};
use super::records::Records;
use super::status::state_folder;
use super::{Common, Exit, Format};
use tombolo::explain::{self, ExplainError, Fate, Incident, Limit, NodeRound};
use tombolo_core::ids::{NodeId, Round};

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// What a round spent its time on, who is not in it and why
    Round {
        /// Its number.
        round: Round,
        /// The topology whose state folder is read; default: ./state.
        file: Option<PathBuf>,
    },
    /// How a node's rounds went, what it is weighed and what happened to it
    Node {
        /// The node, as `domain/name`.
        node: NodeId,
        /// The topology whose state folder is read; default: ./state.
        file: Option<PathBuf>,
    },
    /// What two nodes saw of each other
    Link {
        /// One end, as `domain/name`.
        a: NodeId,
        /// The other end.
        b: NodeId,
        /// The topology whose state folder is read; default: ./state.
        file: Option<PathBuf>,
    },
}

impl Explain {
    /// Reads the record and tells the story.
    pub fn run(&self, common: &Common) -> Exit {
        let (What::Round { file, .. } | What::Node { file, .. } | What::Link { file, .. }) =
            &self.what;
        let folder = match state_folder(common, file.as_deref()) {
            Ok(folder) => folder,
            Err(error) => return refuse(common, error),
        };
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        match self.tell(common, &folder) {
            Ok(()) => Exit::Done,
            Err(error) => {
                fail(common, &error.to_string());
                match error {
                    ExplainError::Unknown { .. } => Exit::Usage,
                    _ => Exit::Failed,
                }
            }
        }
    }

    fn tell(&self, common: &Common, folder: &Path) -> Result<(), ExplainError> {
        let mut records = Records::open(&[folder.to_owned()])?;
        let past = records.by_ref();
        let told =
            match &self.what {
                What::Round { round, .. } => explain::round(past, *round)
                    .map(|story| print(common, &story, || show_round(&story))),
                What::Node { node, .. } => explain::node(past, node)
                    .map(|story| print(common, &story, || show_node(&story))),
                What::Link { a, b, .. } => explain::link(past, a, b)
                    .map(|story| print(common, &story, || show_link(&story))),
            };
        records.complain();
        told
    }
}

fn print(common: &Common, story: &impl Serialize, text: impl FnOnce()) {
    match common.format {
        Format::Text => text(),
        Format::Json => {
            let mut line = serde_json::json!({ "event": "explanation" });
            if let (Some(line), Ok(serde_json::Value::Object(story))) =
                (line.as_object_mut(), serde_json::to_value(story))
            {
                line.extend(story);
            }
            print_line(&line);
        }
    }
}

fn show_round(story: &explain::RoundStory) {
    let number = story.round;
    let counted = story
        .record
        .as_ref()
        .map_or(0, |record| record.counted.len());
    let asked = story.nodes.len();
    match (&story.record, story.seconds) {
        (Some(record), Some(seconds)) => {
            let word = tombolo::federation::state_word(record.state);
            let reason = match record.reason.is_empty() {
                true => String::new(),
                false => format!(": {}", record.reason),
            };
            say!(
                "round {number} {word} after {seconds:.1} s, {counted} of {asked} counted{reason}"
            );
        }
        _ => say!("round {number} has no end in the record; {asked} nodes were asked"),
    }
    if story.openings > 1 {
        let openings = story.openings;
        say!(
            "it was opened {openings} times: the coordinator was started anew; this is the last time"
        );
    }
    if let Some(limit) = &story.limit {
        say!("{}", story.limited);
        say!("what would help: {}", limit.advice());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let balance = story.record.as_ref();
    let balance = balance.and_then(|record| record.balance.as_deref());
    let mut columns = vec!["node", "began", "trained", "reported", "update", "why"];
    if balance.is_some() {
        columns.insert(1, "steps");
    }
    table.set_header(columns);
    for node in &story.nodes {
        let NodeRound {
            began_s,
            trained_s,
            reported_s,
            ..
        } = node;
        let mut row = vec![
            node.node.to_string(),
            seconds(*began_s),
            seconds(*trained_s),
            seconds(*reported_s),
            fate(node.fate).to_owned(),
            node.why.clone(),
        ];
        if let Some(balance) = balance {
            let given = balance.steps_of(&node.node);
            row.insert(
                1,
                given.map_or_else(|| "-".to_owned(), |steps| steps.to_string()),
            );
        }
        table.add_row(row);
    }
    align(&mut table, 1..=3 + usize::from(balance.is_some()));
    say!("{table}");
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["domain", "reported", "acknowledged", "begun anew", "why"]);
    for domain in &story.domains {
        table.add_row([
            domain.domain.to_string(),
            seconds(domain.reported_s),
            seconds(domain.acknowledged_s),
            domain.regrouped.to_string(),
            domain.dropped.clone(),
        ]);
    }
    align(&mut table, 1..=3);
    say!("{table}");
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for share in &story.steps {
        table.add_row([
            seconds(Some(share.seconds)),
            share.words(),
            share.cause.words().to_owned(),
            share.why.clone(),
        ]);
    }
    align(&mut table, 0..=0);
    if !story.steps.is_empty() {
        say!("{table}");
    }
    for (node, why) in &story.out {
        say!("not asked: {node}: {why}");
    }
    for stall in &story.stalls {
        say!("no progress: {stall}");
    }
}

fn align(table: &mut Table, columns: std::ops::RangeInclusive<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn seconds(value: Option<f64>) -> String {
    value
        .map(|value| format!("{value:.2} s"))
        .unwrap_or_default()
}

fn fate(fate: Fate) -> &'static str {
    match fate {
        Fate::Counted => "counted",
        Fate::Lessened => "counted for less",
        Fate::Late => "late",
        Fate::Refused => "refused",
        Fate::Void => "void",
        Fate::Open => "open",
    }
}

fn show_node(story: &explain::NodeStory) {
    let asked = &story.asked;
    let out = if story.out {
        "; it is out of the view"
    } else {
        ""
    };
    say!(
        "{}: asked in {} rounds, counted in {} (for less in {}), late in {}, refused in {}{out}",
        story.node,
        asked.rounds,
        asked.counted,
        asked.lessened,
        asked.late,
        asked.refused
    );
    if let Some(last) = story.last_counted {
        say!("it counted last in round {last}");
    }
    if let (Some(own), Some(others)) = (story.report_s, story.others_s) {
        say!(
            "its report comes {own:.2} s after a round's opening in the mean, those of the others after {others:.2} s"
        );
    }
    if let Some(pace) = &story.pace {
        let given = match story.steps {
            Some(steps) => format!("it was given {steps} in the last round"),
            None => "it was given none in the last round".to_owned(),
        };
        say!(
            "a local step takes it {}, its report {} beside its training; {given}",
            span(pace.step()),
            span(pace.delay())
        );
    }
    match &story.drift {
        Some(drift) => say!(
            "it drifted in {:.2} of recent rounds, so its weight is times {:.2}; {}",
            drift.share,
            drift.factor,
            drift.reason
        ),
        None => say!("it has not drifted from the others in recent rounds"),
    }
    show_incidents(&story.incidents, story.earlier);
}

/// A time that may be short, in a unit that fits.
fn span(span: Duration) -> String {
    match span.as_micros() {
        0..1_000 => format!("{} us", span.as_micros()),
        1_000..1_000_000 => format!("{:.1} ms", span.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", span.as_secs_f64()),
    }
}

fn show_link(story: &explain::LinkStory) {
    say!(
        "{} and {}: up {} times, down {}, refused {}, suspected {}, lost {}; longest silence that ended {} ms",
        story.a,
        story.b,
        story.up,
        story.down,
        story.refused,
        story.suspected,
        story.lost,
        story.silent_ms
    );
    if let (Some(round_trip), Some(loss)) = (story.round_trip_ms, story.heartbeat_loss) {
        let loss = loss * 100.0;
        say!("a round trip takes {round_trip:.1} ms; {loss:.1} % of heartbeats got lost lately");
    }
    for limit in &story.limits {
        let Limit {
            cause,
            seconds,
            last,
        } = limit;
        let cause = cause.words();
        say!(
            "sums and models were waited for {seconds:.1} s while it was {cause}; the last: {last}"
        );
    }
    show_incidents(&story.incidents, story.earlier);
}

fn show_incidents(incidents: &[Incident], earlier: u64) {
    if earlier > 0 {
        say!("{earlier} earlier incidents are not shown");
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let several = incidents.iter().any(|incident| incident.life > 0);
    for Incident { at, life, what } in incidents {
        let start = several.then(|| format!("start {}", life + 1));
        table.add_row([
            start.unwrap_or_default(),
            format!("{at:.2} s"),
            what.clone(),
        ]);
    }
    align(&mut table, 1..=1);
    if !incidents.is_empty() {
        say!("{table}");
    }
}
