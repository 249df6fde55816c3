//! The two examples, through real federations over loopback QUIC: what they reach, and what it costs to send less.
//!
//! With `TOMBOLO_CANDLE=whole` they run as their files say and must reach the figures below; else they take a few steps and must learn something.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use serde_json::json;
use tombolo::core::event::RoundRecord;
use tombolo::core::trainer::Evaluation;
use tombolo::learn::Gradient;
use tombolo_candle::{CandleGradient, Learner};

#[expect(dead_code, reason = "its `main` is for `cargo run`")]
#[path = "../examples/fashion_cnn.rs"]
mod fashion_cnn;

#[expect(dead_code, reason = "its `main` is for `cargo run`")]
#[path = "../examples/sonnets.rs"]
mod sonnets;

use fashion_cnn::Wardrobe;
use sonnets::{Sonnets, bits};

/// What the whole runs must reach. Measured: see the section `candle` of `docs/RESULTS.md`.
const ACCURACY: f64 = 0.84;
const BITS: f64 = 3.2;
/// Of the compressed run, by rounds; and of the bytes, the most.
const CONVERGENCE: f64 = 0.8;
const BYTES_SHARE: f64 = 0.35;

fn is_whole() -> bool {
    std::env::var("TOMBOLO_CANDLE").is_ok_and(|how| how == "whole")
}

/// The topology as it is, or with two rounds of a few steps.
fn topology(text: &str) -> String {
    if is_whole() {
        return text.to_owned();
    }
    let lines = text.lines().map(|line| match line.split(' ').next() {
        Some("rounds") => "rounds = 2",
        Some("sync_every") => "sync_every = 5",
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The committed model, found by name in its file.
fn judged<L: Learner>(learner: &L, safetensors: Vec<u8>) -> Evaluation {
    let vars = VarBuilder::from_buffered_safetensors(safetensors, DType::F32, &Device::Cpu);
    let model = learner.build(vars.unwrap()).unwrap();
    learner.evaluate(&model).unwrap()
}

/// What is known of the model before any training.
fn untrained<L: Learner>(learner: L) -> (usize, Evaluation) {
    let mut gradient = CandleGradient::new(learner, Device::Cpu).unwrap();
    let mut parameters = vec![0.0; gradient.layout().len()];
    gradient.initialize(7, &mut parameters).unwrap();
    (parameters.len(), gradient.evaluate(&parameters).unwrap())
}

/// What a round sends to the coordinator. Without the first, which has all that was sent before it, too.
fn bytes_up(rounds: &[RoundRecord]) -> u64 {
    let rounds = &rounds[1..];
    rounds.iter().map(|round| round.bytes_up).sum::<u64>() / rounds.len() as u64
}

#[tokio::test]
async fn a_convolutional_network_learns_clothes() {
    let of = "CNN, Fashion-MNIST";
    let mut wardrobe = match Wardrobe::read(Path::new(fashion_cnn::FOLDER)) {
        Ok(wardrobe) => wardrobe,
        Err(error) => {
            println!("{}", json!({"model": of, "skipped": format!("{error:#}")}));
            return;
        }
    };
    if !is_whole() {
        wardrobe.test = wardrobe.test.first(500);
    }
    let (parameters, before) = untrained(wardrobe.clone());
    let topology = topology(include_str!("../examples/fashion_cnn.toml"));
    let folder = tempfile::tempdir().unwrap();
    let outcome = fashion_cnn::run(&topology, folder.path(), &wardrobe).await;
    let outcome = outcome.unwrap();
    let finished = &outcome.report.finished;
    assert!(outcome.report.succeeded(), "{finished:?}");
    let read = judged(&wardrobe, outcome.safetensors);
    assert_eq!(
        (read.accuracy, read.loss),
        (finished.accuracy, finished.loss)
    );
    assert!(read.loss < before.loss, "{before:?} {read:?}");
    if is_whole() {
        let figures = json!({
            "model": of,
            "parameters": parameters,
            "nodes": 4,
            "rounds": finished.rounds,
            "accuracy_untrained_percent": percent(before.accuracy),
            "accuracy_percent": percent(read.accuracy),
            "loss": rounded(read.loss),
            "bytes_up_a_round": bytes_up(outcome.report.rounds()),
        });
        println!("{figures}");
        assert!(read.accuracy >= ACCURACY, "{read:?}");
    }
}

#[tokio::test]
async fn a_transformer_learns_sonnets_also_over_a_frugal_link() {
    let sonnets = Sonnets::read();
    let (parameters, before) = untrained(sonnets.clone());
    let plain = topology(include_str!("../examples/sonnets.toml"));
    let compressed = format!("{plain}\n{}", sonnets::COMPRESSED);
    let mut runs = Vec::new();
    for topology in [&plain, &compressed] {
        let folder = tempfile::tempdir().unwrap();
        let outcome = sonnets::run(topology, folder.path(), &sonnets).await;
        let outcome = outcome.unwrap();
        let finished = &outcome.report.finished;
        assert!(outcome.report.succeeded(), "{finished:?}");
        if is_whole() && runs.is_empty() {
            // For `checkpoint.py`.
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sonnets.safetensors");
            std::fs::write(path, &outcome.safetensors).unwrap();
        }
        let read = judged(&sonnets, outcome.safetensors);
        assert_eq!(
            (read.accuracy, read.loss),
            (finished.accuracy, finished.loss)
        );
        assert!(read.loss < before.loss, "{before:?} {read:?}");
        runs.push(outcome.report);
    }
    let [plain, compressed] = [0, 1].map(|run| runs[run].rounds());
    // A round that is aborted makes another course.
    for round in plain.iter().chain(compressed) {
        assert!(round.is_committed(), "{round:?}");
    }
    let share = bytes_up(compressed) as f64 / bytes_up(plain) as f64;
    assert!(share <= BYTES_SHARE, "{share}");
    if !is_whole() {
        return;
    }
    let convergence = convergence(plain, compressed);
    let rows = [
        ("none", plain, 1.0, 1.0, json!("")),
        (
            "topk+fp16, 10 %",
            compressed,
            convergence,
            share,
            json!("0.92 of the speed, 35 % of the bytes"),
        ),
    ];
    for (codec, rounds, convergence, share, claimed) in rows {
        let last = rounds.last().unwrap();
        let figures = json!({
            "model": "transformer, sonnets",
            "parameters": parameters,
            "codec": codec,
            "rounds": rounds.len(),
            "bits_untrained": rounded(bits(before.loss)),
            "bits_a_character": rounded(bits(last.loss)),
            "bytes_up_a_round": bytes_up(rounds),
            "of_the_bytes_percent": percent(share),
            "speed_by_rounds": rounded(convergence),
            "claimed": claimed,
        });
        println!("{figures}");
    }
    let [plain, compressed] = [plain, compressed].map(|rounds| bits(rounds.last().unwrap().loss));
    assert!(plain <= BITS && compressed <= BITS, "{plain} {compressed}");
    assert!(convergence >= CONVERGENCE, "{convergence}");
}

/// How fast the second run learns, the first being 1: the rounds that the better one of them needs to where the other ends, to the rounds of that.
fn convergence(first: &[RoundRecord], second: &[RoundRecord]) -> f64 {
    let last = |rounds: &[RoundRecord]| rounds.last().unwrap().loss;
    let needed = |rounds: &[RoundRecord], loss: f64| {
        let at = rounds.iter().position(|round| round.loss <= loss).unwrap();
        let Some(before) = at.checked_sub(1).map(|before| rounds[before].loss) else {
            return 1.0;
        };
        at as f64 + (before - loss) / (before - rounds[at].loss)
    };
    match last(first) <= last(second) {
        true => needed(first, last(second)) / second.len() as f64,
        false => first.len() as f64 / needed(second, last(first)),
    }
}

/// Fewer bits on a CPU: what they do to learning, and what they cost.
#[test]
fn a_transformer_learns_nearly_the_same_in_fewer_bits() {
    let steps = if is_whole() { 40 } else { 3 };
    let mut ends = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let sonnets = Sonnets::read();
        let rows = sonnets.rows(0, 1);
        let gradient = CandleGradient::new(sonnets, Device::Cpu).unwrap();
        let mut gradient = gradient.precision(dtype).unwrap();
        let mut parameters = vec![0.0; gradient.layout().len()];
        let mut slope = parameters.clone();
        gradient.initialize(7, &mut parameters).unwrap();
        let (began, mut last) = (cpu_seconds(), 0.0);
        for step in 0..steps {
            let batch: Vec<usize> = rows.iter().skip(step * 97).step_by(6007).copied().collect();
            last = gradient.slope(&batch, &parameters, &mut slope).unwrap();
            for (parameter, slope) in parameters.iter_mut().zip(&slope) {
                *parameter -= 0.1 * slope;
            }
        }
        let spent = cpu_seconds() - began;
        if is_whole() {
            let figures = json!({
                "precision": dtype.as_str(),
                "steps": steps,
                "loss_of_the_last_batch": rounded(last),
                "cpu_ms_a_step": rounded(1000.0 * spent / steps as f64),
            });
            println!("{figures}");
        }
        ends.push(last);
    }
    for low in &ends[1..] {
        assert!((ends[0] - low).abs() < 0.02 * ends[0], "{ends:?}");
        assert_ne!(ends[0], *low, "it was not computed in fewer bits");
    }
}

/// Of this process: in the soak, one test runs at a time.
fn cpu_seconds() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn percent(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
