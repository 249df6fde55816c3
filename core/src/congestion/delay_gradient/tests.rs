use super::*;

const PACKET: u64 = 1200;

/// A path with one queue, as exact as arithmetic: each round trip the window is sent and acknowledged at the path's rate.
struct Path {
    law: DelayGradient,
    base: Duration,
    bytes_per_second: f64,
    now: Duration,
    number: u64,
}

impl Path {
    fn new(base_ms: u64, megabits: f64) -> Self {
        Path {
            law: DelayGradient::new(Settings::default(), PACKET as u16, Duration::ZERO),
            base: Duration::from_millis(base_ms),
            bytes_per_second: megabits * 125_000.0,
            now: Duration::from_secs(1),
            number: 0,
        }
    }

    fn product(&self) -> f64 {
        self.bytes_per_second * self.base.as_secs_f64()
    }

    /// The queue that the window of now makes.
    fn queue(&self) -> Duration {
        let over = (self.law.window() as f64 - self.product()).max(0.0);
        Duration::from_secs_f64(over / self.bytes_per_second)
    }

    /// One round trip, with every `lost_nth` packet lost and most packets late by `jitter`.
    fn round(&mut self, lost_nth: u64, jitter: Duration, app_limited: bool) {
        let packets = (self.law.window() / PACKET).max(1);
        let queue = self.queue();
        let spacing = (self.base + queue).as_secs_f64() / packets as f64;
        let first = self.number + 1;
        for nth in 0..packets {
            self.number += 1;
            self.law.on_sent(self.number);
            let late = if nth % 7 == 3 { Duration::ZERO } else { jitter };
            self.now += Duration::from_secs_f64(spacing);
            if lost_nth > 0 && nth % lost_nth == lost_nth - 1 {
                self.law.on_lost(PACKET, false);
            } else {
                let sent = self.now - (self.base + queue + late);
                self.law.on_ack(self.now, sent, PACKET, app_limited);
            }
        }
        self.law.on_end_acks(self.now, Some(first));
    }

    fn rounds(&mut self, count: usize, lost_nth: u64, jitter: Duration) {
        for _ in 0..count {
            self.round(lost_nth, jitter, false);
        }
    }
}

#[test]
fn a_path_is_filled_and_its_queue_stays_near_the_target() {
    for (base, megabits) in [(20, 50.0), (60, 200.0), (300, 200.0)] {
        let mut path = Path::new(base, megabits);
        path.rounds(60, 0, Duration::ZERO);
        let (product, window) = (path.product(), path.law.window() as f64);
        assert!(window > 0.9 * product, "{base} ms: {window} of {product}");
        let target = Duration::from_secs_f64(path.law.target());
        assert!(path.queue() < 2 * target, "{base} ms: {:?}", path.queue());
    }
}

#[test]
fn random_loss_below_the_tolerated_share_takes_nothing_and_heavy_loss_counts() {
    let mut path = Path::new(60, 200.0);
    path.rounds(60, 100, Duration::ZERO);
    assert!(path.law.window() as f64 > 0.9 * path.product());
    let before = path.law.window();
    path.rounds(1, 5, Duration::ZERO);
    assert!(path.law.window() < before * 9 / 10);
}

/// A law that goes by the mean of a round takes jitter for a queue, and collapses.
#[test]
fn jitter_is_no_queue() {
    let mut path = Path::new(60, 200.0);
    path.rounds(80, 0, Duration::from_millis(5));
    assert!(path.law.window() as f64 > 0.85 * path.product());
}

#[test]
fn a_path_that_became_longer_is_not_taken_for_a_full_one_for_long() {
    let mut path = Path::new(60, 200.0);
    path.rounds(40, 0, Duration::ZERO);
    path.base = Duration::from_millis(150);
    path.rounds(300, 0, Duration::ZERO);
    assert!(path.law.window() as f64 > 0.8 * path.product());
    assert!(path.queue() < path.base, "{:?}", path.queue());
}

/// Half a round trip of queue that is there whatever the law does, and no loss.
#[test]
fn a_queue_that_does_not_follow_is_a_rivals() {
    let mut path = Path::new(60, 200.0);
    path.rounds(40, 0, Duration::ZERO);
    let before = path.law.window();
    path.base += Duration::from_millis(30);
    let mut rounds = 0;
    while !path.law.rival {
        path.rounds(1, 0, Duration::ZERO);
        rounds += 1;
        assert!(rounds < 20);
    }
    assert!(
        path.law.window() >= before,
        "what was cut in vain comes back"
    );
    path.rounds(3, 0, Duration::ZERO);
    let competing = path.law.window();
    assert!(path.law.rival && competing > before);
    path.rounds(1, 100, Duration::ZERO);
    assert!(path.law.window() < competing, "a rival's loss counts");
    path.base -= Duration::from_millis(30);
    path.rounds(20, 0, Duration::ZERO);
    assert!(!path.law.rival);
}

#[test]
fn nothing_grows_while_there_is_nothing_to_send() {
    let mut path = Path::new(60, 200.0);
    let first = path.law.window();
    for _ in 0..20 {
        path.round(0, Duration::ZERO, true);
    }
    assert_eq!(path.law.window(), first);
}

/// Two trains of ten packets, acknowledged as a hop of 200 Mbit/s spaces them.
#[test]
fn the_spacing_of_acknowledgements_tells_the_rate_in_the_first_round_trip() {
    let law_after = |spacings: [Duration; 2]| {
        let mut law = DelayGradient::new(Settings::default(), PACKET as u16, Duration::ZERO);
        for (nth, spacing) in spacings.into_iter().enumerate() {
            let sent = Duration::from_millis(1 + 20 * nth as u64);
            for packet in 0..10u32 {
                let now = sent + Duration::from_millis(300) + spacing * packet;
                law.on_ack(now, sent, PACKET, false);
            }
        }
        law
    };
    let spacing = Duration::from_micros(48);
    let product = 25_000_000.0 * 0.3;
    let window = law_after([spacing, spacing]).window() as f64;
    assert!(
        (0.85 * product..0.95 * product).contains(&window),
        "{window}"
    );
    // Trains that do not agree are noise.
    let law = law_after([spacing, 3 * spacing]);
    assert_eq!(law.window(), law.initial_window() + 20 * PACKET);
}

#[test]
fn a_mark_takes_a_little_and_a_dead_path_begins_anew() {
    let mut path = Path::new(60, 200.0);
    path.rounds(40, 0, Duration::ZERO);
    let before = path.law.window();
    path.law.on_lost(0, false);
    assert!(path.law.window() < before);
    path.law.on_lost(PACKET, true);
    assert_eq!(path.law.window(), 4 * PACKET);
    assert!(path.law.is_starting());
    path.rounds(60, 0, Duration::ZERO);
    assert!(path.law.window() as f64 > 0.9 * path.product());
}

/// What one round with a queue of that many milliseconds makes of the window.
fn one_round(factor: f64, additive: f64, queue_ms: u64) -> f64 {
    let mut law = DelayGradient::new(Settings { factor, additive }, PACKET as u16, Duration::ZERO);
    law.starting = false;
    law.base.see(0.06);
    law.rate = 1e9;
    law.window = FAIR_PACKETS * PACKET as f64;
    law.on_sent(1);
    let sent = Duration::from_millis(100);
    let now = sent + Duration::from_millis(60 + queue_ms);
    law.on_ack(now, sent, PACKET, false);
    law.on_end_acks(now, Some(1));
    law.window / (FAIR_PACKETS * PACKET as f64)
}

#[test]
fn the_factor_says_how_deep_a_cut_is_and_additive_how_fast_it_probes() {
    // 40 ms of queue, of which 4.8 are wanted.
    assert!((one_round(0.2, 0.03, 40) - (1.0 - 0.2 * 0.88)).abs() < 1e-6);
    assert!((one_round(0.3, 0.03, 40) - (1.0 - 0.3 * 0.88)).abs() < 1e-6);
    assert!((one_round(0.4, 0.03, 0) - 1.03).abs() < 1e-6);
    assert!((one_round(0.4, 0.1, 0) - 1.1).abs() < 1e-6);
}
