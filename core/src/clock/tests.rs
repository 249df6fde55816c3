use super::*;
use crate::rng::Rng;

/// Two clocks and the path between them.
struct Lab {
    rng: Rng,
    /// What the peer's clock says at zero of ours, in microseconds.
    offset: f64,
    /// How much faster it runs.
    rate: f64,
    there_us: f64,
    back_us: f64,
    jitter_us: f64,
}

impl Lab {
    fn new(seed: u64) -> Self {
        Lab {
            rng: Rng::new(seed),
            offset: 3_000_000.0,
            rate: 200e-6,
            there_us: 20_000.0,
            back_us: 20_000.0,
            jitter_us: 2000.0,
        }
    }

    fn truth(&self, at_us: f64) -> f64 {
        self.offset + self.rate * at_us
    }

    fn peer(&self, at_us: f64) -> Micros {
        Micros((at_us + self.truth(at_us)) as u64)
    }

    /// Heartbeats each half second of ours and of the peer's; `extra` says how much longer each took there and back.
    fn exchange(&mut self, at_us: f64, extra: impl Fn(&mut Rng) -> (f64, f64)) -> Exchange {
        let (there, back) = extra(&mut self.rng);
        let arrives = at_us + self.there_us + there + self.rng.next_f64() * self.jitter_us;
        let leaves = arrives + self.rng.next_f64() * 500_000.0;
        let here = leaves + self.back_us + back + self.rng.next_f64() * self.jitter_us;
        Exchange {
            t1: Micros(at_us as u64),
            t2: self.peer(arrives),
            t3: self.peer(leaves),
            t4: Micros(here as u64),
        }
    }

    /// Ten minutes: the errors after the first, in microseconds. The bound must always hold.
    fn run(&mut self, extra: impl Fn(&mut Rng) -> (f64, f64) + Copy) -> Vec<f64> {
        let mut filter = Filter::new();
        let mut errors = Vec::new();
        for beat in 0..1200 {
            let exchange = self.exchange(1e6 + beat as f64 * 500_000.0, extra);
            filter.on_exchange(exchange);
            for later in [0, 250_000, 499_000] {
                let now = Micros(exchange.t4.0 + later);
                let estimate = filter.estimate(now).unwrap();
                let error = (estimate.offset_us as f64 - self.truth(now.0 as f64)).abs();
                let bound = estimate.bound.as_micros() as f64;
                assert!(
                    error <= bound,
                    "off by {error} us at {now:?}, bound {bound}"
                );
                if beat >= 120 {
                    errors.push(error);
                }
            }
        }
        assert_eq!(filter.resets(), 0);
        errors.sort_by(f64::total_cmp);
        errors
    }
}

fn p99(errors: &[f64]) -> f64 {
    errors[errors.len() * 99 / 100]
}

fn quiet(_: &mut Rng) -> (f64, f64) {
    (0.0, 0.0)
}

#[test]
fn a_symmetric_path_leaves_a_fifth_of_a_millisecond() {
    for seed in 0..5 {
        let errors = Lab::new(seed).run(quiet);
        assert!(p99(&errors) <= 200.0, "seed {seed}: {}", p99(&errors));
    }
}

/// Field fault: the clock-offset estimate ignores slow one-sided samples.
#[test]
fn what_is_slow_in_one_direction_does_not_pull() {
    for seed in 0..3 {
        let errors = Lab::new(seed).run(|rng| {
            if rng.below(4) == 0 {
                (5_000.0 + rng.next_f64() * 400_000.0, 0.0)
            } else {
                (0.0, 0.0)
            }
        });
        assert!(p99(&errors) <= 200.0, "seed {seed}: {}", p99(&errors));
    }
}

#[test]
fn unequal_ways_cost_half_of_their_difference_and_the_bound_says_so() {
    let mut lab = Lab::new(1);
    lab.there_us = 35_000.0;
    let errors = lab.run(quiet);
    let middle = errors[errors.len() / 2];
    assert!((middle - 7_500.0).abs() < 300.0, "{middle}");
}

#[test]
fn the_rate_is_found() {
    let mut lab = Lab::new(4);
    let mut filter = Filter::new();
    for beat in 0..240 {
        filter.on_exchange(lab.exchange(beat as f64 * 500_000.0, quiet));
    }
    let estimate = filter.estimate(Micros(120_500_000)).unwrap();
    assert!((estimate.rate_ppm - 200.0).abs() < 5.0, "{estimate:?}");
}

#[test]
fn a_peer_with_another_clock_is_noticed_with_its_first_word() {
    let mut lab = Lab::new(2);
    let mut filter = Filter::new();
    for beat in 0..100 {
        filter.on_exchange(lab.exchange(beat as f64 * 500_000.0, quiet));
    }
    lab.offset = -20_000.0;
    let exchange = lab.exchange(51e6, quiet);
    filter.on_exchange(exchange);
    assert_eq!(filter.resets(), 1);
    let estimate = filter.estimate(exchange.t4).unwrap();
    let error = (estimate.offset_us as f64 - lab.truth(exchange.t4.0 as f64)).abs();
    assert!(error <= estimate.bound.as_micros() as f64);
}

#[test]
fn stamps_that_contradict_each_other_are_passed_over() {
    let mut filter = Filter::new();
    let stamp = |t1, t2, t3, t4| Exchange {
        t1: Micros(t1),
        t2: Micros(t2),
        t3: Micros(t3),
        t4: Micros(t4),
    };
    filter.on_exchange(stamp(10, 5, 4, 20));
    filter.on_exchange(stamp(30, 5, 6, 20));
    assert_eq!(filter.estimate(Micros(40)), None);
    filter.on_exchange(stamp(u64::MAX, 0, u64::MAX, u64::MAX));
    filter.on_exchange(stamp(0, u64::MAX, u64::MAX, 1));
    assert!(filter.estimate(Micros(u64::MAX)).is_some());
}

#[test]
fn the_federations_clock_never_steps_back() {
    let known = |offset_us| Estimate {
        offset_us,
        rate_ppm: 0.0,
        bound: Duration::from_millis(20),
        round_trip: Duration::from_millis(40),
    };
    let mut clock = FederationClock::default();
    assert_eq!(
        clock.read(Micros(1_000_000), &known(5000)),
        Micros(1_005_000)
    );
    // It turns out that it was ahead by four milliseconds: it goes on, slower, and has lost them within sixteen.
    let mut last = Micros(1_005_000);
    for step in 1..=20 {
        let read = clock.read(Micros(1_000_000 + step * 1000), &known(1000));
        assert!(read > last, "{read:?} after {last:?}");
        last = read;
    }
    assert_eq!(last, Micros(1_021_000));
    assert_eq!(clock.ahead(&known(1000)), Duration::ZERO);
    // Behind, it is put right at once.
    assert_eq!(
        clock.read(Micros(1_021_000), &known(9000)),
        Micros(1_030_000)
    );
    // Asked twice at one moment it says the same.
    assert_eq!(clock.read(Micros(1_021_000), &known(0)), Micros(1_030_000));
}
