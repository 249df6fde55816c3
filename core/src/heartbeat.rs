//! Is a peer alive?
//!
//! A peer that was not heard for three periods is suspected. Suspicion starts a ladder: three waits of growing length in which the link may
//! come back; only then the peer is out of the round. Whatever is heard from the peer ends the ladder at once.

pub mod health;
pub mod phi;

use std::time::Duration;

use crate::machine::{Context, Machine};
use crate::time::Micros;

/// Silent periods before suspicion.
pub const PERIODS_SILENT: u32 = 3;

/// What comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Watching begins: the link came up.
    Watch,
    /// Something arrived from the peer.
    Heard,
    /// The link closed: silence counts from the last sign of life.
    Closed,
}

/// What is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Silent for the limit.
    Suspected {
        /// How long nothing was heard.
        silent: Duration,
    },
    /// Heard again.
    Recovered,
    /// Silent through all retries.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Alive,
    Suspect { rung: usize, until: Micros },
    Lost,
}

/// See the module.
#[derive(Debug)]
pub struct Heartbeat {
    every: Duration,
    retry: Vec<Duration>,
    heard: Micros,
    state: State,
}

impl Heartbeat {
    /// A watch with a period and the waits of the retry rung.
    pub fn new(every: Duration, retry: Vec<Duration>) -> Self {
        Heartbeat {
            every,
            retry,
            heard: Micros::default(),
            state: State::Idle,
        }
    }

    /// When the peer becomes suspect if nothing is heard.
    pub fn limit(&self) -> Duration {
        self.every * PERIODS_SILENT
    }

    /// A word for status: idle, alive, suspect or lost.
    pub fn state(&self) -> &'static str {
        match self.state {
            State::Idle => "idle",
            State::Alive => "alive",
            State::Suspect { .. } => "suspect",
            State::Lost => "lost",
        }
    }
}

impl Machine for Heartbeat {
    type Message = Message;
    type Effect = Verdict;

    fn handle(&mut self, message: Message, cx: &mut Context<'_, Verdict>) {
        match message {
            Message::Watch | Message::Heard => {
                self.heard = cx.now();
                let before = std::mem::replace(&mut self.state, State::Alive);
                if matches!(before, State::Suspect { .. } | State::Lost) {
                    cx.effect(Verdict::Recovered);
                }
            }
            Message::Closed => {}
        }
        self.on_wake(cx);
    }

    fn on_wake(&mut self, cx: &mut Context<'_, Verdict>) {
        loop {
            match self.state {
                State::Idle | State::Lost => return,
                State::Alive => {
                    let limit = self.heard + self.limit();
                    if cx.now() < limit {
                        return cx.wake_at(limit);
                    }
                    cx.effect(Verdict::Suspected {
                        silent: cx.now().since(self.heard),
                    });
                    self.climb(0, cx.now());
                }
                State::Suspect { rung, until } => {
                    if cx.now() < until {
                        return cx.wake_at(until);
                    }
                    self.climb(rung + 1, until);
                    if self.state == State::Lost {
                        cx.effect(Verdict::Lost);
                    }
                }
            }
        }
    }
}

impl Heartbeat {
    fn climb(&mut self, rung: usize, from: Micros) {
        self.state = match self.retry.get(rung) {
            Some(&wait) => State::Suspect {
                rung,
                until: from + wait,
            },
            None => State::Lost,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Outcome;

    fn at(ms: u64) -> Micros {
        Micros(ms * 1000)
    }

    fn machine() -> Heartbeat {
        Heartbeat::new(
            Duration::from_millis(500),
            [1, 2, 4].map(Duration::from_secs).to_vec(),
        )
    }

    fn step(
        heartbeat: &mut Heartbeat,
        ms: u64,
        message: Option<Message>,
    ) -> (Vec<Verdict>, Option<Micros>) {
        let mut out = Outcome::default();
        let mut cx = Context::new(at(ms), &mut out);
        match message {
            Some(message) => heartbeat.handle(message, &mut cx),
            None => heartbeat.on_wake(&mut cx),
        }
        (out.effects.into(), out.wake_at)
    }

    #[test]
    fn a_silent_peer_is_suspected_after_three_periods_and_lost_after_the_ladder() {
        let mut heartbeat = machine();
        assert_eq!(
            step(&mut heartbeat, 0, Some(Message::Watch)),
            (vec![], Some(at(1500)))
        );
        assert_eq!(step(&mut heartbeat, 1499, None).0, []);
        let (verdicts, wake) = step(&mut heartbeat, 1500, None);
        assert_eq!(
            verdicts,
            [Verdict::Suspected {
                silent: Duration::from_millis(1500)
            }]
        );
        assert_eq!(wake, Some(at(2500)));
        assert_eq!(step(&mut heartbeat, 2500, None).1, Some(at(4500)));
        assert_eq!(step(&mut heartbeat, 8499, None).0, []);
        assert_eq!(step(&mut heartbeat, 8500, None).0, [Verdict::Lost]);
    }

    #[test]
    fn any_sign_of_life_ends_the_ladder() {
        for silence in [1600, 9000] {
            let mut heartbeat = machine();
            step(&mut heartbeat, 0, Some(Message::Watch));
            step(&mut heartbeat, silence, None);
            assert_eq!(
                step(&mut heartbeat, silence + 1, Some(Message::Heard)).0,
                [Verdict::Recovered]
            );
            assert_eq!(heartbeat.state(), "alive");
        }
    }

    #[test]
    fn a_late_wake_up_reports_the_whole_ladder_in_order() {
        let mut heartbeat = machine();
        step(&mut heartbeat, 0, Some(Message::Watch));
        let (verdicts, _) = step(&mut heartbeat, 60_000, None);
        assert_eq!(
            verdicts.len(),
            1,
            "the ladder counts from the moment of suspicion: {verdicts:?}"
        );
    }

    #[test]
    fn nobody_is_suspected_before_the_first_contact() {
        let mut heartbeat = machine();
        assert_eq!(step(&mut heartbeat, 100_000, None), (vec![], None));
    }
}
