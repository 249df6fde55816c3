//! What a user asks of the run as a whole: to pause, to go on, to stop.
//!
//! A pause lets the open round end and opens no other. It is written down before it is acknowledged, so that it outlives the coordinator; only a
//! user ends it. A stop lets the open round end, or gives it up if it is to be *now*; either way the run is over for everybody, has not failed, and
//! can be gone on with. A round that was given up is run again then.

use serde::{Deserialize, Serialize};

use super::amend::{AMENDED, Amending, Amendment, Disagreement, in_words};
use super::round::Phase;
use super::{Coordinator, Effect};
use crate::event::Event;
use crate::ids::{NodeId, Round};
use crate::machine::Context;
use crate::mutants;
use crate::tensor::Hash;
use crate::text::clip;

/// How the reason of a run begins that a user has stopped; who it was follows.
pub const STOPPED: &str = "stopped by ";

/// What a user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    /// Open no round after the one that is open.
    Pause,
    /// Open rounds again.
    Resume,
    /// End the run behind the open round.
    Stop,
    /// End the run, and give the open round up.
    StopNow,
    /// Go on by the topology with those hashes, if every node has it at hand.
    Amend(Amendment),
}

/// A wish, and whose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// What is asked for.
    pub wish: Wish,
    /// Who asks.
    pub by: String,
    /// When, in seconds since 1970.
    pub unix: u64,
}

/// A pause that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Who asked for it.
    pub by: String,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

/// What became of a pause, or of its end, that was to be written down.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// What stands written from here on.
    pub paused: Option<Paused>,
    /// Why it is not surely what was asked for.
    pub failed: Option<String>,
}

/// An order that is carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "obeyed", rename_all = "snake_case")]
pub enum Obeyed {
    /// The run is paused.
    Paused {
        /// Since when and by whom.
        paused: Paused,
        /// The round that still comes to its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        open: Option<Round>,
        /// It was so before, and nothing is changed.
        already: bool,
    },
    /// Rounds are opened again.
    Resumed {
        /// What is over.
        paused: Paused,
    },
    /// The run ends.
    Stopping {
        /// The round that still comes to its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        open: Option<Round>,
        /// It was about to end before.
        already: bool,
    },
    /// Every process begins again, by another topology.
    Amended {
        /// Its hash.
        topology: Hash,
        /// How many nodes have agreed.
        nodes: usize,
        /// Who is away and was not asked.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        away: Vec<NodeId>,
        /// The round that still comes to its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        open: Option<Round>,
    },
}

/// Why an order is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum NotObeyed {
    /// It has not loaded its state.
    #[error("the coordinator has not begun: it still reads its state; ask again in a moment")]
    NotBegun,
    /// There is nothing left to pause or to go on with.
    #[error("the run ends: {}", match reason.as_str() { "" => "all rounds are run", reason => reason })]
    Ends {
        /// Why it does.
        reason: String,
    },
    /// There is no pause.
    #[error("the run is not paused: there is nothing to resume")]
    NotPaused,
    /// Another order is being written down.
    #[error("another order is being written down; ask again in a moment")]
    Busy,
    /// Some nodes do not have that topology at hand.
    #[error(
        "not every node agrees ({agreed} do), and the run is as it was: {}",
        in_words(disagreements, more)
    )]
    Disagreed {
        /// How many do.
        agreed: usize,
        /// Who does not, and why.
        disagreements: Vec<Disagreement>,
        /// How many more do not.
        more: usize,
    },
    /// It could not be written down.
    #[error("it could not be written down: {reason}; the run is {}", if *paused { "paused" } else { "not paused" })]
    Unwritten {
        /// What the store says.
        reason: String,
        /// Whether it is paused now.
        paused: bool,
    },
}

/// The answer to an order.
pub type OrderAnswer = Result<Obeyed, NotObeyed>;

/// What users have asked of the run.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// In force; no round opens.
    paused: Option<Paused>,
    /// Being written down, and whose answer it is; meanwhile no round opens.
    writing: Option<(u64, Order)>,
    /// The run ends behind the open round, and why.
    stopping: Option<String>,
    /// Nodes are asked whether they agree.
    pub(super) amending: Option<Amending>,
}

impl Orders {
    /// Of a run that was paused, or not, when the coordinator ended.
    pub(super) fn begin(&mut self, paused: Option<Paused>) {
        self.paused = paused;
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Whether a round may not be opened.
    pub(super) fn is_held(&self) -> bool {
        let held = self.paused.is_some() || self.writing.is_some();
        held && !mutants::is("pause-ignored")
    }

    /// Why the run ends now that no round is open, if a user has stopped it.
    pub(super) fn stopping(&self) -> Option<&String> {
        self.stopping.as_ref()
    }
}

impl Coordinator {
    /// For status: since when the run is paused, and by whom.
    pub fn paused(&self) -> Option<&Paused> {
        self.orders.paused.as_ref()
    }

    /// The round that still comes to its end, or whose end is being recorded.
    pub(super) fn ending_round(&self) -> Option<Round> {
        let open = self.current.as_ref().map(|current| current.round);
        open.or(self.recording).or_else(|| self.unfinished())
    }

    /// Why the run ends, if it does.
    pub(super) fn ends(&self) -> Option<&str> {
        let ending = self.ending.as_ref().map(|ending| ending.reason.as_str());
        ending.or(self.orders.stopping.as_deref())
    }

    /// Carries an order out, or says why not; the answer bears its number.
    pub(super) fn on_order(&mut self, cx: &mut Context<'_, Effect>, number: u64, order: Order) {
        let order = Order {
            by: clip(order.by),
            ..order
        };
        let answer = match order.wish {
            _ if self.committed.is_none() => Err(NotObeyed::NotBegun),
            Wish::Stop | Wish::StopNow => Ok(self.stop(cx, &order)),
            _ if self.ends().is_some() => Err(NotObeyed::Ends {
                reason: self.ends().unwrap_or_default().to_owned(),
            }),
            _ if self.orders.writing.is_some() || self.orders.amending.is_some() => {
                Err(NotObeyed::Busy)
            }
            Wish::Amend(amendment) => return self.amend(cx, number, order, amendment),
            Wish::Pause => match &self.orders.paused {
                Some(paused) => Ok(Obeyed::Paused {
                    paused: paused.clone(),
                    open: self.ending_round(),
                    already: true,
                }),
                None => return self.write_order(cx, number, order),
            },
            Wish::Resume => match &self.orders.paused {
                Some(_) => return self.write_order(cx, number, order),
                None => Err(NotObeyed::NotPaused),
            },
        };
        cx.effect(Effect::Ordered(number, answer));
    }

    fn write_order(&mut self, cx: &mut Context<'_, Effect>, number: u64, order: Order) {
        let paused = (order.wish == Wish::Pause).then(|| Paused {
            by: order.by.clone(),
            since: order.unix,
        });
        self.orders.writing = Some((number, order));
        cx.effect(Effect::Hold(number, paused));
    }

    /// A pause, or its end, is written down, or cannot be. What stands written counts, whatever was asked for: the next coordinator goes by it.
    pub(super) fn on_held(
        &mut self,
        cx: &mut Context<'_, Effect>,
        number: u64,
        result: Result<Held, String>,
    ) {
        let Some((_, order)) = self.orders.writing.take_if(|(of, _)| *of == number) else {
            return;
        };
        let before = self.orders.paused.take();
        let held = result.unwrap_or_else(|reason| Held {
            paused: before.clone(),
            failed: Some(reason),
        });
        self.orders.paused.clone_from(&held.paused);
        match (&before, &held.paused) {
            (None, Some(_)) => self.tell_pause(cx),
            (Some(_), None) => cx.report(Event::RunResumed { by: order.by }),
            _ => {}
        }
        let answer = match (held.failed, before, held.paused) {
            (None, Some(paused), None) => Ok(Obeyed::Resumed { paused }),
            (None, before, Some(paused)) => Ok(Obeyed::Paused {
                paused,
                open: self.ending_round(),
                already: before.is_some(),
            }),
            (None, None, None) => Err(NotObeyed::NotPaused),
            (Some(reason), _, paused) => Err(NotObeyed::Unwritten {
                reason: clip(reason),
                paused: paused.is_some(),
            }),
        };
        cx.effect(Effect::Ordered(number, answer));
        self.check(cx);
    }

    /// Says that the run is paused.
    pub(super) fn tell_pause(&self, cx: &mut Context<'_, Effect>) {
        if let Some(paused) = &self.orders.paused {
            cx.report(Event::RunPaused {
                by: paused.by.clone(),
                since: paused.since,
                open: self.ending_round(),
            });
        }
    }

    fn stop(&mut self, cx: &mut Context<'_, Effect>, order: &Order) -> Obeyed {
        let now = order.wish == Wish::StopNow;
        let amends = self
            .ends()
            .is_some_and(|reason| reason.starts_with(AMENDED));
        let already = self.ends().is_some() && !amends;
        let reason = format!("{STOPPED}{}", order.by);
        let open = self.ending_round();
        if amends {
            // The amendment holds; but who begins again by it is for a user to say now.
            self.orders.stopping = Some(clip(reason.clone()));
            if let Some(ending) = self.ending.as_mut().filter(|ending| !ending.done) {
                ending.reason = clip(reason.clone());
            }
        }
        if !already || now && self.ending.is_none() {
            let by = order.by.clone();
            cx.report(Event::RunStopping { by, now, open });
        }
        if now {
            // The end that was to come behind the open round waits for every domain; this one for nobody.
            self.orders.stopping = None;
            self.on_stop(cx, reason);
        } else if !already && !amends {
            self.stop_behind(cx, reason);
        }
        // What is being committed exists already, perhaps: only its end tells.
        let committing = self.current.as_ref();
        let committing = committing.filter(|current| current.phase == Phase::Committing);
        let open = match now {
            true => committing.map(|current| current.round),
            false => self.ending_round(),
        };
        Obeyed::Stopping { open, already }
    }

    /// Ends the run behind the open round, for this reason.
    pub(super) fn stop_behind(&mut self, cx: &mut Context<'_, Effect>, reason: String) {
        self.orders.stopping = Some(clip(reason));
        if self.ending_round().is_none() {
            self.open_next(cx);
        }
    }
}
