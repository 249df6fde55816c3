//! What becomes of certificates after their first.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::super::output::print_line;
use super::super::{Common, Exit, Format};
use super::{print, terms, unknown};
use tombolo::actors::identity::IdentityError;
use tombolo::core::ids::{DomainId, NodeId};
use tombolo::core::plan::Plan;
use tombolo::identity::files::DomainFiles;
use tombolo::identity::lifecycle::{self, Asked};
use tombolo::identity::pki::Terms;
use tombolo::identity::rollover;
use tombolo::world::unix_now;

#[derive(Debug, Args)]
pub(super) struct Request {
    /// The topology.
    pub file: PathBuf,
    /// Which node, as `domain/name`.
    #[arg(long)]
    node: NodeId,
    /// Where the request is written; default: beside the node's certificate, as `<name>.csr`.
    #[arg(long, value_name = "F")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Approve {
    /// The topology.
    pub file: PathBuf,
    /// The request.
    #[arg(long, value_name = "F")]
    request: PathBuf,
    /// The key's fingerprint, as the node's side has told it over another channel; without it you are asked, on a terminal.
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<String>,
    /// How many days the certificate lives.
    #[arg(long, value_name = "N")]
    days: Option<u32>,
    /// Where the certificate is written; default: beside the request, as `.pem`.
    #[arg(long, value_name = "F")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Rotate {
    /// The topology.
    pub file: PathBuf,
    /// Which node, as `domain/name`; default: every node whose certificate is here, of the domains whose keys are here.
    #[arg(long)]
    node: Option<NodeId>,
    /// A certificate that was approved for a key of this node; default: a new key and a certificate for it.
    #[arg(long, value_name = "F", requires = "node")]
    certificate: Option<PathBuf>,
    /// How many days the certificate lives.
    #[arg(long, value_name = "N", conflicts_with = "certificate")]
    days: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct Revoke {
    /// The topology.
    pub file: PathBuf,
    /// Whose certificates, as `domain/name`.
    #[arg(long)]
    node: NodeId,
}

#[derive(Debug, Args)]
pub(super) struct Rollover {
    /// The topology.
    pub file: PathBuf,
    /// Which domain.
    #[arg(long)]
    domain: DomainId,
    /// Which step.
    #[arg(long)]
    step: Step,
    /// How many days the new root lives.
    #[arg(long, value_name = "N")]
    days: Option<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Step {
    /// Add a root; it signs nothing yet.
    Next,
    /// Sign with it from now on.
    Switch,
    /// Take the old one away.
    Retire,
}

impl Request {
    pub(super) fn run(&self, common: &Common, plan: &Plan) -> Result<Exit, IdentityError> {
        let made = lifecycle::request(plan, &self.node)?;
        let out = match &self.out {
            Some(out) => out.clone(),
            None => {
                let domain = plan.domain(&self.node.domain());
                let files = domain.map(DomainFiles::of_plan);
                let files = files.ok_or_else(|| unknown(format!("node {}", self.node)))?;
                files.leaf(self.node.name()).with_extension("csr")
            }
        };
        lifecycle::write_request(&out, &made)?;
        tell(common, "requested", &made, &[("path", &out)], || {
            say!(
                "made {} for {}\n  its key stays here: {}\n  key sha256 {}\n  send the file to the administration of {}, and the fingerprint over another channel",
                out.display(),
                made.node,
                made.key.display(),
                made.key_sha256,
                made.node.domain(),
            );
        });
        Ok(Exit::Done)
    }
}

impl Approve {
    pub(super) fn run(&self, common: &Common, plan: &Plan) -> Result<Exit, IdentityError> {
        let terms = terms(Terms::leaf(unix_now()), self.days, true);
        let asked = Asked::read(plan, &self.request)?;
        let root = asked.root_sha256(plan, terms.now)?;
        let (node, key) = (asked.node().clone(), asked.key_sha256().to_owned());
        let refuse = |message: String| Err(IdentityError::Configuration(message));
        match &self.fingerprint {
            Some(given) if digits(given) != key => {
                return refuse(format!(
                    "the request of {node} has a key with sha256 {key}, expected {}: it is not the one that the node's side has told you of",
                    digits(given)
                ));
            }
            Some(_) => {}
            None if std::io::stdin().is_terminal() => {
                eprint!(
                    "{node} asks for a certificate\n  key sha256 {key}\n  root sha256 {root}\ncompare the key with what the node's side says over another channel; sign? [y/N] "
                );
                let _ = std::io::stderr().flush();
                let mut answer = String::new();
                let _ = std::io::stdin().lock().read_line(&mut answer);
                if !["y", "yes"].contains(&answer.trim()) {
                    return refuse(format!("the request of {node} is not signed"));
                }
            }
            None => {
                return refuse(format!(
                    "{node} asks for a certificate of the key with sha256 {key}, from the root with sha256 {root}: compare the key with what the node's side says over another channel, then give it with --fingerprint"
                ));
            }
        }
        let out = match &self.out {
            Some(out) => out.clone(),
            None => self.request.with_extension("pem"),
        };
        let entry = asked.approve(plan, &terms, &out)?;
        print("approved", common, &entry);
        if common.format == Format::Text {
            say!(
                "  root sha256 {root}: the node's side compares it with the root that it has\n  give the file to the node: `tombolo certs rotate FILE --node {node} --certificate {}` puts it in place",
                out.display()
            );
        }
        Ok(Exit::Done)
    }
}

impl Rotate {
    pub(super) fn run(&self, common: &Common, plan: &Plan) -> Result<Exit, IdentityError> {
        let terms = terms(Terms::leaf(unix_now()), self.days, true);
        if let (Some(node), Some(certificate)) = (&self.node, &self.certificate) {
            let entry = lifecycle::install(plan, node, certificate, terms.now)?;
            print("rotated", common, &entry);
            return Ok(Exit::Done);
        }
        let nodes: Vec<&NodeId> = match &self.node {
            Some(node) if plan.node(node).is_none() => return Err(unknown(format!("node {node}"))),
            Some(node) => vec![node],
            None => {
                let here = |node: &&NodeId| {
                    let domain = plan.domain(&node.domain()).map(DomainFiles::of_plan);
                    domain.is_some_and(|files| files.leaf(node.name()).exists())
                };
                let issuable = super::issuable(plan)?;
                issuable.into_iter().filter(here).collect()
            }
        };
        for node in nodes {
            let domain = plan.domain(&node.domain()).expect("the plan has the node");
            let files = DomainFiles::of_plan(domain);
            let entry = lifecycle::rotate(&files, &plan.name, node, &terms)?;
            print("rotated", common, &entry);
        }
        Ok(Exit::Done)
    }
}

impl Revoke {
    pub(super) fn run(&self, common: &Common, plan: &Plan) -> Result<Exit, IdentityError> {
        let revoked = lifecycle::revoke(plan, &self.node, unix_now())?;
        tell(common, "revoked", &revoked, &[], || {
            say!(
                "revoked {} of {}, by list {} in {}\n  nodes of this machine take it up by themselves and tell the others; give the file to one running node, or to every site",
                match revoked.serials.len() {
                    1 => "the certificate".to_owned(),
                    count => format!("{count} certificates"),
                },
                revoked.node,
                revoked.number,
                revoked.path.display(),
            );
            revoked
                .serials
                .iter()
                .for_each(|serial| say!("  serial {serial}"));
        });
        Ok(Exit::Done)
    }
}

impl Rollover {
    pub(super) fn run(&self, common: &Common, plan: &Plan) -> Result<Exit, IdentityError> {
        let terms = terms(Terms::root(unix_now()), self.days, false);
        let step = match self.step {
            Step::Next => rollover::Step::Next,
            Step::Switch => rollover::Step::Switch,
            Step::Retire => rollover::Step::Retire,
        };
        let stand = rollover::step(plan, &self.domain, step, &terms)?;
        tell(common, "rollover", &stand, &[], || {
            say!("domain {}: {}", stand.domain, stand.path.display());
            for root in &stand.roots {
                let signs = if *root == stand.signs {
                    ", which signs"
                } else {
                    ""
                };
                say!("  root sha256 {root}{signs}");
            }
            say!("  {}", stand.next);
        });
        Ok(Exit::Done)
    }
}

/// Fingerprints are written with colons, spaces and capitals, too.
fn digits(text: &str) -> String {
    let digits = text.chars().filter(|c| !matches!(c, ':' | ' '));
    digits.collect::<String>().to_lowercase()
}

fn tell(
    common: &Common,
    event: &str,
    what: &impl Serialize,
    more: &[(&str, &PathBuf)],
    say: impl FnOnce(),
) {
    if common.format == Format::Text {
        return say();
    }
    let mut line = serde_json::json!({ "event": event });
    if let (Some(line), Ok(serde_json::Value::Object(fields))) =
        (line.as_object_mut(), serde_json::to_value(what))
    {
        line.extend(fields);
        for (key, path) in more {
            line.insert((*key).to_owned(), serde_json::json!(path));
        }
    }
    print_line(&line);
}
