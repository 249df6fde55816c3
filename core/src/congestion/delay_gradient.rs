//! The congestion law for training bursts: full pipe, short queue, deaf to random loss.
//!
//! Once a round trip it compares the shortest round trip of the last one with the shortest known (the *base*); the difference is the queue.
//! Above a small target the window is cut in proportion (Swift: Kumar et al., SIGCOMM 2020); where the queue grows towards the target it is
//! cut a little beforehand (TIMELY: Mittal et al., SIGCOMM 2015); else it probes, faster the longer the queue stays empty. Loss counts only
//! when it is heavy: 1 % at random is what a long path does, not what a full queue says. The shortest of a round, because jitter and the
//! delays of acknowledgements only add (a mean takes jitter for a queue).
//!
//! *Start.* A burst of a model is over before a window that doubles has filled a long path. Packets that were sent at once leave the narrowest
//! hop spaced by its rate, and so do their acknowledgements (packet pairs: Keshav, SIGCOMM 1991; trains: Jain and Dovrolis, SIGCOMM 2002):
//! two trains that agree say how large the window may become, and it goes half the way at once, the rest by doubling, as long as no queue
//! forms. Under jitter trains do not agree, and only doubling is left.
//!
//! *Rivals.* When the window was cut and the queue did not shrink, it is not ours: somebody fills the path who listens to nothing but loss
//! (or the path became longer, which the base shows after some seconds). Until the queue is short again the law then does as they do (Copa's
//! competitive mode: Arun and Balakrishnan, NSDI 2018).
//!
//! Time is the span since the connection began. Per packet: [`DelayGradient::on_sent`], [`DelayGradient::on_ack`] for each that is
//! acknowledged, [`DelayGradient::on_end_acks`] after each batch of those, [`DelayGradient::on_lost`].

use std::time::Duration;

/// Packets of the first window: RFC 6928's ten are over in a third of a train, and BBR's shipped start is larger.
const INITIAL_PACKETS: f64 = 32.0;
/// The least window: enough for two acknowledgements to be under way.
const LEAST_PACKETS: f64 = 4.0;
/// The queue aimed at: this share of the base round trip, at least the span below, which timers and acknowledgements take anyway.
const TARGET_SHARE: f64 = 0.08;
const TARGET_LEAST: f64 = 0.003;
/// The window in packets at which the target is as above, and the factors between which it varies with the window.
const FAIR_PACKETS: f64 = 1000.0;
const FAIRNESS: (f64, f64) = (1.0, 1.8);
/// The queue is a rival's if the window was cut to this share and the queue did not follow.
const RIVAL_CUT: f64 = 0.7;
/// What such a round takes.
const RIVAL_STEP: f64 = 0.15;
/// How far a round trip may grow while the law competes.
const RIVAL_DELAY: f64 = 1.5;
/// Loss of a round that makes room for a rival. A path that loses as much at random has none: it would have given up.
const RIVAL_LOSS: f64 = 0.002;
/// Loss of a round below this share says nothing.
const LOSS_TOLERATED: f64 = 0.05;
/// The most that one round cuts.
const CUT_MAX: f64 = 0.3;
/// How long a base is believed without being seen again.
const BASE_AGE: f64 = 10.0;
/// A base that was not seen for this long is looked for: the queue is drained for two rounds, or it would come to be taken for the path.
const BASE_UNSEEN: f64 = 4.0;
/// What is left of the window while the queue is drained, above what drains it exactly.
const DRAIN: f64 = 0.85;
/// Loss of a round above this share stops probing: a shallow queue overflows before its delay shows.
const LOSS_STOPS: f64 = 0.02;
/// Samples in a row above the target that end the start.
const OVER_MAX: u32 = 16;
/// Packets of one train that were sent within this.
const TRAIN_SPREAD: f64 = 0.000_2;
/// The least packets behind the first acknowledgement of a train from which a rate is taken.
const TRAIN_PACKETS: f64 = 6.0;
/// The share of the path that is filled at once when trains agree.
const JUMP: f64 = 0.9;
/// How near two trains must be to agree.
const TRAINS_AGREE: f64 = 0.15;

/// The keys of the law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The share of the queueing delay above the target by which the window is cut each round trip.
    pub factor: f64,
    /// The share of the window that is added each round trip while the queue is empty.
    pub additive: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            factor: 0.4,
            additive: 0.03,
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct DelayGradient {
    settings: Settings,
    packet: f64,
    window: f64,
    starting: bool,
    base: Base,
    round: Round,
    trains: Trains,
    newest_sent: u64,
    /// The shortest round trip of the round before, and how that changes by the round, as a share of the base.
    last_round_trip: f64,
    gradient: f64,
    /// Bytes a second: the most that a round of the start brought, then smoothed.
    rate: f64,
    flat_rounds: u32,
    over: u32,
    smoothed: f64,
    deviation: f64,
    /// Whether the queue is that of somebody who listens to nothing but loss.
    rival: bool,
    full_rounds: u32,
    empty_rounds: u32,
    /// While the queue is drained to see the base: the window before, and how many rounds that has lasted.
    drain: Option<(f64, u32)>,
    /// When the latest rate was begun to be measured, the bytes since, and the last result.
    recent: (f64, f64, f64),
    /// The window and the shortest round trip when the queue came over the target.
    before_cuts: (f64, f64),
}

/// What the packets of one round trip said.
#[derive(Debug, Clone)]
struct Round {
    began: f64,
    ends_after: u64,
    shortest: f64,
    acked: f64,
    lost: f64,
    app_limited: bool,
}

impl Round {
    fn new(began: f64, ends_after: u64) -> Self {
        Round {
            began,
            ends_after,
            shortest: f64::MAX,
            acked: 0.0,
            lost: 0.0,
            app_limited: false,
        }
    }
}

/// The shortest round trip of the last one to two [`BASE_AGE`].
#[derive(Debug, Clone)]
struct Base {
    shortest: f64,
    younger: f64,
    since: f64,
    seen: f64,
}

impl Base {
    fn see(&mut self, round_trip: f64) {
        self.shortest = self.shortest.min(round_trip);
    }

    fn end_round(&mut self, now: f64, round_trip: f64) {
        if round_trip <= self.shortest + 0.1 * TARGET_LEAST {
            self.seen = now;
        }
        self.see(round_trip);
        self.younger = self.younger.min(round_trip);
        if now - self.since > BASE_AGE {
            self.shortest = self.younger;
            self.younger = round_trip;
            self.since = now;
        }
    }

    fn set(&mut self, now: f64, round_trip: f64) {
        *self = Base {
            shortest: round_trip,
            younger: round_trip,
            since: now,
            seen: now,
        };
    }
}

/// The rate of the narrowest hop, from how acknowledgements of packets that were sent at once are spaced.
#[derive(Debug, Clone, Default)]
struct Trains {
    sent: f64,
    first: f64,
    bytes: f64,
    rate: f64,
    before: f64,
}

impl Trains {
    /// Takes an acknowledged packet.
    fn on_ack(&mut self, now: f64, sent: f64, bytes: f64, packet: f64) {
        if self.first == 0.0 || (sent - self.sent).abs() > TRAIN_SPREAD {
            if self.rate > 0.0 {
                self.before = self.rate;
            }
            (self.sent, self.first) = (sent, now);
            (self.bytes, self.rate) = (0.0, 0.0);
        } else if now > self.first {
            self.bytes += bytes;
            if self.bytes >= TRAIN_PACKETS * packet {
                // The last acknowledgement of a train may have waited for another packet.
                self.rate = self.rate.max(self.bytes / (now - self.first));
            }
        }
    }

    /// The rate, if the last two trains agree on it.
    fn agreed(&self) -> Option<f64> {
        let (less, more) = (self.rate.min(self.before), self.rate.max(self.before));
        (less > 0.0 && more - less <= TRAINS_AGREE * more).then_some(less)
    }
}

impl DelayGradient {
    /// A law for a connection that begins at `now`.
    pub fn new(settings: Settings, packet_bytes: u16, now: Duration) -> Self {
        let (packet, now) = (f64::from(packet_bytes), now.as_secs_f64());
        DelayGradient {
            settings,
            packet,
            window: INITIAL_PACKETS * packet,
            starting: true,
            base: Base {
                shortest: f64::MAX,
                younger: f64::MAX,
                since: now,
                seen: now,
            },
            round: Round::new(now, 0),
            trains: Trains::default(),
            newest_sent: 0,
            last_round_trip: 0.0,
            gradient: 0.0,
            rate: 0.0,
            flat_rounds: 0,
            over: 0,
            smoothed: 0.0,
            deviation: 0.0,
            rival: false,
            full_rounds: 0,
            empty_rounds: 0,
            before_cuts: (0.0, 0.0),
            drain: None,
            recent: (now, 0.0, 0.0),
        }
    }

    /// Bytes that may be on their way.
    pub fn window(&self) -> u64 {
        self.window as u64
    }

    /// The first window.
    pub fn initial_window(&self) -> u64 {
        (INITIAL_PACKETS * self.packet) as u64
    }

    /// Whether it still looks for the path's capacity.
    pub fn is_starting(&self) -> bool {
        self.starting
    }

    /// The largest packet that passes has changed.
    pub fn on_packet_size(&mut self, bytes: u16) {
        self.packet = f64::from(bytes);
    }

    /// Packets up to that number were sent.
    pub fn on_sent(&mut self, number: u64) {
        self.newest_sent = number;
    }

    /// A packet that was sent at `sent` is acknowledged; `app_limited` if there was nothing more to send.
    pub fn on_ack(&mut self, now: Duration, sent: Duration, bytes: u64, app_limited: bool) {
        let round_trip = now.saturating_sub(sent).as_secs_f64();
        let (now, sent, bytes) = (now.as_secs_f64(), sent.as_secs_f64(), bytes as f64);
        self.round.shortest = self.round.shortest.min(round_trip);
        self.round.acked += bytes;
        self.round.app_limited |= app_limited;
        if self.smoothed == 0.0 {
            self.smoothed = round_trip;
        } else {
            let error = round_trip - self.smoothed;
            self.smoothed += error / 32.0;
            self.deviation += (error.abs() - self.deviation) / 32.0;
        }
        if self.starting {
            self.start(now, sent, round_trip, bytes, app_limited);
        }
    }

    fn start(&mut self, now: f64, sent: f64, round_trip: f64, bytes: f64, app_limited: bool) {
        self.base.see(round_trip);
        self.trains.on_ack(now, sent, bytes, self.packet);
        let base = self.base.shortest;
        let noise = 3.0 * self.deviation.min(base / 8.0);
        let is_over = round_trip > base + self.target() + noise;
        self.over = if is_over { self.over + 1 } else { 0 };
        let (since, before, rate) = &mut self.recent;
        *before += bytes;
        if now - *since > base / 8.0 {
            *rate = *before / (now - *since);
            (*since, *before) = (now, 0.0);
        }
        let passed = now - self.round.began;
        if self.over >= OVER_MAX && passed > base / 4.0 {
            let rate = self.recent.2.max(self.round.acked / passed);
            self.rate = self.rate.max(rate);
            self.end_start();
        } else if !app_limited {
            self.window += bytes;
            if let Some(rate) = self.trains.agreed() {
                self.window = self.window.max(rate * base * JUMP);
            }
        }
    }

    fn end_start(&mut self) {
        self.starting = false;
        let fits = self.rate * (self.base.shortest + self.target() / 2.0);
        self.window = fits.max(LEAST_PACKETS * self.packet);
    }

    /// A batch of acknowledgements is through; `largest` is the highest number among them.
    pub fn on_end_acks(&mut self, now: Duration, largest: Option<u64>) {
        if largest.is_some_and(|largest| largest > self.round.ends_after) {
            let next = Round::new(now.as_secs_f64(), self.newest_sent);
            let round = std::mem::replace(&mut self.round, next);
            if round.acked > 0.0 {
                self.end_round(now.as_secs_f64(), &round);
            }
        }
    }

    /// Bytes are lost; none, if the path marked packets instead. `persistent` if nothing came through for long.
    pub fn on_lost(&mut self, bytes: u64, persistent: bool) {
        self.round.lost += bytes as f64;
        if bytes == 0 {
            self.window = (self.window * 0.9).max(LEAST_PACKETS * self.packet);
            self.starting = false;
        }
        if persistent {
            self.window = LEAST_PACKETS * self.packet;
            self.starting = true;
            (self.rate, self.flat_rounds) = (0.0, 0);
            self.trains = Trains::default();
        }
    }

    /// The queueing delay aimed at.
    fn target(&self) -> f64 {
        let usual = (self.base.shortest * TARGET_SHARE).max(TARGET_LEAST);
        if self.starting {
            return usual;
        }
        // Two flows see one queue: whoever has less of the path aims higher, until both have the same (Swift's flow scaling).
        let (least, most) = FAIRNESS;
        let fair = (FAIR_PACKETS * self.packet / self.window).sqrt().sqrt();
        usual * fair.clamp(least, most)
    }

    fn end_round(&mut self, now: f64, round: &Round) {
        let round_trip = round.shortest;
        self.base.end_round(now, round_trip);
        let rate = round.acked / (now - round.began).max(1e-6);
        if self.last_round_trip > 0.0 {
            let step = (round_trip - self.last_round_trip) / self.base.shortest;
            self.gradient = (self.gradient + step) / 2.0;
        }
        self.last_round_trip = round_trip;
        let lost = round.lost / (round.lost + round.acked);
        if self.starting {
            let is_flat = rate < self.rate * 1.2;
            self.flat_rounds = if is_flat { self.flat_rounds + 1 } else { 0 };
            self.rate = self.rate.max(rate);
            if (self.flat_rounds >= 3 || lost > 2.0 * LOSS_TOLERATED) && !round.app_limited {
                self.end_start();
            }
        } else {
            let known = self.rate;
            self.rate = rate.max(0.9 * known + 0.1 * rate);
            self.steer(now, round, lost);
        }
        self.window = self.window.max(LEAST_PACKETS * self.packet);
    }

    /// Whether the queue is being drained, so that the path is seen without it.
    fn drains(&mut self, now: f64, queue: f64) -> bool {
        match &mut self.drain {
            Some((before, 2..)) => {
                self.window = *before;
                self.drain = None;
                self.base.seen = now;
                self.gradient = 0.0;
                true
            }
            Some((_, rounds)) => {
                *rounds += 1;
                true
            }
            // Beside a rival the queue is not ours to drain.
            None if now - self.base.seen > BASE_UNSEEN && !self.rival => {
                let empty = self.base.shortest / (self.base.shortest + queue);
                self.drain = Some((self.window, 1));
                self.window *= empty.max(0.5) * DRAIN;
                true
            }
            None => false,
        }
    }

    fn steer(&mut self, now: f64, round: &Round, lost: f64) {
        if self.drains(now, (round.shortest - self.base.shortest).max(0.0)) {
            return;
        }
        self.watch_rivals(now, round.shortest);
        if self.rival {
            return self.compete(lost);
        }
        let queue = (round.shortest - self.base.shortest).max(0.0);
        let target = self.target();
        if lost > LOSS_TOLERATED {
            self.window *= 1.0 - (lost / 2.0 + 0.05).min(CUT_MAX);
        } else if queue > target {
            let cut = self.settings.factor * (queue - target) / queue;
            // It shrinks already: do not drain the pipe as well.
            let cut = if self.gradient < 0.0 { cut / 2.0 } else { cut };
            self.window *= 1.0 - cut.min(CUT_MAX);
        } else if self.gradient > 0.02 && queue > target / 2.0 {
            self.window *= 1.0 - (self.gradient / 2.0).min(0.1);
        } else if !round.app_limited && lost < LOSS_STOPS {
            let faster = f64::from(1u32 << (self.empty_rounds / 3).min(3));
            let share = self.settings.additive * (1.0 - queue / target) * faster;
            self.window += (self.window * share).max(self.packet);
            let most = 2.0 * self.rate * (self.base.shortest + target);
            self.window = self.window.min(most.max(INITIAL_PACKETS * self.packet));
        }
    }

    /// Counts full and empty rounds, and tells whether the queue is somebody else's.
    fn watch_rivals(&mut self, now: f64, round_trip: f64) {
        if self.rival && round_trip > self.before_cuts.1 * RIVAL_DELAY {
            // By now it is ours, too, and no loss bounds it. What was there before is the path's.
            self.base.set(now, self.before_cuts.1);
            self.rival = false;
            self.full_rounds = 0;
        }
        let queue = (round_trip - self.base.shortest).max(0.0);
        let target = self.target();
        if queue > target {
            if self.full_rounds == 0 {
                self.before_cuts = (self.window, round_trip);
            }
            self.full_rounds += 1;
            let (window, before) = self.before_cuts;
            let is_cut = self.window < window * RIVAL_CUT;
            let stays = queue > (before - self.base.shortest) / 2.0;
            let is_least = self.window < 2.0 * LEAST_PACKETS * self.packet;
            let is_known = self.rival || self.full_rounds < 6;
            if !is_known && is_cut && (stays || is_least) {
                self.rival = true;
                // What is left of the delay is not ours; the window need not have been cut.
                self.window = window;
                self.before_cuts.1 = round_trip;
            }
        } else {
            self.full_rounds = 0;
            self.rival = false;
        }
        let is_empty = queue < 0.3 * target;
        self.empty_rounds = if is_empty { self.empty_rounds + 1 } else { 0 };
    }

    /// What a law that listens to loss does: little by little up, down at once. Twice the usual step, as only loss holds the rival back.
    fn compete(&mut self, lost: f64) {
        if lost > RIVAL_LOSS {
            self.window *= 1.0 - RIVAL_STEP;
        } else {
            self.window += (self.window * self.settings.additive * 2.0).max(self.packet);
        }
    }
}

#[cfg(test)]
mod tests;
