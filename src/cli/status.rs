//! `tombolo status [FILE]`.

use std::path::{Path, PathBuf};

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};

use super::output::{bytes, fail, print_line, refuse, waits};
use super::{Common, Exit, Format};
use tombolo::control::{LinkStatus, MembershipStatus, RoundMode, Status as Found, processes};
use tombolo::world::unix_now;
use tombolo::{Federation, FederationError};
use tombolo_core::aggregate::feedback::Drift;
use tombolo_core::coordinator::Paused;
use tombolo_core::ids::NodeId;
use tombolo_core::text::span;

/// Where a topology keeps its state if it does not say.
const STATE_DEFAULT: &str = "state";

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// The topology whose state folder is looked at; default: ./state.
    file: Option<PathBuf>,
}

impl Status {
    /// Asks every process of the state folder.
    pub fn run(&self, common: &Common) -> Exit {
        let folder = match state_folder(common, self.file.as_deref()) {
            Ok(folder) => folder,
            Err(error) => return refuse(common, error),
        };
        let mut found = processes(&folder);
        // Who knows the open round comes first.
        found.sort_by_key(|process| {
            let coordinates = |status: &Found| status.nodes.iter().any(|node| node.coordinator);
            !process.as_ref().is_ok_and(coordinates)
        });
        if found.is_empty() {
            let folder = std::path::absolute(&folder).unwrap_or(folder);
            let message = format!(
                "nothing runs in the state folder {}; start it with `tombolo run FILE`, or name another folder with --state",
                folder.display()
            );
            return refuse(common, FederationError::Machine(message));
        }
        let mut exit = Exit::Done;
        for process in &found {
            match process {
                Ok(status) => show(common, status),
                Err(error) => {
                    fail(common, &error.to_string());
                    exit = Exit::Failed;
                }
            }
        }
        exit
    }
}

/// The state folder of a run that a command names, whose topology need not be there.
pub fn run_folder(common: &Common, named: Option<&Path>) -> PathBuf {
    let folder = named.or(common.state.as_deref());
    let folder = folder.unwrap_or(Path::new(STATE_DEFAULT));
    std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned())
}

/// The state folder that a command is about.
pub fn state_folder(common: &Common, file: Option<&Path>) -> Result<PathBuf, FederationError> {
    Ok(match (&common.state, file) {
        (Some(state), _) => state.clone(),
        (None, Some(file)) => {
            let federation = Federation::from_path(file)?;
            federation.plan().checkpoint.folder.clone()
        }
        (None, None) => PathBuf::from(STATE_DEFAULT),
    })
}

fn show(common: &Common, status: &Found) {
    if common.format == Format::Json {
        let mut line = serde_json::json!({ "event": "status" });
        if let (Some(line), Ok(serde_json::Value::Object(status))) =
            (line.as_object_mut(), serde_json::to_value(status))
        {
            line.extend(status);
        }
        return print_line(&line);
    }
    say!("{}: process {}", status.federation, status.process);
    let rounds = &status.rounds;
    let open = rounds.open.as_ref().map(ToString::to_string);
    let accuracy = rounds
        .accuracy
        .map(|accuracy| format!("accuracy {accuracy:.4}"));
    let asynchronous = rounds.mode == RoundMode::Async;
    let words = [
        asynchronous.then(|| "asynchronous".to_owned()),
        open,
        Some(format!(
            "{} of {} rounds done",
            rounds.ended, rounds.planned
        )),
        accuracy,
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    say!("{}", words.join("; "));
    if let Some(Paused { by, since }) = &rounds.paused {
        let lasts = span(unix_now().saturating_sub(*since));
        say!("paused by {by} for {lasts}: no round opens; `tombolo resume` goes on");
    }
    let waiting = status.nodes.iter().filter_map(|node| node.waits.as_ref());
    waiting.for_each(|wait| say!("{}", waits(wait)));
    let actors = status.actors.iter();
    let actors: Vec<String> = actors
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    say!("actors: {}", actors.join(", "));
    for drift in &status.rounds.drifts {
        let Drift {
            node,
            share,
            factor,
            reason,
        } = drift;
        say!(
            "{node} drifted in {share:.2} of recent rounds, its weight is times {factor:.2}; {reason}"
        );
    }
    show_membership(&status.membership);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "node",
        "listens on",
        "certificate",
        "link to",
        "state",
        "peer",
        "left",
        "phi",
        "loss",
        "clock",
        "packet",
        "sent",
        "received",
    ]);
    for node in &status.nodes {
        let mut first = [
            node.node.to_string(),
            node.address.clone(),
            match node.certificate_ends {
                false => format!("{} left", span(node.certificate_s)),
                true => format!("{} left: renew it", span(node.certificate_s)),
            },
        ];
        let mut links = status
            .links
            .iter()
            .filter(|link| link.node == node.node)
            .peekable();
        if links.peek().is_none() {
            table.add_row(first.clone());
        }
        for link in links {
            let [name, address, certificate] = std::mem::take(&mut first);
            table.add_row([
                name,
                address,
                certificate,
                link.peer.to_string(),
                link.state.to_string(),
                link.rung.clone(),
                link.left_s
                    .map(|left| format!("{left:.0} s"))
                    .unwrap_or_default(),
                format!("{:.1}", link.phi),
                format!("{:.1} %", link.heartbeat_loss * 100.0),
                link.clock
                    .map(|clock| format!("± {:.1} ms", clock.bound_us as f64 / 1e3))
                    .unwrap_or_default(),
                link.packet_bytes
                    .map(|size| format!("{size} B"))
                    .unwrap_or_default(),
                bytes(link.sent),
                bytes(link.received),
            ]);
        }
    }
    for column in 6..=12 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    say!("{table}");
    let troubled = |link: &&LinkStatus| !link.reason.is_empty();
    for link in status.links.iter().filter(troubled) {
        say!("{} to {}: {}", link.node, link.peer, link.reason);
    }
}

fn show_membership(membership: &MembershipStatus) {
    let gateways: Vec<&str> = membership.gateways.values().map(NodeId::as_str).collect();
    say!(
        "epoch {}; coordinator {}; gateways {}",
        membership.epoch,
        membership.coordinator,
        gateways.join(", ")
    );
    if membership.nodes.is_empty() {
        return say!("where each node stands, the coordinator's process shows");
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["member", "state", "for", "cool-down", "reason"]);
    for node in &membership.nodes {
        table.add_row([
            node.node.to_string(),
            node.state.word().to_owned(),
            format!("{:.0} s", node.since_s),
            node.left_s
                .map(|left| format!("{left:.0} s left"))
                .unwrap_or_default(),
            node.reason.clone(),
        ]);
    }
    say!("{table}");
}
