//! How a run goes on by another topology: who takes part changes, nobody's keys do.
//!
//! A user names the hash of the amended file. Every node that is in is asked whether the file on *its* machine is that one: a site agrees by
//! putting it there, and nobody can do that for it. Only if all of them agree is the amendment written down, and from then on it holds,
//! whatever ends when. The run then ends as if a user had stopped it, behind the open round, and each process begins again by its file. So
//! what is amended takes effect at a new epoch, no round is lost to it, and who joins heals the model as anybody does who was away.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::orders::{NotObeyed, Obeyed, Order};
use super::{Coordinator, Effect};
use crate::event::Event;
use crate::ids::{DomainId, NodeId};
use crate::machine::Context;
use crate::membership::State;
use crate::tensor::Hash;
use crate::text::{Text, clip};
use crate::time::Micros;
use crate::wire::Control;

/// How the reason of a run begins that goes on by another topology, whose hash follows.
pub const AMENDED: &str = "goes on by the topology ";

/// The hashes of a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amendment {
    /// Of everything that decides the outcome: what a store goes by.
    pub configuration: Hash,
    /// Of that and of who may do what: what nodes compare.
    pub topology: Hash,
}

/// Why a node cannot agree to go on by one topology whose file has another; `own` is that of the run. None if it can.
pub fn objection(asked: &Hash, found: &Hash, own: &Hash) -> Option<String> {
    match found {
        _ if found == asked && asked == own => {
            Some("the run goes by that topology already".to_owned())
        }
        _ if found == asked => None,
        _ if found == own => Some(format!(
            "its file is still that of the run ({found:?}), not {asked:?}: give it the amended one"
        )),
        _ => Some(format!("its file is another one: {found:?}, not {asked:?}")),
    }
}

/// How long nodes may take to say whether they agree: each reads a file.
const ANSWERS_LIMIT: Duration = Duration::from_secs(10);

/// Objections that are told one by one.
const OBJECTIONS_SHOWN: usize = 8;

/// Why a node does not agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disagreement {
    /// Which.
    pub node: NodeId,
    /// What it says.
    pub reason: String,
}

/// Some disagreements, and how many more there are.
pub(super) fn in_words(disagreements: &[Disagreement], more: &usize) -> String {
    let each = disagreements
        .iter()
        .map(|Disagreement { node, reason }| format!("{node}: {reason}"));
    let more = (*more > 0).then(|| format!("and {more} more nodes"));
    each.chain(more).collect::<Vec<_>>().join("; ")
}

/// An amendment that nodes are asked about.
#[derive(Debug)]
pub(super) struct Amending {
    number: u64,
    order: Order,
    amendment: Amendment,
    /// Who has not answered.
    asked: BTreeSet<NodeId>,
    /// Who is not there to be asked.
    away: Vec<NodeId>,
    agreed: usize,
    disagreements: Vec<Disagreement>,
    until: Micros,
    /// Everybody agrees, and it is being written down.
    writing: bool,
}

impl Coordinator {
    /// Asks everybody who is in.
    pub(super) fn amend(
        &mut self,
        cx: &mut Context<'_, Effect>,
        number: u64,
        order: Order,
        amendment: Amendment,
    ) {
        let (asked, away): (BTreeSet<NodeId>, BTreeSet<NodeId>) = self
            .plan
            .nodes()
            .map(|node| node.id.clone())
            .partition(|node| self.is_there(node));
        let domains: BTreeSet<DomainId> = asked.iter().map(NodeId::domain).collect();
        for domain in domains {
            cx.effect(Effect::Tell(domain, Control::Amend(amendment.topology)));
        }
        self.orders.amending = Some(Amending {
            number,
            order,
            amendment,
            asked,
            away: away.into_iter().collect(),
            agreed: 0,
            disagreements: Vec::new(),
            until: cx.now() + ANSWERS_LIMIT,
            writing: false,
        });
        self.check(cx);
    }

    /// Whether a node can be asked at all. Who is away has no say: it comes back by the amended file, or not at all, as any node does.
    fn is_there(&self, node: &NodeId) -> bool {
        let domain = self.domains.get(&node.domain());
        let is_led = domain.is_some_and(|domain| domain.joined && !domain.lost);
        let state = self.membership.state(node);
        let is_there = matches!(state, Some(State::Active | State::Suspect));
        self.is_own(node) || is_led && is_there && !self.view().is_out(node)
    }

    /// Whether a node agrees.
    pub(super) fn on_agreed(
        &mut self,
        cx: &mut Context<'_, Effect>,
        node: NodeId,
        topology: Hash,
        objection: Option<Text>,
    ) {
        let Some(amending) = &mut self.orders.amending else {
            return;
        };
        if amending.amendment.topology != topology || !amending.asked.remove(&node) {
            return;
        }
        match objection {
            None => amending.agreed += 1,
            Some(reason) => amending.disagreements.push(Disagreement {
                node,
                reason: reason.into(),
            }),
        }
        self.check(cx);
    }

    /// Goes on once everybody has answered, or has had the time to.
    pub(super) fn check_amending(&mut self, cx: &mut Context<'_, Effect>) {
        let ends = self.ends().map(str::to_owned);
        let asks = self.orders.amending.as_mut();
        let Some(amending) = asks.filter(|amending| !amending.writing) else {
            return;
        };
        if let Some(reason) = ends {
            let number = amending.number;
            self.orders.amending = None;
            return cx.effect(Effect::Ordered(number, Err(NotObeyed::Ends { reason })));
        }
        if !amending.asked.is_empty() && cx.now() < amending.until {
            return cx.wake_at(amending.until);
        }
        let silent = std::mem::take(&mut amending.asked).into_iter();
        amending
            .disagreements
            .extend(silent.map(|node| Disagreement {
                node,
                reason: format!("no answer within {ANSWERS_LIMIT:?}: is it up?"),
            }));
        if amending.disagreements.is_empty() {
            amending.writing = true;
            let (number, amendment) = (amending.number, amending.amendment);
            return cx.effect(Effect::Amend(number, amendment));
        }
        let Some(mut amending) = self.orders.amending.take() else {
            return;
        };
        amending.disagreements.sort_by(|a, b| a.node.cmp(&b.node));
        let more = amending
            .disagreements
            .len()
            .saturating_sub(OBJECTIONS_SHOWN);
        amending.disagreements.truncate(OBJECTIONS_SHOWN);
        let refused = NotObeyed::Disagreed {
            agreed: amending.agreed,
            disagreements: amending.disagreements,
            more,
        };
        cx.effect(Effect::Ordered(amending.number, Err(refused)));
    }

    /// The amendment is written down, or cannot be.
    pub(super) fn on_amended(
        &mut self,
        cx: &mut Context<'_, Effect>,
        number: u64,
        result: Result<(), String>,
    ) {
        let Some(amending) = self
            .orders
            .amending
            .take_if(|amending| amending.number == number && amending.writing)
        else {
            return;
        };
        let answer = match result {
            Err(reason) => Err(NotObeyed::Unwritten {
                reason: clip(reason),
                paused: self.orders.is_paused(),
            }),
            Ok(()) => {
                let (open, topology) = (self.ending_round(), amending.amendment.topology);
                cx.report(Event::RunAmended {
                    by: amending.order.by,
                    topology,
                    open,
                });
                // Who has stopped the run meanwhile meant that; it goes on by the amended topology when it is begun again.
                if self.ends().is_none() {
                    self.stop_behind(cx, format!("{AMENDED}{topology}"));
                }
                Ok(Obeyed::Amended {
                    topology,
                    nodes: amending.agreed,
                    away: amending.away,
                    open,
                })
            }
        };
        cx.effect(Effect::Ordered(number, answer));
        self.check(cx);
    }
}
