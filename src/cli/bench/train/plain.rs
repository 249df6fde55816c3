//! The baseline: the nodes of a plan train by themselves, a thread each, and nobody hears of anybody.

use std::io;
use std::sync::Barrier;
use std::time::Instant;

use serde_json::{Value, json};

use super::super::measure::{Measurement, cpu_seconds, now};
use super::prefetch::{Batches, Gathered, ahead};
use tombolo::learn::{Digits, DigitsTrainer, partition};
use tombolo_core::plan::Plan;
use tombolo_core::rng::Rng;
use tombolo_core::trainer::{NoSnapshots, Snapshots, Task, TrainError, Trainer};

/// Where a step has its rows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// From the table of all digits, as the built-in trainers do.
    InPlace,
    /// The thread copies each batch before the step.
    Gathered,
    /// A second thread copies each batch while the first takes the step before.
    Prefetched,
}

/// What came of it.
#[derive(Debug)]
pub struct Plain {
    nodes: usize,
    /// Of all threads together.
    pub samples_per_s: f64,
    /// Of the model that each of them trains.
    pub model_bytes: u64,
    /// Each measured round of each thread.
    seconds: Vec<f64>,
    cpu_s_per_round: f64,
    ok: bool,
}

/// One node's part.
struct Lane {
    trainer: DigitsTrainer,
    task: Task,
    parameters: Vec<f32>,
    batches: Batches,
}

/// What a lane found.
struct Found {
    rows: u64,
    /// When the first measured round began, then when each of them ended.
    ends: Vec<Instant>,
    learned: bool,
}

/// The first `nodes` of a plan train its rounds; the first round is not measured.
pub fn measure(plan: &Plan, nodes: usize, epochs: u64, rows: Rows) -> io::Result<Plain> {
    let lanes = lanes(plan, nodes)?;
    let nodes = lanes.len();
    let elements = lanes.first().map_or(0, |lane| lane.parameters.len());
    let warm = Barrier::new(nodes + 1);
    let (found, cpu_s) = std::thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .into_iter()
            .map(|lane| scope.spawn(|| lane.train_from(rows, plan.rounds, &warm)))
            .collect();
        warm.wait();
        let before = cpu_seconds(std::process::id())?;
        let found: Vec<Found> = threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(found) => found.map_err(io::Error::other),
                Err(_) => Err(io::Error::other("a thread that trains panicked")),
            })
            .collect::<io::Result<_>>()?;
        io::Result::Ok((found, cpu_seconds(std::process::id())? - before))
    })?;
    let rounds = plan.rounds.saturating_sub(1);
    let rows: u64 = found.iter().map(|found| found.rows).sum();
    // From the first that began to the last that ended.
    let began = found.iter().filter_map(|found| found.ends.first()).min();
    let ended = found.iter().filter_map(|found| found.ends.last()).max();
    let wall = began.zip(ended).map(|(began, ended)| *ended - *began);
    let between = |pair: &[Instant]| (pair[1] - pair[0]).as_secs_f64();
    let seconds = found.iter().flat_map(|found| found.ends.windows(2));
    Ok(Plain {
        nodes,
        samples_per_s: (rows * epochs * rounds) as f64 / wall.unwrap_or_default().as_secs_f64(),
        model_bytes: elements as u64 * 4,
        cpu_s_per_round: cpu_s / rounds as f64,
        seconds: seconds.map(between).collect(),
        ok: found.iter().all(|found| found.learned),
    })
}

fn lanes(plan: &Plan, nodes: usize) -> io::Result<Vec<Lane>> {
    let digits = Digits::load().map_err(io::Error::other)?;
    let parts = partition(plan).map_err(io::Error::other)?;
    let lane = |(node, mut rows): (_, Vec<usize>)| {
        let mut trainer = DigitsTrainer::new(plan, &node).map_err(io::Error::other)?;
        let mut parameters = vec![0.0; trainer.layout().len()];
        let initialized = trainer.initialize(plan.seed, &mut parameters);
        initialized.map_err(io::Error::other)?;
        // As scattered in memory as the trainer's batches are.
        Rng::derive(plan.seed, &[node.as_str().as_bytes()]).shuffle(&mut rows);
        Ok(Lane {
            trainer,
            task: Task {
                node,
                round: 1,
                seed: plan.seed,
                sync_every: plan.sync_every,
                domain: tombolo_core::trainer::Domain::alone(),
            },
            parameters,
            batches: Batches {
                digits,
                rows,
                batch: plan.model.batch,
            },
        })
    };
    parts.into_iter().take(nodes).map(lane).collect()
}

impl Lane {
    fn train_from(self, rows: Rows, rounds: u64, warm: &Barrier) -> Result<Found, TrainError> {
        let batches = self.batches.clone();
        match rows {
            Rows::InPlace => self.train(NoSnapshots, rounds, warm),
            Rows::Gathered => self.train(Gathered::new(batches), rounds, warm),
            Rows::Prefetched => std::thread::scope(|scope| {
                let (prefetched, gatherer) = ahead(batches);
                scope.spawn(|| gatherer.run());
                self.train(prefetched, rounds, warm)
            }),
        }
    }

    /// Trains the first round, waits for the others, trains the rest without waiting for anybody.
    fn train(
        mut self,
        mut after_each_step: impl Snapshots,
        rounds: u64,
        warm: &Barrier,
    ) -> Result<Found, TrainError> {
        let mut round = |round| {
            self.task.round = round;
            self.trainer
                .train_from(&self.task, None, &mut self.parameters, &mut after_each_step)
        };
        let first = round(1);
        // Whatever came of it: the others wait.
        warm.wait();
        let first = first?;
        let (mut ends, mut learned) = (vec![now()], false);
        for number in 2..=rounds {
            learned = round(number)?.loss < first.loss;
            ends.push(now());
        }
        Ok(Found {
            rows: first.samples,
            ends,
            learned,
        })
    }
}

impl Plain {
    /// The fastest round of any thread.
    pub fn fastest_s(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The line of a case, with fields of its own.
    pub fn line(self, case: &str, own: Value) -> Value {
        let mut more = json!({ "samples_per_s": self.samples_per_s });
        for (name, value) in own.as_object().into_iter().flatten() {
            more[name] = value.clone();
        }
        let measurement = Measurement {
            group: "train",
            peer: "plain-loops",
            case: case.into(),
            n: self.nodes,
            bytes: self.model_bytes,
            seconds: self.seconds,
            cpu_s_per_op: self.cpu_s_per_round,
            ok: self.ok,
            more: more.as_object().cloned().unwrap_or_default(),
        };
        measurement.to_json()
    }
}
