//! The congestion laws as quinn takes them.
//!
//! quinn makes a connection's controller before it knows the peer. Who dials knows the peer and has [`Fixed`]; who is dialled learns it from
//! the certificate and has [`Later`]: a controller that begins as cubic and becomes what the link says once the handshake is over.

use std::any::Any;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use quinn::congestion::{BbrConfig, Controller, ControllerFactory, CubicConfig};
use quinn_proto::RttEstimator;
use tombolo_core::congestion::Law;
use tombolo_core::congestion::delay_gradient::{DelayGradient, Settings};

/// Of a link's law; without one nothing bounds what is on its way.
fn controller(law: Option<Law>, now: Instant, packet_bytes: u16) -> Box<dyn Controller> {
    let Some(law) = law else {
        return Box::new(Boundless);
    };
    match law {
        Law::Cubic => Arc::new(CubicConfig::default()).build(now, packet_bytes),
        Law::Bbr => Arc::new(BbrConfig::default()).build(now, packet_bytes),
        Law::DelayGradient(settings) => Box::new(Gradient::new(settings, now, packet_bytes)),
    }
}

/// Makes controllers of one law. None is for a tunnel: what passes it has laws of its own from end to end, and a second one below would slow down
/// for the same losses again.
#[derive(Debug, Clone, Copy)]
pub struct Fixed(pub Option<Law>);

impl ControllerFactory for Fixed {
    fn build(self: Arc<Self>, now: Instant, packet_bytes: u16) -> Box<dyn Controller> {
        controller(self.0, now, packet_bytes)
    }
}

/// Makes the controller of one connection, whose law is chosen later.
#[derive(Debug, Default)]
pub struct Later(OnceLock<Option<Law>>);

impl Later {
    /// Chooses the law; the first choice stays.
    pub fn choose(&self, law: Option<Law>) {
        let _ = self.0.set(law);
    }
}

impl ControllerFactory for Later {
    fn build(self: Arc<Self>, now: Instant, packet_bytes: u16) -> Box<dyn Controller> {
        Box::new(Switch {
            inner: controller(Some(Law::Cubic), now, packet_bytes),
            packet_bytes,
            waits_for: Some(self),
        })
    }
}

/// See [`Later`].
struct Switch {
    inner: Box<dyn Controller>,
    packet_bytes: u16,
    waits_for: Option<Arc<Later>>,
}

impl Switch {
    /// Takes the law that was chosen, if it has been. The handshake's few packets leave nothing worth taking over.
    fn turn(&mut self, now: Instant) {
        let Some(law) = self.waits_for.as_ref().and_then(|later| later.0.get()) else {
            return;
        };
        if *law != Some(Law::Cubic) {
            self.inner = controller(*law, now, self.packet_bytes);
        }
        self.waits_for = None;
    }
}

impl Controller for Switch {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.turn(now);
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest: Option<u64>,
    ) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        self.inner.on_congestion_event(now, sent, persistent, lost);
    }

    fn on_mtu_update(&mut self, packet_bytes: u16) {
        self.packet_bytes = packet_bytes;
        self.inner.on_mtu_update(packet_bytes);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Switch {
            inner: self.inner.clone_box(),
            packet_bytes: self.packet_bytes,
            waits_for: self.waits_for.clone(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    /// Whoever looks wants to see the law, not what chose it.
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.inner.into_any()
    }
}

/// As much as there is.
#[derive(Debug, Clone, Copy)]
struct Boundless;

/// More than a connection ever has to send: its buffer is smaller.
const BOUNDLESS: u64 = 64 << 20;

impl Controller for Boundless {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        BOUNDLESS
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(*self)
    }

    fn initial_window(&self) -> u64 {
        BOUNDLESS
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// [`DelayGradient`] as quinn takes it.
#[derive(Clone)]
pub struct Gradient {
    law: DelayGradient,
    began: Instant,
}

impl Gradient {
    fn new(settings: Settings, began: Instant, packet_bytes: u16) -> Self {
        Gradient {
            law: DelayGradient::new(settings, packet_bytes, std::time::Duration::ZERO),
            began,
        }
    }
}

impl Controller for Gradient {
    fn on_sent(&mut self, _now: Instant, _bytes: u64, last_packet_number: u64) {
        self.law.on_sent(last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        // What was sent before the law was chosen says nothing about its window.
        let Some(sent) = sent.checked_duration_since(self.began) else {
            return;
        };
        let now = now.saturating_duration_since(self.began);
        self.law.on_ack(now, sent, bytes, app_limited);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        _in_flight: u64,
        _app_limited: bool,
        largest: Option<u64>,
    ) {
        let now = now.saturating_duration_since(self.began);
        self.law.on_end_acks(now, largest);
    }

    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, persistent: bool, lost: u64) {
        self.law.on_lost(lost, persistent);
    }

    fn on_mtu_update(&mut self, packet_bytes: u16) {
        self.law.on_packet_size(packet_bytes);
    }

    fn window(&self) -> u64 {
        self.law.window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.law.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "quinn speaks of instants; only one is taken"
    )]
    fn an_accepted_connection_takes_its_law_once_the_peer_is_known() {
        let now = Instant::now();
        let law = |controller: &dyn Controller| controller.clone_box().into_any();
        let laws = [Law::Bbr, Law::DelayGradient(Settings::default())];
        for chosen in laws.map(Some).into_iter().chain([None]) {
            let later = Arc::new(Later::default());
            let mut controller = later.clone().build(now, 1200);
            controller.on_sent(now, 1200, 0);
            assert!(law(&*controller).is::<quinn::congestion::Cubic>());
            controller.on_mtu_update(1452);
            later.choose(chosen);
            later.choose(Some(Law::Cubic));
            controller.on_sent(now, 1452, 1);
            let direct = Arc::new(Fixed(chosen)).build(now, 1452);
            assert_eq!((*law(&*controller)).type_id(), (*law(&*direct)).type_id());
            assert_eq!(controller.window(), direct.window());
        }
    }
}
