//! Who trains on which rows. The parts derive from the plan alone, so every node finds the same ones, on any processor (`libm` instead of the
//! platform's own functions); each node gets at least one row.

use std::collections::{BTreeMap, BTreeSet};

use tombolo_core::ids::NodeId;
use tombolo_core::plan::{Partition, Plan};
use tombolo_core::rng::Rng;

mod picture;

pub use picture::{Dealt, dealt};

use super::digits::{CLASSES, DataError, Digits, ROWS};

/// Rows that cannot be dealt out as the topology asks.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// More nodes than rows (or shards).
    #[error(
        "{nodes} nodes cannot each get a part of {rows} training rows: expected at most {nodes_max} nodes; declare fewer or give the rows in a file"
    )]
    TooManyNodes {
        /// Nodes of the plan.
        nodes: usize,
        /// Training rows.
        rows: usize,
        /// The most nodes for this partition.
        nodes_max: usize,
    },
    /// More nodes than clients.
    #[error(
        "{clients} clients cannot be dealt out to {nodes} nodes: a client's rows stay together; declare fewer nodes"
    )]
    TooFewClients {
        /// Nodes of the plan.
        nodes: usize,
        /// Clients with a training row.
        clients: usize,
    },
    /// The Dirichlet concentration.
    #[error("[model] partition: alpha is {alpha}, expected a positive finite number")]
    Alpha {
        /// As given.
        alpha: f64,
    },
    /// A node of the plan has no rows.
    #[error("the rows file gives no row to {node}: every node needs at least one")]
    NoRows {
        /// Which node.
        node: NodeId,
    },
    /// A node that the plan does not have.
    #[error("the rows file names {node}, which the topology does not declare")]
    UnknownNode {
        /// Which node.
        node: NodeId,
    },
    /// A row that does not exist.
    #[error("the rows file gives row {row} to {node}: rows are numbered from 0 to {last}", last = ROWS - 1)]
    UnknownRow {
        /// Whose.
        node: NodeId,
        /// Its number.
        row: usize,
    },
    /// A held-out row.
    #[error(
        "the rows file gives row {row} to {node}: it is a test row (row % 5 == 4), never trained on"
    )]
    TestRow {
        /// Whose.
        node: NodeId,
        /// Its number.
        row: usize,
    },
    /// The same row twice on one node.
    #[error("the rows file gives row {row} to {node} twice")]
    RepeatedRow {
        /// Whose.
        node: NodeId,
        /// Its number.
        row: usize,
    },
    /// No labels to sort by.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// The training rows of every node: ascending, but for a rows file, whose own order is kept.
///
/// # Errors
/// What the topology asks cannot be done, or the data does not load.
pub fn partition(plan: &Plan) -> Result<BTreeMap<NodeId, Vec<usize>>, PartitionError> {
    let nodes: BTreeSet<&NodeId> = plan.nodes().map(|node| &node.id).collect();
    let nodes: Vec<&NodeId> = nodes.into_iter().collect();
    let mut rng = Rng::derive(plan.seed, &[b"partition"]);
    let mut parts = match &plan.model.partition {
        Partition::Iid => {
            at_most(nodes.len(), 1)?;
            iid(nodes.len(), &mut rng)
        }
        Partition::Shards => {
            at_most(nodes.len(), 2)?;
            shards(nodes.len(), &mut rng)?
        }
        Partition::Dirichlet { alpha } => {
            at_most(nodes.len(), 1)?;
            if !(alpha.is_finite() && *alpha > 0.0) {
                return Err(PartitionError::Alpha { alpha: *alpha });
            }
            dirichlet(nodes.len(), *alpha, &mut rng)?
        }
        Partition::Clients(clients) => whole_clients(nodes.len(), clients, &mut rng)?,
        Partition::Rows(rows) => return checked(&nodes, rows),
    };
    parts.iter_mut().for_each(|part| part.sort_unstable());
    Ok(nodes.into_iter().cloned().zip(parts).collect())
}

fn at_most(nodes: usize, parts_each: usize) -> Result<(), PartitionError> {
    let rows = Digits::training_rows().count();
    let nodes_max = rows / parts_each;
    if nodes > nodes_max {
        return Err(PartitionError::TooManyNodes {
            nodes,
            rows,
            nodes_max,
        });
    }
    Ok(())
}

fn iid(nodes: usize, rng: &mut Rng) -> Vec<Vec<usize>> {
    let mut rows: Vec<usize> = Digits::training_rows().collect();
    rng.shuffle(&mut rows);
    even_cuts(&rows, nodes).map(<[usize]>::to_vec).collect()
}

/// Two shards of label-sorted rows for each node: most see two or three kinds of digits.
fn shards(nodes: usize, rng: &mut Rng) -> Result<Vec<Vec<usize>>, PartitionError> {
    let digits = Digits::load()?;
    let mut rows: Vec<usize> = Digits::training_rows().collect();
    rows.sort_by_key(|row| (digits.label(*row), *row));
    let mut shards: Vec<&[usize]> = even_cuts(&rows, nodes * 2).collect();
    rng.shuffle(&mut shards);
    let pairs = shards.as_chunks::<2>().0;
    Ok(pairs.iter().map(|pair| pair.concat()).collect())
}

/// For each kind of digit, the nodes' shares are drawn from a symmetric Dirichlet distribution.
fn dirichlet(nodes: usize, alpha: f64, rng: &mut Rng) -> Result<Vec<Vec<usize>>, PartitionError> {
    let digits = Digits::load()?;
    let mut parts = vec![Vec::new(); nodes];
    for class in 0..CLASSES {
        let of_class = |row: &usize| usize::from(digits.label(*row)) == class;
        let mut rows: Vec<usize> = Digits::training_rows().filter(of_class).collect();
        rng.shuffle(&mut rows);
        let shares = dirichlet_shares(nodes, alpha, rng);
        let (mut start, mut sum) = (0, 0.0);
        for (index, (part, share)) in parts.iter_mut().zip(shares).enumerate() {
            sum += share;
            let cut = (sum * rows.len() as f64).round() as usize;
            let end = match index + 1 == nodes {
                true => rows.len(),
                false => cut.clamp(start, rows.len()),
            };
            part.extend_from_slice(&rows[start..end]);
            start = end;
        }
    }
    while let Some(empty) = parts.iter().position(Vec::is_empty) {
        let richest = parts.iter_mut().max_by_key(|part| part.len());
        let row = richest
            .and_then(Vec::pop)
            .expect("with at most as many nodes as rows, some node holds two while one holds none");
        parts[empty].push(row);
    }
    Ok(parts)
}

/// Clients in a drawn order, each to the node that has fewest rows by then: a client's rows stay together.
fn whole_clients(
    nodes: usize,
    clients: &BTreeMap<String, Vec<usize>>,
    rng: &mut Rng,
) -> Result<Vec<Vec<usize>>, PartitionError> {
    let mut order: Vec<&Vec<usize>> = clients.values().filter(|rows| !rows.is_empty()).collect();
    if order.len() < nodes {
        let clients = order.len();
        return Err(PartitionError::TooFewClients { nodes, clients });
    }
    rng.shuffle(&mut order);
    let mut parts: Vec<Vec<usize>> = vec![Vec::new(); nodes];
    for rows in order {
        let poorest = parts.iter_mut().min_by_key(|part| part.len());
        poorest.expect("a federation has a node").extend(rows);
    }
    Ok(parts)
}

fn dirichlet_shares(nodes: usize, alpha: f64, rng: &mut Rng) -> Vec<f64> {
    // In logarithms, because for a small alpha most gamma variates are below the smallest f64.
    let logs: Vec<f64> = (0..nodes).map(|_| log_gamma_variate(alpha, rng)).collect();
    let largest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let scaled: Vec<f64> = logs.iter().map(|log| libm::exp(log - largest)).collect();
    let sum: f64 = scaled.iter().sum();
    scaled.into_iter().map(|share| share / sum).collect()
}

/// The logarithm of a Gamma(alpha, 1) variate: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000, with their boost
/// from alpha + 1, which holds for any alpha.
fn log_gamma_variate(alpha: f64, rng: &mut Rng) -> f64 {
    let d = alpha + 1.0 - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    let log_boosted = loop {
        let x = normal_variate(rng);
        let root = 1.0 + c * x;
        let v = root * root * root;
        if v > 0.0 && libm::log(positive(rng)) < 0.5 * x * x + d - d * v + d * libm::log(v) {
            break libm::log(d) + libm::log(v);
        }
    };
    // With a smaller divisor all quotients would be infinite and no share larger than another.
    log_boosted + libm::log(positive(rng)) / alpha.max(1e-300)
}

/// Box and Muller.
fn normal_variate(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * libm::log(positive(rng))).sqrt();
    radius * libm::cos(std::f64::consts::TAU * rng.next_f64())
}

/// A number in (0, 1].
fn positive(rng: &mut Rng) -> f64 {
    1.0 - rng.next_f64()
}

/// `parts` pieces in order whose lengths differ by at most one.
fn even_cuts(rows: &[usize], parts: usize) -> impl Iterator<Item = &[usize]> {
    (0..parts).map(move |part| &rows[rows.len() * part / parts..rows.len() * (part + 1) / parts])
}

fn checked(
    nodes: &[&NodeId],
    rows: &BTreeMap<NodeId, Vec<usize>>,
) -> Result<BTreeMap<NodeId, Vec<usize>>, PartitionError> {
    if let Some(node) = rows.keys().find(|node| !nodes.contains(node)) {
        return Err(PartitionError::UnknownNode { node: node.clone() });
    }
    for node in nodes.iter().copied() {
        let own = rows.get(node).map_or(&[][..], Vec::as_slice);
        if own.is_empty() {
            return Err(PartitionError::NoRows { node: node.clone() });
        }
        let mut seen = BTreeSet::new();
        for &row in own {
            let node = || node.clone();
            if row >= ROWS {
                return Err(PartitionError::UnknownRow { node: node(), row });
            }
            if Digits::is_test(row) {
                return Err(PartitionError::TestRow { node: node(), row });
            }
            if !seen.insert(row) {
                return Err(PartitionError::RepeatedRow { node: node(), row });
            }
        }
    }
    Ok(rows.clone())
}

#[cfg(test)]
mod tests;
