//! The gateway side of a node: what its [`Gateway`] decides, and the two regions of the domain's model.

use super::Node;
use super::obtain::obtain;
use crate::collective;
use crate::link;
use crate::shell::{ASKS_MAX, Cx, later};
use tombolo_core::gateway::{self, Gateway};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::tensor::Hash;
use tombolo_core::wire::{Control, Object};
use tombolo_fabric::Region;

/// The gateway's two model regions: one that the domain may READ, one for the next model.
#[derive(Default)]
pub(super) struct Shop {
    pub(super) shown: Option<(Hash, Region)>,
    pub(super) next: Option<Region>,
}

impl Node {
    pub(super) fn step_gateway(&mut self, cx: &mut Cx<Self>, message: gateway::Message) {
        let Some(gateway) = &mut self.gateway else {
            return;
        };
        let mut out = Outcome::default();
        gateway.handle(
            message,
            &mut Context::new(self.setup.stage.env.now(), &mut out),
        );
        out.events
            .into_iter()
            .for_each(|event| self.setup.stage.report(event));
        for effect in out.effects {
            self.perform_gateway(cx, effect);
        }
    }

    fn perform_gateway(&mut self, cx: &mut Cx<Self>, effect: gateway::Effect) {
        match effect {
            gateway::Effect::Tell(control) => {
                let coordinator = self.setup.stage.plan.coordinator.clone();
                if let Control::Contribute(contribution) = &control {
                    self.offer(
                        &coordinator,
                        Object::Contribution(contribution.round, contribution.attempt),
                    );
                }
                self.send(&coordinator, control);
            }
            gateway::Effect::Member(node, control) => self.send(&node, control),
            gateway::Effect::Obtain { round, base, hash } => {
                self.obtain = Some((round, base, hash));
                self.obtain_next(cx);
            }
            gateway::Effect::Gather(gather) => {
                let (round, attempt) = (gather.round, gather.attempt);
                let (collective, own) = (self.setup.collective.clone(), self.me().clone());
                let gathered = async move {
                    let question = |reply| collective::Message::Gather(gather.clone(), reply);
                    let gathered = collective.ask_again(ASKS_MAX, question).await;
                    gathered.unwrap_or_else(|error| Err((own, format!("its collective: {error}"))))
                };
                later(cx, gathered, move |node, gathered, cx| {
                    // What the coordinator may still fetch stays until the new sum takes its place.
                    let offered = node.gateway.as_ref().and_then(Gateway::offered);
                    let result = gathered.map(|(sum, chunks)| {
                        node.setup.shelf.keep(|object| match object {
                            Object::Contribution(round, old) => offered == Some((round, old)),
                            _ => true,
                        });
                        node.setup
                            .shelf
                            .put(Object::Contribution(round, attempt), sum.bytes());
                        chunks
                    });
                    node.step_gateway(cx, gateway::Message::Gathered(round, attempt, result));
                    if node.gateway.as_ref().and_then(Gateway::offered) != Some((round, attempt)) {
                        // The round went on without it.
                        let object = Object::Contribution(round, attempt);
                        node.setup.shelf.remove(object);
                    }
                });
            }
            gateway::Effect::Finished(_) => {}
        }
    }

    fn obtain_next(&mut self, cx: &mut Cx<Self>) {
        let Some(mut shop) = self.shop.take() else {
            return;
        };
        let Some((round, base, hash)) = self.obtain.take() else {
            self.shop = Some(shop);
            return;
        };
        let setup = self.setup.clone();
        let work = async move {
            let result = obtain(&setup, &mut shop, round, base, hash).await;
            (shop, result)
        };
        later(cx, work, move |node, (shop, result), cx| {
            node.shop = Some(shop);
            node.step_gateway(cx, gateway::Message::Obtained(round, result));
            node.obtain_next(cx);
        });
    }

    pub(super) fn forget_contributions(&self, is_over: impl Fn(Round) -> bool) {
        self.setup.shelf.keep(|object| match object {
            Object::Contribution(round, _) => !is_over(round),
            _ => true,
        });
    }

    /// Starts to send an object before it is asked for; its stream waits at the other side within the stream's window.
    fn offer(&self, peer: &NodeId, object: Object) {
        let company = self.setup.company.get();
        if let Some(link) = company.and_then(|company| company.links.get(peer)) {
            // If it cannot be taken, the peer fetches.
            let _ = link.post(link::Message::Offer(object));
        }
    }
}
