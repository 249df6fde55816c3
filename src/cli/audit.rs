//! `tombolo audit show|verify|prove|recompute DIR`: what the record says, whether it is what was signed, the proof of one leaf, and the models
//! computed again from what domains have contributed.

mod recompute;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::output::{complain, fail, print_line, refuse};
use super::{Common, Exit, Format};
use tombolo::FederationError;
use tombolo::audit::{self, Place};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::record::audit::{Audited, Finding, Report};
use tombolo_core::record::{Leaf, Note, Proof, prove};

/// A proof is a path of a few hashes and one leaf.
const PROOF_BYTES_MAX: u64 = 1 << 20;

/// Arguments of `audit`.
#[derive(Debug, Args)]
pub struct Audit {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show what the record says, leaf by leaf.
    Show(Show),
    /// Verify every leaf, root and signature of one or several sites' copies, and that they are one record; names what is not.
    Verify(Verify),
    /// Prove that the record says something, to whoever holds only its checkpoint.
    Prove(Prove),
    /// Compute the models of rounds again from what the sites' gateways have retained, and compare them with the record.
    Recompute(recompute::Recompute),
}

#[derive(Debug, Args)]
struct Show {
    /// A state folder, or a node's folder in it.
    dir: PathBuf,
    /// Only what is about that round.
    #[arg(long)]
    round: Option<Round>,
    /// Only what names that node, as `domain/name`.
    #[arg(long)]
    node: Option<NodeId>,
}

#[derive(Debug, Args)]
struct Verify {
    /// State folders, or nodes' folders in them: the copies of one or several sites.
    #[arg(required_unless_present = "proof")]
    dirs: Vec<PathBuf>,
    /// The topology whose pinned roots count; without it the record's own, whose fingerprints are shown.
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Verify one leaf by its proof instead.
    #[arg(
        long,
        value_name = "FILE",
        requires = "checkpoint",
        conflicts_with = "dirs"
    )]
    proof: Option<PathBuf>,
    /// The checkpoint that the proof is for.
    #[arg(long, value_name = "FILE", requires = "proof")]
    checkpoint: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Prove {
    /// A state folder, or a node's folder in it.
    dir: PathBuf,
    /// Of which round.
    #[arg(long)]
    round: Round,
    /// What its update weighed; without it how the round ended.
    #[arg(long)]
    node: Option<NodeId>,
}

impl Audit {
    /// Shows, verifies or proves.
    pub fn run(&self, common: &Common) -> Exit {
        match &self.what {
            What::Show(show) => show.run(common),
            What::Verify(verify) => match (&verify.proof, &verify.checkpoint) {
                (Some(proof), Some(checkpoint)) => verify_proof(common, proof, checkpoint),
                _ => verify.run(common),
            },
            What::Prove(prove) => prove.run(common),
            What::Recompute(recompute) => recompute.run(common),
        }
    }
}

/// The copies in a folder; a folder without any is a mistake of whoever names it.
fn places(dir: &Path) -> Result<Vec<Place>, FederationError> {
    let found = audit::places(dir);
    let found =
        found.map_err(|error| FederationError::Machine(format!("{}: {error}", dir.display())))?;
    match found.is_empty() {
        false => Ok(found),
        true => Err(FederationError::Machine(format!(
            "{} holds no record: name the state folder of a run, or a gateway's folder `nodes/DOMAIN.NAME` in it",
            dir.display()
        ))),
    }
}

/// The longest copy of a folder: the others are older.
fn longest(common: &Common, dir: &Path) -> Result<Vec<String>, Exit> {
    let places = places(dir).map_err(|error| refuse(common, error))?;
    longest_of(common, &places)
}

fn longest_of(common: &Common, places: &[Place]) -> Result<Vec<String>, Exit> {
    let mut read = Vec::new();
    for place in places {
        let signed = place.signed().map_err(|reason| {
            fail(common, &format!("{}: {reason}", place.name()));
            Exit::Failed
        })?;
        if signed.len() > read.len() {
            read = signed;
        }
    }
    Ok(read)
}

impl Show {
    fn run(&self, common: &Common) -> Exit {
        let lines = match longest(common, &self.dir) {
            Ok(lines) => lines,
            Err(exit) => return exit,
        };
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["leaf", "round", "says"]);
        let mut unread = 0;
        for (index, line) in lines.iter().enumerate() {
            let leaf = match Leaf::parse(line) {
                Ok(leaf) => leaf,
                Err(reason) => {
                    complain(&format!("leaf {index}: {reason}"));
                    unread += 1;
                    continue;
                }
            };
            let of_round = self.round.is_none() || leaf.round() == self.round;
            let of_node = self.node.as_ref().is_none_or(|node| leaf.names(node));
            if !of_round || !of_node {
                continue;
            }
            if common.format == Format::Json {
                print_line(&json!({ "event": "leaf", "index": index, "says": leaf }));
                continue;
            }
            let round = leaf
                .round()
                .map_or(String::new(), |round| round.to_string());
            table.add_row([index.to_string(), round, says(&leaf)]);
        }
        if common.format == Format::Text {
            for column in [0, 1] {
                if let Some(column) = table.column_mut(column) {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
            say!("{table}");
        }
        match unread {
            0 => Exit::Done,
            _ => Exit::Failed,
        }
    }
}

/// A leaf, for people.
fn says(leaf: &Leaf) -> String {
    let short = |hash: &tombolo_core::tensor::Hash| hash.to_string()[..16].to_owned();
    let list = |nodes: &[NodeId]| {
        nodes
            .iter()
            .map(NodeId::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match leaf {
        Leaf::Begun {
            federation,
            run,
            coordinators,
            ..
        } => {
            format!(
                "run {} of {federation} began; {} may coordinate",
                short(run),
                list(coordinators)
            )
        }
        Leaf::Amended { configuration } => {
            format!("the run goes on by the topology {}", short(configuration))
        }
        Leaf::Policy { hash, rules } => {
            format!("policies {}: {} rules", short(hash), rules.len())
        }
        Leaf::Root {
            domain,
            certificate,
        } => {
            format!(
                "root of {domain}: sha256 {}",
                audit::fingerprint(&certificate.0)
            )
        }
        Leaf::Retired {
            domain,
            certificate,
        } => {
            format!(
                "root of {domain} retired: sha256 {}",
                audit::fingerprint(&certificate.0)
            )
        }
        Leaf::Revoked { domain, list } => {
            format!(
                "certificates of {domain} revoked: list with sha256 {}",
                audit::fingerprint(&list.0)
            )
        }
        Leaf::Certificate { node, certificate } => {
            format!(
                "certificate of {node}: sha256 {}",
                audit::fingerprint(&certificate.0)
            )
        }
        Leaf::Promoted { node, epoch } => format!("{node} was promoted, by view {epoch}"),
        Leaf::Membership { view } => {
            let gateways: Vec<NodeId> = view.gateways.values().cloned().collect();
            let out: Vec<NodeId> = view.out.keys().cloned().collect();
            let out = match out.is_empty() {
                true => "nobody".to_owned(),
                false => list(&out),
            };
            format!(
                "view {}: {} coordinates, gateways {}, out {out}",
                view.epoch,
                view.coordinator,
                list(&gateways)
            )
        }
        Leaf::Update {
            node, weight, clip, ..
        } => format!("{node} weighs {weight}, times {clip}"),
        Leaf::Contribution {
            domain,
            weight,
            hash,
            members,
            attempt,
            ..
        } => {
            format!(
                "{domain} contributed {} of {}, weight {weight}, attempt {attempt}",
                short(hash),
                list(members)
            )
        }
        Leaf::Checkpoint { model, .. } => format!("the state of model {} is kept", short(model)),
        Leaf::Unrecorded { state, model, .. } => {
            format!(
                "{}, model {}; no record was kept",
                tombolo::federation::state_word(*state),
                short(model)
            )
        }
        Leaf::Round {
            epoch,
            state,
            reason,
            model,
            ..
        } => {
            let word = tombolo::federation::state_word(*state);
            let why = if reason.is_empty() {
                String::new()
            } else {
                format!(": {reason}")
            };
            format!("{word} in view {epoch}, model {}{why}", short(model))
        }
    }
}

impl Verify {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long it took is about the real world"
    )]
    fn run(&self, common: &Common) -> Exit {
        let began = Instant::now();
        let mut all = Vec::new();
        for dir in &self.dirs {
            match places(dir) {
                Ok(places) => all.extend(places),
                Err(error) => return refuse(common, error),
            }
        }
        let pinned = match &self.topology {
            Some(file) => match super::run::open(common, file, false) {
                Ok(federation) => Some(federation),
                Err(error) => return refuse(common, error),
            },
            None => None,
        };
        let mut report = match audit::verify(&all) {
            Ok(report) => report,
            Err(reason) => {
                fail(common, &reason);
                return Exit::Failed;
            }
        };
        let mut states = 0;
        for (place, copy) in all.iter().zip(&report.copies) {
            let (checked, found) = audit::states(place, &copy.models);
            states += checked;
            report.findings.extend(found);
        }
        if let Some(federation) = &pinned {
            match audit::unpinned(federation.plan(), &report) {
                Ok(found) => report.findings.extend(found),
                Err(error) => return refuse(common, FederationError::Machine(error.to_string())),
            }
        }
        tell(
            common,
            &report,
            pinned.is_some(),
            states,
            began.elapsed().as_secs_f64(),
        );
        match report.findings.is_empty() {
            true => Exit::Done,
            false => Exit::Failed,
        }
    }
}

fn tell(common: &Common, report: &Report, pinned: bool, states: usize, seconds: f64) {
    for copy in &report.copies {
        match common.format {
            Format::Json => print_line(&line(copy)),
            Format::Text => say!("{}", words(copy)),
        }
    }
    for found in &report.findings {
        let Finding {
            copy,
            place,
            reason,
        } = found;
        if common.format == Format::Json {
            print_line(
                &json!({ "event": "finding", "copy": copy, "place": place, "reason": reason }),
            );
        }
        complain(&format!("{copy}, {place}: {reason}"));
    }
    let (copies, leaves) = (
        report.copies.len(),
        report.copies.iter().map(|copy| copy.size).sum::<u64>(),
    );
    match common.format {
        Format::Json => print_line(&json!({
            "event": "verified",
            "copies": copies,
            "leaves": leaves,
            "states": states,
            "findings": report.findings.len(),
            "pinned": pinned,
            "wall_s": seconds,
        })),
        Format::Text => {
            if !pinned && let Some(copy) = report.copies.first() {
                for (domain, roots) in copy.account.roots() {
                    roots.iter().for_each(|root| {
                        say!("root of {domain}: sha256 {}", audit::fingerprint(root))
                    });
                }
                say!("compare these with each domain's administration, or give --topology");
            }
            say!(
                "{leaves} leaves of {copies} copies and {states} models in {seconds:.2} s: {} findings",
                report.findings.len()
            );
        }
    }
}

fn line(copy: &Audited) -> Value {
    json!({
        "event": "audited",
        "copy": copy.name,
        "node": copy.node,
        "leaves": copy.size,
        "unsigned": copy.unsigned,
        "root": copy.head.as_ref().map(|note| note.head.root.to_string()),
        "rounds": copy.account.round(),
        "committed": copy.tally.0,
        "degraded": copy.tally.1,
        "aborted": copy.tally.2,
        "cosigned_by": copy.cosigners,
    })
}

fn words(copy: &Audited) -> String {
    let node = copy.node.as_ref().map_or("nobody", NodeId::as_str);
    let (committed, degraded, aborted) = copy.tally;
    let cosigners: Vec<&str> = copy.cosigners.iter().map(NodeId::as_str).collect();
    let mut words = format!(
        "{}: {} leaves signed by {node}; {committed} rounds committed, {degraded} degraded, {aborted} aborted",
        copy.name, copy.size
    );
    if !cosigners.is_empty() {
        words.push_str(&format!(
            "; the head before cosigned by {}",
            cosigners.join(", ")
        ));
    }
    if copy.unsigned > 0 {
        words.push_str(&format!(
            "; {} leaves behind its signed head do not count: its node ended while it wrote, or somebody added them",
            copy.unsigned
        ));
    }
    words
}

impl Prove {
    fn run(&self, common: &Common) -> Exit {
        let lines = match longest(common, &self.dir) {
            Ok(lines) => lines,
            Err(exit) => return exit,
        };
        let wanted = |line: &String| {
            let leaf = Leaf::parse(line)
                .ok()
                .filter(|leaf| leaf.round() == Some(self.round));
            leaf.is_some_and(|leaf| match &self.node {
                Some(node) => matches!(leaf, Leaf::Update { .. }) && leaf.names(node),
                None => matches!(leaf, Leaf::Round { .. } | Leaf::Unrecorded { .. }),
            })
        };
        let Some(index) = lines.iter().position(wanted) else {
            let what = self
                .node
                .as_ref()
                .map_or(String::new(), |node| format!(" about the update of {node}"));
            fail(
                common,
                &format!("the record says nothing{what} of round {}", self.round),
            );
            return Exit::Failed;
        };
        let origin = match lines.first().map(|line| Leaf::parse(line)) {
            Some(Ok(Leaf::Begun {
                federation, run, ..
            })) => tombolo_core::record::origin(&federation, &run),
            _ => {
                fail(
                    common,
                    "the record does not begin with its first leaf; `tombolo audit verify` says more",
                );
                return Exit::Failed;
            }
        };
        match prove(&origin, &lines, index as u64) {
            Ok(proof) => {
                print_line(&proof);
                Exit::Done
            }
            Err(reason) => {
                fail(common, &reason);
                Exit::Failed
            }
        }
    }
}

fn verify_proof(common: &Common, proof: &Path, checkpoint: &Path) -> Exit {
    let verified = read(proof).and_then(|text| {
        let proof: Proof = serde_json::from_str(&text)
            .map_err(|error| format!("{}: no proof: {error}", proof.display()))?;
        let note = read(checkpoint)?;
        let note =
            Note::parse(&note).map_err(|reason| format!("{}: {reason}", checkpoint.display()))?;
        if proof.origin != note.head.origin {
            return Err(format!(
                "the proof is of record {}, the checkpoint of {}",
                proof.origin, note.head.origin
            ));
        }
        proof.verify(note.head.size, &note.head.root)?;
        Ok((proof, note))
    });
    match verified {
        Ok((proof, note)) => {
            match common.format {
                Format::Json => print_line(&json!({
                    "event": "proven",
                    "index": proof.index,
                    "size": proof.size,
                    "root": note.head.root.to_string(),
                    "leaf": proof.leaf,
                })),
                Format::Text => {
                    say!(
                        "leaf {} of {} is under the root {}: {}",
                        proof.index,
                        proof.size,
                        note.head.root,
                        proof.leaf
                    );
                    say!("whose signatures are under that root, `tombolo audit verify DIR` tells");
                }
            }
            Exit::Done
        }
        Err(reason) => {
            fail(common, &reason);
            Exit::Failed
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    let located = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut text = String::new();
    let file = File::open(path).map_err(located)?;
    file.take(PROOF_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(located)?;
    Ok(text)
}
