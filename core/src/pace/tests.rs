use proptest::prelude::*;

use super::*;

fn node(name: &str) -> NodeId {
    format!("hq/{name}").parse().unwrap()
}

fn cohort(nodes: usize) -> Vec<NodeId> {
    (0..nodes).map(|index| node(&format!("n{index}"))).collect()
}

/// Nodes that take so many milliseconds a step, and no delay.
fn paces(steps_ms: &[u64]) -> Paces {
    let mut paces = Paces::default();
    for (node, ms) in cohort(steps_ms.len()).iter().zip(steps_ms) {
        let effort = Effort {
            steps: 10,
            micros: ms * 10_000,
        };
        paces.on_report(node, effort, Duration::from_millis(ms * 10));
    }
    paces
}

fn dealt(paces: &Paces, equal: u64, nodes: usize) -> Vec<u64> {
    let shares = paces.shares(equal, &cohort(nodes));
    cohort(nodes).iter().map(|node| shares[node]).collect()
}

#[test]
fn of_whom_nothing_is_known_all_get_the_same() {
    assert_eq!(dealt(&Paces::default(), 50, 3), [50, 50, 50]);
}

#[test]
fn all_end_at_about_the_same_time_and_the_steps_stay_as_many() {
    // Two steps of the first, one of the second: 100 in 66.6 steps' time.
    assert_eq!(dealt(&paces(&[10, 20]), 50, 2), [67, 33]);
    assert_eq!(dealt(&paces(&[10, 10, 10]), 7, 3), [7, 7, 7]);
}

#[test]
fn the_order_in_which_nodes_are_named_changes_no_share() {
    let known = paces(&[10, 10, 10, 20]);
    let mut named = cohort(4);
    let shares = known.shares(50, &named);
    named.reverse();
    assert_eq!(known.shares(50, &named), shares);
}

#[test]
fn no_share_is_below_a_quarter_or_above_four_times_the_equal_one() {
    assert_eq!(dealt(&paces(&[1, 100]), 50, 2), [87, 13]);
    let slow = [&[1][..], &[100; 9]].concat();
    let shares = dealt(&paces(&slow), 50, 10);
    assert_eq!(shares[0], 200);
    assert_eq!(shares.iter().sum::<u64>(), 500);
    // One step is the least that a node can make.
    assert_eq!(dealt(&paces(&[1, 100]), 1, 2), [1, 1]);
}

#[test]
fn a_long_way_costs_steps_as_slowness_does() {
    let mut paces = paces(&[10, 10]);
    let far = node("n1");
    let effort = Effort {
        steps: 10,
        micros: 100_000,
    };
    // A delay of 400 ms, and again until nothing is left of the zero before it.
    for _ in 0..30 {
        paces.on_report(&far, effort, Duration::from_millis(500));
    }
    assert_eq!(dealt(&paces, 50, 2), [70, 30]);
}

/// The model was late: its training took no longer for that.
#[test]
fn who_has_waited_for_the_model_is_not_slow() {
    let mut paces = paces(&[10, 10]);
    let effort = Effort {
        steps: 10,
        micros: 100_000,
    };
    paces.on_report(&node("n1"), effort, Duration::from_secs(9));
    let known = paces.to_vec();
    assert_eq!(known[0].step_ns, known[1].step_ns);
    assert!(known[1].delay_ns > 7_000_000_000);
}

#[test]
fn a_newcomer_is_taken_for_a_usual_node() {
    let paces = paces(&[10, 10, 40]);
    let shares = dealt(&paces, 50, 4);
    assert!(shares[3].abs_diff(shares[0]) <= 1, "{shares:?}");
    assert_eq!(shares.iter().sum::<u64>(), 200);
}

#[test]
fn shares_follow_a_node_whose_speed_changes_within_a_few_rounds() {
    let mut paces = paces(&[10, 10]);
    for round in 0..4 {
        let steps = dealt(&paces, 50, 2)[1];
        let effort = Effort {
            steps,
            micros: steps * 30_000,
        };
        paces.on_report(&node("n1"), effort, Duration::from_millis(steps * 30));
        let fast = Effort {
            steps: 100 - steps,
            micros: (100 - steps) * 10_000,
        };
        paces.on_report(&node("n0"), fast, Duration::from_millis((100 - steps) * 10));
        if round >= 1 {
            assert_eq!(dealt(&paces, 50, 2), [75, 25], "round {round}");
        }
    }
}

#[test]
fn who_does_not_report_is_at_least_as_slow_as_the_round_was_long() {
    let mut known = paces(&[10, 10]);
    known.on_silence(&node("n1"), 50, Duration::from_secs(5));
    let paces_of = known.to_vec();
    assert_eq!(paces_of[1].step_ns, (4 * 100_000_000 + 10_000_000) / 5);
    // What is known to be slower stays so: a round that ends early says nothing.
    let before = known.clone();
    known.on_silence(&node("n1"), 50, Duration::from_millis(20));
    assert_eq!(known, before);
    // Nor is the way to it taken for slowness.
    let mut far = Paces::new(vec![Pace {
        node: node("n1"),
        step_ns: 10_000_000,
        delay_ns: 5_000_000_000,
    }]);
    let before = far.clone();
    far.on_silence(&node("n1"), 50, Duration::from_secs(5));
    assert_eq!(far, before);
}

#[test]
fn what_is_written_down_gives_the_same_shares_and_is_forgotten_with_its_node() {
    let mut known = paces(&[10, 35, 70]);
    known.on_contribution(&node("n0").domain(), Duration::from_secs(1));
    let again = Paces::new(known.to_vec());
    assert_eq!(again.to_vec(), known.to_vec());
    assert_eq!(dealt(&again, 50, 3), dealt(&known, 50, 3));
    known.keep(|node| node.name() != "n1");
    assert_eq!(known.to_vec().len(), 2);
    known.keep(|_| false);
    assert_eq!(known, Paces::default());
}

#[test]
fn a_domain_takes_as_long_as_its_slowest_node_and_its_sum() {
    let mut known = paces(&[10, 30]);
    let home = node("n0").domain();
    let work = [(node("n0"), 60), (node("n1"), 10)];
    let predict = |known: &Paces| known.predict(work.iter().map(|(node, steps)| (node, *steps)));
    let lengths = |ms| BTreeMap::from([(home.clone(), Duration::from_millis(ms))]);
    assert_eq!(predict(&known), lengths(600));
    known.on_contribution(&home, Duration::from_millis(50));
    assert_eq!(predict(&known), lengths(650));
    assert_eq!(predict(&Paces::default()), BTreeMap::new());
}

fn speeds() -> impl Strategy<Value = Vec<Speed>> {
    let speed = (1..=NANOS_MAX, prop_oneof![Just(0), 0..=NANOS_MAX]);
    let usual = (1_000..1_000_000_000u64, 0..1_000_000_000u64);
    let one = prop_oneof![1 => speed, 4 => usual];
    let one = one.prop_map(|(step, delay)| Speed { step, delay });
    proptest::collection::vec(one, 1..40)
}

proptest! {
    /// What a node says of itself moves its share within the limits and no other's out of them.
    #[test]
    fn totals_are_kept_limits_hold_and_the_slower_gets_no_more(
        equal in prop_oneof![1..10u64, 1..100_000u64, Just(u64::MAX / 8)],
        speeds in speeds(),
    ) {
        let shares = deal(equal, &speeds);
        let total: u128 = shares.iter().map(|share| u128::from(*share)).sum();
        prop_assert_eq!(total, u128::from(equal) * speeds.len() as u128);
        for share in &shares {
            prop_assert!((equal.div_ceil(SPREAD)..=equal * SPREAD).contains(share));
        }
        for (one, share) in speeds.iter().zip(&shares) {
            for (other, others) in speeds.iter().zip(&shares) {
                let slower = one.step >= other.step && one.delay >= other.delay;
                prop_assert!(!slower || one == other || share <= others, "{:?} {:?}", one, other);
            }
        }
    }

    /// Nothing that comes from outside breaks the arithmetic.
    #[test]
    fn whatever_nodes_say_of_themselves_there_are_shares(
        said in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 1..20),
        equal in any::<u64>(),
    ) {
        let mut paces = Paces::default();
        for (index, (steps, micros, took, silent)) in said.iter().enumerate() {
            let node = node(&format!("n{}", index % 7));
            let effort = Effort { steps: *steps, micros: *micros };
            paces.on_report(&node, effort, Duration::from_micros(*took));
            paces.on_silence(&node, *steps, Duration::from_micros(*silent));
        }
        let paces = Paces::new(paces.to_vec());
        prop_assert_eq!(paces.shares(equal, &cohort(9)).len(), 9);
    }
}

#[test]
fn an_update_of_other_steps_is_stretched_to_what_it_counts_as() {
    let stretched = |counts_as, steps| {
        let mut update = [1.0, -3.0];
        stretch(&mut update, counts_as, steps);
        update
    };
    assert_eq!(stretched(Some(50), 20), [2.5, -7.5]);
    assert_eq!(stretched(Some(50), 100), [0.5, -1.5]);
    for as_it_is in [(None, 20), (Some(50), 50), (Some(50), 0)] {
        assert_eq!(stretched(as_it_is.0, as_it_is.1), [1.0, -3.0]);
    }
}
