use super::*;

const ALL: [OuterKind; 6] = [
    OuterKind::Sgd,
    OuterKind::Momentum,
    OuterKind::Nesterov,
    OuterKind::Adam,
    OuterKind::Yogi,
    OuterKind::Adagrad,
];

fn plan(optimizer: OuterKind) -> OuterPlan {
    OuterPlan {
        optimizer,
        learning_rate: 0.5,
        momentum: 0.75,
        beta1: 0.5,
        beta2: 0.75,
        epsilon: 0.5,
    }
}

fn steps(optimizer: &mut dyn OuterOptimizer, means: &[[f32; 2]]) -> Vec<[f32; 2]> {
    let step = |mean: &[f32; 2]| {
        let mut step = *mean;
        optimizer.step(0, &mut step).unwrap();
        optimizer.accept();
        step
    };
    means.iter().map(step).collect()
}

#[test]
fn two_steps_by_hand() {
    let means = [[1.0, -2.0], [0.5, 4.0]];
    for (kind, expected) in [
        (OuterKind::Sgd, [[0.5, -1.0], [0.25, 2.0]]),
        // v: (1, -2), then 0.75 v + g = (1.25, 2.5).
        (OuterKind::Momentum, [[0.5, -1.0], [0.625, 1.25]]),
        (OuterKind::Nesterov, [[0.875, -1.75], [0.71875, 2.9375]]),
    ] {
        assert_eq!(
            steps(build(&plan(kind), 2).as_mut(), &means),
            expected,
            "{kind:?}"
        );
    }
}

#[test]
fn adaptive_moments_by_hand() {
    // v begins at 0.25; g is 1, -2, then 0.5, 4.
    for (kind, first, second) in [
        (OuterKind::Adam, [0.4375, 1.1875], [0.390_625, 4.890_625]),
        (OuterKind::Yogi, [0.5, 1.25], [0.4375, 5.25]),
        (OuterKind::Adagrad, [1.25, 4.25], [1.5, 20.25]),
    ] {
        let mut optimizer = build(&plan(kind), 2);
        steps(optimizer.as_mut(), &[[1.0, -2.0]]);
        let state = [("momentum", &[0.5, -1.0][..]), ("second_moment", &first)];
        assert_eq!(optimizer.state(), state, "{kind:?}");
        let step = steps(optimizer.as_mut(), &[[0.5, 4.0]]);
        let state = [("momentum", &[0.5, 1.5][..]), ("second_moment", &second)];
        assert_eq!(optimizer.state(), state, "{kind:?}");
        let [a, b] = second.map(f32::sqrt);
        assert_eq!(step, [[0.25 / (a + 0.5), 0.75 / (b + 0.5)]], "{kind:?}");
    }
}

#[test]
fn slices_in_any_order_give_the_whole() {
    for kind in ALL {
        let (mut whole, mut parts) = (build(&plan(kind), 5), build(&plan(kind), 5));
        for round in 1..4 {
            let mean: Vec<f32> = (0..5).map(|i| (i * round) as f32 * 0.3 - 1.0).collect();
            let (mut one, mut two) = (mean.clone(), mean);
            whole.step(0, &mut one).unwrap();
            parts.step(3, &mut two[3..]).unwrap();
            parts.step(0, &mut two[..3]).unwrap();
            assert_eq!(one, two, "{kind:?}");
            assert_eq!(whole.state(), parts.state());
            whole.accept();
            parts.accept();
        }
        assert_eq!(whole.state(), parts.state());
    }
}

#[test]
fn restored_state_goes_on_as_if_nothing_had_happened() {
    for kind in ALL {
        let mut first = build(&plan(kind), 2);
        steps(first.as_mut(), &[[1.0, 2.0], [3.0, -4.0]]);
        let mut second = build(&plan(kind), 2);
        second.restore(&first.state()).unwrap();
        let next = [[0.1, 0.2], [0.3, 0.4]];
        let expected = steps(first.as_mut(), &next);
        assert_eq!(steps(second.as_mut(), &next), expected, "{kind:?}");
    }
}

#[test]
fn a_step_that_was_not_accepted_was_never_taken() {
    for kind in ALL {
        let (mut calm, mut tried) = (build(&plan(kind), 2), build(&plan(kind), 2));
        for mean in [[1.0, -2.0], [0.5, 4.0], [3.0, 0.25]] {
            tried.step(0, &mut [f32::NAN, 9.0]).unwrap();
            tried.step(0, &mut [8.0, -7.0]).unwrap();
            let expected = steps(calm.as_mut(), &[mean]);
            assert_eq!(steps(tried.as_mut(), &[mean]), expected, "{kind:?}");
            assert_eq!(tried.state(), calm.state());
            tried.accept();
            assert_eq!(tried.state(), calm.state(), "nothing is left to accept");
        }
    }
}

#[test]
fn what_is_stored_is_the_state_after_the_last_step() {
    let mut nesterov = build(&plan(OuterKind::Nesterov), 1);
    assert_eq!(nesterov.state(), [("velocity", &[0.0][..])]);
    nesterov.step(0, &mut [2.0]).unwrap();
    assert_eq!(nesterov.state(), [("velocity", &[2.0][..])]);
    nesterov.restore(&[("velocity", &[5.0])]).unwrap();
    assert_eq!(nesterov.state(), [("velocity", &[5.0][..])]);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut nesterov = build(&plan(OuterKind::Nesterov), 2);
    let mut slice = [1.0, 2.0];
    assert_eq!(
        nesterov.step(1, &mut slice),
        Err(OuterError::OutOfModel {
            offset: 1,
            end: 3,
            len: 2
        })
    );
    assert!(nesterov.step(usize::MAX, &mut slice).is_err());
    assert!(build(&plan(OuterKind::Sgd), 2).step(1, &mut slice).is_err());
    assert_eq!(slice, [1.0, 2.0]);
    assert!(matches!(
        nesterov.restore(&[]),
        Err(OuterError::OtherState { .. })
    ));
    assert!(matches!(
        nesterov.restore(&[("velocity", &[1.0])]),
        Err(OuterError::OtherLength { .. })
    ));
    let mut sgd = build(&plan(OuterKind::Sgd), 2);
    assert!(sgd.restore(&nesterov.state()).is_err());
    assert_eq!(nesterov.state(), [("velocity", &[0.0, 0.0][..])]);
}

#[test]
fn a_step_is_added_to_the_model() {
    let mut model = [1.0, 2.0];
    adopt(&mut model, &[0.5, -2.0]);
    assert_eq!(model, [1.5, 0.0]);
}
