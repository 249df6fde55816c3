//! `tombolo certs init|issue|show FILE`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::output::{fail, print_line, refuse};
use super::{Common, Exit, Format};
use tombolo::Federation;
use tombolo::actors::identity::{IdentityError, MaterialFault};
use tombolo::core::ids::{DomainId, NodeId};
use tombolo::core::plan::Plan;
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
    /// Which node, as `domain/name`.
    #[arg(long)]
    node: NodeId,
    /// How many days the certificate lives.
    #[arg(long, value_name = "N")]
    days: Option<u32>,
    /// Replace what is there, with a new key.
    #[arg(long)]
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
        for domain in plan.domains.iter().filter(|domain| wanted(&domain.id)) {
            match pki::init_domain(&DomainFiles::of_plan(domain), &plan.name, &terms) {
                Ok(entry) => print("made", common, &entry),
                Err(IdentityError::Material {
                    fault: MaterialFault::Exists,
                    ..
                }) if self.domain.is_none() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Exit::Done)
    }
}

impl Issue {
    fn run(&self, common: &Common, plan: &Plan) -> Result<Exit, IdentityError> {
        let domain = plan.domain(&self.node.domain());
        let (Some(domain), Some(_)) = (domain, plan.node(&self.node)) else {
            return Err(unknown(format!("node {}", self.node)));
        };
        let terms = terms(Terms::leaf(unix_now()), self.days, self.replace);
        let files = DomainFiles::of_plan(domain);
        let entry = pki::issue(&files, &plan.name, &self.node, &terms)?;
        print("made", common, &entry);
        Ok(Exit::Done)
    }
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
