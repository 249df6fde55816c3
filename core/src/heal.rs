//! A node that is behind gets a whole model from whoever holds it: which chunk is asked of whom, and what counts as had.
//!
//! Sources are asked for the model's [`Outline`] first. Who has it holds the model, and the outline proves itself by the model's hash; so does
//! each chunk by the outline. Then every source gets a few chunks at a time, the nearest first, and whoever is done gets the next ones: a slow
//! source takes a smaller share, one that fails or falls silent loses its share to the others. Towards the end a chunk that takes long is asked of a
//! second source, too, as BitTorrent does (Cohen: "Incentives build robustness in BitTorrent", 2003, section 2.4).
//!
//! The coordinator, which everybody knows to have every model, comes last: only while no other source is left, so that many nodes which come back
//! at once do not all turn to it.
//!
//! ```text
//!            reached                    its outline                 a chunk
//!   Away ──────────────▶ Asked ──────────────────────▶ Holds ◀──────────────────┐
//!    ▲ │ patience          │ lacks it, wrong outline     │ wrong chunk           │
//!    │ ▼ is over           ▼                             ▼                       │
//!  parted               Out: not asked again          Out      busy, broken: rests, and goes on
//! ```

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::event::{Event, Share};
use crate::ids::{NodeId, Round};
use crate::machine::{Context, Machine};
use crate::outline::{self, Outline};
use crate::tensor::Hash;
use crate::text::clip;
use crate::time::Micros;
use crate::wire::Lack;

use source::{Source, Stage};

/// Chunks on their way at once, from all sources: so many MiB may lie here unverified.
pub const IN_FLIGHT_MAX: usize = 8;

/// Chunks on their way from one source. Two keep a path of 100 ms and 160 Mbit/s busy, and no more than these are sent again when it breaks.
pub const SHARE_MAX: usize = 2;

/// Sources that are asked or hold the model, at once: more would not fill [`IN_FLIGHT_MAX`].
pub const SOURCES_MAX: usize = IN_FLIGHT_MAX / SHARE_MAX;

/// How often a source may be busy or break in a row.
pub const RESTS_MAX: u32 = 3;

/// Somebody who may have the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Who.
    pub node: NodeId,
    /// Asked only if nobody else is left: the coordinator.
    pub last: bool,
    /// In the same domain.
    pub near: bool,
    /// A link to it carries frames.
    pub reached: bool,
    /// Of its heartbeats; none if that is not known yet.
    pub round_trip: Option<Duration>,
}

/// What is to be had, and how long that may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Who heals.
    pub node: NodeId,
    /// The round that committed the model.
    pub round: Round,
    /// The model's.
    pub hash: Hash,
    /// Its elements.
    pub elements: usize,
    /// The values of the chunks that lie where the model is to lie, as far as they are known: from an interrupted transfer, or of an earlier model.
    pub here: Vec<Option<Hash>>,
    /// The values of the chunks of another model that is at hand; may be empty.
    pub other: Vec<Hash>,
    /// If nobody but the one who comes last is left before anything has come, it is asked for the whole as one stream instead: over a long
    /// path that is two round trips less, and rounds may be shorter than those.
    pub whole: bool,
    /// Who is not asked: it has sent something wrong already.
    pub liars: BTreeSet<NodeId>,
    /// After that it is given up.
    pub limit: Duration,
    /// How long somebody who is not reached is waited for before it is done without.
    pub wait: Duration,
    /// How old a question is when a second source is asked, too.
    pub patience: Duration,
    /// How long a source rests that was busy or broke, the first time.
    pub rest: Duration,
}

/// What is asked of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The values of all chunks.
    Outline,
    /// One chunk.
    Chunk(u32),
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// An outline's bytes.
    Outline(Vec<u8>),
    /// A whole chunk, which has this value.
    Chunk(Hash),
    /// It has none, or serves as much as it may, in its own words.
    Missing(Lack, String),
    /// Of another length than it must have.
    Wrong(String),
    /// Nothing more came.
    Broken(String),
}

/// What comes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// To begin with, once.
    Begin,
    /// A link to somebody carries frames, with heartbeats of that round trip.
    Reached(NodeId, Option<Duration>),
    /// It does not any more; what was asked of it does not come.
    Parted(NodeId),
    /// Somebody's answer.
    Answer(NodeId, Part, Answer),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Ask for it; answered by [`Message::Answer`].
    Ask(NodeId, Part),
    /// Nobody waits for this answer any more.
    Forget(NodeId, Part),
    /// What just came from that source is this chunk, of this value: put it in its place.
    Take(NodeId, u32, Hash),
    /// The model at hand has the same chunk, of this value: copy it.
    Copy(u32, Hash),
    /// It has ended; nothing is asked any more.
    Done(Result<Outline, HealError>),
}

/// A model that could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HealError {
    /// It is to be asked for as a whole: see [`Order::whole`].
    #[error("nobody nearer has the model")]
    OnlyLast,
    /// There is nobody left to ask.
    #[error("nobody has sent the model of round {round} ({hash:?}): {asked}", asked = listed(.asked))]
    Nobody {
        /// The model's.
        round: Round,
        /// The model's.
        hash: Hash,
        /// Everybody, and what was wrong.
        asked: Vec<(NodeId, String)>,
    },
    /// It took too long. What was had is kept for another try.
    #[error(
        "the model of round {round} was not here within {limit:?}: {had} of {chunks} chunks have come; {asked}; if the path is slow, raise restore_limit in [heartbeat]",
        asked = listed(.asked)
    )]
    TooSlow {
        /// The model's.
        round: Round,
        /// How long it might take.
        limit: Duration,
        /// Chunks that are here.
        had: usize,
        /// Of so many.
        chunks: usize,
        /// Everybody, and what is known of it.
        asked: Vec<(NodeId, String)>,
    },
}

fn listed(asked: &[(NodeId, String)]) -> String {
    let asked: Vec<String> = asked
        .iter()
        .map(|(node, word)| format!("{node}: {word}"))
        .collect();
    match asked.len() {
        0 => "there is nobody to ask".into(),
        _ => asked.join("; "),
    }
}

/// See the module.
#[derive(Debug)]
pub struct Heal {
    order: Order,
    /// Nearest first.
    sources: Vec<Source>,
    outline: Option<Outline>,
    /// Chunks that are neither here nor asked for.
    open: BTreeSet<u32>,
    /// Chunks on their way: from whom, and since when.
    asked: BTreeMap<u32, Vec<(NodeId, Micros)>>,
    /// Chunks that are here.
    had: usize,
    /// Of those, chunks that were here from the beginning.
    kept: usize,
    /// Chunks asked for.
    asks: u64,
    until: Micros,
    done: bool,
}

impl Heal {
    /// A transfer of a model from some of these. Begins with [`Message::Begin`].
    pub fn new(order: Order, candidates: Vec<Candidate>) -> Self {
        let liars = &order.liars;
        let sources = candidates.into_iter().map(|candidate| {
            let lied = liars.contains(&candidate.node);
            Source::new(candidate, lied)
        });
        let mut sources: Vec<Source> = sources.collect();
        sources.sort_by_key(Source::distance);
        Heal {
            order,
            sources,
            outline: None,
            open: BTreeSet::new(),
            asked: BTreeMap::new(),
            had: 0,
            kept: 0,
            asks: 0,
            until: Micros::NEVER,
            done: false,
        }
    }

    /// Who has sent something wrong.
    pub fn liars(&self) -> BTreeSet<NodeId> {
        let liars = self.sources.iter().filter(|source| source.lied);
        liars.map(|source| source.node.clone()).collect()
    }

    fn source(&mut self, node: &NodeId) -> Option<&mut Source> {
        self.sources.iter_mut().find(|source| source.node == *node)
    }

    fn on_answer(
        &mut self,
        cx: &mut Context<'_, Effect>,
        node: NodeId,
        part: Part,
        answer: Answer,
    ) {
        if !self.was_asked(&node, part) {
            return;
        }
        match (part, answer) {
            (Part::Outline, Answer::Outline(bytes)) => {
                match Outline::read(&bytes, self.order.elements, self.order.hash) {
                    Ok(outline) => self.on_outline(cx, &node, outline),
                    Err(error) => self.on_lie(cx, &node, part, error.to_string()),
                }
            }
            (Part::Chunk(index), Answer::Chunk(value)) => {
                let outline = self.outline.as_ref();
                let right = outline.and_then(|outline| outline.values().get(index as usize));
                if right == Some(&value) {
                    self.on_chunk(cx, node, index, value);
                } else {
                    let reason = format!("chunk {index} has value {value:?}, expected {right:?}");
                    self.on_lie(cx, &node, part, reason);
                }
            }
            (_, Answer::Missing(Lack::Absent, reason)) => {
                self.take_back(part, &node);
                self.give_up(cx, &node, reason);
            }
            (_, Answer::Missing(Lack::Busy, reason) | Answer::Broken(reason)) => {
                self.lay_off(cx, &node, part, reason);
            }
            (_, Answer::Wrong(reason)) => self.on_lie(cx, &node, part, reason),
            // Not what was asked for: whoever asks the link has made a mistake.
            (_, Answer::Outline(_) | Answer::Chunk(_)) => {
                self.lay_off(cx, &node, part, "another answer than was asked for".into());
            }
        }
    }

    fn was_asked(&self, node: &NodeId, part: Part) -> bool {
        match part {
            Part::Outline => self
                .sources
                .iter()
                .any(|source| source.node == *node && source.stage == Stage::Asked),
            Part::Chunk(index) => self
                .asked
                .get(&index)
                .is_some_and(|asked| asked.iter().any(|(of, _)| of == node)),
        }
    }

    fn on_outline(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId, outline: Outline) {
        if let Some(source) = self.source(node) {
            source.stage = Stage::Holds;
            source.rests = 0;
        }
        if self.outline.is_some() {
            return;
        }
        for (index, value) in outline.values().iter().enumerate() {
            let number = index as u32;
            if self.order.here.get(index) == Some(&Some(*value)) {
                self.had += 1;
            } else if self.order.other.get(index) == Some(value) {
                cx.effect(Effect::Copy(number, *value));
                self.had += 1;
            } else {
                self.open.insert(number);
            }
        }
        self.kept = self.had;
        self.outline = Some(outline);
    }

    fn on_chunk(&mut self, cx: &mut Context<'_, Effect>, node: NodeId, index: u32, value: Hash) {
        for (other, _) in self.asked.remove(&index).unwrap_or_default() {
            if other != node {
                cx.effect(Effect::Forget(other, Part::Chunk(index)));
            }
        }
        self.had += 1;
        if let Some(source) = self.source(&node) {
            source.rests = 0;
            source.given += 1;
        }
        cx.effect(Effect::Take(node, index, value));
    }

    /// Names a source that sent something else than the model, and asks it no more.
    fn on_lie(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId, part: Part, reason: String) {
        self.take_back(part, node);
        cx.report(Event::HealRefused {
            node: self.order.node.clone(),
            peer: node.clone(),
            round: self.order.round,
            reason: clip(reason.as_str()),
        });
        if let Some(source) = self.source(node) {
            source.lied = true;
        }
        self.give_up(cx, node, reason);
    }

    /// Asks a source no more.
    fn give_up(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId, reason: String) {
        if let Some(source) = self.source(node) {
            source.stage = Stage::Out;
            source.word = reason;
        }
        self.take_away(cx, node);
    }

    /// Lets a source rest over one question that failed; the others that it was asked go on.
    fn lay_off(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId, part: Part, reason: String) {
        let (now, rest) = (cx.now(), self.order.rest);
        self.take_back(part, node);
        let Some(source) = self.source(node) else {
            return;
        };
        if source.stage == Stage::Asked {
            source.stage = Stage::New;
        }
        // What broke together counts once.
        if source.rests_until > now {
            return;
        }
        source.rests += 1;
        if source.rests > RESTS_MAX {
            return self.give_up(cx, node, reason);
        }
        source.word = reason;
        source.rests_until = now + rest * 2u32.pow(source.rests - 1);
    }

    /// A question is answered, and not by what was wanted.
    fn take_back(&mut self, part: Part, node: &NodeId) {
        if let Part::Chunk(index) = part {
            self.reopen(index, node);
        }
    }

    /// Gives back one chunk that a source was asked for.
    fn reopen(&mut self, index: u32, node: &NodeId) {
        let Some(asked) = self.asked.get_mut(&index) else {
            return;
        };
        asked.retain(|(of, _)| of != node);
        if asked.is_empty() {
            self.asked.remove(&index);
            self.open.insert(index);
        }
    }

    /// Takes all questions back from a source.
    fn take_away(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId) {
        let theirs = self.asked.iter().filter(|(_, asked)| {
            let mut asked = asked.iter();
            asked.any(|(of, _)| of == node)
        });
        let theirs: Vec<u32> = theirs.map(|(index, _)| *index).collect();
        for index in theirs {
            self.reopen(index, node);
            cx.effect(Effect::Forget(node.clone(), Part::Chunk(index)));
        }
    }

    fn on_parted(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId) {
        let awaited = cx.now() + self.order.wait;
        let mut was_asked = false;
        if let Some(source) = self.source(node) {
            was_asked = source.stage == Stage::Asked;
            if was_asked {
                source.stage = Stage::New;
            }
            source.reached = false;
            source.awaited_until = awaited;
            source.rests_until = Micros::default();
        }
        if was_asked {
            cx.effect(Effect::Forget(node.clone(), Part::Outline));
        }
        self.take_away(cx, node);
    }

    fn on_reached(&mut self, node: &NodeId, round_trip: Option<Duration>) {
        if let Some(source) = self.source(node) {
            source.reached = true;
            source.round_trip = round_trip.or(source.round_trip);
        }
        self.sources.sort_by_key(Source::distance);
    }

    /// Ends, or asks for what can be asked for now.
    fn go_on(&mut self, cx: &mut Context<'_, Effect>) {
        if self.done {
            return;
        }
        let complete = self.open.is_empty() && self.asked.is_empty();
        if let Some(outline) = self.outline.take_if(|_| complete) {
            cx.report(self.summary());
            return self.end(cx, Ok(outline));
        }
        if cx.now() >= self.until {
            let error = HealError::TooSlow {
                round: self.order.round,
                limit: self.order.limit,
                had: self.had,
                chunks: outline::chunks(self.order.elements),
                asked: self.words(),
            };
            return self.end(cx, Err(error));
        }
        let now = cx.now();
        if !self.sources.iter().any(|source| source.may_help(now)) {
            let error = HealError::Nobody {
                round: self.order.round,
                hash: self.order.hash,
                asked: self.words(),
            };
            return self.end(cx, Err(error));
        }
        let patience = self.order.patience;
        let hoped_for = |source: &Source| !source.last && source.is_hoped_for(now, patience);
        let last_too = !self.sources.iter().any(hoped_for);
        let is_last = |source: &Source| source.last && source.can_be_asked(now);
        if last_too
            && self.order.whole
            && self.outline.is_none()
            && self.sources.iter().any(is_last)
        {
            return self.end(cx, Err(HealError::OnlyLast));
        }
        self.ask_who_holds_it(cx, last_too);
        self.hand_out(cx, last_too);
        self.ask_twice(cx, last_too);
        cx.wake_at(self.next_wake(now));
    }

    fn end(&mut self, cx: &mut Context<'_, Effect>, result: Result<Outline, HealError>) {
        self.done = true;
        for (index, asked) in std::mem::take(&mut self.asked) {
            for (node, _) in asked {
                cx.effect(Effect::Forget(node, Part::Chunk(index)));
            }
        }
        for source in &self.sources {
            if source.stage == Stage::Asked {
                cx.effect(Effect::Forget(source.node.clone(), Part::Outline));
            }
        }
        cx.effect(Effect::Done(result));
    }

    fn ask_who_holds_it(&mut self, cx: &mut Context<'_, Effect>, last_too: bool) {
        let now = cx.now();
        let busy = self.sources.iter().filter(|source| source.is_at_work());
        let mut room = SOURCES_MAX.saturating_sub(busy.count());
        for source in &mut self.sources {
            let wanted = source.stage == Stage::New && (last_too || !source.last);
            if room > 0 && wanted && source.can_be_asked(now) {
                source.stage = Stage::Asked;
                source.asked_at = now;
                room -= 1;
                cx.effect(Effect::Ask(source.node.clone(), Part::Outline));
            }
        }
    }

    /// Fills each holder's share, the nearest one's first.
    fn hand_out(&mut self, cx: &mut Context<'_, Effect>, last_too: bool) {
        while self.in_flight() < IN_FLIGHT_MAX
            && let Some(index) = self.open.first().copied()
            && let Some(node) = self.free_holder(cx.now(), last_too, None)
        {
            self.open.remove(&index);
            self.asked.insert(index, vec![(node.clone(), cx.now())]);
            self.asks += 1;
            cx.effect(Effect::Ask(node, Part::Chunk(index)));
        }
    }

    /// At the end, asks a second source for what takes long.
    fn ask_twice(&mut self, cx: &mut Context<'_, Effect>, last_too: bool) {
        if !self.open.is_empty() {
            return;
        }
        let (now, patience) = (cx.now(), self.order.patience);
        let late = self
            .asked
            .iter()
            .filter_map(|(index, asked)| match &asked[..] {
                [(node, since)] if now >= *since + patience => Some((*index, node.clone())),
                _ => None,
            });
        for (index, slow) in late.collect::<Vec<_>>() {
            // More sources than `SOURCES_MAX` may hold the model by now: some were away when others were asked.
            if self.in_flight() >= IN_FLIGHT_MAX {
                return;
            }
            let Some(node) = self.free_holder(now, last_too, Some(&slow)) else {
                continue;
            };
            let asked = self.asked.entry(index).or_default();
            asked.push((node.clone(), now));
            self.asks += 1;
            cx.effect(Effect::Ask(node, Part::Chunk(index)));
        }
    }

    /// The nearest holder with room in its share, another one than `but`.
    fn free_holder(&self, now: Micros, last_too: bool, but: Option<&NodeId>) -> Option<NodeId> {
        let holds = |source: &&Source| {
            source.stage == Stage::Holds
                && (last_too || !source.last)
                && source.can_be_asked(now)
                && Some(&source.node) != but
                && self.share(&source.node) < SHARE_MAX
        };
        let holder = self.sources.iter().find(holds)?;
        Some(holder.node.clone())
    }

    fn in_flight(&self) -> usize {
        self.asked.values().map(Vec::len).sum()
    }

    /// Chunks on their way from a source.
    fn share(&self, node: &NodeId) -> usize {
        let asked = self.asked.values().flatten();
        asked.filter(|(of, _)| of == node).count()
    }

    /// When something may change by itself.
    fn next_wake(&self, now: Micros) -> Micros {
        let sources = self.sources.iter().flat_map(|source| {
            let awaited = (!source.reached && !source.last).then_some(source.awaited_until);
            let mute =
                (source.stage == Stage::Asked).then_some(source.asked_at + self.order.patience);
            [awaited, mute, Some(source.rests_until)]
        });
        let late = self.asked.values().flatten();
        let late = late.map(|(_, since)| Some(*since + self.order.patience));
        let times = sources.chain(late).flatten().filter(|at| *at > now);
        times.min().unwrap_or(Micros::NEVER).min(self.until)
    }

    /// Everybody, and what is known of it.
    fn words(&self) -> Vec<(NodeId, String)> {
        let words = self.sources.iter().map(|source| {
            let word = match source.word.as_str() {
                "" if !source.reached => "is not reached",
                "" => "was not done",
                word => word,
            };
            (source.node.clone(), word.to_owned())
        });
        words.collect()
    }

    fn summary(&self) -> Event {
        let gave = self.sources.iter().filter(|source| source.given > 0);
        let shares = gave.map(|source| Share {
            peer: source.node.clone(),
            chunks: source.given,
        });
        Event::ModelHealed {
            node: self.order.node.clone(),
            round: self.order.round,
            kept: self.kept as u64,
            again: self.asks - (self.had - self.kept) as u64,
            from: shares.collect(),
        }
    }
}

impl Machine for Heal {
    type Message = Message;
    type Effect = Effect;

    fn handle(&mut self, message: Message, cx: &mut Context<'_, Effect>) {
        if self.done {
            return;
        }
        match message {
            Message::Begin => {
                self.until = cx.now() + self.order.limit;
                let awaited = cx.now() + self.order.wait;
                for source in &mut self.sources {
                    source.awaited_until = awaited;
                }
            }
            Message::Reached(node, round_trip) => self.on_reached(&node, round_trip),
            Message::Parted(node) => self.on_parted(cx, &node),
            Message::Answer(node, part, answer) => self.on_answer(cx, node, part, answer),
        }
        self.go_on(cx);
    }

    fn on_wake(&mut self, cx: &mut Context<'_, Effect>) {
        self.go_on(cx);
    }
}

#[cfg(test)]
mod tests;
