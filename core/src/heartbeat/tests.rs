use std::collections::BTreeMap;

use super::*;
use crate::ladder::Cooldown;
use crate::machine::Outcome;

const PERIOD: Duration = Duration::from_millis(500);
const HOUR: u64 = 3_600_000;

fn plan(every: Duration) -> HeartbeatPlan {
    HeartbeatPlan {
        every,
        phi: 8.0,
        retry: [1, 2, 4].map(Duration::from_secs).to_vec(),
        restore_limit: Duration::from_secs(60),
        cooldown: Cooldown {
            first: Duration::from_secs(10),
            cap: Duration::from_secs(600),
        },
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(ms: u64) -> Micros {
    Micros(ms * 1000)
}

/// A machine in a world of its own: wakes it when it asked for it, and keeps what it says.
struct Watch {
    machine: Heartbeat,
    now: Micros,
    wake: Micros,
    /// While this node is stopped nothing runs.
    stopped_until: Micros,
    verdicts: Vec<(Micros, Verdict)>,
    redials: Vec<Micros>,
    sent: Vec<wire::Heartbeat>,
    crossed: Vec<Exchange>,
}

impl Watch {
    fn new(every: Duration, seed: u64) -> Self {
        let mut watch = Watch {
            machine: Heartbeat::new(&plan(every), Rng::new(seed)),
            now: Micros(0),
            wake: Micros::NEVER,
            stopped_until: Micros(0),
            verdicts: Vec::new(),
            redials: Vec::new(),
            sent: Vec::new(),
            crossed: Vec::new(),
        };
        watch.step(None);
        watch
    }

    /// One that has a connection to a peer with that period.
    fn connected(every: Duration, theirs: Duration, seed: u64) -> Self {
        let mut watch = Watch::new(every, seed);
        watch.step(Some(Message::Connected { every: theirs }));
        watch
    }

    fn step(&mut self, message: Option<Message>) {
        let mut out = Outcome::default();
        let mut cx = Context::new(self.now, &mut out);
        match message {
            Some(message) => self.machine.handle(message, &mut cx),
            None => self.machine.on_wake(&mut cx),
        }
        self.wake = out.wake_at.unwrap_or(Micros::NEVER);
        for effect in out.effects {
            match effect {
                Effect::Send(heartbeat) => self.sent.push(heartbeat),
                Effect::Redial => self.redials.push(self.now),
                Effect::Crossed(exchange) => self.crossed.push(exchange),
                Effect::Verdict(verdict) => self.verdicts.push((self.now, verdict)),
            }
        }
    }

    /// Lets time pass.
    fn until(&mut self, until: Micros) {
        while self.wake.max(self.stopped_until) <= until {
            self.now = self.wake.max(self.stopped_until).max(self.now);
            self.step(None);
        }
        self.now = until;
    }

    /// A message arrives; while this node is stopped it waits.
    fn get(&mut self, when: Micros, message: Message) {
        let when = when.max(self.stopped_until);
        self.until(when);
        self.step(Some(message));
    }

    fn stop(&mut self, span: Duration) {
        self.stopped_until = self.now + span;
    }

    fn names(&self) -> Vec<&'static str> {
        let name = |(_, verdict): &(Micros, Verdict)| match verdict {
            Verdict::Suspected { .. } => "suspected",
            Verdict::Recovered { .. } => "recovered",
            Verdict::Lost => "lost",
            Verdict::Overdue => "overdue",
            Verdict::Left => "left",
        };
        self.verdicts.iter().map(name).collect()
    }
}

/// The other side: numbers its heartbeats.
#[derive(Default)]
struct Peer {
    count: u64,
    health: u8,
}

impl Peer {
    fn beat(&mut self) -> Message {
        self.count += 1;
        Message::Beat(wire::Heartbeat {
            sequence: self.count,
            count: self.count,
            health: self.health,
            sent: Micros(self.count),
            echo: None,
        })
    }

    /// Heartbeats that arrive on time, every `every` from now until `until`.
    fn live(&mut self, watch: &mut Watch, every: Duration, until: Micros) {
        while watch.now + every <= until {
            let beat = self.beat();
            watch.get(watch.now + every, beat);
        }
    }
}

/// "A dead member leaves the count after the heartbeat limit": torchft#63, hivemind#525.
#[test]
fn on_a_quiet_link_the_dead_are_suspected_within_three_periods_of_their_last_heartbeat() {
    for every in [ms(10), ms(100), PERIOD, ms(60_000)] {
        for beats in [0, 1, 2, 10, 1000] {
            let mut watch = Watch::connected(every, every, beats);
            let mut peer = Peer::default();
            peer.live(&mut watch, every, Micros(0) + every * beats as u32);
            let last = watch.now;
            watch.until(last + every * PERIODS_SILENT);
            let [(when, Verdict::Suspected { silent }), ..] = watch.verdicts[..] else {
                panic!("{:?}", watch.verdicts);
            };
            assert_eq!(silent, when.since(last));
            assert!(silent > every * 2, "{silent:?}");
        }
    }
}

/// spd#677, pytorch-lightning#1455: leaving is no failure.
#[test]
fn a_peer_that_says_goodbye_is_not_missed_until_it_is_back() {
    let mut watch = Watch::connected(PERIOD, PERIOD, 1);
    watch.step(Some(Message::Goodbye));
    watch.until(at(HOUR));
    assert_eq!(watch.names(), ["left"]);
    assert!(watch.redials.is_empty());
    watch.step(Some(Message::Connected { every: PERIOD }));
    assert_eq!(watch.machine.rung(), Rung::Alive);
    watch.until(at(2 * HOUR));
    assert_eq!(watch.names()[..2], ["left", "suspected"]);
}

#[test]
fn a_peer_that_stays_silent_is_dialled_anew_then_lost_then_overdue() {
    let mut watch = Watch::connected(PERIOD, PERIOD, 1);
    watch.until(at(HOUR));
    assert_eq!(watch.names(), ["suspected", "lost", "overdue"]);
    let suspected = watch.verdicts[0].0;
    let times = watch.verdicts[1..]
        .iter()
        .map(|(at, _)| at.since(suspected).as_secs());
    assert_eq!(times.collect::<Vec<_>>(), [7, 67]);
    assert_eq!(watch.redials.len(), 3);
    assert!(
        watch
            .redials
            .iter()
            .all(|at| at.since(suspected) < ms(7000))
    );
}

#[test]
fn any_sign_of_life_ends_the_climb_and_tells_how_far_it_went() {
    for (silent, rung) in [
        (1300, Some(Rung::Suspect)),
        (9000, Some(Rung::Restoring)),
        (80_000, Some(Rung::Overdue)),
    ] {
        let beat = Peer::default().beat();
        let progress = Message::Progress { since: at(silent) };
        let connected = Message::Connected { every: PERIOD };
        for life in [beat, progress, connected] {
            // With this seed the first retry comes half a second after the suspicion.
            let mut watch = Watch::connected(PERIOD, PERIOD, 1);
            watch.until(at(silent));
            watch.step(Some(life));
            let Some((_, Verdict::Recovered { after, from })) = watch.verdicts.pop() else {
                panic!("{:?}", watch.verdicts);
            };
            assert_eq!((Some(from), after), (rung, ms(silent)));
            assert_eq!(watch.machine.rung(), Rung::Alive);
        }
    }
}

#[test]
fn frames_keep_a_peer_alive_whose_heartbeats_are_lost() {
    let mut watch = Watch::connected(PERIOD, PERIOD, 1);
    for turn in 1..100 {
        watch.until(at(500 * turn));
        watch.step(Some(Message::Progress {
            since: at(500 * turn - 400),
        }));
    }
    assert_eq!(watch.verdicts, []);
}

#[test]
fn nobody_is_suspected_before_the_first_contact() {
    let mut watch = Watch::new(PERIOD, 1);
    watch.until(at(HOUR));
    assert_eq!((watch.names(), watch.machine.rung()), (vec![], Rung::Unmet));
    assert_eq!(watch.sent, [], "there is no connection to send on");
    let standing = watch.machine.standing(watch.now);
    assert_eq!((standing.silent, standing.left), (Duration::ZERO, None));
}

/// flower#775, flower#2515, flower#4300: both sides may be configured otherwise; the slower period is what the link is held to.
#[test]
fn the_slower_of_both_periods_counts() {
    for (ours, theirs) in [(ms(100), ms(2000)), (ms(2000), ms(100))] {
        let mut watch = Watch::connected(ours, theirs, 1);
        let mut peer = Peer::default();
        peer.live(&mut watch, theirs, at(600_000));
        assert_eq!(watch.verdicts, []);
        watch.until(watch.now + ms(3 * 2000));
        let [(_, Verdict::Suspected { silent })] = watch.verdicts[..] else {
            panic!("{:?}", watch.verdicts);
        };
        assert!(silent > ms(2 * 2000), "{silent:?}");
    }
}

/// What one hour of a link brought.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    suspected: u64,
    lost: u64,
    overdue: u64,
    heartbeats: u64,
}

/// A living peer behind a path that loses and delays, for so many hours.
fn hours(hours: u64, loss: f64, jitter: u64, seed: u64) -> Tally {
    let mut rng = Rng::derive(seed, &[b"path"]);
    let mut watch = Watch::connected(PERIOD, PERIOD, seed);
    let mut peer = Peer::default();
    let mut tally = Tally::default();
    let mut on_the_way: BTreeMap<Micros, Message> = BTreeMap::new();
    for turn in 1..=hours * HOUR / 500 {
        let beat = peer.beat();
        if rng.next_f64() >= loss {
            on_the_way.insert(
                at(500 * turn) + Duration::from_micros(rng.below(1000 * jitter + 1)),
                beat,
            );
        }
        while let Some(first) = on_the_way.first_entry()
            && *first.key() <= at(500 * (turn + 1))
        {
            let (arrives, beat) = first.remove_entry();
            watch.get(arrives, beat);
            tally.heartbeats += 1;
        }
        for (_, verdict) in watch.verdicts.drain(..) {
            match verdict {
                Verdict::Suspected { .. } => tally.suspected += 1,
                Verdict::Lost => tally.lost += 1,
                Verdict::Overdue => tally.overdue += 1,
                Verdict::Recovered { .. } | Verdict::Left => {}
            }
        }
        watch.sent.clear();
    }
    tally
}

/// At most one false eviction in 1,000 node-hours is due at 5 % loss and 200 ms jitter. That would take a silence of more than a minute; so
/// the suspicions, which may cost a round some work, are counted as well.
#[test]
fn a_living_peer_behind_a_bad_path_is_not_evicted() {
    const NODES: u64 = 10;
    let mut all = Tally::default();
    for node in 0..NODES {
        let found = hours(100, 0.05, 200, node);
        all.suspected += found.suspected;
        all.lost += found.lost;
        all.overdue += found.overdue;
        all.heartbeats += found.heartbeats;
    }
    println!(
        "1,000 node-hours at 5 % loss and 200 ms jitter, {} heartbeats arrived: {} false suspicions, {} lost, {} overdue",
        all.heartbeats, all.suspected, all.lost, all.overdue
    );
    assert!(all.heartbeats > 6_800_000, "{all:?}");
    assert_eq!((all.lost, all.overdue), (0, 0));
    assert!(all.suspected <= 10, "{all:?}");
    assert_eq!(hours(1, 0.05, 200, 3), hours(1, 0.05, 200, 3), "seeded");
}

#[test]
fn the_dead_are_found_behind_a_bad_path_too() {
    let mut rng = Rng::new(5);
    let mut watch = Watch::connected(PERIOD, PERIOD, 5);
    let mut peer = Peer::default();
    for turn in 1..2000 {
        let beat = peer.beat();
        if rng.next_f64() >= 0.05 {
            watch.get(at(500 * turn + rng.below(200)), beat);
        }
    }
    let last = watch.now;
    watch.until(last + ms(10_000));
    let (when, _) = watch.verdicts[0];
    assert!(
        (ms(2000)..ms(5000)).contains(&when.since(last)),
        "{when:?}, last at {last:?}"
    );
    let standing = watch.machine.standing(last);
    assert!((0.01..0.12).contains(&standing.loss), "{standing:?}");
}

/// Heartbeats that overtake each other were not lost.
#[test]
fn reordering_is_no_loss() {
    let mut watch = Watch::connected(ms(100), ms(100), 1);
    let mut peer = Peer::default();
    for turn in 0..500 {
        let (first, second) = (peer.beat(), peer.beat());
        watch.get(at(100 + 200 * turn), second);
        watch.get(at(101 + 200 * turn), first);
    }
    assert_eq!(watch.machine.standing(watch.now).loss, 0.0);
    assert_eq!(watch.verdicts, []);
}

/// sp1-cluster#163, ray#28562: a node that was kept from running finds nobody else dead; and its peers hear that it is late.
#[test]
fn time_in_which_this_node_did_not_run_is_nobodys_silence() {
    for pause in [ms(1300), ms(3000), ms(30_000), ms(HOUR)] {
        let mut watch = Watch::connected(PERIOD, PERIOD, 1);
        let mut peer = Peer::default();
        peer.live(&mut watch, PERIOD, at(20_000));
        watch.stop(pause);
        let back = watch.stopped_until;
        // Its own timers may run before it reads what has arrived.
        watch.until(back + ms(100));
        assert_eq!(watch.verdicts, [], "{pause:?}");
        let standing = watch.machine.standing(watch.now);
        assert!(standing.silent <= PERIOD + ms(100), "{standing:?}");
        let score = standing.health;
        let told = watch.sent.last().unwrap().health;
        assert!(score > 0 && told > 0, "{pause:?}: {score} {told}");
        peer.live(&mut watch, PERIOD, back + ms(10_000));
        assert_eq!(watch.verdicts, []);
        assert_eq!(watch.machine.standing(watch.now).health, 0);
        // Who dies then is found as soon as ever.
        let last = watch.now;
        watch.until(last + PERIOD * PERIODS_SILENT);
        assert_eq!(watch.names(), ["suspected"]);
    }
}

/// Who was stopped for so long that its peers gave it up gives them the time to dial it again; but not for ever.
#[test]
fn after_a_long_pause_peers_have_time_to_come_back() {
    for comes_back in [true, false] {
        let mut watch = Watch::connected(PERIOD, PERIOD, 1);
        let mut peer = Peer::default();
        peer.live(&mut watch, PERIOD, at(20_000));
        watch.stop(ms(30_000));
        watch.until(watch.stopped_until + ms(4000));
        assert_eq!(watch.verdicts, []);
        if comes_back {
            watch.step(Some(Message::Connected { every: PERIOD }));
            let mut peer = Peer::default();
            let later = watch.now + ms(5000);
            peer.live(&mut watch, PERIOD, later);
            assert_eq!(watch.verdicts, []);
            let last = watch.now;
            watch.until(last + PERIOD * PERIODS_SILENT);
        } else {
            watch.until(watch.now + ms(5000));
        }
        assert_eq!(watch.names(), ["suspected"]);
    }
}

/// The time to come back is for who is away: once it is back its next silence counts.
#[test]
fn who_is_back_after_a_pause_is_missed_when_it_falls_silent_again() {
    let mut watch = Watch::connected(PERIOD, PERIOD, 1);
    watch.stop(ms(30_000));
    let back = watch.stopped_until;
    watch.until(back + ms(100));
    Peer::default().live(&mut watch, ms(100), back + ms(200));
    watch.until(back + ms(4000));
    assert_eq!(watch.names(), ["suspected"]);
}

#[test]
fn a_pause_does_not_move_a_silent_peer_up_the_ladder() {
    let mut watch = Watch::connected(PERIOD, PERIOD, 1);
    watch.until(at(2000));
    assert_eq!(watch.names(), ["suspected"]);
    watch.stop(ms(HOUR));
    watch.until(watch.now + ms(HOUR + 4000));
    assert_eq!(
        watch.names(),
        ["suspected"],
        "of its 7 s of retries 5 are left"
    );
    watch.until(watch.now + ms(4000));
    assert_eq!(watch.names(), ["suspected", "lost"]);
}

#[test]
fn timers_that_keep_coming_late_make_us_patient_up_to_a_limit() {
    let mut watch = Watch::connected(PERIOD, PERIOD, 1);
    // Each time it is woken half a period late.
    let start = watch.now;
    while watch.verdicts.is_empty() && watch.now < at(HOUR) {
        watch.now = watch.wake + ms(250);
        watch.step(None);
    }
    assert_eq!(watch.machine.standing(watch.now).health, health::MAX);
    let silent = watch.now.since(start);
    assert!((ms(10_800)..ms(25_000)).contains(&silent), "{silent:?}");
}

/// Lifeguard, the other way round: a peer that says that it is late is given more time, up to the same limit.
#[test]
fn a_peer_that_is_late_by_its_own_word_is_given_more_time() {
    let mut watch = Watch::connected(PERIOD, PERIOD, 1);
    let mut peer = Peer {
        health: 2,
        ..Peer::default()
    };
    peer.live(&mut watch, PERIOD, at(5000));
    watch.until(at(5000 + 3500));
    assert_eq!(watch.verdicts, []);
    watch.until(at(5000 + 3700));
    assert_eq!(watch.names(), ["suspected"], "3 x 1.2 s");
}

#[test]
fn heartbeats_leave_in_step_numbered_and_with_an_echo() {
    let mut watch = Watch::connected(PERIOD, PERIOD, 1);
    watch.get(at(600), Peer::default().beat());
    watch.until(at(20_000));
    assert_eq!(watch.sent.len(), 40);
    for (index, [one, two]) in watch.sent.array_windows().enumerate() {
        assert_eq!(two.sent.since(one.sent), PERIOD);
        assert_eq!(
            (one.count, one.sequence),
            (index as u64 + 1, index as u64 + 1)
        );
    }
    let echo = watch.sent[39].echo.unwrap();
    assert_eq!((echo.sent, echo.received), (Micros(1), at(600)));
    // A new connection counts anew, and knows nothing of the other clock yet.
    watch.step(Some(Message::Connected { every: PERIOD }));
    watch.until(at(20_500));
    let first = watch.sent[40];
    assert_eq!((first.count, first.sequence, first.echo), (1, 41, None));
    let starts = (0..20).map(|seed| Watch::connected(PERIOD, PERIOD, seed).wake.0 / 50_000);
    let tenths: std::collections::BTreeSet<u64> = starts.collect();
    assert!(tenths.len() > 5, "not all peers beat at once: {tenths:?}");
}

#[test]
fn heartbeats_that_cross_are_a_sight_of_the_peers_clock() {
    let mut watch = Watch::connected(ms(500), ms(500), 1);
    let beat = |count, sent, echo| wire::Heartbeat {
        sequence: count,
        count,
        health: 0,
        sent,
        echo,
    };
    watch.until(at(1000));
    watch.step(Some(Message::Beat(beat(1, at(90_000), None))));
    assert_eq!(watch.crossed, []);
    watch.until(at(1600));
    let ours = watch.sent.last().unwrap().sent;
    let echo = Echo {
        sent: ours,
        received: at(90_550),
    };
    watch.step(Some(Message::Beat(beat(2, at(90_600), Some(echo)))));
    let expected = Exchange {
        t1: ours,
        t2: at(90_550),
        t3: at(90_600),
        t4: watch.now,
    };
    assert_eq!(watch.crossed, [expected]);
}
