//! Whom a node needs, how often it says that it waits for them, and when it gives up.
//!
//! A gateway or one of its successors needs its domain and the coordinator, the coordinator all gateways, any other node one of its domain's
//! gateways. Who *leads* a node's rounds is the next one on the way to the coordinator. A coordinator waits as its rounds do, which end at
//! their deadlines; everybody else gives up once nobody who leads was in reach for as long as a coordinator without a quorum would go on.

use std::time::Duration;

use crate::coordinator::DEADLINE_MOST;
use crate::ids::NodeId;
use crate::plan::{Deadline, Plan};
use crate::text::span;
use crate::time::Micros;

/// After how long a wait is said: nodes that are started together have met by then.
const SAY_FIRST: Duration = Duration::from_secs(2);

/// It is said again after spans that grow fourfold, up to this one.
const SAY_MOST: Duration = Duration::from_secs(300);

/// How long a node waits at least: people start the nodes of a federation one after another.
const PATIENCE_LEAST: Duration = Duration::from_secs(600);

/// A peer that a node needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Who.
    pub peer: NodeId,
    /// Whether it leads: one of those who do is enough.
    pub leads: bool,
}

/// The peers that `node` needs.
pub fn needs(plan: &Plan, node: &NodeId) -> Vec<Need> {
    let domain = plan.domain(&node.domain());
    let gateways = domain.map_or(&[][..], |domain| &domain.gateways);
    let is_gateway = gateways.contains(node);
    let leads = |peer: &NodeId| match is_gateway {
        true => *node != plan.coordinator && plan.may_coordinate(peer),
        false => gateways.contains(peer),
    };
    let peers = plan.peers(node).into_iter().map(|peer| Need {
        leads: leads(&peer),
        peer,
    });
    peers.filter(|need| is_gateway || need.leads).collect()
}

/// When a wait for somebody needed is said. Whoever owns it looks around now and then and says what it sees.
#[derive(Debug, Default)]
pub struct Waiting {
    /// When it is said next, and the span before.
    say: Option<(Micros, Duration)>,
}

impl Waiting {
    /// Takes in whether somebody needed is missing; true if it is time to say so.
    pub fn look(&mut self, now: Micros, missing: bool) -> bool {
        if !missing {
            self.say = None;
            return false;
        }
        let (due, span) = self.say.get_or_insert((now + SAY_FIRST, SAY_FIRST));
        if now < *due {
            return false;
        }
        *span = (*span * 4).min(SAY_MOST);
        *due = now + *span;
        true
    }
}

/// How long a node goes on with nobody in reach who leads it.
#[derive(Debug)]
pub struct Patience {
    /// None for a coordinator.
    span: Option<Duration>,
    /// Since when nobody who leads is in reach.
    alone: Option<Micros>,
}

impl Patience {
    /// Of a node that has reached nobody yet.
    pub fn new(plan: &Plan, node: &NodeId, now: Micros) -> Self {
        Patience {
            span: (*node != plan.coordinator).then_some(plan.round.patience),
            alone: Some(now),
        }
    }

    /// Takes in whether somebody who leads is in reach; true once it is at an end.
    pub fn look(&mut self, now: Micros, led: bool) -> bool {
        self.alone = match led {
            true => None,
            false => self.alone.or(Some(now)),
        };
        self.left(now) == Some(Duration::ZERO)
    }

    /// How long it lasts, if it ends.
    pub fn span(&self) -> Option<Duration> {
        self.span
    }

    /// How long it still lasts, if the node is alone and it ends.
    pub fn left(&self, now: Micros) -> Option<Duration> {
        Some(self.span?.saturating_sub(now.since(self.alone?)))
    }
}

/// How long a coordinator that never gets its quorum goes on.
pub fn patience(deadline: Deadline, close_limit: Duration, failed_limit: u32) -> Duration {
    let span = match deadline {
        Deadline::Fixed(span) => span,
        Deadline::Adaptive => DEADLINE_MOST,
    };
    let rounds = span
        .saturating_add(close_limit)
        .saturating_mul(failed_limit);
    rounds.max(PATIENCE_LEAST)
}

/// A node and where it is dialled, for people.
pub fn named(node: &NodeId, address: Option<&str>) -> String {
    match address {
        Some(address) => format!("{node} (udp {address})"),
        None => format!("{node} (no address yet)"),
    }
}

/// Why a node gives up that has reached none of those who lead it, each with where it is dialled.
pub fn last_word(node: &NodeId, leads: &[(NodeId, Option<String>)], waited: Duration) -> String {
    let leads = leads
        .iter()
        .map(|(peer, address)| named(peer, address.as_deref()));
    let leads: Vec<String> = leads.collect();
    format!(
        "{node} has not reached {} for {} and gives up; is that node running, and can its UDP port be reached from here?",
        leads.join(" or "),
        span(waited.as_secs()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::samples::plan;

    fn node(name: &str) -> NodeId {
        name.parse().unwrap()
    }

    fn of(node_name: &str) -> (Vec<String>, Vec<String>) {
        let needs = needs(&plan(&[3, 2]), &node(node_name));
        let names = |needs: Vec<&Need>| needs.iter().map(|need| need.peer.to_string()).collect();
        let (leads, others) = needs.iter().partition(|need| need.leads);
        (names(leads), names(others))
    }

    #[test]
    fn everybody_needs_the_next_one_on_the_way_to_the_coordinator_and_who_is_below() {
        let none: Vec<String> = Vec::new();
        assert_eq!(
            of("d0/n0"),
            (
                none.clone(),
                vec!["d0/n1".into(), "d0/n2".into(), "d1/n0".into()]
            )
        );
        assert_eq!(of("d0/n1"), (vec!["d0/n0".into()], none.clone()));
        assert_eq!(of("d1/n0"), (vec!["d0/n0".into()], vec!["d1/n1".into()]));
        assert_eq!(of("d1/n1"), (vec!["d1/n0".into()], none));
    }

    #[test]
    fn a_member_is_led_by_each_gateway_of_its_domain_and_these_by_the_coordinator() {
        let mut plan = plan(&[1, 3]);
        plan.domains[1].gateways.push(node("d1/n1"));
        let leads = |name: &str| -> Vec<NodeId> {
            let needs = needs(&plan, &node(name)).into_iter();
            needs
                .filter(|need| need.leads)
                .map(|need| need.peer)
                .collect()
        };
        assert_eq!(leads("d1/n2"), [node("d1/n0"), node("d1/n1")]);
        assert_eq!(leads("d1/n1"), [node("d0/n0")]);
        assert_eq!(leads("d1/n0"), [node("d0/n0")]);
    }

    /// The seconds at which a wait that is looked at every half second is said.
    fn said(waiting: &mut Waiting, seconds: std::ops::Range<u64>) -> Vec<u64> {
        let halves = seconds.start * 2..seconds.end * 2;
        let said = halves.filter(|half| waiting.look(Micros(half * 500_000), true));
        said.map(|half| half / 2).collect()
    }

    fn second(second: u64) -> Micros {
        Micros(second * 1_000_000)
    }

    /// "Waiting for nodes is never silent or endless." flower#4147, FLIP#992
    #[test]
    fn a_wait_is_said_soon_then_rarely_and_soon_again_after_somebody_was_there() {
        let mut waiting = Waiting::default();
        assert_eq!(said(&mut waiting, 0..1000), [2, 10, 42, 170, 470, 770]);
        assert!(!waiting.look(second(1000), false));
        assert_eq!(said(&mut waiting, 1001..1020), [1003, 1011]);
    }

    #[test]
    fn patience_is_that_of_a_coordinator_without_a_quorum_and_ten_minutes_at_least() {
        let (deadline, close) = (Duration::from_secs(10), Duration::from_secs(5));
        let patience = |failed| patience(Deadline::Fixed(deadline), close, failed);
        assert_eq!(patience(60), Duration::from_secs(900));
        assert_eq!(patience(1), Duration::from_secs(600));
    }

    /// Field fault: without a coordinator nodes stop after the configured time. ray#64349, ray#33854, kuberay#1141.
    #[test]
    fn who_is_led_waits_without_end_and_is_patient_anew_when_it_is_alone_again() {
        let mut plan = plan(&[2]);
        plan.round.patience = Duration::from_secs(900);
        let mut patience = Patience::new(&plan, &node("d0/n1"), second(0));
        assert!(!patience.look(second(899), false));
        assert_eq!(patience.left(second(899)), Some(Duration::from_secs(1)));
        assert!(patience.look(second(900), false));
        assert!(!patience.look(second(901), true), "somebody came after all");
        assert_eq!(patience.left(second(901)), None);
        assert!(!patience.look(second(9000), true));
        assert!(!patience.look(second(9001), false));
        assert!(!patience.look(second(9900), false));
        assert!(patience.look(second(9901), false));
    }

    #[test]
    fn a_coordinator_waits_as_its_rounds_do() {
        let mut patience = Patience::new(&plan(&[2]), &node("d0/n0"), second(0));
        assert!(!patience.look(second(100_000_000), false));
        assert_eq!(patience.left(second(0)), None);
    }
}
