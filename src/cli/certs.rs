//! `tombolo certs init|issue|request|approve|rotate|revoke|rollover|show FILE`.

mod life;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::output::{fail, print_line, refuse};
use super::{Common, Exit, Format};
use tombolo::Federation;
use tombolo::actors::identity::{IdentityError, MaterialFault};
use tombolo::core::ids::{DomainId, NodeId};
use tombolo::core::plan::{DomainPlan, Plan};
use tombolo::identity::files::DomainFiles;
use tombolo::identity::pki::{self, Terms};
use tombolo::identity::show::{self, Entry};
use tombolo::world::unix_now;

/// Arguments of `certs`.
#[derive(Debug, Args)]
pub struct Certs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a domain's authority: its root certificate and the root's key.
    Init(Init),
    /// Issue a node's certificate and key from its domain's authority.
    Issue(Issue),
    /// Make a node's key where the node runs, and ask for a certificate of it.
    Request(life::Request),
    /// Sign a request, where the domain's key is.
    Approve(life::Approve),
    /// Give nodes new keys and certificates, or a node one that was approved. Nodes that run take it up by themselves.
    Rotate(life::Rotate),
    /// Call a node's certificates back: whoever hears of it cuts the node off.
    Revoke(life::Revoke),
    /// Put a new root in the place of a domain's old one, step by step.
    Rollover(life::Rollover),
    /// Show the topology's certificates that are on this machine, and what is wrong with them.
    Show(Show),
}

#[derive(Debug, Args)]
struct Init {
    /// The topology.
    file: PathBuf,
    /// Which domain; default: every domain that has no root yet.
    #[arg(long)]
    domain: Option<DomainId>,
    /// How many days the root lives.
    #[arg(long, value_name = "N")]
    days: Option<u32>,
    /// Replace what is there; every certificate issued so far is then worthless.
    #[arg(long, requires = "domain")]
    replace: bool,
}

#[derive(Debug, Args)]
struct Issue {
    /// The topology.
    file: PathBuf,
    /// Which node, as `domain/name`; default: every node that has no certificate yet, of the domains whose keys are here.
    #[arg(long)]
    node: Option<NodeId>,
    /// How many days the certificate lives.
    #[arg(long, value_name = "N")]
    days: Option<u32>,
    /// Replace what is there, with a new key.
    #[arg(long, requires = "node")]
    replace: bool,
}

#[derive(Debug, Args)]
struct Show {
    /// The topology.
    file: PathBuf,
}

impl Certs {
    /// Does it, and shows the certificates that it is about.
    pub fn run(&self, common: &Common) -> Exit {
        let file = match &self.command {
            Command::Init(init) => &init.file,
            Command::Issue(issue) => &issue.file,
            Command::Request(request) => &request.file,
            Command::Approve(approve) => &approve.file,
            Command::Rotate(rotate) => &rotate.file,
            Command::Revoke(revoke) => &revoke.file,
            Command::Rollover(rollover) => &rollover.file,
            Command::Show(show) => &show.file,
        };
        let federation = match Federation::from_path(file) {
            Ok(federation) => federation,
            Err(error) => return refuse(common, error),
        };
        let plan = federation.plan();
        let done = match &self.command {
            Command::Init(init) => init.run(common, plan),
            Command::Issue(issue) => issue.run(common, plan),
            Command::Request(request) => request.run(common, plan),
            Command::Approve(approve) => approve.run(common, plan),
            Command::Rotate(rotate) => rotate.run(common, plan),
            Command::Revoke(revoke) => revoke.run(common, plan),
            Command::Rollover(rollover) => rollover.run(common, plan),
            Command::Show(_) => show::show_plan(plan, unix_now()).map(|entries| {
                entries
                    .iter()
                    .for_each(|entry| print("certificate", common, entry));
                // A script can ask with this whether everything is in order.
                let fine = entries.iter().all(|entry| entry.problems.is_empty());
                if fine { Exit::Done } else { Exit::Failed }
            }),
        };
        done.unwrap_or_else(|error| {
            fail(common, &error.to_string());
            match error {
                IdentityError::Configuration(_) => Exit::Usage,
                _ => Exit::Failed,
            }
        })
    }
}

impl Init {
    fn run(&self, common: &Common, plan: &Plan) -> Result<Exit, IdentityError> {
        if let Some(domain) = &self.domain
            && plan.domain(domain).is_none()
        {
            return Err(unknown(format!("domain {domain}")));
        }
        let terms = terms(Terms::root(unix_now()), self.days, self.replace);
        let wanted = |id: &DomainId| self.domain.as_ref().is_none_or(|domain| domain == id);
        let mut exit = Exit::Done;
        for domain in plan.domains.iter().filter(|domain| wanted(&domain.id)) {
            match pki::init_domain(&DomainFiles::of_plan(domain), &plan.name, &terms) {
                Err(error) if is_there(&error) => {
                    let entry = show::show_root(domain, terms.now);
                    if !keep(common, &entry, &format!("--domain {}", domain.id)) {
                        exit = Exit::Failed;
                    }
                }
                made => print("made", common, &made?),
            }
        }
        Ok(exit)
    }
}

impl Issue {
    fn run(&self, common: &Common, plan: &Plan) -> Result<Exit, IdentityError> {
        let nodes = match &self.node {
            Some(node) if plan.node(node).is_none() => return Err(unknown(format!("node {node}"))),
            Some(node) => vec![node],
            None => issuable(plan)?,
        };
        let terms = terms(Terms::leaf(unix_now()), self.days, self.replace);
        let mut exit = Exit::Done;
        for node in nodes {
            let domain = plan.domain(&node.domain()).expect("the plan has the node");
            match pki::issue(&DomainFiles::of_plan(domain), &plan.name, node, &terms) {
                Err(error) if is_there(&error) => {
                    let entry = show::show_node(plan, node, terms.now);
                    let entry = entry.expect("the plan has the node");
                    if !keep(common, &entry, &format!("--node {node}")) {
                        exit = Exit::Failed;
                    }
                }
                made => print("made", common, &made?),
            }
        }
        Ok(exit)
    }
}

/// The nodes of the domains whose keys are here.
fn issuable(plan: &Plan) -> Result<Vec<&NodeId>, IdentityError> {
    let here = |domain: &&DomainPlan| DomainFiles::of_plan(domain).root_key().exists();
    let domains = plan.domains.iter().filter(here);
    let nodes: Vec<&NodeId> = domains
        .flat_map(|domain| domain.nodes.iter().map(|node| &node.id))
        .collect();
    if nodes.is_empty() {
        let key = DomainFiles::of_plan(&plan.domains[0]).root_key();
        return Err(IdentityError::Configuration(format!(
            "no domain's key is here (the first would be {}); make one with `tombolo certs init`, or issue where it is",
            key.display()
        )));
    }
    Ok(nodes)
}

fn is_there(error: &IdentityError) -> bool {
    let fault = match error {
        IdentityError::Material { fault, .. } => fault,
        _ => return false,
    };
    matches!(fault, MaterialFault::Exists)
}

/// Says why a certificate that is there is not made anew; false if something is wrong with it.
fn keep(common: &Common, entry: &Entry, which: &str) -> bool {
    let path = entry.path.display();
    let replace = format!("`{which} --replace` makes a new one");
    if !entry.problems.is_empty() {
        let problems = entry.problems.join("; ");
        fail(
            common,
            &format!("{path} is left as it is: {problems}; {replace}"),
        );
        return false;
    }
    match common.format {
        Format::Json => print("found", common, entry),
        Format::Text => {
            let left = tombolo_core::text::span(entry.remaining_s);
            say!("nothing to do: {path} is valid for another {left}; {replace}");
        }
    }
    true
}

fn terms(terms: Terms, days: Option<u32>, replace: bool) -> Terms {
    Terms {
        lifetime: days.map_or(terms.lifetime, |days| {
            Duration::from_secs(u64::from(days) * 86_400)
        }),
        replace,
        ..terms
    }
}

fn unknown(what: String) -> IdentityError {
    IdentityError::Configuration(format!(
        "the topology declares no {what}: `tombolo check` lists what it declares"
    ))
}

fn print(event: &str, common: &Common, entry: &Entry) {
    match common.format {
        Format::Text if event == "made" => say!("made {entry}"),
        Format::Text => say!("{entry}"),
        Format::Json => {
            let mut line = serde_json::json!({ "event": event });
            if let (Some(line), Ok(serde_json::Value::Object(entry))) =
                (line.as_object_mut(), serde_json::to_value(entry))
            {
                line.extend(entry);
            }
            print_line(&line);
        }
    }
}
