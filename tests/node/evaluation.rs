//! Evaluations that fail in every way: the round is aborted with the reason, and the model and the optimizer go on as if it had not been.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tombolo_core::event::{RoundRecord, RoundState};
use tombolo_core::rng::Rng;
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

use crate::stand::{PINNED, Prank, Tiny, federation, run, topology, trained, within_limit};

type Verdict = fn(Evaluation) -> Result<Evaluation, TrainError>;

/// As [`Tiny`], but the n-th evaluation is given to the n-th verdict; the first one is of the initial model.
struct Judge {
    trainer: Tiny,
    calls: Arc<AtomicUsize>,
    verdicts: &'static [Verdict],
}

impl Trainer for Judge {
    fn layout(&self) -> Layout {
        self.trainer.layout()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        self.trainer.initialize(seed, parameters)
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        self.trainer.train(task, parameters)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        let evaluation = self.trainer.evaluate(parameters)?;
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        match self.verdicts.get(call) {
            Some(verdict) => verdict(evaluation),
            None => Ok(evaluation),
        }
    }
}

fn judged(rounds: u64, verdicts: &'static [Verdict]) -> tombolo::federation::Report {
    let (_folder, federation) = federation(&topology(rounds, PINNED));
    let calls = Arc::new(AtomicUsize::new(0));
    let federation = federation.trainer(move |_| Judge {
        trainer: Tiny::new(),
        calls: calls.clone(),
        verdicts,
    });
    within_limit(async { federation.spawn().await.unwrap().run().await.unwrap() })
}

/// What happens if in some rounds nobody has rows to train on.
fn calm(rounds: u64, without: &'static [u64]) -> Vec<RoundRecord> {
    let idle: Prank = Arc::new(move |task: &Task, _: &mut [f32]| {
        Ok(without.contains(&task.round).then(|| trained(0)))
    });
    run(&topology(rounds, PINNED), move |_| Tiny::with(idle.clone()))
        .0
        .rounds
}

#[test]
fn a_round_whose_result_cannot_be_judged_is_aborted_and_leaves_no_trace() {
    const GOOD: Verdict = Ok;
    let report = judged(
        9,
        &[
            GOOD,
            GOOD,
            |evaluation| {
                Ok(Evaluation {
                    loss: f64::NAN,
                    ..evaluation
                })
            },
            GOOD,
            |evaluation| {
                Ok(Evaluation {
                    accuracy: f64::INFINITY,
                    ..evaluation
                })
            },
            GOOD,
            |_| Err(TrainError("no test rows".into())),
            GOOD,
            |_| panic!("out of paper"),
        ],
    );
    assert_eq!(report.finished.reason, "");
    let aborted = [
        (2, "NaN"),
        (4, "inf"),
        (6, "no test rows"),
        (8, "out of paper"),
    ];
    for record in &report.rounds {
        match aborted.iter().find(|(round, _)| *round == record.round) {
            Some((_, reason)) => {
                assert_eq!(record.state, RoundState::Aborted);
                assert!(record.reason.contains(reason), "{}", record.reason);
            }
            None => assert_eq!(record.state, RoundState::Committed, "{}", record.reason),
        }
    }
    // With momentum the models would differ if a step that was not committed had left anything behind.
    let hashes = |rounds: &[RoundRecord]| -> Vec<_> {
        rounds.iter().map(|round| round.model_hash).collect()
    };
    assert_eq!(hashes(&report.rounds), hashes(&calm(9, &[2, 4, 6, 8])));
}

#[test]
fn the_initial_model_is_judged_before_the_first_round() {
    let rounds = calm(2, &[1]);
    let first = f64::from(Rng::new(7).next_f64() as f32);
    assert_eq!((rounds[0].accuracy, rounds[0].loss), (first, 0.5));
    assert_ne!(rounds[1].accuracy, first);

    let report = judged(2, &[|_| Err(TrainError("no test rows".into()))]);
    assert!(report.rounds.is_empty(), "{:?}", report.rounds);
    let reason = report.finished.reason;
    assert!(reason.contains("no test rows"), "{reason}");
}
