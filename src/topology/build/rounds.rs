//! Who opens rounds, and what closes them.

use std::collections::{BTreeMap, BTreeSet};

use tombolo_core::ids::{NodeId, Round};
use tombolo_core::plan::{Deadline, Durability, Quorum, RoundPlan};
use tombolo_core::waiting;

use super::asynchronous;
use super::did_you_mean;
use super::domains::{Domain, Domains};
use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::reader::shown;
use crate::topology::value::{Item, Section, Span, Value};

/// The coordinator: the node named, or the first domain's gateway.
pub(super) fn coordinator(
    file: &Section,
    domains: &Domains<'_>,
    mistakes: &mut Mistakes,
) -> Option<NodeId> {
    let federation = file.section("federation");
    let Some(entry) = federation.find("coordinator") else {
        let first = domains.list.first()?;
        return format!("{}/{}", first.name?, first.gateways.first()?)
            .parse()
            .ok();
    };
    let named: NodeId = entry.item.text().parse().ok()?;
    if !domains.known {
        return Some(named);
    }
    if check_node(&entry.item, domains, mistakes).is_none() {
        return Some(named);
    }
    let home = domains
        .list
        .iter()
        .find(|domain| domain.name == Some(named.domain().as_str()))?;
    if home.gateways.first() != Some(&named.name()) {
        let gateway = format!("{}/{}", named.domain(), home.gateways.first()?);
        let message = format!(
            "a coordinator that is not its domain's first gateway ({gateway}) is not in this version"
        );
        mistakes.push(
            Mistake::at(&entry.item.span, message)
                .label("not the first gateway")
                .help(format!(
                    "write coordinator = {gateway:?}, or put {:?} first in that domain's gateways",
                    named.name()
                )),
        );
    }
    Some(named)
}

/// The gateways that may become coordinator.
pub(super) fn standby(
    file: &Section,
    domains: &Domains<'_>,
    coordinator: Option<&NodeId>,
    mistakes: &mut Mistakes,
) -> Vec<NodeId> {
    let mut standby = Vec::new();
    if !domains.known {
        return standby;
    }
    for item in file.section("federation").list("standby") {
        let Some(id) = check_node(item, domains, mistakes) else {
            continue;
        };
        let home = domains.list.iter();
        let mut home = home.filter(|domain| domain.name == Some(id.domain().as_str()));
        let is_gateway = home.any(|domain| domain.gateways.contains(&id.name()));
        let mut refuse = |message: String, label: &str, help: String| {
            mistakes.push(Mistake::at(&item.span, message).label(label).help(help));
        };
        if Some(&id) == coordinator {
            let message = format!("{id} is the coordinator already");
            refuse(
                message,
                "the coordinator",
                "remove it here: it may be promoted back without that".into(),
            );
        } else if standby.contains(&id) {
            refuse(
                format!("{id} is listed twice as standby"),
                "again",
                "remove it here".into(),
            );
        } else if !is_gateway {
            let message = format!("{id} cannot be a standby: it is no gateway of its domain");
            let help = format!(
                "add {:?} to that domain's gateways: a coordinator needs links to all domains",
                id.name()
            );
            refuse(message, "not a gateway", help);
        } else {
            standby.push(id);
        }
    }
    standby
}

/// Refuses a node that no domain lists.
fn check_node(item: &Item, domains: &Domains<'_>, mistakes: &mut Mistakes) -> Option<NodeId> {
    let id: NodeId = item.text().parse().ok()?;
    if domains.nodes.contains(id.as_str()) {
        return Some(id);
    }
    let all = domains.nodes.iter().map(String::as_str);
    let help = did_you_mean(mistakes, id.as_str(), all, "add it to a domain's nodes");
    mistakes.push(
        Mistake::at(
            &item.span,
            format!("there is no node {:?}", shown(id.as_str())),
        )
        .label("unknown node")
        .help(help),
    );
    None
}

/// `[round]`.
pub(super) fn plan(file: &Section, domains: &Domains<'_>, mistakes: &mut Mistakes) -> RoundPlan {
    let section = file.section("round");
    let count = Count {
        nodes: domains.count,
        domains: domains.list.len(),
    };
    let mut quorum = quorum(section, &count, domains.known, mistakes);
    let asynchronous = asynchronous::plan(section, &count, domains.known, mistakes);
    if let Some(plan) = &asynchronous {
        quorum = asynchronous::quorum(section, plan, quorum, mistakes);
    }
    let absent = if domains.known {
        absent(file, domains, &quorum, mistakes)
    } else {
        BTreeMap::new()
    };
    let deadline = match section.value("deadline") {
        Value::Duration(span) => Deadline::Fixed(*span),
        _ => Deadline::Adaptive,
    };
    let failed_limit = section.whole("failed_limit") as u32;
    let close_limit = section.duration("close_limit");
    RoundPlan {
        quorum,
        deadline,
        grace: section.duration("grace"),
        failed_limit,
        close_limit,
        patience: waiting::patience(deadline, close_limit, failed_limit),
        durability: match section.word("durability") {
            "journal" => Durability::Journal,
            _ => Durability::Resend,
        },
        absent,
        asynchronous,
        codec_down: section.word("codec_down").parse().unwrap_or_default(),
    }
}

/// What the file declares.
pub(super) struct Count {
    pub(super) nodes: usize,
    domains: usize,
}

/// The quorum, by default a majority of nodes and of domains.
fn quorum(section: &Section, count: &Count, known: bool, mistakes: &mut Mistakes) -> Quorum {
    let majority = |of: usize| of / 2 + 1;
    let table = match section.find("quorum").map(|entry| &entry.item.value) {
        Some(Value::Word(_)) => return Quorum::All,
        Some(Value::Section(table)) => Some(table),
        _ => None,
    };
    let mut at_least = |key: &str, declared: usize| {
        let Some(table) = table.filter(|table| table.gives(key)) else {
            return majority(declared);
        };
        let wanted = table.whole(key) as usize;
        if known && wanted > declared {
            mistakes.push(
                Mistake::at(
                    &table.place(key),
                    format!(
                        "a quorum of {wanted} {key} can never be met: the file declares {declared}"
                    ),
                )
                .label(format!("more than {declared}"))
                .help(format!("write at most {declared}, or quorum = \"all\"")),
            );
        }
        wanted
    };
    Quorum::AtLeast {
        nodes: at_least("nodes", count.nodes),
        domains: at_least("domains", count.domains),
    }
}

/// Who is absent when; a round must keep a cohort, and one that can meet the quorum.
fn absent(
    file: &Section,
    domains: &Domains<'_>,
    quorum: &Quorum,
    mistakes: &mut Mistakes,
) -> BTreeMap<Round, Vec<NodeId>> {
    let rounds = file.section("federation").whole("rounds");
    let mut absent: BTreeMap<Round, BTreeSet<NodeId>> = BTreeMap::new();
    let mut places: BTreeMap<Round, Span> = BTreeMap::new();
    for table in file
        .section("round")
        .list("absent")
        .iter()
        .map(Item::section)
    {
        if !table.gives("round") {
            continue;
        }
        let round = table.whole("round");
        if round > rounds {
            mistakes.push(
                Mistake::at(
                    &table.place("round"),
                    format!("round {round} never runs: the last one is {rounds}"),
                )
                .label("after the last round")
                .help("raise `rounds` of [federation] or remove the entry"),
            );
            continue;
        }
        let listed = absent.entry(round).or_default();
        places.insert(round, table.place("nodes"));
        for item in table.list("nodes") {
            let Some(id) = check_node(item, domains, mistakes) else {
                continue;
            };
            if !listed.insert(id) {
                let message = format!("{} is listed twice for round {round}", item.text());
                let again = Mistake::at(&item.span, message).label("again");
                mistakes.push(again.help("remove it here"));
            }
        }
    }
    for (round, gone) in &absent {
        check_cohort(
            *round,
            gone,
            &places[round],
            &domains.list,
            quorum,
            mistakes,
        );
    }
    absent
        .into_iter()
        .map(|(round, gone)| (round, gone.into_iter().collect()))
        .collect()
}

fn check_cohort(
    round: Round,
    gone: &BTreeSet<NodeId>,
    place: &Span,
    domains: &[Domain<'_>],
    quorum: &Quorum,
    mistakes: &mut Mistakes,
) {
    let gone: BTreeSet<&str> = gone.iter().map(NodeId::as_str).collect();
    let mut left = Count {
        nodes: 0,
        domains: 0,
    };
    for domain in domains {
        let home = domain.name.unwrap_or_default();
        let here = domain
            .nodes
            .iter()
            .filter(|node| !gone.contains(format!("{home}/{}", node.name).as_str()))
            .count();
        left.nodes += here;
        left.domains += usize::from(here > 0);
    }
    if left.nodes == 0 {
        mistakes.push(
            Mistake::at(
                place,
                format!("nobody is left in round {round}: its cohort is empty"),
            )
            .label("all nodes of the federation")
            .help("leave somebody in, or lower `rounds`"),
        );
    } else if let Quorum::AtLeast { nodes, domains } = *quorum {
        let missed = [
            ("nodes", nodes, left.nodes),
            ("domains", domains, left.domains),
        ];
        for (what, wanted, found) in missed {
            if wanted > found {
                mistakes.push(
                    Mistake::at(place, format!("round {round} can never meet its quorum of {wanted} {what}: only {found} left"))
                        .label(format!("leaves only {found}"))
                        .help("lower the quorum in [round], or write quorum = \"all\", which asks only those who are left"),
                );
            }
        }
    }
}
