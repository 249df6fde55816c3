//! Links between sites, what comes over them, and the clocks at their ends.

use super::*;
use crate::observe::picture::{LinkPicture, WayPicture};
use tombolo_core::event::{Cargo, Shrunk, Transfer};

impl Picture {
    /// Before the round closes: its end is what the others lead to.
    pub(super) fn see_course(&mut self, event: &Event) {
        match event {
            Event::LinkMeasured(measured) => self.lines.take(measured),
            Event::ClockMeasured(seen) => self.see_clock(seen),
            _ => {}
        }
        let open = self.rounds.back().filter(|round| round.state.is_none());
        if let Some((round, opened)) = open.map(|open| (open.round, open.opened)) {
            self.course.take(round, self.at - opened, event);
        }
    }

    fn see_clock(&mut self, seen: &ClockOffset) {
        let Some(coordinator) = self.coordinator.clone() else {
            return;
        };
        let offset_ms = seen.offset_us as f64 / 1e3;
        let (whose, offset_ms) = match (seen.peer == coordinator, seen.node == coordinator) {
            (true, _) => (&seen.node, offset_ms),
            (_, true) => (&seen.peer, -offset_ms),
            _ => return,
        };
        if let Some(node) = self.node(whose) {
            node.clock = Some(ClockPicture {
                offset_ms: Some(offset_ms),
                bound_ms: seen.bound_us as f64 / 1e3,
            });
        }
    }

    pub(super) fn see_links(&mut self, event: &Event) {
        let (node, peer, state, reason) = match event {
            Event::LinkUp { node, peer } | Event::PeerRecovered { node, peer, .. } => {
                (node, peer, LinkState::Up, "")
            }
            Event::LinkDown { node, peer, reason } | Event::LinkRefused { node, peer, reason } => {
                (node, peer, LinkState::Connecting, reason.as_str())
            }
            Event::PeerSuspected { node, peer, .. } => {
                (node, peer, LinkState::Suspect, "its peer is silent")
            }
            Event::PeerLost { node, peer } | Event::PeerOverdue { node, peer } => {
                (node, peer, LinkState::Lost, "its peer is lost")
            }
            Event::PeerLeft { node, peer } => (node, peer, LinkState::Connecting, "its peer left"),
            Event::LinkMeasured(measured) => return self.measure(measured),
            Event::Transferred(transfer) => return self.see_sum(transfer),
            _ => return,
        };
        let Some(link) = self.link(node, peer) else {
            return;
        };
        if link.state == LinkState::Up && state != LinkState::Up {
            link.downs += 1;
        }
        link.state = state;
        link.reason = clip(reason);
    }

    fn measure(&mut self, measured: &Measured) {
        let Some(link) = self.link(&measured.node, &measured.peer) else {
            return;
        };
        if link.state == LinkState::Connecting {
            link.state = LinkState::Up;
            link.reason.clear();
        }
        link.round_trip_ms = measured.round_trip_ms.and_then(finite);
        link.heartbeat_loss = finite(measured.heartbeat_loss);
        let (there, back) = link.ways(&measured.node);
        // What one end has sent and the other has not received yet counts; so does what was before a restart of one of them.
        there.bytes = there.bytes.max(measured.sent);
        back.bytes = back.bytes.max(measured.received);
        if there.models.plain < measured.models.plain {
            there.models = measured.models;
        }
        there.unacknowledged = Some(measured.unacknowledged);
        there.unacknowledged_bytes = Some(measured.unacknowledged_bytes);
    }

    /// A sum has come over the link between two sites' gateways. What became of models their sender says: it is always heard.
    fn see_sum(&mut self, transfer: &Transfer) {
        if transfer.cargo != Cargo::Contribution || transfer.plain == 0 {
            return;
        }
        if let Some(way) = self.way(&transfer.from, &transfer.to) {
            let Shrunk { plain, travelled } = &mut way.sums;
            *plain = plain.saturating_add(transfer.plain);
            *travelled = travelled.saturating_add(transfer.bytes);
        }
    }

    /// The way between two sites: that of their acting gateways, or where nobody has said who these are, of the first link between the two.
    fn way(&mut self, from: &DomainId, to: &DomainId) -> Option<&mut WayPicture> {
        let gateway = |domain: &DomainId| {
            let coordinator = self.coordinator.as_ref();
            let acting = coordinator.filter(|node| node.domain() == *domain);
            let acting = acting.or(self.domains.get(domain)?.gateway.as_ref());
            acting.cloned()
        };
        if let (Some(one), Some(other)) = (gateway(from), gateway(to)) {
            return Some(self.link(&one, &other)?.ways(&one).0);
        }
        let of = |node: &NodeId, domain: &DomainId| {
            let rest = node.as_str().strip_prefix(domain.as_str());
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        self.links.iter_mut().find_map(|link| {
            if of(&link.a, from) && of(&link.b, to) {
                return Some(&mut link.a_to_b);
            }
            (of(&link.b, from) && of(&link.a, to)).then_some(&mut link.b_to_a)
        })
    }
}

impl LinkPicture {
    /// The way from one of its ends, and the way back.
    fn ways(&mut self, from: &NodeId) -> (&mut WayPicture, &mut WayPicture) {
        match self.a == *from {
            true => (&mut self.a_to_b, &mut self.b_to_a),
            false => (&mut self.b_to_a, &mut self.a_to_b),
        }
    }
}
