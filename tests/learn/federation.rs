//! The reference topologies as real federations: nodes, links, QUIC, shared memory and all.

use tombolo::{Federation, Round, Simulation};

use crate::topology::{file, outside};

const FILES: [&str; 3] = ["ten-nodes-sgd.toml", "ten-nodes-nesterov.toml", "rows.json"];

fn agrees(name: &str, rounds: &[Round]) {
    let expected = outside(name);
    assert_eq!(rounds.len(), expected.len());
    for (round, expected) in rounds.iter().zip(&expected) {
        assert_eq!(round.round, expected.round);
        assert_eq!(
            round.accuracy, expected.accuracy,
            "{name}: {round:?} {expected:?}"
        );
        assert!(
            (round.loss - expected.loss).abs() < 1e-3,
            "{name}: {round:?} {expected:?}"
        );
        assert!(
            (round.weight_norm - expected.weight_norm).abs() < 1e-3,
            "{name}: {round:?} {expected:?}"
        );
    }
    // The participation schedule of the file.
    let counted = |round: usize| rounds[round - 1].counted.len();
    assert_eq!(
        [counted(1), counted(3), counted(4), counted(6), counted(9)],
        [10, 9, 7, 6, 9]
    );
}

fn run(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    for name in FILES {
        std::fs::write(folder.path().join(name), file(name)).unwrap();
    }
    let path = folder.path().join(format!("{name}.toml"));
    let simulated = Simulation::from_path(&path).unwrap().run().unwrap();
    agrees(name, simulated.rounds());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let report = runtime.block_on(async {
        let running = Federation::from_path(&path).unwrap().spawn().await.unwrap();
        running.run().await.unwrap()
    });
    agrees(name, report.rounds());
    assert_eq!(report.finished.model_hash, simulated.finished.model_hash);
}

#[test]
fn ten_real_nodes_with_sgd_agree_with_the_calculation_from_outside() {
    run("ten-nodes-sgd");
}

#[test]
fn ten_real_nodes_with_nesterov_agree_with_the_calculation_from_outside() {
    run("ten-nodes-nesterov");
}
