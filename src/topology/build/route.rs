//! Which domains pass on what others have for each other, and whether everybody can be reached that way.

use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::{Plan, RoutePlan};

use super::did_you_mean;
use super::domains::{Domains, Node};
use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::reader::shown;
use crate::topology::value::Section;

pub(super) fn plan(file: &Section, domains: &Domains<'_>, mistakes: &mut Mistakes) -> RoutePlan {
    let section = file.section("route");
    let mut plan = RoutePlan::default();
    if !domains.known {
        return plan;
    }
    for item in section.list("relay") {
        let name = item.text();
        let Some(domain) = domains.list.iter().find(|domain| domain.name == Some(name)) else {
            let names = domains.list.iter().filter_map(|domain| domain.name);
            let help = did_you_mean(mistakes, name, names, "name a [[domain]] of this file");
            mistakes.push(
                Mistake::at(
                    &item.span,
                    format!("there is no domain {:?} to relay", shown(name)),
                )
                .label("not a domain")
                .help(help),
            );
            continue;
        };
        let is_open =
            |node: &Node<'_>| domain.gateways.contains(&node.name) && node.outbound_only.is_none();
        if !domain.nodes.iter().any(is_open) {
            let message = format!(
                "{} cannot relay: nobody can dial any of its gateways",
                shown(name)
            );
            let mut mistake =
                Mistake::at(&item.span, message).label("all of them are outbound_only");
            if let Some(span) = domain
                .nodes
                .iter()
                .find_map(|node| node.outbound_only.as_ref())
            {
                mistake = mistake.also(span, "such as this one");
            }
            mistakes.push(mistake.help("name a domain with a gateway that others can dial"));
        }
        match name.parse() {
            Ok(id) if !plan.relay.contains(&id) => plan.relay.push(id),
            _ => {}
        }
    }
    plan
}

/// Refuses two peers of which neither can dial the other, if nobody joins them.
pub(super) fn judge(domains: &Domains<'_>, plan: &Plan, mistakes: &mut Mistakes) {
    for domain in &domains.list {
        for given in &domain.nodes {
            let Some(span) = &given.outbound_only else {
                continue;
            };
            let Ok(node) = format!("{}/{}", domain.shown(), given.name).parse() else {
                continue;
            };
            // One pair for each node is enough, told at the first of the two.
            let alone = |peer: &&NodeId| {
                node < **peer
                    && plan.needs_relay(&node, peer)
                    && plan.relays(&node, peer).is_empty()
            };
            let peers = plan.peers(&node);
            let Some(peer) = peers.iter().find(alone) else {
                continue;
            };
            let others = plan.domains.iter().map(|domain| &domain.id);
            let mut others = others.filter(|id| ![&node.domain(), &peer.domain()].contains(id));
            let open = |id: &&DomainId| {
                let gateways = plan.domain(id).map_or(&[][..], |domain| &domain.gateways);
                gateways
                    .iter()
                    .any(|gateway| !plan.is_outbound_only(gateway))
            };
            let help = match others.find(open) {
                Some(id) => format!(
                    "write relay = [{:?}] in [route]: its gateway joins them, and cannot read what it passes on",
                    id.as_str()
                ),
                None => "add a domain whose gateway both can dial, and name it as relay in [route]"
                    .to_owned(),
            };
            let message =
                format!("{node} and {peer} can only dial out, so neither reaches the other");
            let mut mistake = Mistake::at(span, message).label("nobody can dial this one");
            let theirs = domains
                .list
                .iter()
                .filter(|domain| domain.name == Some(peer.domain().as_str()));
            let mut theirs = theirs.flat_map(|domain| &domain.nodes);
            let theirs = theirs.find(|node| node.name == peer.name());
            if let Some(span) = theirs.and_then(|node| node.outbound_only.as_ref()) {
                mistake = mistake.also(span, "and nobody this one");
            }
            mistakes.push(mistake.help(help));
        }
    }
}
