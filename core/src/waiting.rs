//! Whom a node needs, how often it says that it waits for them, and when it gives up.
//!
//! A gateway or one of its successors needs its domain and the coordinator, the coordinator all gateways, any other node one of its domain's
//! gateways. Who *leads* a node's rounds is the next one on the way to the coordinator. A coordinator waits as its rounds do, which end at
//! their deadlines; everybody else gives up once nobody who leads was in reach for as long as a coordinator without a quorum would go on.

use std::time::Duration;

use crate::coordinator::DEADLINE_MOST;
use crate::ids::NodeId;
use crate::plan::{Deadline, Plan};
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

/// What is to be done about a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Say that it waits.
    Wait,
    /// Say that it gives up, and end it.
    GiveUp,
}

/// One node's wait. Whoever owns it looks around now and then and says what it sees.
#[derive(Debug)]
pub struct Waiting {
    /// None for a coordinator.
    patience: Option<Duration>,
    /// Since when nobody who leads is in reach.
    alone: Option<Micros>,
    /// When it is said next, and the span before.
    say: Option<(Micros, Duration)>,
}

impl Waiting {
    /// A node that has reached nobody yet.
    pub fn new(plan: &Plan, node: &NodeId, now: Micros) -> Self {
        Waiting {
            patience: (*node != plan.coordinator).then(|| patience(plan)),
            alone: Some(now),
            say: None,
        }
    }

    /// Takes in who is there: whether somebody needed is missing, and whether somebody who leads is in reach.
    pub fn look(&mut self, now: Micros, missing: bool, led: bool) -> Option<Word> {
        self.alone = match led {
            true => None,
            false => self.alone.or(Some(now)),
        };
        if self.left(now) == Some(Duration::ZERO) {
            return Some(Word::GiveUp);
        }
        if !missing {
            self.say = None;
            return None;
        }
        let (due, span) = self.say.get_or_insert((now + SAY_FIRST, SAY_FIRST));
        if now < *due {
            return None;
        }
        *span = (*span * 4).min(SAY_MOST);
        *due = now + *span;
        Some(Word::Wait)
    }

    /// How long it waits for somebody who leads, if that ends.
    pub fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// How long it still waits, if its wait is one that ends.
    pub fn left(&self, now: Micros) -> Option<Duration> {
        Some(self.patience?.saturating_sub(now.since(self.alone?)))
    }
}

/// How long a coordinator that never gets its quorum goes on.
fn patience(plan: &Plan) -> Duration {
    let span = match plan.round.deadline {
        Deadline::Fixed(span) => span,
        Deadline::Adaptive => DEADLINE_MOST,
    };
    let round = span.saturating_add(plan.round.close_limit);
    let rounds = round.saturating_mul(plan.round.failed_limit);
    rounds.max(PATIENCE_LEAST)
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

    /// The words of a wait that is looked at every half second, with the second at which each is said.
    fn words(
        waiting: &mut Waiting,
        seconds: std::ops::Range<u64>,
        missing: bool,
        led: bool,
    ) -> Vec<(u64, Word)> {
        let mut words = Vec::new();
        for half in seconds.start * 2..seconds.end * 2 {
            let word = waiting.look(Micros(half * 500_000), missing, led);
            words.extend(word.map(|word| (half / 2, word)));
            if word == Some(Word::GiveUp) {
                break;
            }
        }
        words
    }

    /// "Waiting for nodes is never silent or endless." flower#4147, FLIP#992
    #[test]
    fn a_wait_is_said_soon_then_rarely_and_ends() {
        let mut plan = plan(&[2]);
        plan.round.failed_limit = 60;
        let mut waiting = Waiting::new(&plan, &node("d0/n1"), Micros(0));
        // Rounds of 10 s that may take 5 s to close, 60 of them.
        assert_eq!(waiting.left(Micros(0)), Some(Duration::from_secs(900)));
        let said = words(&mut waiting, 0..2000, true, false);
        let (last, waits) = said.split_last().unwrap();
        assert_eq!(*last, (900, Word::GiveUp));
        assert!(waits.iter().all(|(_, word)| *word == Word::Wait));
        let seconds: Vec<u64> = waits.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [2, 10, 42, 170, 470, 770]);
    }

    #[test]
    fn who_is_led_waits_without_end_and_is_patient_anew_when_it_is_alone_again() {
        let mut plan = plan(&[2]);
        plan.round.failed_limit = 1;
        let mut waiting = Waiting::new(&plan, &node("d0/n1"), Micros(0));
        assert!(words(&mut waiting, 0..500, true, false).len() < 6);
        assert_eq!(words(&mut waiting, 500..5000, false, true), []);
        assert_eq!(waiting.left(Micros(0)), None);
        let said = words(&mut waiting, 5000..9000, true, false);
        assert_eq!(said.first(), Some(&(5002, Word::Wait)));
        assert_eq!(
            said.last(),
            Some(&(5600, Word::GiveUp)),
            "never less than ten minutes"
        );
    }

    #[test]
    fn a_coordinator_waits_as_its_rounds_do() {
        let mut waiting = Waiting::new(&plan(&[2]), &node("d0/n0"), Micros(0));
        let said = words(&mut waiting, 0..100_000, true, false);
        assert!(said.iter().all(|(_, word)| *word == Word::Wait));
        assert_eq!(waiting.left(Micros(0)), None);
    }
}
