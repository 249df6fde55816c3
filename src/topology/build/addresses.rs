//! Whether the addresses that nodes tell each other can be dialled.
//!
//! Two kinds of peers dial a node: those of its own domain, and, if it may hold WAN links, the gateways of other domains. An address that
//! means "this machine" is right only while nobody on another machine dials it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::domains::{Domain, Node};
use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::reader::{host_and_port, shown};
use crate::topology::value::Span;

/// What a node's peers are told to dial.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
    /// Loopback.
    ThisMachine,
    /// `0.0.0.0` or `::`.
    Anywhere,
    /// A concrete address or a host name.
    Named(String),
}

pub(super) fn check(domains: &[Domain<'_>], mistakes: &mut Mistakes) {
    check_ports(domains, mistakes);
    let outside: Vec<Option<&Node<'_>>> = domains
        .iter()
        .map(|domain| domain.nodes.iter().find(|node| is_named(node)))
        .collect();
    for (index, domain) in domains.iter().enumerate() {
        // Two concrete hosts in one domain: its nodes do not share a machine.
        let mut hosts: Vec<Host> = domain.nodes.iter().map(host).collect();
        hosts.retain(|host| matches!(host, Host::Named(_)));
        hosts.sort();
        hosts.dedup();
        let elsewhere = outside
            .iter()
            .enumerate()
            .find_map(|(other, node)| node.filter(|_| other != index).map(|node| (other, node)));
        for node in &domain.nodes {
            let is_gateway = domain.gateways.contains(&node.name);
            let place = place(node, domain);
            match host(node) {
                // Nobody dials it: neither other domains nor neighbours.
                Host::Anywhere if node.outbound_only.is_some() && domain.nodes.len() == 1 => {}
                Host::Anywhere => mistakes.push(anywhere(domain, node, &place)),
                Host::ThisMachine if is_gateway && elsewhere.is_some() => {
                    let (other, peer) = elsewhere.expect("the guard found it");
                    let peer = format!("{}/{}", domains[other].shown(), shown(peer.name));
                    match node.outbound_only {
                        None => mistakes.push(unreachable(domain, node, &place, &peer)),
                        Some(_) => mistakes.push(confined(domain, node, &place, &peer)),
                    }
                }
                Host::ThisMachine if hosts.len() > 1 => {
                    let peer = domain.nodes.iter().find(|peer| is_named(peer));
                    let peer = peer.map_or(String::new(), |peer| {
                        format!("{}/{}", domain.shown(), shown(peer.name))
                    });
                    mistakes.push(unreachable(domain, node, &place, &peer));
                }
                _ => {}
            }
        }
    }
}

fn is_named(node: &Node<'_>) -> bool {
    matches!(host(node), Host::Named(_))
}

/// The host that peers are told: `advertise`, else `listen`, else loopback.
fn host(node: &Node<'_>) -> Host {
    let text = match (&node.advertise, &node.listen) {
        (Some((advertise, _)), _) => {
            let (host, _) = host_and_port(advertise).expect("the reader checked the address");
            host.to_owned()
        }
        (None, Some((listen, _))) => listen.ip().to_string(),
        (None, None) => return Host::ThisMachine,
    };
    match text.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(ip) if ip.is_loopback() => Host::ThisMachine,
        Ok(ip) if ip.is_unspecified() => Host::Anywhere,
        Ok(ip) => Host::Named(ip.to_string()),
        Err(_) if text.eq_ignore_ascii_case("localhost") => Host::ThisMachine,
        Err(_) => Host::Named(text.to_ascii_lowercase()),
    }
}

/// Where the file says it: the address, else the domain's head.
fn place(node: &Node<'_>, domain: &Domain<'_>) -> Span {
    match (&node.advertise, &node.listen) {
        (Some((_, span)), _) => span.clone(),
        (None, Some((_, span))) => span.clone(),
        (None, None) => domain.section.span.clone(),
    }
}

fn anywhere(domain: &Domain<'_>, node: &Node<'_>, place: &Span) -> Mistake {
    let message = format!(
        "{}/{} would tell its peers an address that stands for any interface",
        domain.shown(),
        shown(node.name)
    );
    Mistake::at(place, message)
        .label("nobody can dial this")
        .help("add advertise = \"HOST:PORT\" with the address that peers reach")
}

fn unreachable(domain: &Domain<'_>, node: &Node<'_>, place: &Span, peer: &str) -> Mistake {
    let message = format!(
        "{}/{} would tell its peers a loopback address, but {peer} is on another host",
        domain.shown(),
        shown(node.name)
    );
    Mistake::at(place, message)
        .label("only this machine can dial this")
        .help("give the node a [[domain.node]] table with listen, and advertise if peers reach it elsewhere")
}

fn confined(domain: &Domain<'_>, node: &Node<'_>, place: &Span, peer: &str) -> Mistake {
    let message = format!(
        "{}/{} would dial from a loopback address, but {peer} is on another host",
        domain.shown(),
        shown(node.name)
    );
    Mistake::at(place, message)
        .label("from here only this machine can be dialled")
        .help("add listen = \"[::]:0\" to the node's [[domain.node]] table: any interface, any free port")
}

/// No two nodes can listen on, or be dialled at, one address and port. Unspecified addresses may be on several machines.
fn check_ports(domains: &[Domain<'_>], mistakes: &mut Mistakes) {
    let mut seen: BTreeMap<(bool, String), (String, Span)> = BTreeMap::new();
    for domain in domains {
        for node in &domain.nodes {
            let name = format!("{}/{}", domain.shown(), shown(node.name));
            let listens = node
                .listen
                .as_ref()
                .filter(|(address, _)| address.port() != 0 && !address.ip().is_unspecified())
                .map(|(address, span)| ((true, address.to_string()), span));
            let dialled = node
                .advertise
                .as_ref()
                .map(|(text, span)| ((false, text.to_ascii_lowercase()), span));
            for (address, span) in listens.into_iter().chain(dialled) {
                let shown_address = shown(&address.1);
                let Some((other, first)) = seen.get(&address) else {
                    seen.insert(address, (name.clone(), span.clone()));
                    continue;
                };
                mistakes.push(
                    Mistake::at(
                        span,
                        format!("{name} and {other} share the address {shown_address}"),
                    )
                    .label("second")
                    .also(first, "first")
                    .help("give each node a port of its own"),
                );
            }
        }
    }
}
