//! What a run's recorded `counted` lists say that its models must be: every counted node is trained once more, alone, and folded as DESIGN.md
//! and the first lines of `core/src/fold.rs` describe it. Nothing of the run but the lists is used.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tombolo::Federation;
use tombolo::core::event::RoundRecord;
use tombolo::core::ids::NodeId;
use tombolo::core::plan::Plan;
use tombolo::core::tensor::Hash;
use tombolo::core::trainer::{Task, Trainer};
use tombolo::learn::DigitsTrainer;

/// The rounds that a coordinator has written down, in order.
pub fn records(commits: &Path) -> Vec<RoundRecord> {
    let mut files: Vec<_> = std::fs::read_dir(commits)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let records = files.iter().map(|path| {
        let mut commit: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        serde_json::from_value(commit["record"].take()).unwrap()
    });
    records.collect()
}

/// The model's hash after each of those rounds. For `fedavg` by samples without clipping, with plain SGD of rate 1 outside.
pub fn replay(topology: &Path, records: &[RoundRecord]) -> Vec<Hash> {
    let federation = Federation::from_path(topology).unwrap();
    let plan = federation.plan();
    let trainer = |node: &NodeId| DigitsTrainer::new(plan, node).unwrap();
    let mut trainers: BTreeMap<NodeId, DigitsTrainer> = plan
        .nodes()
        .map(|node| (node.id.clone(), trainer(&node.id)))
        .collect();
    let first = trainers.get_mut(&plan.coordinator).unwrap();
    let mut model = vec![0.0; first.layout().len()];
    first.initialize(plan.seed, &mut model).unwrap();
    let after = records.iter().map(|record| {
        if record.is_committed() {
            let mean = mean(plan, &mut trainers, record, &model);
            model.iter_mut().zip(&mean).for_each(|(m, step)| *m += step);
        }
        Hash::of(&model)
    });
    after.collect()
}

fn mean(
    plan: &Plan,
    trainers: &mut BTreeMap<NodeId, DigitsTrainer>,
    record: &RoundRecord,
    model: &[f32],
) -> Vec<f32> {
    let (mut global, mut total) = (None, 0.0f64);
    let domains: BTreeMap<_, _> = plan.domains.iter().map(|d| (&d.id, &d.nodes)).collect();
    for nodes in domains.values() {
        let (mut sum, mut weight) = (None, 0.0f64);
        for node in nodes.iter().filter(|n| record.counted.contains(&n.id)) {
            let task = Task {
                node: node.id.clone(),
                round: record.round,
                seed: plan.seed,
                sync_every: plan.sync_every,
                domain: tombolo_core::trainer::Domain::alone(),
            };
            let mut local = model.to_vec();
            let trainer = trainers.get_mut(&node.id).unwrap();
            let samples = trainer.train(&task, &mut local).unwrap().samples;
            let update = local
                .iter()
                .zip(model)
                .map(|(local, global)| local - global);
            add(&mut sum, update.map(|element| samples as f32 * element));
            weight += samples as f64;
        }
        let Some(sum) = sum else { continue };
        let power = 2f32.powi(weight.log2().floor() as i32);
        add(&mut global, sum.iter().map(|sum| sum / power * power));
        total += weight;
    }
    let global = global.unwrap();
    global.iter().map(|sum| sum / total as f32).collect()
}

/// The first term is the sum, so that zeros keep their signs.
fn add(sum: &mut Option<Vec<f32>>, terms: impl Iterator<Item = f32>) {
    match sum {
        None => *sum = Some(terms.collect()),
        Some(sum) => sum
            .iter_mut()
            .zip(terms)
            .for_each(|(sum, term)| *sum += term),
    }
}

/// Compares every round of a run with its replay; the run's last hash.
#[track_caller]
pub fn equals(topology: &Path, records: &[RoundRecord]) -> String {
    let rounds: Vec<u64> = records.iter().map(|record| record.round).collect();
    let expected: Vec<u64> = (1..=records.len() as u64).collect();
    assert_eq!(rounds, expected, "each round ended once");
    let hashes = replay(topology, records);
    for (record, hash) in records.iter().zip(&hashes) {
        assert_eq!(record.model_hash, *hash, "{record:#?}");
    }
    hashes.last().unwrap().to_string()
}
