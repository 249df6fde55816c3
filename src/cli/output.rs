//! How a run is shown: JSON lines, or progress bars and a table.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{Common, Exit, Format};
use tombolo::FederationError;
use tombolo::explain::trouble;
use tombolo::fabric::{self, Fabrics, NoFabric};
use tombolo::federation::{
    DEPARTED, Ledger, NOT_DRAINED, STEPPED_DOWN, StateError, goes_on_by, named, state_word,
};
use tombolo_core::event::{Event, Finished, RoundRecord, Wait};
use tombolo_core::plan::Plan;
use tombolo_core::text::{is_hidden, span, visible};

/// How often the bar moves while nothing happens.
const TICK: Duration = Duration::from_millis(125);

/// Shows a run as it goes. In JSON the run's last word is the last line: whatever goes wrong behind it is said on standard error only.
pub struct Display {
    format: Format,
    everything: bool,
    /// Whether the coordinator's word on each round is heard elsewhere.
    member: bool,
    ended: bool,
    shown: usize,
    bar: ProgressBar,
    rows: Vec<RoundRecord>,
    reports: usize,
    asked: Option<usize>,
}

impl Display {
    /// A display for a run of so many rounds. Bars are drawn on a terminal only.
    pub fn new(format: Format, rounds: u64) -> Self {
        let drawn = format == Format::Text && std::io::stderr().is_terminal();
        let bar = if drawn {
            ProgressBar::new(rounds)
        } else {
            ProgressBar::hidden()
        };
        let style = ProgressStyle::with_template(
            "{spinner} {bar:24.cyan/dim} {pos}/{len} rounds, {elapsed}  {wide_msg}",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        if drawn {
            bar.set_message("waiting for reports");
            bar.enable_steady_tick(TICK);
        }
        Display {
            format,
            everything: false,
            member: false,
            ended: false,
            shown: 0,
            bar,
            rows: Vec::new(),
            reports: 0,
            asked: None,
        }
    }

    /// Shows each event as a line of JSON, instead of what people want to know.
    #[must_use]
    pub fn everything(mut self, everything: bool) -> Self {
        self.everything = everything;
        self
    }

    /// Shows what this process's nodes do, since the rounds' outcomes are not heard here.
    #[must_use]
    pub fn member(mut self, member: bool) -> Self {
        self.member = member;
        if member {
            self.bar.set_message("waiting for the first round");
        }
        self
    }

    /// Takes an event.
    pub fn on_event(&mut self, event: &Event) {
        if let Event::Round(_) = event {
            self.shown += 1;
        }
        match event {
            // Another process says the last word.
            Event::Finished(finished) if goes_on_by(finished).is_some() => {}
            Event::Finished(_) if self.everything || self.format == Format::Json => {
                self.say_last_word(event);
            }
            _ if self.everything => print_line(event),
            Event::Round(record) => self.on_round(record),
            Event::NodeWaits(_) if self.format == Format::Json => print_line(event),
            Event::NodeWaits(wait) => self.note(&waits(wait)),
            // For a page that another process serves.
            Event::NodeMeasured(_) if self.member && self.format == Format::Json => {
                print_line(event);
            }
            Event::TrainingStarted { round, .. } if self.member => {
                self.bar.set_message(format!("round {round}: training"));
            }
            Event::UpdateExported {
                node,
                round,
                samples,
                loss,
            } if self.member => {
                let trained = format!("{node} trained on {samples} rows, loss {loss:.4}");
                self.bar.set_message(format!("round {round}: {trained}"));
                if self.format == Format::Text && self.bar.is_hidden() {
                    say!("round {round:>3}: {trained}");
                }
            }
            Event::ModelAdopted { round, .. } if self.member => self.bar.set_position(*round),
            Event::RoundOpened { cohort, .. } => {
                (self.reports, self.asked) = (0, Some(cohort.len()));
                self.bar.set_message(self.message());
            }
            Event::Reported { .. } => {
                self.reports += 1;
                self.bar.set_message(self.message());
            }
            event => self.on_trouble(event),
        }
    }

    /// Says which node failed, and why: a line for people, or the event itself. Behind the last word there is nothing more to say in JSON.
    fn on_trouble(&self, event: &Event) {
        match trouble(event) {
            Some(_) if self.format == Format::Json && !self.ended => print_line(event),
            Some(text) => self.note(&text),
            None => {}
        }
    }

    /// Shows the rounds that ended and were not shown yet, whatever became of their events.
    pub fn catch_up(&mut self, ledger: &Ledger) {
        for record in ledger.rounds_from(self.shown) {
            self.on_event(&Event::Round(record));
        }
    }

    /// Says something between the bars; in JSON the events speak for themselves.
    pub fn note(&self, text: &str) {
        if self.format == Format::Text {
            self.bar.suspend(|| complain!("{}", visible(text)));
        }
    }

    /// The last round, and how far the open one is.
    fn message(&self) -> String {
        let asked = self
            .asked
            .map_or_else(String::new, |asked| format!(" of {asked}"));
        let open = format!("{}{asked} reports", self.reports);
        let Some(record) = self.rows.last() else {
            return open;
        };
        let late = if record.late.is_empty() {
            String::new()
        } else {
            format!(", late: {}", names(&record.late))
        };
        format!(
            "accuracy {:.4}, loss {:.4}, {}{late}; next: {open}",
            record.accuracy,
            record.loss,
            bytes(record.bytes)
        )
    }

    fn on_round(&mut self, record: &RoundRecord) {
        self.rows.push(record.clone());
        if self.format == Format::Json {
            return print_line(&Event::Round(record.clone()));
        }
        self.bar.set_position(record.round);
        self.bar.set_message(self.message());
        if self.bar.is_hidden() {
            let late = if record.late.is_empty() {
                String::new()
            } else {
                format!(", late: {}", names(&record.late))
            };
            let why = if record.reason.is_empty() {
                String::new()
            } else {
                format!(" ({})", visible(&record.reason))
            };
            let age = record.version.as_ref().map_or_else(String::new, |version| {
                let (mean, max) = version.staleness_mean_max();
                format!(", staleness {mean:.1} (at most {max})")
            });
            say!(
                "round {:>3} {}{why}: accuracy {:.4}, loss {:.4}, {}{age}{late}",
                record.round,
                state_word(record.state),
                record.accuracy,
                record.loss,
                bytes(record.bytes),
            );
        }
    }

    fn say_last_word(&mut self, event: &Event) {
        if !std::mem::replace(&mut self.ended, true) {
            print_line(event);
        }
    }

    /// Whether the last line of JSON has been printed.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes the bars away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Ends the bars and prints the summary, or the last word if nobody has said it yet.
    pub fn finish(&mut self, finished: &Finished) {
        self.clear();
        if self.everything || self.format == Format::Json {
            return self.say_last_word(&Event::Finished(finished.clone()));
        }
        if finished.rounds == 0 && !finished.reason.is_empty() {
            // It did not begin; why is all that there is to say.
            return;
        }
        if !self.rows.is_empty() && std::io::stdout().is_terminal() {
            say!("{}", self.table());
        }
        say!(
            "{} rounds: {} committed, {} degraded, {} aborted; accuracy {:.4}, loss {:.4}; model {}; {:.1} s",
            finished.rounds,
            finished.committed,
            finished.degraded,
            finished.aborted,
            finished.accuracy,
            finished.loss,
            &finished.model_hash.to_string()[..16],
            finished.wall_s,
        );
    }

    /// The rounds, one a line.
    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "round",
            "state",
            "counted",
            "late",
            "accuracy",
            "loss",
            "WAN bytes",
            "seconds",
        ]);
        for record in &self.rows {
            table.add_row([
                record.round.to_string(),
                state_word(record.state).to_owned(),
                record.counted.len().to_string(),
                names(&record.late),
                format!("{:.4}", record.accuracy),
                format!("{:.4}", record.loss),
                bytes(record.bytes),
                format!("{:.2}", record.elapsed_s),
            ]);
        }
        for column in [0, 2, 4, 5, 6, 7] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

pub fn names(nodes: &[tombolo_core::ids::NodeId]) -> String {
    nodes
        .iter()
        .map(|node| node.as_str())
        .collect::<Vec<_>>()
        .join(" ")
}

/// A wait for people.
pub fn waits(wait: &Wait) -> String {
    let missing = wait.missing.iter();
    let missing: Vec<String> = missing
        .map(|missing| named(&missing.node, missing.address.as_deref()))
        .collect();
    let left = match (wait.round, wait.left_s.map(span)) {
        (Some(round), Some(left)) => format!("; round {round} ends in {left}"),
        (None, Some(left)) => format!("; gives up in {left}"),
        (_, None) => String::new(),
    };
    format!(
        "{} listens on {}, waits for {}, has {} of {}{left}",
        wait.node,
        wait.address,
        missing.join(", "),
        wait.have,
        wait.need,
    )
}

/// Bytes for people.
pub fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}

/// Says what this machine decides, where the file leaves it to that; returns what cannot be had.
pub fn show_fabrics(common: &Common, plan: &Plan) -> Vec<NoFabric> {
    let fabrics = Fabrics::new(&plan.checkpoint.folder);
    let mut missing = Vec::new();
    for domain in plan
        .domains
        .iter()
        .filter(|domain| fabric::asks_the_machine(domain))
    {
        match (fabrics.choose(domain, 0), common.format) {
            (Ok(choice), Format::Text) => say!("{choice}"),
            (Ok(choice), Format::Json) => print_line(&json!({
                "event": "fabric",
                "domain": choice.domain,
                "fabric": choice.fabric.name(),
                "why": choice.why,
            })),
            (Err(error), _) => missing.push(error),
        }
    }
    missing
}

/// Prints one object on a line of its own, at once.
pub fn print_line(value: &impl serde::Serialize) {
    if let Ok(line) = serde_json::to_string(value) {
        print_json(&line);
    }
}

/// Prints lines of JSON, at once. JSON allows raw what a terminal obeys, C1 codes for instance; inside its texts all of it can be escaped.
fn print_json(lines: &str) {
    let mut out = std::io::stdout().lock();
    let mut escaped = String::with_capacity(lines.len() + 1);
    for character in lines.chars() {
        if is_hidden(character) && character != '\n' {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            escaped.push(character);
        }
    }
    escaped.push('\n');
    // A reader that went away is not our failure.
    let _ = out.write_all(escaped.as_bytes());
    let _ = out.flush();
}

/// Shows why a command could not start.
pub fn refuse(common: &Common, error: FederationError) -> Exit {
    let exit = match &error {
        FederationError::Topology(diagnosis) => {
            match common.format {
                Format::Json => print_json(diagnosis.to_json_lines().trim_end()),
                Format::Text => {
                    // It has colours, and everything else in it is visible.
                    let text = diagnosis.to_terminal_text();
                    let _ = writeln!(std::io::stderr().lock(), "error: {text}");
                }
            }
            return Exit::Usage;
        }
        FederationError::State(StateError::Files { .. }) => Exit::Failed,
        FederationError::UnknownNode(_)
        | FederationError::State(_)
        | FederationError::Rule(_)
        | FederationError::StoreOccupied(_) => Exit::Usage,
        _ => Exit::Failed,
    };
    fail(common, &error.to_string());
    exit
}

/// Prints an error.
pub fn fail(common: &Common, message: &str) {
    if common.format == Format::Json {
        print_line(&serde_json::json!({ "event": "error", "message": message }));
    }
    complain(message);
}

/// Prints an error on standard error only: behind the last line of JSON.
pub fn complain(message: &str) {
    complain!("error: {}", visible(message));
}

/// The exit code of a run whose last word has been printed.
pub fn judge(finished: &Finished) -> Exit {
    let reason = finished.reason.as_str();
    match reason {
        "interrupted" | "terminated" => {
            let rounds = match finished.rounds {
                0 => String::new(),
                rounds => format!(" after round {rounds}"),
            };
            complain(&format!(
                "{reason}{rounds}; what is committed is kept: --resume goes on with it"
            ));
            return if reason == "interrupted" {
                Exit::Interrupted
            } else {
                Exit::Terminated
            };
        }
        NOT_DRAINED => {
            complain(NOT_DRAINED);
            return Exit::Terminated;
        }
        "" | DEPARTED => {}
        _ if finished.was_stopped() => {
            complain!(
                "{}; what is committed is kept: --resume goes on with it",
                visible(reason)
            );
            return Exit::Done;
        }
        reason if reason.starts_with(STEPPED_DOWN) => {
            complain(reason);
            return Exit::SteppedDown;
        }
        reason => complain(reason),
    }
    if finished.never_met_quorum() {
        complain("no round met its quorum; the records of the rounds say who was missing");
        Exit::NoQuorum
    } else if reason.is_empty() || reason == DEPARTED {
        Exit::Done
    } else {
        Exit::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::event::{Objection, RoundState};
    use tombolo_core::ids::NodeId;

    /// A display that misses events for a while shows each round once all the same.
    #[test]
    fn every_round_is_shown_once_whatever_became_of_its_event() {
        let ledger = Ledger::default();
        let mut display = Display::new(Format::Text, 4);
        for round in 1..=4 {
            let event = Event::Round(RoundRecord {
                round,
                epoch: 0,
                state: RoundState::Committed,
                reason: String::new(),
                counted: Vec::new(),
                late: Vec::new(),
                denied: Vec::new(),
                refused: Vec::new(),
                accuracy: 0.0,
                loss: 0.0,
                weight_norm: 0.0,
                bytes: 0,
                bytes_down: 0,
                bytes_up: 0,
                model_hash: Default::default(),
                elapsed_s: 0.0,
                version: None,
                drifts: Vec::new(),
                balance: None,
            });
            ledger.record(&event);
            // The events of rounds 2 and 3 are lost.
            if round != 2 && round != 3 {
                display.catch_up(&ledger);
            }
        }
        display.catch_up(&ledger);
        let shown: Vec<_> = display.rows.iter().map(|record| record.round).collect();
        assert_eq!(shown, [1, 2, 3, 4]);
    }

    /// flower#1400: whatever failed is told with its cause; what went well is no trouble.
    #[test]
    fn every_sort_of_failure_is_told_with_its_cause() {
        let (node, peer): (NodeId, NodeId) = ("hq/a".parse().unwrap(), "hq/b".parse().unwrap());
        let (round, reason) = (3, "the cause".to_owned());
        let (actor, key) = ("Link".to_owned(), "hq/a hq/b".to_owned());
        let failures = [
            Event::TrainingFailed {
                node: node.clone(),
                round,
                reason: reason.clone(),
            },
            Event::UpdateRefused {
                why: Objection::NotFinite,
                node: node.clone(),
                round,
                reason: reason.clone(),
            },
            Event::LinkRefused {
                node: node.clone(),
                peer: peer.clone(),
                reason: reason.clone(),
            },
            Event::DomainDropped {
                domain: "hq".parse().unwrap(),
                round,
                reason: reason.clone(),
            },
            Event::TurnedAway {
                domain: "hq".parse().unwrap(),
                why: tombolo_core::event::Misfit::Past,
                reason: reason.clone(),
            },
            Event::RecordRefused {
                node: node.clone(),
                by: peer.clone(),
                reason: reason.clone(),
            },
            Event::RecordForked {
                node: node.clone(),
                by: peer.clone(),
                reason: reason.clone(),
            },
            // Its reason begins with the node's name.
            Event::GaveUp {
                node: node.clone(),
                reason: format!("{node} has the cause"),
            },
            Event::ActorRestarted {
                actor: actor.clone(),
                key: key.clone(),
                reason: reason.clone(),
                restarts: 1,
            },
            Event::ActorGivenUp {
                actor,
                key,
                reason,
                restarts: 16,
            },
        ];
        for event in failures {
            let told = trouble(&event).unwrap();
            assert!(told.contains("the cause") && told.contains("hq"), "{told}");
        }
        let lost = Event::PeerLost { node, peer };
        assert!(trouble(&lost).unwrap().contains("hq/b"));
        assert_eq!(trouble(&Event::QuorumReached { round }), None);
    }
}
