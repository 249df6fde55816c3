//! The form of every state machine: a message and `now` go in, effects come out.

use std::collections::VecDeque;

use crate::event::Event;
use crate::time::Micros;

/// A decision without IO.
///
/// Callers give each message to [`Machine::handle`], and call [`Machine::on_wake`] once the instant that the machine last asked for has
/// come. After each call they perform the effects of the [`Context`] in order.
pub trait Machine {
    /// What comes in.
    type Message;
    /// What is to be done.
    type Effect;

    /// Takes one message.
    fn handle(&mut self, message: Self::Message, cx: &mut Context<'_, Self::Effect>);

    /// The wake-up time that was asked for has come (or is past).
    fn on_wake(&mut self, cx: &mut Context<'_, Self::Effect>);
}

/// What a machine may see and leave during one step.
#[derive(Debug)]
pub struct Context<'a, E> {
    now: Micros,
    out: &'a mut Outcome<E>,
}

/// What one or more steps left behind.
#[derive(Debug)]
pub struct Outcome<E> {
    /// To be performed in order.
    pub effects: VecDeque<E>,
    /// To be recorded in order.
    pub events: Vec<Event>,
    /// When to call [`Machine::on_wake`] next.
    pub wake_at: Option<Micros>,
}

impl<E> Default for Outcome<E> {
    fn default() -> Self {
        Outcome {
            effects: VecDeque::new(),
            events: Vec::new(),
            wake_at: None,
        }
    }
}

impl<'a, E> Context<'a, E> {
    /// A context for one step at `now`.
    pub fn new(now: Micros, out: &'a mut Outcome<E>) -> Self {
        Context { now, out }
    }

    /// The monotonic time of this step.
    pub fn now(&self) -> Micros {
        self.now
    }

    /// Leaves an effect.
    pub fn effect(&mut self, effect: E) {
        self.out.effects.push_back(effect);
    }

    /// Records a past fact.
    pub fn report(&mut self, event: Event) {
        self.out.events.push(event);
    }

    /// Asks to be woken at `at`; of several wishes the earliest holds.
    pub fn wake_at(&mut self, at: Micros) {
        self.out.wake_at = Some(self.out.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}
