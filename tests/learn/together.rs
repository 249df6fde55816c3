//! The nodes of a domain that take each step together, with real links, shared memory and threads.

use std::sync::{Arc, Mutex};

use tombolo::learn::Digits;
use tombolo::{Federation, FederationError, Report, Simulation};
use tombolo_core::collective::Operation;
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

fn run(federation: Federation) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime
        .block_on(async { federation.spawn().await.unwrap().run().await })
        .unwrap()
}

/// Three islands: one of three nodes, one of a single node, and the coordinator's, which trains nothing worth the name.
const BAY: &str = r#"
    [federation]
    name = "bay"
    rounds = 3
    sync_every = 4
    [round]
    quorum = "all"
    deadline = "1min"
    [aggregator]
    kind = "fedavg"
    clip = "none"
    [[domain]]
    name = "hq"
    nodes = ["gate"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c", "d"]
"#;

/// Walks by what all of its domain have: each node brings its own number, in every type.
struct Walker {
    own: f32,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Trainer for Walker {
    fn layout(&self) -> Layout {
        Layout::new([("place", vec![5])]).unwrap()
    }

    fn initialize(&mut self, _: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        parameters.fill(0.0);
        Ok(())
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        let (rank, ranks) = task.domain().place()?;
        for _ in 0..4 {
            let mut mean = [self.own; 1];
            task.domain().all_reduce(&mut mean)?;
            let mut sum = [i64::from(self.own as i16), -1];
            task.domain().reduce(&mut sum, Operation::Sum, 1.0)?;
            let mut weighted = [f64::from(self.own)];
            task.domain()
                .reduce(&mut weighted, Operation::WeightedSum, 0.5)?;
            let mut least = [self.own];
            task.domain().reduce(&mut least, Operation::Min, 1.0)?;
            let halves = [half::bf16::from_f32(self.own); 3];
            let mut greatest = halves;
            task.domain().reduce(&mut greatest, Operation::Max, 1.0)?;
            let step = [
                mean[0],
                sum[0] as f32,
                weighted[0] as f32,
                least[0],
                greatest[2].to_f32(),
            ];
            for (parameter, step) in parameters.iter_mut().zip(step) {
                *parameter += step;
            }
        }
        let said = format!("{} {rank}/{ranks} {parameters:?}", task.node);
        self.seen.lock().unwrap().push(said);
        Ok(Trained {
            samples: 10,
            loss: 1.0,
            steps: 4,
            learning_rate: 1.0,
        })
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        Ok(Evaluation {
            accuracy: 0.5,
            loss: f64::from(parameters[0]),
        })
    }
}

fn own(node: &NodeId) -> f32 {
    match node.as_str() {
        "hq/gate" => 100.0,
        "plant/gate" => 1.0,
        "plant/c" => 2.0,
        _ => 6.0,
    }
}

/// Each step is the same on all nodes of a domain, whatever is reduced; a node that is alone in its domain goes by itself; the round's mean is one
/// over the domains' nodes, as ever.
#[test]
fn the_nodes_of_a_domain_take_the_same_steps() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    for shape in ["auto", "ring", "tree"] {
        let folder = tempfile::tempdir().unwrap();
        let text = BAY.replace(
            "name = \"plant\"",
            &format!("name = \"plant\"\n    step_collective = \"{shape}\""),
        );
        let told = seen.clone();
        let federation = Federation::from_toml(&text, folder.path()).unwrap();
        let report = run(federation.trainer(move |node| Walker {
            own: own(node),
            seen: told.clone(),
        }));
        assert_eq!(report.finished.committed, 3, "{report:#?}");
        // A step of the plant is 3, 9, 4.5, 1, 6; one of hq 100, 100, 50, 100, 100. Of four nodes three are the plant's.
        let mean = 4.0 * (3.0 * 3.0 + 100.0) / 4.0;
        assert_eq!(report.finished.loss, 3.0 * mean);
        let mut first: Vec<String> = std::mem::take(&mut *seen.lock().unwrap());
        first.truncate(4);
        first.sort();
        assert_eq!(
            first,
            [
                "hq/gate 0/1 [400.0, 400.0, 200.0, 400.0, 400.0]",
                "plant/c 1/3 [12.0, 36.0, 18.0, 4.0, 24.0]",
                "plant/d 2/3 [12.0, 36.0, 18.0, 4.0, 24.0]",
                "plant/gate 0/3 [12.0, 36.0, 18.0, 4.0, 24.0]",
            ],
            "{shape}"
        );
    }
}

/// Two nodes that step together are one node with the rows of both: same batches, same means, within what rounding does.
#[test]
fn a_built_in_model_learns_as_one_node_with_all_rows_would() {
    let learn = |nodes: &str, batch: u64, rows: serde_json::Value, more: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rows.json"), rows.to_string()).unwrap();
        let text = format!(
            r#"
            [federation]
            name = "pair"
            rounds = 6
            sync_every = 10
            [round]
            quorum = "all"
            deadline = "1min"
            [model]
            trainer = "digits-mlp"
            hidden = 16
            batch = {batch}
            order = "sequential"
            partition = {{ kind = "rows", file = "rows.json" }}
            {more}
            [aggregator]
            kind = "fedavg"
            clip = "none"
            [[domain]]
            name = "hq"
            nodes = {nodes}
            "#
        );
        run(Federation::from_toml(&text, folder.path()).unwrap())
    };
    // Training rows are those that are no test rows; the first so many of them.
    let all: Vec<usize> = Digits::training_rows().take(320).collect();
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for pair in all.chunks(32) {
        a.extend_from_slice(&pair[..16]);
        b.extend_from_slice(&pair[16..]);
    }
    for optimizer in ["sgd", "adamw"] {
        let model = format!("optimizer = \"{optimizer}\"\n learning_rate = 0.01");
        let both = serde_json::json!({ "hq/a": all });
        let one = learn("[\"a\"]", 32, both, &model).finished;
        let split = serde_json::json!({ "hq/a": a, "hq/b": b });
        let parallel = format!("{model}\n data_parallel = true");
        let two = learn("[\"a\", \"b\"]", 16, split.clone(), &parallel).finished;
        let apart = learn("[\"a\", \"b\"]", 16, split, &model).finished;
        let off = |other: &tombolo_core::event::Finished| (other.loss - one.loss).abs();
        assert!(off(&two) < 1e-4, "{optimizer}: {one:?} {two:?}");
        assert!(
            off(&apart) > 2.0 * off(&two),
            "{optimizer}: {apart:?} {two:?}"
        );
    }
}

#[test]
fn where_nodes_cannot_step_together_it_is_said() {
    let text = BAY.replace(
        "[aggregator]",
        "[model]\n    data_parallel = true\n    [aggregator]",
    );
    let simulated = Simulation::from_toml(&text).unwrap().run();
    let refused = simulated.unwrap_err().to_string();
    assert!(refused.contains("virtual time cannot"), "{refused}");

    let asynchronous = text.replace("quorum = \"all\"", "mode = \"async\"\n    buffer = 2");
    let folder = tempfile::tempdir().unwrap();
    let Err(FederationError::Topology(refused)) =
        Federation::from_toml(&asynchronous, folder.path()).map(drop)
    else {
        panic!("it was taken")
    };
    let refused = format!("{refused:?}");
    assert!(refused.contains("round of its own"), "{refused}");

    // A trainer of one's own hears it in its training.
    let simulation = Simulation::from_toml(BAY).unwrap();
    let report = simulation
        .trainer(|node| Walker {
            own: own(node),
            seen: Arc::default(),
        })
        .run();
    let report = format!("{report:?}");
    assert!(
        report.contains("there is no step mode in simulation"),
        "{report}"
    );
}
