//! Is a peer alive?
//!
//! Each period a heartbeat goes out to the peer. Its own silence is suspicious once a living peer would hardly be silent for so long
//! (`phi`); then it climbs the [`crate::ladder`]. Whatever comes from it ends the climb at once. Silence counts only while this node runs:
//! the machine knows when it asked to be woken, and what it was woken late by is no fault of the peer's. It also makes this node doubt
//! itself before it doubts others (`health`).

mod health;
mod phi;

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::ladder::{Ladder, Rung};
use crate::machine::{Context, Machine};
use crate::plan::HeartbeatPlan;
use crate::rng::Rng;
use crate::time::Micros;
use crate::wire::{self, Echo, Exchange};

use health::Health;
use phi::Arrivals;

/// On a quiet link a dead peer is suspected at most so many periods after its last heartbeat arrived.
pub const PERIODS_SILENT: u32 = 3;

/// Periods that make sense: below, timers are not exact enough; above, a round would wait for the dead.
pub const PERIODS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// A timer that comes later than this part of a period shows that this node does not keep up.
const LATE_PART: u32 = 4;

/// Who was stopped for longer than the heartbeat limit was given up by its peers: so long they may take to dial it again.
const REUNION: Duration = Duration::from_secs(4);

/// How often a silence is looked at that may soon be suspicious: so many times a period.
const LOOKS: u32 = 8;

/// What comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// A connection to the peer stands, on which it will send a heartbeat this often.
    Connected {
        /// The peer's period.
        every: Duration,
    },
    /// A heartbeat arrived.
    Beat(wire::Heartbeat),
    /// Something else came from the peer.
    Progress {
        /// No earlier than then.
        since: Micros,
    },
    /// The peer closed the connection and said that it leaves.
    Goodbye,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Send to the peer.
    Send(wire::Heartbeat),
    /// Two heartbeats crossed: a sight of the peer's clock.
    Crossed(Exchange),
    /// Dial the peer anew, whatever stands.
    Redial,
    /// Tell the node.
    Verdict(Verdict),
}

/// What is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Silent for longer than a living peer would be.
    Suspected {
        /// How long nothing was heard.
        silent: Duration,
    },
    /// Heard again.
    Recovered {
        /// How long nothing had been heard.
        after: Duration,
        /// How far it had climbed: from [`Rung::Restoring`] on it had been lost.
        from: Rung,
    },
    /// Silent through all retries: the round does not wait for it any more.
    Lost,
    /// It did not come back within the restore limit: the coordinator, who alone evicts, must hear of it.
    Overdue,
    /// It leaves, and is not missed.
    Left,
}

/// How a peer stands: for status.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Its rung.
    pub rung: Rung,
    /// Until the next rung, if time leads there.
    pub left: Option<Duration>,
    /// Since something was heard.
    pub silent: Duration,
    /// The suspicion.
    pub phi: f64,
    /// The share of its heartbeats that got lost lately.
    pub loss: f64,
    /// How late the peer's timers come by its own word, 0 to [`wire::HEALTH_MAX`].
    pub peer_health: u8,
    /// How late this node's timers come.
    pub health: u8,
    /// How long the last two heartbeats were on their way.
    pub round_trip: Option<Duration>,
}

/// See the module.
#[derive(Debug)]
pub struct Heartbeat {
    every: Duration,
    phi: f64,
    /// `phi`, in deviations of the normal distribution.
    deviations: f64,
    phase: Duration,
    arrivals: Arrivals,
    ladder: Ladder,
    heard: Micros,
    /// Silence before then does not count.
    excused: Micros,
    session: Option<Session>,
    sequence: u64,
    /// When the next heartbeat is due.
    next: Option<Micros>,
    /// When this machine asked to be woken.
    awaited: Micros,
    health: Health,
    peer_health: u8,
    echo: Option<Echo>,
    exchange: Option<Exchange>,
}

/// What belongs to one connection.
#[derive(Debug)]
struct Session {
    /// Heartbeats sent.
    sent: u64,
    /// The count of the newest heartbeat that arrived, and when.
    newest: u64,
    newest_at: Micros,
}

impl Heartbeat {
    /// A watch over one peer. `rng` spreads heartbeats over the period and retries over their waits.
    pub fn new(plan: &HeartbeatPlan, mut rng: Rng) -> Self {
        Heartbeat {
            every: plan.every,
            phi: plan.phi,
            deviations: phi::deviations(plan.phi),
            phase: plan.every.mul_f64(rng.next_f64()),
            arrivals: Arrivals::new(plan.every, plan.every),
            ladder: Ladder::new(plan.retry.clone(), plan.restore_limit, rng),
            heard: Micros::default(),
            excused: Micros::default(),
            session: None,
            sequence: 0,
            next: None,
            awaited: Micros::NEVER,
            health: Health::default(),
            peer_health: 0,
            echo: None,
            exchange: None,
        }
    }

    /// Where the peer stands on the ladder.
    pub fn rung(&self) -> Rung {
        self.ladder.rung()
    }

    /// Everything that status shows.
    pub fn standing(&self, now: Micros) -> Standing {
        let silent = match self.rung() {
            Rung::Left | Rung::Unmet => Duration::ZERO,
            _ => now.since(self.heard),
        };
        let counts = now.since(self.heard.max(self.excused)).min(silent);
        Standing {
            rung: self.rung(),
            left: self.ladder.until().map(|until| until.since(now)),
            silent,
            phi: self.arrivals.phi(counts / self.stretch()),
            loss: self.arrivals.loss(),
            peer_health: self.peer_health,
            health: self.health.score(),
            round_trip: self.exchange.map(Exchange::round_trip),
        }
    }

    /// How many times as long a silence must be, because one of both sides does not keep up.
    fn stretch(&self) -> u32 {
        self.health.stretch().max(1 + u32::from(self.peer_health))
    }
}

impl Machine for Heartbeat {
    type Message = Message;
    type Effect = Effect;

    fn handle(&mut self, message: Message, cx: &mut Context<'_, Effect>) {
        let late = self.discount_pause(cx.now());
        let at = match message {
            Message::Goodbye => {
                self.session = None;
                if self.ladder.on_goodbye() {
                    cx.effect(Effect::Verdict(Verdict::Left));
                }
                return self.go_on(late, cx);
            }
            Message::Connected { every } => {
                self.on_connected(every);
                cx.now()
            }
            Message::Beat(heartbeat) => {
                self.on_beat(heartbeat, cx);
                cx.now()
            }
            Message::Progress { since } => since.min(cx.now()),
        };
        self.on_life(at, cx);
        self.go_on(late, cx);
    }

    fn on_wake(&mut self, cx: &mut Context<'_, Effect>) {
        let late = self.discount_pause(cx.now());
        self.go_on(late, cx);
    }
}

impl Heartbeat {
    /// Takes out of every span the time in which this machine should have run and did not. Says whether there was any.
    fn discount_pause(&mut self, now: Micros) -> bool {
        let pause = now.since(self.awaited);
        if pause <= self.every / LATE_PART {
            return false;
        }
        self.awaited = now;
        self.health
            .late(pause.as_micros() / self.every.as_micros().max(1));
        self.heard = (self.heard + pause).min(now);
        if pause > self.every * PERIODS_SILENT {
            self.excused = now + REUNION;
        }
        self.ladder.postpone(pause);
        if let Some(session) = &mut self.session {
            session.newest_at = (session.newest_at + pause).min(now);
        }
        true
    }

    fn on_connected(&mut self, every: Duration) {
        self.session = Some(Session {
            sent: 0,
            newest: 0,
            newest_at: Micros::default(),
        });
        // The slower of both periods is what the link is held to.
        let expected = self.every.max(every);
        if !self.arrivals.is_of(expected, every) {
            self.arrivals = Arrivals::new(expected, every);
        }
        (self.peer_health, self.echo) = (0, None);
    }

    fn on_beat(&mut self, heartbeat: wire::Heartbeat, cx: &mut Context<'_, Effect>) {
        let now = cx.now();
        let Some(session) = &mut self.session else {
            return;
        };
        if heartbeat.count <= session.newest {
            // It was overtaken, not lost.
            return self.arrivals.forgive();
        }
        if session.newest > 0 {
            let lost = heartbeat.count - session.newest - 1;
            self.arrivals.push(now.since(session.newest_at), lost);
        }
        (session.newest, session.newest_at) = (heartbeat.count, now);
        self.peer_health = heartbeat.health;
        self.echo = Some(Echo {
            sent: heartbeat.sent,
            received: now,
        });
        if let Some(exchange) = heartbeat.exchange(now) {
            self.exchange = Some(exchange);
            cx.effect(Effect::Crossed(exchange));
        }
    }

    fn on_life(&mut self, at: Micros, cx: &mut Context<'_, Effect>) {
        let (from, heard) = (self.rung(), self.heard);
        self.heard = heard.max(at);
        self.excused = Micros::default();
        if self.ladder.on_life() && from > Rung::Alive {
            let after = cx.now().since(heard);
            cx.effect(Effect::Verdict(Verdict::Recovered { after, from }));
        }
    }

    /// Does what is due and asks to be woken for what is next.
    fn go_on(&mut self, late: bool, cx: &mut Context<'_, Effect>) {
        self.beat(late, cx);
        let look = self.look(cx);
        while let Some(rung) = self.ladder.on_time(cx.now()) {
            cx.effect(match rung {
                Rung::Restoring => Effect::Verdict(Verdict::Lost),
                Rung::Overdue => Effect::Verdict(Verdict::Overdue),
                _ => Effect::Redial,
            });
        }
        let times = [self.next, look, self.ladder.until()];
        self.awaited = times.into_iter().flatten().min().unwrap_or(Micros::NEVER);
        cx.wake_at(self.awaited);
    }

    /// Sends a heartbeat if one is due.
    fn beat(&mut self, late: bool, cx: &mut Context<'_, Effect>) {
        let now = cx.now();
        let due = *self.next.get_or_insert(now + self.phase);
        if now < due {
            return;
        }
        // In step with the ones before, unless those are too long ago.
        self.next = Some((due + self.every).max(now + self.every / 2));
        if !late {
            self.health.in_time();
        }
        if let Some(session) = &mut self.session {
            self.sequence += 1;
            session.sent += 1;
            cx.effect(Effect::Send(wire::Heartbeat {
                sequence: self.sequence,
                count: session.sent,
                health: self.health.score(),
                sent: now,
                echo: self.echo,
            }));
        }
    }

    /// Looks at the silence of a peer that is thought to live; says when to look again.
    fn look(&mut self, cx: &mut Context<'_, Effect>) -> Option<Micros> {
        if self.rung() != Rung::Alive {
            return None;
        }
        let (now, stretch) = (cx.now(), self.stretch());
        let since = self.heard.max(self.excused);
        let earliest = since + self.arrivals.earliest(self.deviations) * stretch;
        if now < earliest {
            return Some(earliest);
        }
        if self.arrivals.phi(now.since(since) / stretch) < self.phi {
            return Some(now + self.every / LOOKS);
        }
        self.ladder.on_silence(now);
        let silent = now.since(self.heard);
        cx.effect(Effect::Verdict(Verdict::Suspected { silent }));
        None
    }
}

#[cfg(test)]
mod tests;
