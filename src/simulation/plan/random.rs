//! Plans drawn from a seed.

use std::time::Duration;

use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::rng::Rng;

use super::{ACTORS, COORDINATORS_ACTORS, Fault, FaultPlan, Paths, Stale, TimedFault};

/// How much goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dose {
    /// Faults that begin in a minute of virtual time.
    pub per_minute: u32,
    /// For how long; at its end everything is healed.
    pub span: Duration,
}

impl Default for Dose {
    fn default() -> Self {
        Dose {
            per_minute: 20,
            span: Duration::from_secs(60),
        }
    }
}

/// The kinds, and how often each is drawn among the others.
const KINDS: [(u64, Draw); 20] = [
    (6, |rng, plan| Fault::Crash {
        node: any(rng, plan),
    }),
    (3, |rng, plan| Fault::TornWrite {
        node: any(rng, plan),
    }),
    (3, |rng, plan| Fault::Kill {
        node: any(rng, plan),
        changes: rng.below(KILL_CHANGES_MAX),
    }),
    (3, |rng, plan| Fault::Restart {
        node: any(rng, plan),
        without_disk: false,
    }),
    (2, |rng, plan| Fault::Restart {
        node: other(rng, plan),
        without_disk: true,
    }),
    (4, |rng, plan| Fault::Freeze {
        node: any(rng, plan),
    }),
    (3, |rng, plan| Fault::Slow {
        node: any(rng, plan),
        factor: 2.0 + rng.below(40) as f64,
    }),
    (6, |rng, plan| Fault::Partition {
        paths: paths(rng, plan),
    }),
    (2, |rng, plan| Fault::Loss {
        paths: paths(rng, plan),
        share: percent(rng, 2, 40),
    }),
    (2, |rng, plan| Fault::Duplicate {
        paths: paths(rng, plan),
        share: percent(rng, 2, 60),
    }),
    (2, |rng, plan| Fault::Reorder {
        paths: paths(rng, plan),
        within: millis(rng, 5, 200),
    }),
    (2, |rng, plan| Fault::Delay {
        paths: paths(rng, plan),
        by: millis(rng, 20, 1500),
    }),
    (2, |rng, plan| Fault::MtuBlackHole {
        paths: paths(rng, plan),
        bytes: 1200 + rng.below(250),
    }),
    (2, |rng, plan| Fault::Rebind {
        node: any(rng, plan),
    }),
    (2, |rng, plan| Fault::RateLimit {
        paths: paths(rng, plan),
        rate: (100 + rng.below(5000)) * 1000,
    }),
    (2, |rng, plan| Fault::ClockForward {
        node: any(rng, plan),
        by: Duration::from_secs(1 + rng.below(3600)),
    }),
    (2, |rng, plan| Fault::ClockBack {
        node: any(rng, plan),
        by: Duration::from_secs(1 + rng.below(3600)),
    }),
    (2, |rng, plan| Fault::ClockDrift {
        node: any(rng, plan),
        wall_ppm: rng.below(200_001) as f64 - 100_000.0,
        monotonic_ppm: rng.below(1001) as f64 - 500.0,
    }),
    (2, |rng, plan| Fault::StaleCertificate {
        node: any(rng, plan),
        stale: [Stale::Expired, Stale::NotYetValid][rng.below(2) as usize],
    }),
    (5, panic),
];

/// Changes of the disk that a killed process may still make: as many as a coordinator makes in a round or two.
const KILL_CHANGES_MAX: u64 = 64;

type Draw = fn(&mut Rng, &Plan) -> Fault;

impl FaultPlan {
    /// Draws a plan from a seed: so many faults a minute of every kind, all of them over when the dose's span is. What by its nature ends a run
    /// or undoes what was acknowledged (a coordinator that loses its disk, or has no room on it) is not drawn.
    pub fn random(topology: &Plan, seed: u64, dose: Dose) -> FaultPlan {
        let mut rng = Rng::derive(seed, &[b"faults"]);
        let span = u64::try_from(dose.span.as_millis()).unwrap_or(u64::MAX);
        let count = u128::from(dose.per_minute) * u128::from(span) / 60_000;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut faults: Vec<TimedFault> = (0..count.min(super::FAULTS_MAX))
            .map(|_| draw(&mut rng, topology, span))
            .collect();
        faults.sort_by_key(|timed| timed.at);
        FaultPlan { faults }
    }
}

fn draw(rng: &mut Rng, topology: &Plan, span: u64) -> TimedFault {
    let fault = kind(rng, topology);
    let at = rng.below(span.max(1));
    let lasts = match rng.below(4) {
        0 => 50 + rng.below(500),
        1 | 2 => 500 + rng.below(5000),
        _ => 2000 + rng.below(15_000),
    };
    let until = (at + lasts).min(span.max(at + 1));
    TimedFault {
        at: Duration::from_millis(at),
        until: fault.lasts().then(|| Duration::from_millis(until)),
        fault,
    }
}

fn kind(rng: &mut Rng, topology: &Plan) -> Fault {
    let all: u64 = KINDS.iter().map(|(share, _)| share).sum();
    let mut drawn = rng.below(all);
    for (share, draw) in KINDS {
        match drawn.checked_sub(share) {
            Some(rest) => drawn = rest,
            None => return draw(rng, topology),
        }
    }
    unreachable!("the shares add up to the bound of what was drawn")
}

fn nodes(topology: &Plan) -> Vec<&NodeId> {
    topology.nodes().map(|node| &node.id).collect()
}

fn pick<'a>(rng: &mut Rng, among: &[&'a NodeId]) -> &'a NodeId {
    among[rng.below(among.len() as u64) as usize]
}

fn any(rng: &mut Rng, topology: &Plan) -> String {
    pick(rng, &nodes(topology)).as_str().to_owned()
}

/// A node that is not the coordinator, if there is one.
fn other(rng: &mut Rng, topology: &Plan) -> String {
    let mut others = nodes(topology);
    others.retain(|node| **node != topology.coordinator);
    match others.is_empty() {
        true => any(rng, topology),
        false => pick(rng, &others).as_str().to_owned(),
    }
}

/// A domain against all others, two nodes of one domain, a gateway against another, or a node against everybody.
fn paths(rng: &mut Rng, topology: &Plan) -> Paths {
    let domains = &topology.domains;
    let domain = &domains[rng.below(domains.len() as u64) as usize];
    let far = &domains[rng.below(domains.len() as u64) as usize];
    let inside: Vec<&NodeId> = domain.nodes.iter().map(|node| &node.id).collect();
    let (a, b) = match rng.below(4) {
        0 if domains.len() > 1 => (domain.id.as_str(), None),
        1 if domain.id != far.id => (domain.id.as_str(), Some(far.id.as_str())),
        2 if inside.len() > 1 => {
            let first = rng.below(inside.len() as u64) as usize;
            let second = (first + 1 + rng.below(inside.len() as u64 - 1) as usize) % inside.len();
            (inside[first].as_str(), Some(inside[second].as_str()))
        }
        _ => (pick(rng, &nodes(topology)).as_str(), None),
    };
    Paths {
        from: vec![a.to_owned()],
        to: b.into_iter().map(str::to_owned).collect(),
        one_way: rng.below(3) == 0,
    }
}

fn panic(rng: &mut Rng, topology: &Plan) -> Fault {
    let node = any(rng, topology);
    let mut actors = ACTORS.to_vec();
    if topology.coordinator.as_str() == node {
        actors.extend(COORDINATORS_ACTORS);
    }
    let actor = actors[rng.below(actors.len() as u64) as usize].to_owned();
    Fault::Panic { node, actor }
}

fn percent(rng: &mut Rng, least: u64, most: u64) -> f64 {
    (least + rng.below(most - least)) as f64 / 100.0
}

fn millis(rng: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(least + rng.below(most - least))
}
