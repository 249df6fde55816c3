//! `tombolo preflight FILE`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::output::{print_line, refuse};
use super::run::open;
use super::signals::Signals;
use super::{Common, Exit, Format, runtime};
use tombolo::FederationError;
use tombolo::doctor::Verdict;
use tombolo::federation::Interrupt;
use tombolo::preflight::judge::{Finding, micros, rate};
use tombolo::preflight::talk::{Link, Way};
use tombolo::preflight::{Progress, Question, Survey, survey};
use tombolo_core::ids::NodeId;

/// Peers that are named where many are waited for.
const NAMED_MAX: usize = 4;

/// Arguments of `preflight`.
#[derive(Debug, Args)]
pub struct Preflight {
    /// The topology.
    file: PathBuf,
    /// The node of this machine, as `domain/name`, or several: run this on each machine at about the same time; without it all nodes are here, and paths are
    /// emulated as the file says.
    #[arg(long, value_name = "NODE")]
    name: Vec<NodeId>,
    /// How long peers are waited for, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait: u64,
    /// Bytes of the model, as `f32`; default: those of the built-in trainer.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=1 << 50))]
    model_bytes: Option<u64>,
}

impl Preflight {
    /// Measures the links of the topology and says what is wrong with them.
    pub fn run(&self, common: &Common) -> Exit {
        let machine =
            |error: std::io::Error| refuse(common, FederationError::Machine(error.to_string()));
        let federation = match open(common, &self.file, false) {
            Ok(federation) => federation,
            Err(error) => return refuse(common, error),
        };
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => return machine(error),
        };
        let question = Question {
            nodes: self.name.clone(),
            wait: Duration::from_secs(self.wait),
            model_bytes: self.model_bytes,
        };
        runtime.block_on(async {
            let mut signals = match Signals::listen() {
                Ok(signals) => signals,
                Err(error) => return machine(error),
            };
            let surveyed = tokio::select! {
                biased;
                interrupt = signals.next() => return match interrupt {
                    Interrupt::Interrupted => Exit::Interrupted,
                    Interrupt::Terminated => Exit::Terminated,
                },
                surveyed = survey(&federation, &question, tell) => surveyed,
            };
            match surveyed {
                Ok(survey) => show(common, &survey),
                Err(error) => refuse(common, error),
            }
        })
    }
}

/// Says how it goes, for people, beside the results.
fn tell(progress: Progress) {
    match progress {
        Progress::Listens {
            node,
            address,
            peers,
        } => complain!("{node} listens on {address} and is to meet {peers} peers"),
        Progress::Reached {
            node,
            peer,
            address,
            left,
        } => complain!("{node} has reached {peer} at {address}; {left} more"),
        Progress::Waits {
            node,
            missing,
            left,
        } => {
            let named = missing
                .iter()
                .take(NAMED_MAX)
                .map(|(peer, last)| match last.as_str() {
                    "" => peer.to_string(),
                    last => format!("{peer} ({last})"),
                });
            let named: Vec<String> = named.collect();
            let more = match missing.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            complain!(
                "{node} waits for {}{more}: {} s left",
                named.join(", "),
                left.as_secs()
            );
        }
        Progress::NextLink { node, peer } => {
            complain!("{node} measures its link with {peer} once that one is ready")
        }
    }
}

fn show(common: &Common, survey: &Survey) -> Exit {
    if common.format == Format::Json {
        survey.links.iter().for_each(|link| print_line(&line(link)));
    }
    survey
        .findings
        .iter()
        .for_each(|finding| show_finding(common, finding));
    let count = |verdict| {
        let each = survey.findings.iter();
        each.filter(|finding| finding.verdict == verdict).count()
    };
    let (warn, fail) = (count(Verdict::Warn), count(Verdict::Fail));
    match common.format {
        Format::Json => print_line(&json!({
            "event": "preflight",
            "links": survey.links.len(),
            "pass": survey.findings.len() - warn - fail,
            "warn": warn,
            "fail": fail,
        })),
        Format::Text => {
            survey.links.iter().for_each(show_link);
            say!(
                "{} links measured, {} checks: {warn} to look at, {fail} to mend",
                survey.links.len(),
                survey.findings.len()
            );
        }
    }
    match fail {
        0 => Exit::Done,
        _ => Exit::Failed,
    }
}

fn show_finding(common: &Common, finding: &Finding) {
    if common.format == Format::Json {
        let mut line = json!({ "event": "preflight_check" });
        if let (Some(line), Ok(Value::Object(finding))) =
            (line.as_object_mut(), serde_json::to_value(finding))
        {
            line.extend(finding);
        }
        return print_line(&line);
    }
    let Finding {
        check,
        verdict,
        subject,
        expected,
        found,
        fix,
    } = finding;
    say!("{verdict}  {check:<18}  {subject}: {found}");
    if *verdict != Verdict::Pass && !expected.is_empty() {
        say!("                            expected: {expected}");
    }
    if !fix.is_empty() {
        say!("                            {fix}");
    }
}

/// The numbers of a link on one line.
fn show_link(link: &Link) {
    say!(
        "{} - {}: {} round trip, {} there, {} back",
        link.from,
        link.to,
        micros(link.round_trip_us.0),
        rate(link.there.flow.bits_per_s),
        rate(link.back.flow.bits_per_s)
    );
}

fn line(link: &Link) -> Value {
    json!({
        "event": "preflight_link",
        "from": link.from,
        "to": link.to,
        "address": link.address.to_string(),
        "round_trip_us": link.round_trip_us.0,
        "round_trip_p99_us": link.round_trip_us.1,
        "clock_offset_us": link.offset_us,
        "clock_bound_us": link.bound_us,
        "there": way(&link.there),
        "back": way(&link.back),
    })
}

fn way(way: &Way) -> Value {
    json!({
        "probes": way.probes,
        "came": way.came,
        "bits_per_s": way.flow.bits_per_s,
        "flow_bytes": way.flow.bytes,
        "flow_us": way.flow.micros,
        "packet_bytes": way.side.packet_bytes,
        "black_holes": way.side.black_holes,
        "buffer_send": way.buffers.0,
        "buffer_receive": way.buffers.1,
    })
}
