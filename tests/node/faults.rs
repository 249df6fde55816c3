//! Trainers that fail in every way: the round goes on, and the record says who and why.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tombolo_core::event::{Event, RoundRecord, RoundState};
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

use crate::stand::{PINNED, Prank, Tiny, federation, node, run, topology, trained, within_limit};

/// Everybody but one must be in, so that on a slow machine nobody else is left out.
const MOST: &str = "quorum = { nodes = 5, domains = 2 }\ngrace = \"20s\"\ndeadline = \"60s\"";
const CULPRIT: &str = "plant/c";

/// The culprit does this in round 2; everyone else is as good as ever.
fn in_round_2(
    prank: impl Fn(&Task, &mut [f32]) -> Result<Option<Trained>, TrainError> + Send + Sync + 'static,
) -> impl Fn(&NodeId) -> Tiny {
    let prank: Prank = Arc::new(move |task: &Task, parameters: &mut [f32]| {
        if (task.node.as_str(), task.round) == (CULPRIT, 2) {
            prank(task, parameters)
        } else {
            Ok(None)
        }
    });
    move |_| Tiny::with(prank.clone())
}

/// What a federation does in which the culprit does not take part in round 2.
fn without_the_culprit() -> Vec<RoundRecord> {
    let absent = format!("{MOST}\nabsent = [{{ round = 2, nodes = [\"{CULPRIT}\"] }}]");
    run(&topology(3, &absent), |_| Tiny::new()).0.rounds
}

/// WAFFLE#6: weights are normalised over those who contributed, so a round without the culprit is the same as one in which it was never asked.
fn assert_left_out(rounds: &[RoundRecord], reason: &str) {
    let states: Vec<RoundState> = rounds.iter().map(|round| round.state).collect();
    assert_eq!(
        states,
        [
            RoundState::Committed,
            RoundState::Degraded,
            RoundState::Committed
        ],
        "{rounds:?}"
    );
    let second = &rounds[1];
    assert!(!second.counted.contains(&node(CULPRIT)));
    assert_eq!(second.counted.len(), 5);
    assert!(second.reason.contains(CULPRIT), "{}", second.reason);
    assert!(second.reason.contains(reason), "{}", second.reason);
    let hashes = |rounds: &[RoundRecord]| -> Vec<_> {
        rounds.iter().map(|round| round.model_hash).collect()
    };
    assert_eq!(
        hashes(rounds),
        hashes(&without_the_culprit()),
        "the rest is averaged, as if the culprit had not been asked"
    );
}

#[test]
fn a_trainer_that_panics_is_left_out_of_that_round() {
    let (report, events) = run(
        &topology(3, MOST),
        in_round_2(|_, _| panic!("out of paper")),
    );
    assert_left_out(&report.rounds, "out of paper");
    let told = |event: &Event| matches!(event, Event::TrainingFailed { node, round: 2, reason } if node.as_str() == CULPRIT && reason.contains("out of paper"));
    assert!(events.iter().any(told));
}

#[test]
fn a_trainer_that_panics_once_is_made_anew_and_counts() {
    let calls = AtomicUsize::new(0);
    let once = in_round_2(move |_, _| {
        assert!(calls.fetch_add(1, Ordering::Relaxed) > 0, "the first time");
        Ok(None)
    });
    let (report, _) = run(&topology(3, PINNED), once);
    let (calm, _) = run(&topology(3, PINNED), |_| Tiny::new());
    assert!(
        report
            .rounds
            .iter()
            .all(|round| round.state == RoundState::Committed)
    );
    assert_eq!(report.finished.model_hash, calm.finished.model_hash);
}

#[test]
fn a_trainer_that_says_no_is_left_out_of_that_round() {
    let prank = in_round_2(|_, _| Err(TrainError("no rows today".into())));
    let (report, _) = run(&topology(3, MOST), prank);
    assert_left_out(&report.rounds, "no rows today");
}

/// FIELD_FAULTS: tensorflow-federated#742, MediSwarm#566.
#[test]
fn an_update_with_a_nan_or_an_infinity_is_refused_and_attributed() {
    // At borders of slices and in each of them.
    for (bad, at) in [
        (f32::NAN, 0),
        (f32::INFINITY, 4095),
        (f32::NEG_INFINITY, 4096),
        (f32::NAN, 8196),
    ] {
        {
            let prank = in_round_2(move |_, parameters| {
                parameters[at] = bad;
                Ok(Some(trained(10)))
            });
            let (report, events) = run(&topology(3, MOST), prank);
            assert_left_out(&report.rounds, "not finite");
            let refused = &report.rounds[1].refused;
            assert_eq!(refused.len(), 1, "{refused:?}");
            assert_eq!(refused[0].0, node(CULPRIT));
            let told = |event: &Event| matches!(event, Event::UpdateRefused { node, round: 2, .. } if node.as_str() == CULPRIT);
            assert!(events.iter().any(told));
        }
    }
}

/// FIELD_FAULTS: flower#7645, flower#7708.
#[test]
fn no_rows_anywhere_is_a_failed_round_and_the_model_is_kept() {
    let idle: Prank = Arc::new(|_: &Task, _: &mut [f32]| Ok(Some(trained(0))));
    let (report, _) = run(&topology(5, PINNED), move |_| Tiny::with(idle.clone()));
    assert!(report.never_met_quorum());
    assert_eq!(report.rounds.len(), 3, "failed_limit");
    let mut initial = vec![0.0; 2 * 4096 + 5];
    Tiny::new().initialize(7, &mut initial).unwrap();
    for round in &report.rounds {
        assert_eq!(round.state, RoundState::Aborted);
        assert!(round.reason.contains("weight zero"), "{}", round.reason);
        assert_eq!(round.model_hash, tombolo_core::tensor::Hash::of(&initial));
    }
    assert!(report.finished.reason.contains("3 rounds in a row failed"));
}

/// As [`Tiny`], but at one node the model has another shape.
struct Skewed(Tiny, bool);

impl Trainer for Skewed {
    fn layout(&self) -> Layout {
        if self.1 {
            Layout::new([("bias", vec![5]), ("weight", vec![4096, 2])]).unwrap()
        } else {
            self.0.layout()
        }
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        self.0.initialize(seed, parameters)
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        self.0.train(task, parameters)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.0.evaluate(parameters)
    }
}

/// FIELD_FAULTS: ultralytics#9554, flower#1427, FATE#5639, secretflow#1009.
#[test]
fn another_layout_at_one_node_is_refused_naming_tensor_and_both_sides() {
    let (folder, federation) = federation(&topology(2, &MOST.replace("20s", "200ms")));
    let federation = federation.trainer(|node| Skewed(Tiny::new(), node.as_str() == CULPRIT));
    let report = within_limit(async { federation.spawn().await.unwrap().run().await.unwrap() });
    // It is said as soon as the node starts, before anybody can listen: the log has it.
    let log = std::fs::read_to_string(folder.path().join("state/events.jsonl")).unwrap();
    let mut lines = log.lines();
    let why = lines.find(|line| line.contains("training_failed")).unwrap();
    assert!(why.contains(CULPRIT), "{why}");
    for part in ["weight", "[8192]", "[4096, 2]"] {
        assert!(why.contains(part), "{why}");
    }
    for round in &report.rounds {
        assert_eq!(round.state, RoundState::Degraded);
        assert_eq!(round.late, [node(CULPRIT)]);
    }
}

/// In a real deployment the paths are as they are: what the topology says of emulated ones is for one machine.
#[test]
fn a_node_of_a_real_deployment_emulates_no_path() {
    let far = "\n[[link]]\nbetween = [\"hq\", \"plant\"]\nemulate = { delay = \"60s\" }\n";
    let topology = topology(2, PINNED)
        .replace("[\"gate\", \"a\", \"b\"]", "[\"gate\"]")
        .replace("[\"gate\", \"c\", \"d\"]", "[\"gate\"]")
        + far;
    let folder = tempfile::tempdir().unwrap();
    let one = |name| {
        let federation = tombolo::Federation::from_toml(&topology, folder.path()).unwrap();
        let federation = federation.state(folder.path().join("state"));
        federation.prepare().unwrap();
        let federation = federation.trainer(|_| Tiny::new());
        async move { federation.spawn_node(&node(name)).await.unwrap() }
    };
    // Both are prepared before there is a run in the folder.
    let (hq, plant) = (one("hq/gate"), one("plant/gate"));
    let report = within_limit(async {
        let (hq, plant) = (hq.await, plant.await);
        let others = async {
            let _ = plant.run().await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            report = hq.run() => report.unwrap(),
            () = others => unreachable!("it waits for ever"),
        }
    });
    assert_eq!(report.finished.committed, 2, "{report:#?}");
}

#[test]
fn a_trainer_that_cannot_be_made_again_is_said() {
    let makes = Arc::new(AtomicUsize::new(0));
    let (_folder, federation) = federation(&topology(3, &MOST.replace("20s", "200ms")));
    let prank: Prank = Arc::new(|task: &Task, _: &mut [f32]| {
        assert!(task.node.as_str() != CULPRIT || task.round != 2, "broken");
        Ok(None)
    });
    let federation = federation.trainer(move |node: &NodeId| {
        // One is made to learn the layout.
        if node.as_str() == CULPRIT && makes.fetch_add(1, Ordering::Relaxed) > 1 {
            panic!("the disk is gone");
        }
        Tiny::with(prank.clone())
    });
    let (report, seen) = within_limit(async {
        let running = federation.spawn().await.unwrap();
        let mut events = running.events();
        let report = running.run().await.unwrap();
        let mut seen = Vec::new();
        while let Ok(event) = events.try_recv() {
            seen.push(event);
        }
        (report, seen)
    });
    assert_eq!(report.rounds.len(), 3);
    let told = |event: &Event| matches!(event, Event::TrainingFailed { node, reason, .. } if node.as_str() == CULPRIT && reason.contains("could not be made again"));
    assert!(seen.iter().any(told), "{seen:?}");
}
