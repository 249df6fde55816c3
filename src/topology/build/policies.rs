//! Slices, and who may do what.

use std::collections::{BTreeMap, BTreeSet};

use tombolo_core::ids::{DomainId, SliceId};
use tombolo_core::plan::Plan;
use tombolo_core::policy::{self, Action, Concern, PolicyPlan, Rule, Who};

use super::did_you_mean;
use super::domains::Domains;
use crate::identity::spiffe;
use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::reader::shown;
use crate::topology::value::{Item, Section};

/// Takes slices and rules out of the file.
pub(super) fn plan(file: &Section, domains: &Domains<'_>, mistakes: &mut Mistakes) -> PolicyPlan {
    let slices = slices(file, mistakes);
    let nodes = domains.list.iter().flat_map(|domain| &domain.nodes);
    for item in nodes.filter_map(|node| node.slice) {
        known_slice(item, &slices, mistakes);
    }
    let federation = file.section("federation").text("name").unwrap_or_default();
    let rules = file.list("policy").iter();
    let rules =
        rules.filter_map(|item| rule(item.section(), federation, domains, &slices, mistakes));
    PolicyPlan {
        rules: rules.collect(),
        slices,
    }
}

fn slices(file: &Section, mistakes: &mut Mistakes) -> Vec<SliceId> {
    let mut seen = BTreeMap::new();
    let mut slices = Vec::new();
    for section in file.list("slice").iter().map(Item::section) {
        let Some(entry) = section.find("name") else {
            continue;
        };
        let name = entry.item.text();
        if let Some(first) = seen.insert(name, &entry.item.span) {
            mistakes.push(
                Mistake::at(
                    &entry.item.span,
                    format!("the slice {:?} is there twice", shown(name)),
                )
                .label("second")
                .also(first, "first")
                .help("give one of them another name"),
            );
        } else if let Ok(slice) = name.parse() {
            slices.push(slice);
        }
    }
    slices
}

/// The slice of that name; a mistake if there is none.
fn known_slice(item: &Item, slices: &[SliceId], mistakes: &mut Mistakes) -> Option<SliceId> {
    let name = item.text();
    if let Some(slice) = slices.iter().find(|slice| slice.as_str() == name) {
        return Some(slice.clone());
    }
    let all = slices.iter().map(SliceId::as_str);
    let add = format!("add [[slice]] with name = {:?}", shown(name));
    let help = did_you_mean(mistakes, name, all, &add);
    mistakes.push(
        Mistake::at(&item.span, format!("there is no slice {:?}", shown(name)))
            .label("unknown slice")
            .help(help),
    );
    None
}

/// None if there is a mistake in it.
fn rule(
    section: &Section,
    federation: &str,
    domains: &Domains<'_>,
    slices: &[SliceId],
    mistakes: &mut Mistakes,
) -> Option<Rule> {
    let before = mistakes.len();
    let mut site = None;
    if let Some(entry) = section.find("site") {
        let name = entry.item.text();
        let mut names = domains.list.iter().filter_map(|domain| domain.name);
        if domains.known && !names.any(|domain| domain == name) {
            let all = domains.list.iter().filter_map(|domain| domain.name);
            let help = did_you_mean(mistakes, name, all, "name one of the file's domains");
            mistakes.push(
                Mistake::at(
                    &entry.item.span,
                    format!("there is no domain {:?}", shown(name)),
                )
                .label("unknown domain")
                .help(help),
            );
        }
        site = name.parse::<DomainId>().ok();
    }
    let identity = section
        .find("identity")
        .and_then(|entry| who(&entry.item, federation, mistakes));
    let mut actions = BTreeSet::new();
    for item in section.list("actions") {
        match item.text().parse::<Action>() {
            Ok(action) => _ = actions.insert(action),
            Err(_) => {
                let words = Action::ALL.map(Action::word);
                let there = format!("write one of {}", words.join(", "));
                let help = did_you_mean(mistakes, item.text(), words, &there);
                let message = format!("{:?} is no action", shown(item.text()));
                mistakes.push(
                    Mistake::at(&item.span, message)
                        .label("unknown action")
                        .help(help),
                );
            }
        }
    }
    let given = section.list("slices").iter();
    let given: Vec<_> = given
        .map(|item| known_slice(item, slices, mistakes))
        .collect();
    let is_right =
        mistakes.len() == before && !section.is_wrong("site") && !section.is_wrong("slices");
    Some(Rule {
        site,
        identity: identity?,
        actions,
        slices: given.into_iter().flatten().collect(),
    })
    .filter(|_| is_right)
}

/// Whom an identity names; who is not in the topology may come to be.
fn who(item: &Item, federation: &str, mistakes: &mut Mistakes) -> Option<Who> {
    let text = item.text();
    let (parsed, expected) = match text.starts_with("spiffe:") {
        true => (
            spiffe::parse(federation, text).map(Who::Node).ok(),
            "expected a node of this federation",
        ),
        false => (
            text.parse().ok(),
            "expected a node, all nodes of a domain, or everybody",
        ),
    };
    if parsed.is_none() {
        mistakes.push(
            Mistake::at(
                &item.span,
                format!("the identity {:?} names nobody", shown(text)),
            )
            .label(expected)
            .help(format!(
                "write \"plant/c\", \"plant/*\", \"*\" or \"spiffe://plant.{}/node/c\"",
                shown(federation)
            )),
        );
    }
    parsed
}

/// Refuses policies with which no round could ever be.
pub(super) fn judge(file: &Section, plan: &Plan, mistakes: &mut Mistakes) {
    let concerns = policy::concerns(plan).into_iter();
    let impossible = concerns.filter_map(|concern| match concern {
        Concern::Impossible(why) => Some(why),
        Concern::Warning(_) => None,
    });
    for why in impossible {
        let policies = file.list("policy");
        let last = policies.last().map(|item| item.span.clone());
        let place = last.unwrap_or_else(|| file.span.clone());
        mistakes.push(
            Mistake::at(&place, why)
                .label("a site with policies grants nothing else")
                .help("add what is missing: `tombolo policy explain FILE` shows who may do what once the file is right"),
        );
    }
}
