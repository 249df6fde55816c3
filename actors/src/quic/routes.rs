//! Peers to which several ways lead: all are probed, and one is taken. [`tombolo_core::route`] decides.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use quinn::Connection;

use super::relay::{self, TEND};
use super::shaping::locked;
use super::{Quic, attached};
use crate::env::{Class, LocalFuture};
use crate::identity::{Paper, Purpose};
use crate::link::{self, Attached, UNTRUSTED};
use crate::shell::{Cx, later};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::RoutePlan;
use tombolo_core::route::{Advice, Chooser};
use tombolo_core::time::Micros;

/// A probe that is so old is of no interest any more, even if it comes back.
const FORGOTTEN: Duration = Duration::from_secs(6);

/// Ways to the peers that this node dials and has a choice for.
#[derive(Debug)]
pub(super) struct Routes {
    period: Duration,
    all: Mutex<BTreeMap<NodeId, Route>>,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    /// Ways to probe, and the numbers of the probes.
    pub probes: Vec<(usize, u16)>,
    /// Peers whose links are to lead another way.
    pub changes: Vec<(NodeId, Advice)>,
}

#[derive(Debug)]
struct Route {
    chooser: Chooser,
    /// The direct one first.
    ways: Vec<Way>,
    due: Micros,
}

#[derive(Debug)]
struct Way {
    index: usize,
    number: u16,
    /// Probes on their way, the oldest first: at most one for each period until they are forgotten.
    probes: VecDeque<Probe>,
}

#[derive(Debug)]
struct Probe {
    number: u16,
    left: Micros,
    /// It counts as lost; should it come back all the same, the path is long, and not dead.
    given_up: bool,
}

impl Routes {
    /// Of peers, each with the indices of its ways, the direct one first.
    pub fn new(plan: &RoutePlan, peers: BTreeMap<NodeId, Vec<usize>>) -> Self {
        let route = |ways: Vec<usize>| Route {
            chooser: Chooser::new(plan.weights, ways.len()),
            ways: ways.into_iter().map(Way::new).collect(),
            due: Micros::default(),
        };
        Routes {
            // What is known after a period rests on two.
            period: plan.periods.latency / 2,
            all: Mutex::new(
                peers
                    .into_iter()
                    .map(|(peer, ways)| (peer, route(ways)))
                    .collect(),
            ),
        }
    }

    /// The way that is wanted to a peer, if there is a choice.
    pub fn wanted(&self, peer: &NodeId) -> Option<usize> {
        let all = locked(&self.all);
        let route = all.get(peer)?;
        Some(route.ways[route.chooser.wanted()].index)
    }

    /// A connection with a peer leads by that way; none is the direct one.
    pub fn took(&self, peer: &NodeId, index: Option<usize>, now: Micros) {
        if let Some(route) = locked(&self.all).get_mut(peer) {
            let place = match index {
                Some(index) => route.ways.iter().position(|way| way.index == index),
                None => Some(0),
            };
            if let Some(place) = place {
                route.chooser.took(place, now);
            }
        }
    }

    /// What is to be done now.
    pub fn look(&self, now: Micros) -> Looked {
        let (mut probes, mut changes) = (Vec::new(), Vec::new());
        let mut all = locked(&self.all);
        for (peer, route) in all.iter_mut().filter(|(_, route)| route.due <= now) {
            route.due = now + self.period;
            for (place, way) in route.ways.iter_mut().enumerate() {
                way.probes.retain(|probe| now < probe.left + FORGOTTEN);
                let patience = route.chooser.patience(place, self.period);
                let late = way.probes.iter_mut();
                for probe in late.filter(|probe| !probe.given_up && now >= probe.left + patience) {
                    probe.given_up = true;
                    route.chooser.unanswered(place);
                }
                way.number = way.number.wrapping_add(1);
                way.probes.push_back(Probe {
                    number: way.number,
                    left: now,
                    given_up: false,
                });
                probes.push((way.index, way.number));
            }
            if let Some(advice) = route.chooser.look(now) {
                changes.push((peer.clone(), advice));
            }
        }
        Looked { probes, changes }
    }

    /// A probe has come back.
    pub fn answered(&self, index: usize, number: u16, now: Micros) {
        for route in locked(&self.all).values_mut() {
            let found = route.ways.iter_mut().enumerate();
            for (place, way) in found.filter(|(_, way)| way.index == index) {
                let probe = way.probes.iter().position(|probe| probe.number == number);
                if let Some(probe) = probe.and_then(|at| way.probes.remove(at)) {
                    route.chooser.answered(place, now.since(probe.left));
                }
            }
        }
    }
}

impl Way {
    fn new(index: usize) -> Self {
        Way {
            index,
            number: 0,
            probes: VecDeque::new(),
        }
    }
}

impl Quic {
    /// Says by which way a link leads, if that is another one than before.
    pub(super) fn note_way(&mut self, peer: &NodeId, connection: &Connection) {
        let Some(tunnels) = &self.tunnels else { return };
        let relay = tunnels.relay(connection.remote_address()).cloned();
        let before = match &relay {
            Some(relay) => self.ways.insert(peer.clone(), relay.clone()),
            None => self.ways.remove(peer),
        };
        if before != relay {
            self.stage.report(Event::LinkRouted {
                node: self.stage.node.clone(),
                peer: peer.clone(),
                relay,
            });
        }
    }

    /// Somebody has made a tunnel with this node.
    pub(super) fn on_tunnel(&mut self, peer: NodeId, connection: Connection, own: Paper) {
        let may = self
            .tunnels
            .as_ref()
            .is_some_and(|tunnels| tunnels.may(&peer));
        // What comes out of a tunnel is no tunnel: it would be carried by itself.
        let is_inside = relay::carries(connection.remote_address()).is_some();
        if !may || is_inside {
            return self.turn_away(&connection, &peer);
        }
        match attached(self.identity.as_ref(), &connection, own) {
            Ok(attached) => self.carry(peer, attached, false),
            Err(error) => connection.close(UNTRUSTED, error.to_string().as_bytes()),
        }
    }

    /// A tunnel stands: what comes through it is read from now on.
    fn carry(&mut self, peer: NodeId, attached: Attached, dialled: bool) {
        let Some(tunnels) = self.tunnels.clone() else {
            return;
        };
        let connection = attached.connection.clone();
        self.shape(&peer, &connection);
        if !tunnels.open(&peer, attached, dialled) {
            return;
        }
        let carry = move || -> LocalFuture { Box::pin(tunnels.carry(peer, connection)) };
        self.stage.env.spawn(Class::Network, Box::new(carry));
    }

    /// Looks after the tunnels, again and again.
    pub(super) fn tend(&mut self, cx: &mut Cx<Self>) {
        let Some(tunnels) = self.tunnels.clone() else {
            return;
        };
        let env = self.stage.env.clone();
        tunnels.tend(self.identity.as_ref(), env.now(), env.unix_time());
        for (peer, advice) in tunnels.route() {
            let link = self.links.get().and_then(|links| links.get(&peer));
            // What still carries hands over; what does not is given up.
            let message = match advice {
                Advice::Move => link::Message::Reroute,
                Advice::Leave => link::Message::HangUp,
            };
            if let Some(link) = link {
                link.deliver(message);
            }
        }
        for peer in tunnels.due(env.now(), &self.identity.own().sha256) {
            if !self.tunnelling.insert(peer.clone()) {
                continue;
            }
            let attempt = self.dialler(&peer, Purpose::Tunnel).attempt();
            let tunnels = tunnels.clone();
            later(cx, attempt, move |quic, result, _| {
                quic.tunnelling.remove(&peer);
                match result {
                    Ok(attached) => quic.carry(peer, attached, true),
                    Err(trouble) => tunnels.failed(&peer, &trouble.reason),
                }
            });
        }
        later(cx, env.sleep(TEND), |quic, (), cx| quic.tend(cx));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_waited_for_a_while_and_count_once() {
        let peer: NodeId = "plant/gate".parse().unwrap();
        let routes = Routes::new(&RoutePlan::default(), [(peer.clone(), vec![4, 5])].into());
        let at = |ms: u64| Micros(ms * 1000);
        let mut changes = Vec::new();
        let mut period = 0;
        let mut go = |answers: [bool; 2], times: u64| {
            for _ in 0..times {
                let now = at(period * 250);
                period += 1;
                let looked = routes.look(now);
                assert_eq!(routes.look(now), Looked::default(), "not yet");
                let (probes, changed) = (looked.probes, looked.changes);
                assert_eq!(probes.len(), 2);
                for (index, number) in probes {
                    if answers[index - 4] {
                        routes.answered(index, number, now + Duration::from_millis(40));
                        routes.answered(index, number, now + Duration::from_secs(9));
                    }
                }
                changes.extend(changed);
            }
            changes.len()
        };
        assert_eq!(go([true, true], 20), 0);
        // A period until a probe is given up, and four of them.
        assert_eq!(go([false, true], 4), 0);
        assert_eq!(go([false, true], 1), 1);
        assert_eq!(changes, [(peer.clone(), Advice::Leave)]);
        assert_eq!(routes.wanted(&peer), Some(5));
        routes.took(&peer, None, at(0));
        assert_eq!(routes.wanted(&peer), Some(4));
    }
}
