//! A connection is replaced while it carries: first there is another one, then it goes.
//!
//! Whoever dials must dial, so the other side asks for it; and the side that dials says so before, so that both know: the new connection takes
//! over without a gap. The session that hands over stops to read and to write messages, which lie in the link's memory and go on where the
//! peer says that it is; streams of objects that have begun, or are on their way, run to their end. Nobody hears that anything has happened.
//!
//! And no connection outlives the certificates that it was made with.

use std::sync::Arc;
use std::time::Duration;

use quinn::Connection;

use super::greeting::REPLACED;
use super::{Carrier, Current, Link, Trouble, UNTRUSTED};
use crate::shell::{Cx, later};
use tombolo_core::event::Event;
use tombolo_core::text::clip;
use tombolo_core::wire::Control;

/// How long after it was agreed upon a new connection takes over without a gap: dialling, with all its limits, takes no longer.
const AGREED: Duration = Duration::from_secs(20);

/// How long streams of a connection that has handed over may take to end. One on which nothing moves ends sooner, by its idle timeout.
const RETIRED_LIMIT: Duration = Duration::from_secs(60);

/// Connections that have handed over and still stand; the oldest goes.
const RETIRED_MAX: usize = 2;

/// A session that has handed over.
pub(super) struct Retired {
    number: u64,
    carrier: Carrier,
    /// What was counted of its traffic.
    counted: (u64, u64),
}

impl Carrier {
    fn stands(&self) -> bool {
        self.connection.close_reason().is_none()
    }
}

impl Link {
    pub(super) fn renew_later(&mut self, cx: &mut Cx<Self>, after: Duration) {
        later(cx, self.setup.stage.env.sleep(after), |link, (), cx| {
            link.look_again(cx);
        });
    }

    /// Replaces the connection if this side would show another certificate by now.
    pub(super) fn look_again(&mut self, cx: &mut Cx<Self>) {
        let shows = self.setup.identity.own().sha256;
        let is_old = |current: &Current| {
            let shown = current.carrier.as_ref().map(|carrier| &carrier.shown);
            shown.is_some_and(|shown| *shown != shows)
        };
        // What is not up yet is looked at when it is.
        if self.up && self.session.as_ref().is_some_and(is_old) {
            if !self.setup.dials() {
                self.renews = self.setup.stage.env.now() + AGREED;
                self.renewal_asked = true;
            }
            self.push(cx, &Control::Renew);
        }
    }

    /// Replaces the connection by one that leads another way: whoever dials chooses it.
    pub(super) fn reroute(&mut self, cx: &mut Cx<Self>) {
        if self.up && self.setup.dials() {
            self.push(cx, &Control::Renew);
        }
    }

    /// An attempt to replace the connection has failed; what stands still does.
    pub(super) fn renew_again(&mut self, cx: &mut Cx<Self>) {
        match self.setup.stage.env.now() < self.renews {
            true => self.dial(),
            false => self.look_again(cx),
        }
    }

    /// The peer is about to dial if this side agrees, or asks this side to.
    pub(super) fn on_renew_asked(&mut self, cx: &mut Cx<Self>) {
        if !self.up {
            return;
        }
        let now = self.setup.stage.env.now();
        // What was asked long ago has come to nothing.
        let is_asked = self.renewal_asked && now < self.renews;
        self.renews = now + AGREED;
        if self.setup.dials() {
            self.dial();
        } else if !is_asked {
            self.renewal_asked = true;
            self.push(cx, &Control::Renew);
        }
    }

    /// Whether what stands may hand over to another connection with the same process.
    pub(super) fn gives_way(&self, old: &Current, incarnation: u64) -> bool {
        self.up
            && old.incarnation == incarnation
            && old.carrier.as_ref().is_some_and(Carrier::stands)
            && self.setup.stage.env.now() < self.renews
    }

    /// The session hands over to the one of that connection.
    pub(super) fn retire(&mut self, cx: &mut Cx<Self>, old: Current, next: Arc<Connection>) {
        let Current {
            number,
            carrier: Some(carrier),
            ..
        } = old
        else {
            return;
        };
        carrier.handover.order();
        self.renewal_asked = false;
        // Their streams come on the old connection, if they come; whoever wants one that does not asks for it.
        self.offers.retain(|offer| offer.begun.is_some());
        let counted = self.setup.wire.hand_over(&carrier.connection, next);
        self.retired.push(Retired {
            number,
            carrier,
            counted,
        });
        if self.retired.len() > RETIRED_MAX {
            let oldest = self.retired.remove(0);
            self.end(oldest);
        }
        let limit = self.setup.stage.env.sleep(RETIRED_LIMIT);
        later(cx, limit, move |link, (), _| _ = link.bury(number));
    }

    fn end(&self, retired: Retired) {
        let connection = &retired.carrier.connection;
        connection.close(REPLACED, b"replaced by a newer connection");
        self.setup.wire.add_since(connection, retired.counted);
    }

    /// Whether that was a session that had handed over, which is gone now.
    pub(super) fn bury(&mut self, number: u64) -> bool {
        let place = self
            .retired
            .iter()
            .position(|retired| retired.number == number);
        let found = place.map(|place| self.retired.remove(place));
        let is_known = found.is_some();
        found.into_iter().for_each(|retired| self.end(retired));
        is_known
    }

    pub(super) fn is_retired(&self, number: u64) -> bool {
        self.retired.iter().any(|retired| retired.number == number)
    }

    pub(super) fn report_renewal(&self) {
        let (node, peer) = (self.setup.stage.node.clone(), self.setup.peer.clone());
        self.setup.stage.report(Event::LinkRenewed { node, peer });
    }

    /// Cuts what was made with certificates that do not count any more.
    pub(super) fn judge(&mut self, cx: &mut Cx<Self>, again: bool) {
        let retired = self.retired.iter().map(|retired| &retired.carrier);
        for carrier in self.candidates.values().chain(retired) {
            if let Some(reason) = self.fault(carrier, again) {
                carrier.connection.close(UNTRUSTED, reason.as_bytes());
            }
        }
        let current = self.session.as_ref();
        let carrier = current.and_then(|current| current.carrier.as_ref());
        let fault = carrier.and_then(|carrier| self.fault(carrier, again));
        if let (Some(reason), Some(carrier)) = (fault, carrier) {
            let connection = &carrier.connection;
            connection.close(UNTRUSTED, reason.as_bytes());
            let trouble = Trouble {
                reason,
                refused: true,
            };
            self.report_refusal(&trouble);
            self.setup.wire.note_trouble(Some(&trouble));
            self.down(&trouble.reason);
            self.dial_later(cx);
        }
        self.look_again(cx);
    }

    fn fault(&self, carrier: &Carrier, again: bool) -> Option<String> {
        let Carrier {
            connection, until, ..
        } = carrier;
        // The last second belongs to it.
        let is_over = *until < self.setup.stage.env.unix_time();
        if !(again || is_over) || connection.close_reason().is_some() {
            return None;
        }
        let checked = self.setup.identity.recheck(connection.peer_identity());
        match checked {
            Err(error) => Some(clip(error.to_string())),
            Ok(_) if is_over => Some(format!(
                "the certificate of {} with which this connection was made has expired",
                self.setup.stage.node
            )),
            Ok(_) => None,
        }
    }
}
