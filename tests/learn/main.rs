//! What is learned: the built-in trainers, the rules, the fold and the outer optimizers in a plain loop and in a real federation, compared
//! with calculations from outside and with what a run must reach.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod allocations;
mod balance;
mod federation;
mod rules;
mod schedule;
mod together;
mod topology;

use std::fmt::Write;
use std::path::Path;

use tombolo::learn::{CLASSES, Digits, DigitsTrainer, PIXELS, ROWS, TrainerError};
use tombolo_core::plan::{
    Init, InnerKind, OuterKind, Partition, Precision, SyncEvery, TrainerKind,
};
use tombolo_core::tensor::Hash;
use tombolo_core::trainer::{Snapshot, Snapshots, Task, Trainer};

use schedule::Schedule;
use topology::defaults;

#[test]
fn dumps_the_digits_as_text_for_calculations_from_outside() {
    let digits = Digits::load().unwrap();
    let mut text = String::new();
    for row in 0..ROWS {
        for pixel in digits.image(row) {
            write!(text, "{},", pixel * 16.0).unwrap();
        }
        writeln!(text, "{}", digits.label(row)).unwrap();
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("digits.csv");
    std::fs::write(&path, &text).unwrap();

    let read = std::fs::read_to_string(&path).unwrap();
    assert!(read.starts_with("0,0,5,13,9,1,0,0,0,0,13,"));
    let whole: Vec<u8> = read
        .lines()
        .flat_map(|line| line.split(',').map(|number| number.parse::<u8>().unwrap()))
        .collect();
    assert_eq!(whole.len(), ROWS * (PIXELS + 1));
    assert!(
        whole
            .chunks(PIXELS + 1)
            .all(|row| usize::from(row[PIXELS]) < CLASSES)
    );
}

#[test]
fn ten_nodes_with_sgd_agree_with_the_calculation_from_outside() {
    agrees_with_outside("ten-nodes-sgd");
}

#[test]
fn ten_nodes_with_nesterov_agree_with_the_calculation_from_outside() {
    agrees_with_outside("ten-nodes-nesterov");
}

fn agrees_with_outside(name: &str) {
    let plan = topology::read(name);
    let rounds = plan.rounds;
    let mut schedule = Schedule::new(plan);
    let expected = topology::outside(name);
    assert_eq!(expected.len() as u64, rounds);
    for expected in expected {
        let state = schedule.round();
        assert_eq!(
            state.accuracy, expected.accuracy,
            "{name}, round {}",
            expected.round
        );
        assert!(
            (state.loss - expected.loss).abs() < 1e-3,
            "{state:?} {expected:?}"
        );
        assert!(
            (state.weight_norm - expected.weight_norm).abs() < 1e-3,
            "{state:?} {expected:?}"
        );
    }
}

#[test]
fn nine_nodes_on_skewed_rows_reach_93_percent_in_twenty_rounds() {
    let mut schedule = Schedule::new(defaults());
    let states: Vec<_> = (0..20).map(|_| schedule.round()).collect();
    let last = states.last().unwrap();
    assert!(last.accuracy > 0.93, "{states:#?}");
}

#[test]
fn gradients_in_bf16_reach_the_accuracy_of_f32_within_a_point() {
    let train = |trainer, precision| {
        let mut plan = defaults();
        plan.model.trainer = trainer;
        plan.model.precision = precision;
        let mut schedule = Schedule::new(plan);
        let accuracies: Vec<f64> = (0..10).map(|_| schedule.round().accuracy).collect();
        (accuracies[9], schedule.model)
    };
    for trainer in [TrainerKind::DigitsSoftmax, TrainerKind::DigitsMlp] {
        let (exact, model) = train(trainer, Precision::F32);
        let (low, other) = train(trainer, Precision::Bf16);
        assert!((exact - low).abs() < 0.01, "{exact} {low}");
        assert!(exact > 0.85, "{exact}");
        assert_ne!(model, other, "nothing was rounded");
    }
}

#[test]
fn a_run_repeats_to_the_last_bit() {
    let run = || {
        let mut plan = defaults();
        plan.sync_every = SyncEvery::Steps(5);
        let mut schedule = Schedule::new(plan);
        schedule.round();
        schedule.round();
        Hash::of(&schedule.model)
    };
    assert_eq!(run(), run());
    // The same on every processor: no kernel is chosen by what it can do.
    assert_eq!(
        run().to_string(),
        "f9aa34448d1721a1a8786230ec59830705baa95e5b6a8d8730f1ab3bbc17d4b8"
    );
}

#[test]
fn a_round_trains_the_same_whatever_the_trainer_did_before() {
    let plan = defaults();
    let node = plan.coordinator.clone();
    let task = |round| Task {
        node: node.clone(),
        round,
        seed: plan.seed,
        sync_every: SyncEvery::Steps(20),
        domain: tombolo_core::trainer::Domain::alone(),
    };
    let mut used = DigitsTrainer::new(&plan, &node).unwrap();
    let mut start = vec![0.0; used.layout().len()];
    used.initialize(plan.seed, &mut start).unwrap();
    for round in [1, 2, 9] {
        used.train(&task(round), &mut start.clone()).unwrap();
    }
    let mut fresh = DigitsTrainer::new(&plan, &node).unwrap();
    let (mut one, mut two) = (start.clone(), start.clone());
    let told = used.train(&task(3), &mut one).unwrap();
    assert_eq!(told, fresh.train(&task(3), &mut two).unwrap());
    assert_eq!(one, two);
    assert_eq!((told.steps, told.learning_rate), (20, 0.1));
    let mut other = start.clone();
    fresh.train(&task(4), &mut other).unwrap();
    assert_ne!(other, two);
}

#[derive(Default)]
struct All(Vec<(u64, Vec<f32>, Vec<u8>)>);

impl Snapshots for All {
    fn are_due(&self) -> bool {
        true
    }

    fn take(&mut self, snapshot: Snapshot<'_>) {
        let Snapshot {
            steps,
            parameters,
            state,
        } = snapshot;
        self.0.push((steps, parameters.to_vec(), state.to_vec()));
    }
}

/// Killed in training: what is repeated is the steps since the snapshot, and the result has the same bits.
#[test]
fn a_training_that_goes_on_from_any_snapshot_ends_with_the_same_bits() {
    let plan = defaults();
    let node = plan.coordinator.clone();
    let task = Task {
        node: node.clone(),
        round: 3,
        seed: plan.seed,
        sync_every: SyncEvery::Steps(20),
        domain: tombolo_core::trainer::Domain::alone(),
    };
    let mut trainer = DigitsTrainer::new(&plan, &node).unwrap();
    let mut start = vec![0.0; trainer.layout().len()];
    trainer.initialize(plan.seed, &mut start).unwrap();
    let (mut whole, mut all) = (start.clone(), All::default());
    let told = trainer
        .train_from(&task, None, &mut whole, &mut all)
        .unwrap();
    assert_eq!(all.0.len(), 20);
    for (steps, parameters, state) in &all.0 {
        let mut trainer = DigitsTrainer::new(&plan, &node).unwrap();
        let (mut rest, mut since) = (start.clone(), All::default());
        let from = Some(Snapshot {
            steps: *steps,
            parameters,
            state,
        });
        let again = trainer.train_from(&task, from, &mut rest, &mut since);
        assert_eq!(again.unwrap(), told, "from step {steps}");
        assert_eq!(rest, whole, "from step {steps}");
        assert_eq!(since.0.len() as u64, 20 - steps);
    }
}

fn with_moments() -> tombolo_core::plan::Plan {
    let mut plan = defaults();
    plan.model.learning_rate = 0.003;
    plan.model.inner.optimizer = InnerKind::AdamW;
    plan
}

/// A trainer of one node with AdamW, the model that it starts from, and its task in a round.
fn adam() -> (DigitsTrainer, Vec<f32>, impl Fn(u64) -> Task) {
    let plan = with_moments();
    let node = plan.coordinator.clone();
    let mut trainer = DigitsTrainer::new(&plan, &node).unwrap();
    let mut start = vec![0.0; trainer.layout().len()];
    trainer.initialize(plan.seed, &mut start).unwrap();
    let task = move |round| Task {
        node: node.clone(),
        round,
        seed: 7,
        sync_every: SyncEvery::Steps(9),
        domain: tombolo_core::trainer::Domain::alone(),
    };
    (trainer, start, task)
}

fn trained(trainer: &mut DigitsTrainer, task: &Task, start: &[f32]) -> Vec<f32> {
    let mut parameters = start.to_vec();
    trainer.train(task, &mut parameters).unwrap();
    parameters
}

#[test]
fn moments_go_on_over_rounds_and_a_round_that_is_repeated_begins_with_its_own() {
    let (mut trainer, start, task) = adam();
    let first = trained(&mut trainer, &task(1), &start);
    let second = trained(&mut trainer, &task(2), &first);
    // Asked again, after an answer that was lost.
    assert_eq!(trained(&mut trainer, &task(2), &first), second);
    let third = trained(&mut trainer, &task(3), &second);
    let (mut fresh, ..) = adam();
    assert_ne!(trained(&mut fresh, &task(2), &first), second);
    assert!(fresh.state().len() > 16 * first.len());
    assert_ne!(trained(&mut adam().0, &task(3), &second), third);
}

#[test]
fn a_node_that_missed_a_round_begins_with_no_moments() {
    let (mut trainer, start, task) = adam();
    let first = trained(&mut trainer, &task(1), &start);
    let healed = trained(&mut trainer, &task(3), &first);
    assert_eq!(trained(&mut adam().0, &task(3), &first), healed);
}

/// Killed between rounds, or in a round behind any step.
#[test]
fn moments_survive_the_death_of_the_node() {
    let (mut trainer, start, task) = adam();
    let first = trained(&mut trainer, &task(1), &start);
    let kept = trainer.state();
    let (mut whole, mut all) = (first.clone(), All::default());
    let told = trainer.train_from(&task(2), None, &mut whole, &mut all);
    for (steps, parameters, state) in &all.0 {
        let (mut next, ..) = adam();
        next.restore(&kept).unwrap();
        let from = Some(Snapshot {
            steps: *steps,
            parameters,
            state,
        });
        let mut rest = first.clone();
        let again = next.train_from(&task(2), from, &mut rest, &mut All::default());
        assert_eq!((again, &rest), (told.clone(), &whole), "from step {steps}");
        assert_eq!(next.state(), trainer.state(), "from step {steps}");
    }
    assert!(adam().0.restore(&kept[1..]).is_err());
}

#[test]
fn nine_nodes_with_moments_learn_with_an_outer_step_that_looks_ahead() {
    let mut plan = with_moments();
    plan.model.learning_rate = 0.01;
    plan.outer.optimizer = OuterKind::Nesterov;
    plan.outer.learning_rate = 0.7;
    let mut schedule = Schedule::new(plan);
    let states: Vec<_> = (0..20).map(|_| schedule.round()).collect();
    let last = states.last().unwrap();
    assert!(last.accuracy > 0.93, "{states:#?}");
}

#[test]
fn every_node_starts_from_the_same_model() {
    let plan = defaults();
    let started = |node| {
        let mut trainer = DigitsTrainer::new(&plan, node).unwrap();
        let mut parameters = vec![f32::NAN; trainer.layout().len()];
        trainer.initialize(plan.seed, &mut parameters).unwrap();
        parameters
    };
    let models: Vec<Vec<f32>> = plan.nodes().map(|node| started(&node.id)).collect();
    assert_eq!(models.len(), 9);
    assert!(models.iter().all(|model| *model == models[0]));
}

#[test]
fn settings_that_cannot_train_are_refused() {
    let node = defaults().coordinator;
    let with = |change: fn(&mut tombolo_core::plan::Plan)| {
        let mut plan = defaults();
        change(&mut plan);
        DigitsTrainer::new(&plan, &node).map(|_| ())
    };
    assert_eq!(with(|_| {}), Ok(()));
    assert_eq!(with(|plan| plan.model.batch = 0), Err(TrainerError::Batch));
    assert_eq!(
        with(|plan| plan.model.hidden = 0),
        Err(TrainerError::Hidden { hidden: 0 })
    );
    assert_eq!(
        with(|plan| plan.model.init = Init::Zeros),
        Err(TrainerError::ZeroMlp)
    );
    for rate in [0.0, -0.1, f64::INFINITY, f64::NAN] {
        let mut plan = defaults();
        plan.model.learning_rate = rate;
        assert!(DigitsTrainer::new(&plan, &node).is_err(), "{rate}");
    }
    for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut plan = defaults();
        plan.model.partition = Partition::Dirichlet { alpha };
        assert!(DigitsTrainer::new(&plan, &node).is_err(), "{alpha}");
    }
    let stranger = "hq/stranger".parse().unwrap();
    assert_eq!(
        DigitsTrainer::new(&defaults(), &stranger)
            .map(|_| ())
            .unwrap_err(),
        TrainerError::UnknownNode { node: stranger }
    );
}

#[test]
fn tasks_that_do_not_fit_are_refused_and_change_nothing() {
    let mut plan = defaults();
    plan.model.trainer = TrainerKind::DigitsSoftmax;
    let node = plan.coordinator.clone();
    let mut trainer = DigitsTrainer::new(&plan, &node).unwrap();
    let mut parameters = vec![0.25; 650];
    let task = |node: &str, steps| Task {
        node: node.parse().unwrap(),
        round: 1,
        seed: 7,
        sync_every: SyncEvery::Steps(steps),
        domain: tombolo_core::trainer::Domain::alone(),
    };
    for (task, words) in [
        (task("plant/stranger", 1), "plant/stranger"),
        (task(node.as_str(), 0), "no step"),
    ] {
        let error = trainer.train(&task, &mut parameters).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let error = trainer
        .train(&task(node.as_str(), 1), &mut parameters[..649])
        .unwrap_err();
    assert!(error.to_string().contains("649") && error.to_string().contains("650"));
    assert!(trainer.evaluate(&parameters[1..]).is_err());
    assert!(trainer.initialize(7, &mut parameters[1..]).is_err());
    assert!(parameters.iter().all(|parameter| *parameter == 0.25));
}
