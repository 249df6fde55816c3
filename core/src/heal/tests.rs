use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::machine::Outcome;
use crate::rng::Rng;
use crate::wire::CHUNK_ELEMENTS;

const LIMIT: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_millis(1500);
const REST: Duration = Duration::from_millis(500);

fn n(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// An outline of so many chunks, the last one short; what is in them does not matter here.
fn outline(chunks: usize) -> (Outline, usize) {
    let elements = (chunks - 1) * CHUNK_ELEMENTS + 1;
    let values = (0..chunks).flat_map(|index| Hash::of_bytes(&[index as u8]).0);
    let bytes: Vec<u8> = values.collect();
    // The hash is not known before: any other one is refused with the right one in the error.
    let refused = Outline::read(&bytes, elements, Hash::default()).unwrap_err();
    let outline::OutlineError::OtherModel { found, .. } = refused else {
        panic!("{refused}")
    };
    (Outline::read(&bytes, elements, found).unwrap(), elements)
}

fn near(name: &str) -> Candidate {
    Candidate {
        node: n(name),
        last: false,
        near: true,
        reached: true,
        round_trip: None,
    }
}

fn coordinator() -> Candidate {
    Candidate {
        last: true,
        near: false,
        ..near("hq/gate")
    }
}

struct Run {
    heal: Heal,
    outline: Outline,
    now: Micros,
    wake: Option<Micros>,
    events: Vec<Event>,
}

impl Run {
    fn new(chunks: usize, candidates: &[Candidate]) -> Self {
        Run::with(chunks, candidates, |_| {})
    }

    fn with(chunks: usize, candidates: &[Candidate], change: impl FnOnce(&mut Order)) -> Self {
        let (outline, elements) = outline(chunks);
        let mut order = Order {
            node: n("plant/gate"),
            round: 7,
            hash: outline.hash(),
            elements,
            here: vec![None; chunks],
            other: Vec::new(),
            whole: false,
            liars: BTreeSet::new(),
            limit: LIMIT,
            wait: WAIT,
            patience: PATIENCE,
            rest: REST,
        };
        change(&mut order);
        Run {
            heal: Heal::new(order, candidates.to_vec()),
            outline,
            now: Micros(1_000_000),
            wake: None,
            events: Vec::new(),
        }
    }

    fn step(&mut self, message: Option<Message>) -> Vec<Effect> {
        let mut out = Outcome::default();
        let mut cx = Context::new(self.now, &mut out);
        match message {
            Some(message) => self.heal.handle(message, &mut cx),
            None => self.heal.on_wake(&mut cx),
        }
        self.wake = out.wake_at;
        self.events.extend(out.events);
        out.effects.into()
    }

    fn tell(&mut self, message: Message) -> Vec<Effect> {
        self.step(Some(message))
    }

    fn begin(&mut self) -> Vec<Effect> {
        self.tell(Message::Begin)
    }

    fn answer(&mut self, name: &str, part: Part, answer: Answer) -> Vec<Effect> {
        self.tell(Message::Answer(n(name), part, answer))
    }

    fn shows_outline(&mut self, name: &str) -> Vec<Effect> {
        let bytes = self.outline.to_bytes();
        self.answer(name, Part::Outline, Answer::Outline(bytes))
    }

    fn sends(&mut self, name: &str, index: u32) -> Vec<Effect> {
        let value = self.outline.values()[index as usize];
        self.answer(name, Part::Chunk(index), Answer::Chunk(value))
    }

    /// Lets time pass to the next instant at which the machine wants to be woken.
    fn wait(&mut self) -> Vec<Effect> {
        self.now = self.wake.expect("it wants to be woken");
        self.step(None)
    }
}

fn ask(name: &str, index: u32) -> Effect {
    Effect::Ask(n(name), Part::Chunk(index))
}

fn take(run: &Run, name: &str, index: u32) -> Effect {
    Effect::Take(n(name), index, run.outline.values()[index as usize])
}

fn ask_outline(name: &str) -> Effect {
    Effect::Ask(n(name), Part::Outline)
}

fn error(effects: &[Effect]) -> &HealError {
    match effects.last() {
        Some(Effect::Done(Err(error))) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_shows_the_outline_gets_a_share_and_the_nearest_gets_it_first() {
    let mut far = near("plant/d");
    far.round_trip = Some(Duration::from_millis(2));
    let mut close = near("plant/c");
    close.round_trip = Some(Duration::from_millis(1));
    let mut run = Run::new(5, &[far, close, coordinator()]);
    assert_eq!(
        run.begin(),
        [ask_outline("plant/c"), ask_outline("plant/d")]
    );
    let share = [ask("plant/c", 0), ask("plant/c", 1)];
    assert_eq!(run.shows_outline("plant/c"), share);
    let share = [ask("plant/d", 2), ask("plant/d", 3)];
    assert_eq!(run.shows_outline("plant/d"), share);
    assert_eq!(
        run.sends("plant/d", 3),
        [take(&run, "plant/d", 3), ask("plant/d", 4)]
    );
    for (name, index) in [("plant/d", 2), ("plant/d", 4), ("plant/c", 1)] {
        assert_eq!(run.sends(name, index), [take(&run, name, index)]);
    }
    let done = Effect::Done(Ok(run.outline.clone()));
    assert_eq!(run.sends("plant/c", 0), [take(&run, "plant/c", 0), done]);
    let share = |name: &str, chunks| Share {
        peer: n(name),
        chunks,
    };
    assert_eq!(
        run.events,
        [Event::ModelHealed {
            node: n("plant/gate"),
            round: 7,
            kept: 0,
            again: 0,
            from: vec![share("plant/c", 2), share("plant/d", 3)],
        }]
    );
}

/// A mass rejoin must not fall on the coordinator.
#[test]
fn the_coordinator_is_asked_only_when_nobody_else_is_left() {
    let mut away = near("plant/d");
    away.reached = false;
    let mut run = Run::new(2, &[coordinator(), away, near("plant/c")]);
    assert_eq!(run.begin(), [ask_outline("plant/c")]);
    let lacks = || Answer::Missing(Lack::Absent, "it holds round 6".into());
    assert_eq!(run.answer("plant/c", Part::Outline, lacks()), []);
    assert_eq!(run.wake, Some(run.now + WAIT));
    assert_eq!(run.wait(), [ask_outline("hq/gate")]);
    assert_eq!(
        run.shows_outline("hq/gate"),
        [ask("hq/gate", 0), ask("hq/gate", 1)]
    );
    // A source that comes later is asked after all, and takes over what has not been asked for.
    let reached = Message::Reached(n("plant/d"), None);
    assert_eq!(run.tell(reached), [ask_outline("plant/d")]);
    let broken = Answer::Broken("cut".into());
    assert_eq!(run.answer("hq/gate", Part::Chunk(1), broken), []);
    assert_eq!(run.shows_outline("plant/d"), [ask("plant/d", 1)]);
}

#[test]
fn who_does_not_even_say_what_it_holds_keeps_nobody_waiting() {
    let mut run = Run::new(2, &[coordinator(), near("plant/c")]);
    assert_eq!(run.begin(), [ask_outline("plant/c")]);
    assert_eq!(run.wait(), [ask_outline("hq/gate")]);
    assert_eq!(run.now, Micros(1_000_000) + PATIENCE);
}

/// Two round trips less, where rounds may be shorter than those.
#[test]
fn if_only_the_coordinator_is_left_it_is_asked_for_the_whole_at_once() {
    let mut run = Run::with(2, &[coordinator(), near("plant/c")], |order| {
        order.whole = true;
    });
    assert_eq!(run.begin(), [ask_outline("plant/c")]);
    let lacks = Answer::Missing(Lack::Absent, "it holds round 6".into());
    let effects = run.answer("plant/c", Part::Outline, lacks);
    assert_eq!(*error(&effects), HealError::OnlyLast);
}

/// A coordinator that was, and is gone.
#[test]
fn somebody_of_another_domain_who_is_not_there_keeps_nobody_waiting() {
    for (far, asked) in [(true, &[ask_outline("hq/gate")][..]), (false, &[])] {
        let mut away = near("lab/gate");
        (away.reached, away.near) = (false, !far);
        let mut run = Run::new(2, &[coordinator(), away]);
        assert_eq!(run.begin(), asked, "far: {far}");
    }
}

#[test]
fn who_sends_something_wrong_is_named_and_asked_no_more() {
    for (part, wrong) in [
        (Part::Outline, Answer::Outline(vec![0; 64])),
        (Part::Outline, Answer::Outline(vec![0; 63])),
        (Part::Outline, Answer::Wrong("63 bytes".into())),
        (Part::Chunk(0), Answer::Chunk(Hash([1; 32]))),
        (Part::Chunk(1), Answer::Wrong("5 bytes".into())),
    ] {
        let mut run = Run::new(2, &[near("plant/c"), near("plant/d")]);
        run.begin();
        if part != Part::Outline {
            run.shows_outline("plant/c");
        }
        run.shows_outline("plant/d");
        let effects = run.answer("plant/c", part, wrong.clone());
        let refused = run.events.iter().find_map(|event| match event {
            Event::HealRefused { peer, .. } => Some(peer.clone()),
            _ => None,
        });
        assert_eq!(refused, Some(n("plant/c")), "{wrong:?}");
        assert_eq!(run.heal.liars(), BTreeSet::from([n("plant/c")]));
        if let Part::Chunk(index) = part {
            // The whole share is taken over, also what may have been right.
            let expected = [
                Effect::Forget(n("plant/c"), Part::Chunk(1 - index)),
                ask("plant/d", 0),
                ask("plant/d", 1),
            ];
            assert_eq!(effects, expected, "{wrong:?}");
        }
        assert_eq!(run.tell(Message::Parted(n("plant/c"))), []);
        let back = Message::Reached(n("plant/c"), None);
        assert_eq!(run.tell(back), [], "{wrong:?}");
        run.sends("plant/d", 0);
        assert!(matches!(
            run.sends("plant/d", 1).last(),
            Some(Effect::Done(Ok(_)))
        ));
    }
}

/// What has come stays; what was on its way comes again: no more than a share.
#[test]
fn a_source_that_is_cut_off_goes_on_where_it_was() {
    let mut run = Run::new(6, &[near("plant/c")]);
    run.begin();
    run.shows_outline("plant/c");
    run.sends("plant/c", 0);
    run.sends("plant/c", 1);
    let forget = |index| Effect::Forget(n("plant/c"), Part::Chunk(index));
    assert_eq!(
        run.tell(Message::Parted(n("plant/c"))),
        [forget(2), forget(3)]
    );
    run.now = run.now + Duration::from_secs(1);
    let back = Message::Reached(n("plant/c"), None);
    assert_eq!(run.tell(back), [ask("plant/c", 2), ask("plant/c", 3)]);
    for index in 2..5 {
        run.sends("plant/c", index);
    }
    assert!(matches!(
        run.sends("plant/c", 5).last(),
        Some(Effect::Done(Ok(_)))
    ));
    let again = run.events.iter().find_map(|event| match event {
        Event::ModelHealed { again, .. } => Some(*again),
        _ => None,
    });
    assert_eq!(again, Some(SHARE_MAX as u64));
}

#[test]
fn who_is_busy_rests_for_ever_longer_and_then_is_out() {
    let mut run = Run::new(2, &[near("plant/c"), coordinator()]);
    let mut asked = vec![run.now];
    run.begin();
    for _ in 0..RESTS_MAX {
        let busy = Answer::Missing(Lack::Busy, "it serves 4 chunks already".into());
        assert_eq!(run.answer("plant/c", Part::Outline, busy), []);
        assert_eq!(run.wait(), [ask_outline("plant/c")]);
        asked.push(run.now);
    }
    let waits: Vec<u64> = asked
        .windows(2)
        .map(|pair| pair[1].since(pair[0]).as_millis() as u64)
        .collect();
    assert_eq!(waits, [500, 1000, 2000]);
    let busy = Answer::Missing(Lack::Busy, "it serves 4 chunks already".into());
    assert_eq!(
        run.answer("plant/c", Part::Outline, busy),
        [ask_outline("hq/gate")]
    );
}

#[test]
fn if_nobody_has_it_everybody_is_named_with_the_reason() {
    let mut away = near("plant/e");
    away.reached = false;
    let candidates = [near("plant/c"), near("plant/d"), away, coordinator()];
    let mut run = Run::new(2, &candidates);
    run.begin();
    let lacks = |what: &str| Answer::Missing(Lack::Absent, what.into());
    run.answer("plant/c", Part::Outline, lacks("it holds round 6"));
    run.answer("plant/d", Part::Outline, Answer::Outline(Vec::new()));
    assert_eq!(run.wait(), [ask_outline("hq/gate")]);
    let effects = run.answer("hq/gate", Part::Outline, lacks("it has round 8"));
    let said = error(&effects).to_string();
    for part in [
        "the model of round 7",
        "plant/c: it holds round 6",
        "plant/d: an outline of 0 bytes, expected 64",
        "plant/e: is not reached",
        "hq/gate: it has round 8",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(run.tell(Message::Reached(n("plant/e"), None)), []);
}

#[test]
fn it_ends_at_its_limit_and_says_how_far_it_came() {
    let mut run = Run::new(3, &[near("plant/c"), coordinator()]);
    run.begin();
    run.shows_outline("plant/c");
    run.sends("plant/c", 1);
    run.now = Micros(1_000_000) + LIMIT;
    let effects = run.step(None);
    assert_eq!(effects[0], Effect::Forget(n("plant/c"), Part::Chunk(0)));
    let said = error(&effects).to_string();
    assert!(said.contains("1 of 3 chunks"), "{said}");
    assert!(said.contains("within 60s"), "{said}");
    assert!(said.contains("restore_limit"), "{said}");
}

#[test]
fn chunks_that_are_at_hand_are_not_asked_for() {
    let (outline, _) = outline(4);
    let mut run = Run::with(4, &[near("plant/c")], |order| {
        order.here = vec![None, Some(outline.values()[1]), Some(Hash([9; 32])), None];
        order.other = vec![Hash([8; 32]), outline.values()[1], outline.values()[2]];
    });
    run.begin();
    assert_eq!(
        run.shows_outline("plant/c"),
        [
            Effect::Copy(2, outline.values()[2]),
            ask("plant/c", 0),
            ask("plant/c", 3)
        ]
    );
    run.sends("plant/c", 0);
    run.sends("plant/c", 3);
    let kept = run.events.iter().find_map(|event| match event {
        Event::ModelHealed { kept, .. } => Some(*kept),
        _ => None,
    });
    assert_eq!(kept, Some(2));
}

#[test]
fn at_the_end_a_second_source_is_asked_for_what_takes_long() {
    let mut run = Run::new(3, &[near("plant/c"), near("plant/d"), coordinator()]);
    run.begin();
    run.shows_outline("plant/c");
    run.shows_outline("plant/d");
    run.sends("plant/c", 0);
    assert_eq!(run.sends("plant/d", 2), [take(&run, "plant/d", 2)]);
    assert_eq!(run.wait(), [ask("plant/d", 1)], "never the coordinator");
    let forget = Effect::Forget(n("plant/c"), Part::Chunk(1));
    let effects = run.sends("plant/d", 1);
    assert_eq!(effects[..2], [forget, take(&run, "plant/d", 1)]);
    // What was on its way all the same is of no interest.
    assert_eq!(run.sends("plant/c", 1), []);
}

#[test]
fn no_more_sources_than_needed_are_asked_at_once() {
    let candidates: Vec<Candidate> = (0..20).map(|i| near(&format!("plant/n{i:02}"))).collect();
    let mut run = Run::new(100, &candidates);
    assert_eq!(run.begin().len(), SOURCES_MAX);
    let mut asks = 0;
    for i in 0..SOURCES_MAX {
        asks += run.shows_outline(&format!("plant/n{i:02}")).len();
    }
    assert_eq!(asks, IN_FLIGHT_MAX);
    let effects = run.tell(Message::Parted(n("plant/n01")));
    assert!(effects.contains(&ask_outline("plant/n04")), "{effects:?}");
}

#[test]
fn nothing_is_asked_twice_beyond_what_may_be_on_its_way() {
    let candidates: Vec<Candidate> = (0..5).map(|i| near(&format!("plant/n{i}"))).collect();
    let mut run = Run::new(IN_FLIGHT_MAX, &candidates);
    run.begin();
    for i in 0..SOURCES_MAX {
        run.shows_outline(&format!("plant/n{i}"));
    }
    // Its chunks go to the fifth source; it is back with nothing to do, and everything else takes long.
    run.tell(Message::Parted(n("plant/n0")));
    let asked = run.shows_outline("plant/n4");
    assert_eq!(asked.len(), SHARE_MAX, "{asked:?}");
    run.tell(Message::Reached(n("plant/n0"), None));
    assert_eq!(run.wait(), []);
}

/// What a source does when it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Honest,
    Lacks,
    Lies,
    Busy,
    Breaks,
    /// Says nothing until whoever asked gives up on it.
    Mute,
}

/// Candidates that do as chance has it, and everything that must hold whatever they do.
struct World {
    run: Run,
    rng: Rng,
    /// Questions, in no order, with the instant by which they are answered.
    pending: Vec<(NodeId, Part, Micros, Micros)>,
    honest: BTreeSet<NodeId>,
    reached: BTreeSet<NodeId>,
    lied: BTreeSet<NodeId>,
    taken: BTreeSet<u32>,
    done: Option<Result<Outline, HealError>>,
}

const STALL: Duration = Duration::from_secs(10);

impl World {
    fn new(seed: u64, chunks: usize, sources: usize) -> Self {
        let mut rng = Rng::new(seed);
        let mut candidates = Vec::new();
        let (mut honest, mut reached) = (BTreeSet::new(), BTreeSet::new());
        for source in 0..sources {
            let node = n(&format!("plant/n{source}"));
            let candidate = Candidate {
                reached: rng.below(4) > 0,
                round_trip: (rng.below(2) > 0).then(|| Duration::from_micros(rng.below(1000))),
                last: source + 1 == sources && rng.below(2) > 0,
                near: rng.below(3) > 0,
                node: node.clone(),
            };
            if rng.below(3) == 0 {
                honest.insert(node.clone());
            }
            if candidate.reached {
                reached.insert(node);
            }
            candidates.push(candidate);
        }
        World {
            run: Run::new(chunks, &candidates),
            rng,
            pending: Vec::new(),
            honest,
            reached,
            lied: BTreeSet::new(),
            taken: BTreeSet::new(),
            done: None,
        }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            assert!(self.done.is_none(), "after the end: {effect:?}");
            match effect {
                Effect::Ask(node, part) => {
                    assert!(self.reached.contains(&node), "{node} is not reached");
                    assert!(!self.lied.contains(&node), "{node} has lied");
                    let until = self.run.now + STALL;
                    self.pending.push((node, part, self.run.now, until));
                }
                Effect::Forget(node, part) => {
                    self.pending
                        .retain(|(of, what, ..)| (of, what) != (&node, &part));
                }
                Effect::Take(_, index, value) => {
                    assert_eq!(value, self.run.outline.values()[index as usize]);
                    assert!(self.taken.insert(index), "{index} twice");
                }
                Effect::Copy(index, _) => panic!("{index} is not at hand"),
                Effect::Done(result) => self.done = Some(result),
            }
        }
        self.check();
    }

    fn check(&self) {
        let chunks = |of: Option<&NodeId>| {
            let pending = self.pending.iter();
            let chunks = pending.filter(|(_, part, ..)| *part != Part::Outline);
            chunks
                .filter(|(node, ..)| of.is_none_or(|of| of == node))
                .count()
        };
        assert!(chunks(None) <= IN_FLIGHT_MAX);
        for node in &self.reached {
            assert!(chunks(Some(node)) <= SHARE_MAX, "{node}");
        }
        let mut by_chunk: BTreeMap<Part, Vec<Micros>> = BTreeMap::new();
        for (_, part, since, _) in &self.pending {
            if *part != Part::Outline {
                by_chunk.entry(*part).or_default().push(*since);
            }
        }
        for (part, mut since) in by_chunk {
            since.sort_unstable();
            assert!(since.len() <= 2, "{part:?}");
            if let [first, second] = since[..] {
                assert!(second >= first + PATIENCE, "{part:?} twice too soon");
            }
        }
    }

    /// Lets one thing happen; which, and when, is chance.
    fn happen(&mut self) {
        let parts = 12;
        if self.rng.below(parts) == 0 {
            return self.wander();
        }
        let due = self.run.wake.unwrap_or(Micros::NEVER);
        if self.pending.is_empty() || self.rng.below(8) == 0 {
            assert_ne!(due, Micros::NEVER, "it waits for nothing");
            self.run.now = self.run.now.max(due);
            let effects = self.run.step(None);
            return self.perform(effects);
        }
        let index = self.rng.below(self.pending.len() as u64) as usize;
        let (node, part, _, until) = self.pending.swap_remove(index);
        let answer = match self.way(&node) {
            Way::Mute if until > self.run.now => {
                self.run.now = until;
                Answer::Broken("no progress".into())
            }
            Way::Mute | Way::Breaks => Answer::Broken("cut".into()),
            Way::Busy => Answer::Missing(Lack::Busy, "busy".into()),
            Way::Lacks => Answer::Missing(Lack::Absent, "absent".into()),
            Way::Lies => {
                self.lied.insert(node.clone());
                self.lie(part)
            }
            Way::Honest => match part {
                Part::Outline => Answer::Outline(self.run.outline.to_bytes()),
                Part::Chunk(index) => Answer::Chunk(self.run.outline.values()[index as usize]),
            },
        };
        self.run.now = self.run.now + Duration::from_millis(self.rng.below(400));
        let effects = self.run.tell(Message::Answer(node, part, answer));
        self.perform(effects);
    }

    fn way(&mut self, node: &NodeId) -> Way {
        if self.honest.contains(node) {
            return Way::Honest;
        }
        let ways = [
            Way::Honest,
            Way::Honest,
            Way::Honest,
            Way::Lacks,
            Way::Lies,
            Way::Busy,
            Way::Breaks,
            Way::Mute,
        ];
        ways[self.rng.below(ways.len() as u64) as usize]
    }

    fn lie(&mut self, part: Part) -> Answer {
        match (part, self.rng.below(2)) {
            (_, 0) => Answer::Wrong("too long".into()),
            (Part::Outline, _) => Answer::Outline(self.run.outline.to_bytes().split_off(1)),
            (Part::Chunk(index), _) => {
                let values = self.run.outline.values();
                let other = values.get(index as usize + 1).copied();
                Answer::Chunk(other.unwrap_or_default())
            }
        }
    }

    /// A link comes up or breaks.
    fn wander(&mut self) {
        let names: Vec<NodeId> = self
            .run
            .heal
            .sources
            .iter()
            .map(|s| s.node.clone())
            .collect();
        let node = names[self.rng.below(names.len() as u64) as usize].clone();
        let message = match self.reached.contains(&node) {
            // The honest ones stay, so that there is an end to wait for.
            true if self.honest.contains(&node) => return,
            true => {
                self.reached.remove(&node);
                Message::Parted(node.clone())
            }
            false => {
                self.reached.insert(node.clone());
                Message::Reached(node.clone(), None)
            }
        };
        let parts = matches!(message, Message::Parted(_));
        let effects = self.run.tell(message);
        self.perform(effects);
        if parts {
            assert!(self.pending.iter().all(|(of, ..)| *of != node), "{node}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Any order of answers, failures and lies: it ends, with every chunk verified or with everybody named.
    #[test]
    fn whatever_the_sources_do_it_ends(seed in any::<u64>(), chunks in 1usize..40, sources in 1usize..7) {
        let mut world = World::new(seed, chunks, sources);
        let effects = world.run.begin();
        world.perform(effects);
        let began = world.run.now;
        for _ in 0..20_000 {
            if world.done.is_some() {
                break;
            }
            world.happen();
        }
        let span = world.run.now.since(began);
        match world.done.take().expect("it ends") {
            Ok(outline) => {
                prop_assert_eq!(world.taken.len(), chunks);
                prop_assert_eq!(outline.hash(), world.run.outline.hash());
            }
            Err(HealError::OnlyLast) => unreachable!("it was not asked for as a whole"),
            Err(HealError::Nobody { asked, .. }) => {
                prop_assert_eq!(asked.len(), sources);
                let honest = world.honest.intersection(&world.reached);
                prop_assert_eq!(honest.count(), 0, "somebody had it: {:?}", asked);
            }
            Err(HealError::TooSlow { had, .. }) => {
                prop_assert!(span >= LIMIT, "{:?}", span);
                prop_assert_eq!(had, world.taken.len());
            }
        }
        prop_assert_eq!(world.run.heal.liars(), world.lied);
        let named = world.run.events.iter().filter(|event| matches!(event, Event::HealRefused { .. }));
        prop_assert_eq!(named.count(), world.run.heal.liars().len());
    }
}
