//! `tombolo doctor [FILE]`.

use std::path::PathBuf;

use clap::Args;

use super::output::{print_line, refuse};
use super::status::state_folder;
use super::{Common, Exit, Format};
use tombolo::doctor::{Finding, Question, Verdict, judge, probe};
use tombolo::identity::show::show_node;
use tombolo::world::unix_now;
use tombolo::{Federation, FederationError};
use tombolo_core::ids::NodeId;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The topology whose nodes are to run here; without it only the machine is looked at.
    file: Option<PathBuf>,
    /// The nodes that are to run here, as `domain/name`; default: those whose certificates are here.
    #[arg(long, value_name = "NODE", requires = "file")]
    name: Vec<NodeId>,
}

impl Doctor {
    /// Looks at the machine and says what is wrong with it.
    pub fn run(&self, common: &Common) -> Exit {
        let question = match self.question(common) {
            Ok(question) => question,
            Err(error) => return refuse(common, error),
        };
        let findings = judge(&probe(&question));
        findings.iter().for_each(|finding| show(common, finding));
        let count = |verdict| {
            findings
                .iter()
                .filter(|finding| finding.verdict == verdict)
                .count()
        };
        let (warn, fail) = (count(Verdict::Warn), count(Verdict::Fail));
        match common.format {
            Format::Json => print_line(&serde_json::json!({
                "event": "doctor",
                "pass": findings.len() - warn - fail,
                "warn": warn,
                "fail": fail,
            })),
            Format::Text => say!(
                "{} checks: {warn} to look at, {fail} to mend",
                findings.len()
            ),
        }
        match fail {
            0 => Exit::Done,
            _ => Exit::Failed,
        }
    }

    fn question(&self, common: &Common) -> Result<Question, FederationError> {
        let state = state_folder(common, self.file.as_deref())?;
        let state = std::path::absolute(&state).unwrap_or(state);
        let Some(file) = &self.file else {
            return Ok(Question {
                state,
                ..Question::default()
            });
        };
        let federation = Federation::from_path(file)?;
        let plan = federation.plan();
        if let Some(unknown) = self.name.iter().find(|node| plan.node(node).is_none()) {
            return Err(FederationError::UnknownNode(unknown.clone()));
        }
        let nodes = match self.name.as_slice() {
            [] => {
                let all = plan.nodes().map(|node| node.id.clone());
                let here = |node: &NodeId| {
                    let entry = show_node(plan, node, unix_now());
                    entry.is_some_and(|entry| entry.path.exists())
                };
                all.filter(here).collect()
            }
            named => named.to_vec(),
        };
        Ok(Question {
            elements: federation.elements().unwrap_or(0) as u64,
            plan: Some(plan.clone()),
            nodes,
            state,
        })
    }
}

fn show(common: &Common, finding: &Finding) {
    if common.format == Format::Json {
        let mut line = serde_json::json!({ "event": "check" });
        if let (Some(line), Ok(serde_json::Value::Object(finding))) =
            (line.as_object_mut(), serde_json::to_value(finding))
        {
            line.extend(finding);
        }
        return print_line(&line);
    }
    say!(
        "{}  {:<18}  {}",
        finding.verdict,
        finding.check,
        finding.found
    );
    if !finding.fix.is_empty() {
        say!("                            {}", finding.fix);
    }
}
