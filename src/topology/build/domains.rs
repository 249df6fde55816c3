//! Domains, their nodes and gateways.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use tombolo_core::collective::Shape;
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::{DomainPlan, Fabric, NodePlan};

use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::reader::{normalised, shown};
use crate::topology::value::{Item, Section, Span};
use crate::topology::{DOMAINS_MAX, NODES_MAX};

use super::did_you_mean;

/// All domains of the file.
pub(super) struct Domains<'a> {
    pub list: Vec<Domain<'a>>,
    /// Every node as `domain/name`.
    pub nodes: BTreeSet<String>,
    /// Nodes in all, however they are named.
    pub count: usize,
    /// Whether all of them could be read, so that counting them and looking for one means something.
    pub known: bool,
}

/// A domain as the file gives it; names may still be wrong.
pub(super) struct Domain<'a> {
    pub section: &'a Section,
    pub name: Option<&'a str>,
    pub nodes: Vec<Node<'a>>,
    pub gateways: Vec<&'a str>,
    /// Whether the file's list of nodes could be read at all.
    pub known: bool,
}

/// A node as the file gives it.
pub(super) struct Node<'a> {
    pub name: &'a str,
    pub listen: Option<(SocketAddr, Span)>,
    pub advertise: Option<(&'a str, Span)>,
    /// Where the file says so.
    pub outbound_only: Option<Span>,
    pub slice: Option<&'a Item>,
}

impl Domain<'_> {
    /// The name for messages.
    pub(super) fn shown(&self) -> String {
        self.name.map_or("this domain".into(), shown)
    }
}

/// Takes the domains out of the file and judges their names, nodes and gateways.
pub(super) fn collect<'a>(file: &'a Section, mistakes: &mut Mistakes) -> Domains<'a> {
    let items = file.list("domain");
    if items.is_empty() && file.gives("domain") {
        mistakes.push(
            Mistake::at(&file.place("domain"), "there is no domain")
                .label("empty")
                .help("add [[domain]] with a name and nodes"),
        );
    }
    let names = items.iter().filter_map(|item| named(item.section()));
    unique("domain", names, mistakes);
    let list: Vec<Domain<'a>> = items
        .iter()
        .map(|item| domain(item.section(), mistakes))
        .collect();
    let count: usize = list.iter().map(|domain| domain.nodes.len()).sum();
    if count > NODES_MAX {
        let message = format!("{count} nodes in all, at most {NODES_MAX} work in one federation");
        mistakes.push(
            Mistake::of_file(message)
                .help("split the federation, or let several workers share a node"),
        );
    }
    debug_assert!(list.len() <= DOMAINS_MAX, "the reader bounds the list");
    let nodes = list.iter().flat_map(|domain| {
        let home = domain.name.unwrap_or_default();
        let names = domain.nodes.iter().map(|node| node.name);
        names.map(move |name| format!("{home}/{name}"))
    });
    Domains {
        nodes: nodes.collect(),
        count,
        known: list
            .iter()
            .all(|domain| domain.known && domain.name.is_some()),
        list,
    }
}

fn named(section: &Section) -> Option<(&str, Span)> {
    section
        .find("name")
        .map(|entry| (entry.item.text(), entry.item.span.clone()))
}

fn domain<'a>(section: &'a Section, mistakes: &mut Mistakes) -> Domain<'a> {
    let name = section.text("name");
    let listed = section.list("nodes");
    let tables = section.list("node");
    let known = !section.is_wrong("nodes") && !section.is_wrong("node");
    let head = name.map_or("this domain".into(), |name| {
        format!("domain {:?}", shown(name))
    });
    if section.gives("nodes") && section.gives("node") {
        mistakes.push(
            Mistake::at(
                &section.place("nodes"),
                format!("{head} lists its nodes twice"),
            )
            .label("names here")
            .also(&section.place("node"), "and tables here")
            .help("keep either `nodes` or the [[domain.node]] tables"),
        );
    } else if known && listed.is_empty() && tables.is_empty() {
        mistakes.push(
            Mistake::at(&section.span, format!("{head} has no nodes"))
                .label("no nodes")
                .help("add nodes = [\"gate\", \"a\"], or [[domain.node]] tables"),
        );
    }
    let by_name = listed.iter().map(|item| Node {
        name: item.text(),
        listen: None,
        advertise: None,
        outbound_only: None,
        slice: None,
    });
    let by_table = tables.iter().filter_map(|item| node(item.section()));
    let nodes: Vec<Node<'a>> = by_name.chain(by_table).collect();
    let places = listed
        .iter()
        .map(|item| (item.text(), item.span.clone()))
        .chain(tables.iter().filter_map(|item| named(item.section())));
    unique("node", places, mistakes);
    let gateways = section.list("gateways");
    if known {
        check_gateways(&head, gateways, &nodes, mistakes);
    }
    let gateways = match gateways {
        [] => nodes.first().map(|node| node.name).into_iter().collect(),
        given => given.iter().map(Item::text).collect(),
    };
    Domain {
        section,
        name,
        nodes,
        gateways,
        known: known && !section.is_wrong("gateways"),
    }
}

fn node(section: &Section) -> Option<Node<'_>> {
    let listen = section.find("listen").map(|entry| {
        let address = entry
            .item
            .text()
            .parse()
            .expect("the reader checked the address");
        (address, entry.item.span.clone())
    });
    let advertise = section
        .find("advertise")
        .map(|entry| (entry.item.text(), entry.item.span.clone()));
    let outbound_only = section.find("outbound_only");
    let outbound_only = outbound_only.filter(|_| section.flag("outbound_only"));
    Some(Node {
        name: section.text("name")?,
        listen,
        advertise,
        outbound_only: outbound_only.map(|entry| entry.item.span.clone()),
        slice: section.find("slice").map(|entry| &entry.item),
    })
}

/// Refuses names that are equal, or become equal when they are written the way names are.
fn unique<'a>(what: &str, names: impl Iterator<Item = (&'a str, Span)>, mistakes: &mut Mistakes) {
    let mut seen: BTreeMap<String, (&str, Span)> = BTreeMap::new();
    for (name, span) in names {
        let Some((first, first_span)) = seen.get(&normalised(name)) else {
            seen.insert(normalised(name), (name, span));
            continue;
        };
        let message = if *first == name {
            format!("the {what} {:?} is there twice", shown(name))
        } else {
            format!(
                "the {what} names {:?} and {:?} differ only in how they are written",
                shown(first),
                shown(name)
            )
        };
        mistakes.push(
            Mistake::at(&span, message)
                .label("second")
                .also(first_span, "first")
                .help("give one of them another name"),
        );
    }
}

fn check_gateways(head: &str, gateways: &[Item], nodes: &[Node<'_>], mistakes: &mut Mistakes) {
    let mut seen: BTreeMap<&str, &Span> = BTreeMap::new();
    for gateway in gateways {
        let name = gateway.text();
        if let Some(first) = seen.insert(name, &gateway.span) {
            mistakes.push(
                Mistake::at(
                    &gateway.span,
                    format!("the gateway {:?} is listed twice", shown(name)),
                )
                .label("second")
                .also(first, "first")
                .help("a gateway has one place in the order of succession"),
            );
        } else if !nodes.iter().any(|node| node.name == name) {
            let message = format!("the gateway {:?} is not a node of {head}", shown(name));
            let names = nodes.iter().map(|node| node.name);
            let help = did_you_mean(mistakes, name, names, "add it to the domain's nodes");
            mistakes.push(
                Mistake::at(&gateway.span, message)
                    .label("not a node")
                    .help(help),
            );
        }
    }
}

/// The plans of domains in which there is no mistake.
pub(super) fn plans(domains: &[Domain<'_>], folder: &Path) -> Vec<DomainPlan> {
    domains.iter().map(|domain| plan(domain, folder)).collect()
}

fn plan(domain: &Domain<'_>, folder: &Path) -> DomainPlan {
    let id: DomainId = domain
        .name
        .and_then(|name| name.parse().ok())
        .expect("a domain without a right name is a mistake");
    let node =
        |name: &str| NodeId::new(&id, name).expect("a node without a right name is a mistake");
    let root = match domain.section.text("root") {
        Some(root) => super::resolved(folder, root),
        None => super::resolved(folder, &format!("certs/{id}.pem")),
    };
    DomainPlan {
        fabric: match domain.section.word("fabric") {
            "shm" => Fabric::Shm,
            "ibverbs" => Fabric::Ibverbs,
            _ => Fabric::Auto,
        },
        step_shape: match domain.section.word("step_collective") {
            "auto" => Shape::Direct,
            shape => shape.parse().unwrap_or(Shape::Direct),
        },
        nodes: domain
            .nodes
            .iter()
            .map(|given| NodePlan {
                id: node(given.name),
                listen: given.listen.as_ref().map(|(address, _)| *address),
                advertise: given.advertise.as_ref().map(|(text, _)| (*text).to_owned()),
                outbound_only: given.outbound_only.is_some(),
                slice: given.slice.and_then(|item| item.text().parse().ok()),
            })
            .collect(),
        gateways: domain.gateways.iter().map(|name| node(name)).collect(),
        root,
        root_sha256: domain
            .section
            .list("root_sha256")
            .iter()
            .map(|pin| fingerprint(pin.text()))
            .collect(),
        id,
    }
}

/// The bytes of a fingerprint of 64 hexadecimal digits.
fn fingerprint(digits: &str) -> [u8; 32] {
    let hash: tombolo_core::tensor::Hash = digits.parse().expect("the reader checked the digits");
    hash.0
}
