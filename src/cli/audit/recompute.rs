//! `tombolo audit recompute DIR... --topology FILE`: round by round whether the model comes out again.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{longest_of, places};
use crate::cli::output::{complain, fail, print_line, refuse};
use crate::cli::{Common, Exit, Format, run};
use tombolo::FederationError;
use tombolo::audit;
use tombolo::audit::recompute::{Outcome, Recomputed, recompute};
use tombolo_core::ids::Round;

/// Arguments of `audit recompute`.
#[derive(Debug, Args)]
pub struct Recompute {
    /// State folders, or gateways' folders in them: the copies and what was retained, of all sites.
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// The topology of the run: its rule and its outer optimizer, and where the coordinator's states lie.
    #[arg(long, value_name = "FILE")]
    topology: PathBuf,
    /// That round alone.
    #[arg(long)]
    round: Option<Round>,
}

impl Recompute {
    /// Computes and tells.
    pub fn run(&self, common: &Common) -> Exit {
        let federation = match run::open(common, &self.topology, false) {
            Ok(federation) => federation,
            Err(error) => return refuse(common, error),
        };
        let mut all = Vec::new();
        for dir in &self.dirs {
            match places(dir) {
                Ok(places) => all.extend(places),
                Err(error) => return refuse(common, error),
            }
        }
        // Nothing that is computed is worth more than the record that it is held against.
        let verified = audit::verify(&all).and_then(|report| match report.findings.first() {
            None => Ok(()),
            Some(found) => Err(format!(
                "{}, {}: {}; see `tombolo audit verify`",
                found.copy, found.place, found.reason
            )),
        });
        let lines = match verified {
            Ok(()) => match longest_of(common, &all) {
                Ok(lines) => lines,
                Err(exit) => return exit,
            },
            Err(reason) => {
                fail(common, &reason);
                return Exit::Failed;
            }
        };
        let found = match recompute(&federation, &lines, &all, self.round) {
            Ok(found) if found.is_empty() => {
                let which = match self.round {
                    Some(round) => format!("round {round} as committed"),
                    None => "no committed round".to_owned(),
                };
                let told = if self.round.is_some() {
                    "does not tell"
                } else {
                    "tells"
                };
                let error = FederationError::Machine(format!("the record {told} {which}"));
                return refuse(common, error);
            }
            Ok(found) => found,
            Err(reason) => {
                fail(common, &reason);
                return Exit::Failed;
            }
        };
        tell(common, &found)
    }
}

fn tell(common: &Common, found: &[Recomputed]) -> Exit {
    let (mut same, mut differs, mut missing) = (0, 0, 0);
    for Recomputed {
        round,
        told,
        outcome,
    } in found
    {
        let (word, domains, reason) = match outcome {
            Outcome::Same => {
                same += 1;
                ("same", &[][..], "")
            }
            Outcome::Differs { domains, reason } => {
                differs += 1;
                ("differs", &domains[..], reason.as_str())
            }
            Outcome::Missing { domains, reason } => {
                missing += 1;
                ("missing", &domains[..], reason.as_str())
            }
        };
        if common.format == Format::Json {
            print_line(&json!({
                "event": "recomputed",
                "round": round,
                "outcome": word,
                "model_hash": told,
                "domains": domains,
                "reason": reason,
            }));
        } else if reason.is_empty() {
            say!("round {round}: the same model, {told}");
        } else {
            say!("round {round}: {word}");
        }
        if !reason.is_empty() {
            complain(&format!("round {round}: {reason}"));
        }
    }
    match common.format {
        Format::Json => print_line(&json!({
            "event": "recomputation",
            "same": same,
            "differs": differs,
            "missing": missing,
        })),
        Format::Text => {
            say!("{same} rounds with the same model, {differs} differ, {missing} lack something");
        }
    }
    // What was asked for is that nothing differs; a round that is past what is retained is no fault, but proves nothing either.
    match differs == 0 && same > 0 {
        true => Exit::Done,
        false => Exit::Failed,
    }
}
