//! `tombolo policy explain FILE`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use serde_json::json;

use super::output::{fail, print_line, refuse};
use super::{Common, Exit, Format};
use tombolo::identity::spiffe;
use tombolo::topology;
use tombolo_core::ids::{DomainId, NodeId, SliceId};
use tombolo_core::plan::Plan;
use tombolo_core::policy::{self, Action, BUILT_IN, By, Verdict};

/// Arguments of `policy`.
#[derive(Debug, Args)]
pub struct Policy {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Who may do what at which site, by which rule and why
    Explain(Explain),
}

#[derive(Debug, Args)]
struct Explain {
    /// The topology.
    file: PathBuf,

    /// Only at this site.
    #[arg(long, value_name = "DOMAIN")]
    site: Option<DomainId>,

    /// Only for this identity: `domain/name`, or a SPIFFE ID. It may be one that the topology does not have.
    #[arg(long, value_name = "ID")]
    identity: Option<String>,

    /// Only this: join, train, aggregate, coordinate, read-model or read-metrics.
    #[arg(long, value_name = "ACTION")]
    action: Option<Action>,

    /// Only for acts that concern nodes of this slice; `-` for nodes of none.
    #[arg(long, value_name = "SLICE")]
    slice: Option<String>,
}

/// What is asked for.
struct Questions {
    sites: Vec<DomainId>,
    identities: Vec<NodeId>,
    actions: Vec<Action>,
    slices: Vec<Option<SliceId>>,
    /// One site, one identity, one action: the answer is a sentence.
    is_one: bool,
}

impl Policy {
    /// Shows what the one function decides that every node asks.
    pub fn run(&self, common: &Common) -> Exit {
        let What::Explain(explain) = &self.what;
        let plan = match topology::load(&explain.file) {
            Ok(plan) => plan,
            Err(diagnosis) => return refuse(common, diagnosis.into()),
        };
        let questions = match explain.questions(&plan) {
            Ok(questions) => questions,
            Err(reason) => {
                fail(common, &reason);
                return Exit::Usage;
            }
        };
        match common.format {
            Format::Json => questions.verdicts(&plan).for_each(|verdict| {
                let mut line = json!({ "event": "verdict", "says": verdict.to_string() });
                if let (Some(line), Ok(serde_json::Value::Object(told))) =
                    (line.as_object_mut(), serde_json::to_value(&verdict))
                {
                    line.extend(told);
                }
                print_line(&line);
            }),
            Format::Text if questions.is_one => {
                questions
                    .verdicts(&plan)
                    .for_each(|verdict| say!("{verdict}"));
            }
            Format::Text => show(&plan, &questions),
        }
        Exit::Done
    }
}

impl Explain {
    fn questions(&self, plan: &Plan) -> Result<Questions, String> {
        let sites = plan.domains.iter().map(|domain| domain.id.clone());
        let sites: Vec<DomainId> = match &self.site {
            Some(site) if plan.domain(site).is_none() => {
                let known: Vec<String> = sites.map(|site| site.to_string()).collect();
                return Err(format!(
                    "the topology has no site {site}; it has {}",
                    known.join(", ")
                ));
            }
            Some(site) => vec![site.clone()],
            None => sites.collect(),
        };
        let identities = match &self.identity {
            Some(text) if text.starts_with("spiffe:") => {
                vec![spiffe::parse(&plan.name, text).map_err(|fault| fault.to_string())?]
            }
            Some(text) => vec![text.parse::<NodeId>().map_err(|_| {
                format!("{text:?} is no identity; write domain/name, or a SPIFFE ID")
            })?],
            None => plan.nodes().map(|node| node.id.clone()).collect(),
        };
        let all = plan.policy.slices.iter().cloned().map(Some);
        let slices: Vec<Option<SliceId>> = match self.slice.as_deref() {
            None => [None].into_iter().chain(all).collect(),
            Some("-") => vec![None],
            Some(text) => {
                let found = all.flatten().find(|slice| slice.as_str() == text);
                let known = &plan.policy.slices;
                vec![Some(found.ok_or_else(|| {
                    let known: Vec<&str> = known.iter().map(SliceId::as_str).collect();
                    let known = match known.is_empty() {
                        true => "it has none".to_owned(),
                        false => format!("it has {}", known.join(", ")),
                    };
                    format!("the topology has no slice {text:?}; {known}")
                })?)]
            }
        };
        Ok(Questions {
            sites,
            identities,
            actions: self.action.map_or(Action::ALL.to_vec(), |one| vec![one]),
            slices,
            is_one: self.site.is_some() && self.identity.is_some() && self.action.is_some(),
        })
    }
}

impl Questions {
    /// All answers, in the order in which they are shown.
    fn verdicts<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = Verdict> + 'a {
        self.sites.iter().flat_map(move |site| {
            self.identities.iter().flat_map(move |identity| {
                self.slices.iter().flat_map(move |slice| {
                    let actions = self.actions.iter();
                    actions.map(move |action| {
                        policy::decide(plan, site, identity, *action, slice.as_ref())
                    })
                })
            })
        })
    }
}

/// A table with a line for each site, identity and slice, and what it goes by.
fn show(plan: &Plan, questions: &Questions) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let has_slices = !plan.policy.slices.is_empty();
    let mut header = vec!["site", "identity"];
    header.extend(has_slices.then_some("slice"));
    header.extend(questions.actions.iter().map(|action| action.word()));
    table.set_header(header);
    let verdicts: Vec<Verdict> = questions.verdicts(plan).collect();
    for row in verdicts.chunks(questions.actions.len()) {
        let Some(first) = row.first() else { continue };
        let mut cells = vec![first.site.to_string(), first.identity.to_string()];
        if has_slices {
            cells.push(first.slice.as_ref().map_or("-".into(), ToString::to_string));
        }
        cells.extend(row.iter().map(|verdict| match verdict.by {
            By::BuiltIn => "yes".to_owned(),
            By::Rule(place) => format!("yes, rule {place}"),
            By::NoRule => "NO".to_owned(),
            By::Role => "-".to_owned(),
        }));
        table.add_row(cells);
    }
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    say!("{}", lines.join("\n"));
    say!("");
    say!(
        "-: the file gives it no role in which it would do that there. NO: the site has rules, and none grants it."
    );
    let sites = questions.sites.iter();
    let without: Vec<&str> = sites
        .filter(|site| !plan.policy.rules_at(site))
        .map(DomainId::as_str)
        .collect();
    if !without.is_empty() {
        say!(
            "yes: granted by default at a site without rules ({}):",
            without.join(", ")
        );
        for rule in BUILT_IN
            .iter()
            .filter(|rule| questions.actions.contains(&rule.action))
        {
            say!("  {:<12} {}", rule.action, rule.grants);
        }
    }
    for (place, rule) in plan.policy.rules.iter().enumerate() {
        let actions: Vec<&str> = rule.actions.iter().map(|action| action.word()).collect();
        let site = rule
            .site
            .as_ref()
            .map_or("every site".into(), ToString::to_string);
        let slices: Vec<&str> = rule.slices.iter().map(SliceId::as_str).collect();
        let inside = match slices.is_empty() {
            true => String::new(),
            false => format!(", in slices {}", slices.join(", ")),
        };
        say!(
            "rule {}: at {site}, {} may {}{inside}",
            place + 1,
            rule.identity,
            actions.join(", ")
        );
    }
}
