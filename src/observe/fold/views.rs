//! Views of the federation: who is out, who leads whom.

use super::*;
use crate::observe::picture::RecordPicture;

impl Picture {
    pub(super) fn see_views(&mut self, event: &Event) {
        match event {
            Event::EpochChanged { view } => self.adopt(view),
            Event::RecordSigned {
                round,
                size,
                by,
                behind,
            } => {
                let first = |nodes: &[NodeId]| nodes.iter().take(MARKS_MAX).cloned().collect();
                self.record = Some(RecordPicture {
                    round: *round,
                    size: *size,
                    by: first(by),
                    behind: first(behind),
                });
            }
            Event::ViewAdopted { node, epoch } => {
                if let Some(node) = self.node(node) {
                    node.epoch = *epoch;
                }
            }
            Event::NodeEvicted {
                node, cooldown_ms, ..
            } => {
                let seconds = cooldown_ms / 1000;
                let why =
                    format!("evicted: it may come back after {seconds} s of sound signs of life");
                if let Some(node) = self.node(node) {
                    node.reason = why;
                }
            }
            Event::CoordinatorPromoted { node, epoch } => {
                self.coordinator = Some(node.clone());
                self.epoch = self.epoch.max(*epoch);
            }
            _ => {}
        }
    }

    fn adopt(&mut self, view: &View) {
        if view.epoch < self.epoch {
            return;
        }
        self.epoch = view.epoch;
        self.coordinator = Some(view.coordinator.clone());
        for (domain, gateway) in &view.gateways {
            if self.node(gateway).is_some() {
                self.domain(domain).gateway = Some(gateway.clone());
            }
        }
        let back: Vec<NodeId> = self.out.keys().cloned().collect();
        self.out.clone_from(&view.out);
        for node in back.iter().filter(|node| !view.is_out(node)) {
            self.lives(node);
        }
        let at = self.at;
        for (node, why) in &view.out {
            let Some(node) = self.node(node) else {
                continue;
            };
            let (state, reason) = match why {
                Out::Evicted(_) => (State::Evicted, "evicted"),
                Out::Left => (State::Left, "it said that it leaves"),
            };
            if node.state != state {
                (node.state, node.since, node.reason) = (state, at, reason.to_owned());
                node.phase = Phase::Idle;
            }
        }
    }
}
