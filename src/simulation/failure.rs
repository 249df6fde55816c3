//! A simulation that failed, with all that is needed to see it fail again.

use std::fmt;

use tombolo_core::event::Event;
use tombolo_core::time::Micros;

use super::plan::FaultPlan;

/// Events that a failure shows.
const EVENTS_SHOWN: usize = 40;

/// Violations that a failure shows.
const REASONS_SHOWN: usize = 10;

/// What went wrong, and how to see it again.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// Of the world.
    pub seed: u64,
    /// Everything that was made to go wrong.
    pub faults: FaultPlan,
    /// What failed, in a word: the invariant that was violated first, `hang`, `standstill` or `panic`.
    pub law: String,
    /// Why it is a failure; one or more.
    pub reasons: Vec<String>,
    /// What happened last before it, one a line.
    pub events: Vec<String>,
    /// The command that replays it.
    pub replay: String,
}

impl Failure {
    /// The last of these events as lines.
    pub(super) fn last(events: &[(Micros, Event)]) -> Vec<String> {
        let shown = &events[events.len().saturating_sub(EVENTS_SHOWN)..];
        let line = |(at, event): &(Micros, Event)| {
            let event = serde_json::to_string(event).unwrap_or_default();
            format!("{at:?} {event}")
        };
        shown.iter().map(line).collect()
    }
}

/// All of it, for people: reasons, last events, faults, and how to replay it.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the simulation with seed {} failed:", self.seed)?;
        for reason in self.reasons.iter().take(REASONS_SHOWN) {
            writeln!(f, "  {reason}")?;
        }
        if let more @ 1.. = self.reasons.len().saturating_sub(REASONS_SHOWN) {
            writeln!(f, "  and {more} more")?;
        }
        writeln!(f, "the last events before that were")?;
        for event in &self.events {
            writeln!(f, "  {event}")?;
        }
        if self.faults.faults.is_empty() {
            writeln!(f, "nothing was made to go wrong")?;
        } else {
            writeln!(f, "made to go wrong was\n\n{}", self.faults.to_toml())?;
        }
        write!(f, "replay it: {}", self.replay)
    }
}

impl std::error::Error for Failure {}
