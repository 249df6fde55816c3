//! Plans: the defaults of nine nodes, and the reference topologies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::*;

/// Three domains of three, `[model]` and `[aggregator]` as a topology file has them by default.
pub fn defaults() -> Plan {
    let names = [
        ("hq", ["gate", "a", "b"]),
        ("lab", ["gate", "a", "b"]),
        ("plant", ["gate", "c", "d"]),
    ];
    let domains: Vec<DomainPlan> = names
        .iter()
        .map(|(domain, nodes)| domain_plan(domain, nodes))
        .collect();
    Plan {
        name: "learn".into(),
        rounds: 20,
        sync_every: SyncEvery::Steps(50),
        balance_steps: false,
        coordinator: domains[0].nodes[0].id.clone(),
        standby: Vec::new(),
        seed: 7,
        round: RoundPlan {
            quorum: Quorum::All,
            deadline: Deadline::Adaptive,
            grace: Duration::from_secs(2),
            failed_limit: 3,
            close_limit: Duration::from_secs(30),
            patience: Duration::from_secs(900),
            durability: Durability::Resend,
            absent: BTreeMap::new(),
            asynchronous: None,
            codec_down: Default::default(),
        },
        model: ModelPlan {
            trainer: TrainerKind::DigitsMlp,
            hidden: 64,
            learning_rate: 0.1,
            batch: 32,
            init: Init::Seed(7),
            order: Order::Shuffled,
            partition: Partition::Dirichlet { alpha: 0.5 },
            ..ModelPlan::default()
        },
        aggregator: AggregatorPlan {
            kind: "dynamic-weighted".into(),
            weights: BaseWeights::Samples,
            clip: Clip::Median,
            loss_limit: 2.0,
            norm_limit: 5.0,
            penalty: 0.3,
            relative: false,
            ..AggregatorPlan::default()
        },
        outer: OuterPlan {
            optimizer: OuterKind::Sgd,
            learning_rate: 1.0,
            momentum: 0.9,
            ..OuterPlan::default()
        },
        domains,
        links: Vec::new(),
        route: Default::default(),
        heartbeat: HeartbeatPlan {
            every: Duration::from_millis(500),
            phi: 8.0,
            retry: Vec::new(),
            restore_limit: Duration::from_secs(60),
            cooldown: Cooldown {
                first: Duration::from_secs(10),
                cap: Duration::from_secs(600),
            },
        },
        security: SecurityPlan::default(),
        checkpoint: CheckpointPlan {
            folder: PathBuf::from("state"),
            store: None,
            every: 1,
            snapshot: Duration::from_secs(10),
            retain_contributions: 0,
        },
        policy: Default::default(),
    }
}

fn domain_plan(name: &str, nodes: &[impl AsRef<str>]) -> DomainPlan {
    let id: DomainId = name.parse().unwrap();
    let nodes: Vec<NodePlan> = nodes
        .iter()
        .map(|node| NodePlan {
            id: NodeId::new(&id, node.as_ref()).unwrap(),
            listen: None,
            advertise: None,
            outbound_only: false,
            slice: None,
        })
        .collect();
    DomainPlan {
        gateways: vec![nodes[0].id.clone()],
        fabric: Fabric::Auto,
        step_shape: tombolo_core::collective::Shape::Direct,
        root: PathBuf::from("root.pem"),
        root_sha256: Vec::new(),
        nodes,
        id,
    }
}

/// One line of the calculation from outside.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outside {
    pub round: u64,
    pub accuracy: f64,
    pub loss: f64,
    pub weight_norm: f64,
}

/// What `federation.py` printed for a reference topology.
pub fn outside(name: &str) -> Vec<Outside> {
    let text = file(&format!("{name}.jsonl"));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A file of `tests/reference`.
pub fn file(name: &str) -> String {
    std::fs::read_to_string(reference(name)).unwrap()
}

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/reference")
        .join(name)
}

/// A reference topology, as a run reads it.
pub fn read(name: &str) -> Plan {
    let file = reference(&format!("{name}.toml"));
    tombolo::topology::load(&file).unwrap_or_else(|diagnosis| panic!("{diagnosis:#}"))
}
