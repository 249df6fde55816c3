//! Small plans, for tests of the machines one by one and all together (`tests/federation/`).

use std::time::Duration;

use crate::collective::Shape;
use crate::ids::{DomainId, NodeId};
use crate::plan::*;
use crate::tensor::Layout;

/// A plan of domains `d0`, `d1`, ... with so many nodes each; the first node of `d0` coordinates.
pub fn plan(sizes: &[usize]) -> Plan {
    let domains: Vec<DomainPlan> = sizes
        .iter()
        .enumerate()
        .map(|(index, size)| domain(index, *size))
        .collect();
    Plan {
        name: "pure".into(),
        rounds: 10,
        sync_every: SyncEvery::Steps(1),
        balance_steps: false,
        coordinator: domains[0].gateways[0].clone(),
        standby: Vec::new(),
        seed: 7,
        round: RoundPlan {
            quorum: Quorum::All,
            deadline: Deadline::Fixed(Duration::from_secs(10)),
            grace: Duration::from_secs(1),
            failed_limit: 1000,
            close_limit: Duration::from_secs(5),
            patience: Duration::from_secs(900),
            durability: Durability::Resend,
            absent: Default::default(),
            asynchronous: None,
            codec_down: Default::default(),
        },
        model: ModelPlan {
            trainer: TrainerKind::DigitsSoftmax,
            hidden: 1,
            learning_rate: 0.1,
            batch: 1,
            init: Init::Zeros,
            order: Order::Sequential,
            partition: Partition::Iid,
            ..ModelPlan::default()
        },
        aggregator: AggregatorPlan {
            kind: "fedavg".into(),
            weights: BaseWeights::Samples,
            clip: Clip::Median,
            loss_limit: 1.0,
            norm_limit: 1.0,
            penalty: 1.0,
            relative: false,
            ..AggregatorPlan::default()
        },
        outer: OuterPlan {
            optimizer: OuterKind::Sgd,
            learning_rate: 1.0,
            momentum: 0.0,
            ..OuterPlan::default()
        },
        domains,
        links: Vec::new(),
        route: Default::default(),
        heartbeat: HeartbeatPlan {
            every: Duration::from_millis(500),
            phi: 8.0,
            retry: [1, 2, 4].map(Duration::from_secs).to_vec(),
            restore_limit: Duration::from_secs(60),
            cooldown: Cooldown {
                first: Duration::from_secs(10),
                cap: Duration::from_secs(600),
            },
        },
        security: SecurityPlan::default(),
        checkpoint: CheckpointPlan {
            folder: "state".into(),
            store: None,
            every: 1,
            snapshot: Duration::from_secs(10),
            retain_contributions: 0,
        },
        policy: Default::default(),
    }
}

fn domain(index: usize, size: usize) -> DomainPlan {
    let id: DomainId = format!("d{index}").parse().expect("a name");
    let nodes: Vec<NodePlan> = (0..size)
        .map(|rank| NodePlan {
            id: NodeId::new(&id, &format!("n{rank}")).expect("a name"),
            listen: None,
            advertise: None,
            outbound_only: false,
            slice: None,
        })
        .collect();
    DomainPlan {
        gateways: vec![nodes[0].id.clone()],
        id,
        fabric: Fabric::Shm,
        step_shape: Shape::Direct,
        nodes,
        root: "root.pem".into(),
        root_sha256: Vec::new(),
    }
}

/// Three slices in a domain of three, one chunk in a contribution.
pub fn layout() -> Layout {
    Layout::new([("w", vec![3 * 4096])]).expect("it is small")
}
