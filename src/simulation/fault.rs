//! Faults that a simulation can inflict.

use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;

use super::SimulationError;
use tombolo_actors::crew::Crew;

/// What happens at an instant. Nodes are `domain/name`; groups may also name whole domains.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// A power cut: tasks, sockets and memory are gone, the disk stays.
    Crash(String),
    /// The node starts again, with the disk it had; if it is up it is cut off first.
    Restart(String),
    /// The node's disk is emptied.
    Forget(String),
    /// The node's local training takes so many times as long from now on.
    Slow(String, f64),
    /// No datagram passes between the groups, either way; inside a domain the fabric is cut, too.
    Partition(Vec<String>, Vec<String>),
    /// Paths between the groups work again.
    Heal(Vec<String>, Vec<String>),
    /// An actor of the node panics: `Node`, `Quic`, `Verbs`, `Collective`, `Checkpoint`, `Coordinator`, `Aggregate`, or every `Link` or
    /// `Heartbeat`.
    Panic(String, String),
}

/// A fault with an end.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// How it begins.
    pub begin: Fault,
    /// How it ends.
    pub end: Fault,
}

/// A power cut at a node.
pub fn crash(node: &str) -> Fault {
    Fault::Crash(node.to_owned())
}

/// A node starts again.
pub fn restart(node: &str) -> Fault {
    Fault::Restart(node.to_owned())
}

/// A node's disk is emptied.
pub fn forget(node: &str) -> Fault {
    Fault::Forget(node.to_owned())
}

/// A node trains so many times as slowly.
pub fn slow(node: &str, factor: f64) -> Window {
    Window {
        begin: Fault::Slow(node.to_owned(), factor),
        end: Fault::Slow(node.to_owned(), 1.0),
    }
}

/// An actor of a node panics.
pub fn panic(node: &str, actor: &str) -> Fault {
    Fault::Panic(node.to_owned(), actor.to_owned())
}

/// Two groups of nodes or domains cannot reach each other.
pub fn partition<'a>(
    a: impl IntoIterator<Item = &'a str>,
    b: impl IntoIterator<Item = &'a str>,
) -> Window {
    let owned =
        |group: &mut dyn Iterator<Item = &'a str>| group.map(str::to_owned).collect::<Vec<_>>();
    let (a, b) = (owned(&mut a.into_iter()), owned(&mut b.into_iter()));
    Window {
        begin: Fault::Partition(a.clone(), b.clone()),
        end: Fault::Heal(a, b),
    }
}

/// Two groups can reach each other again.
pub fn heal<'a>(
    a: impl IntoIterator<Item = &'a str>,
    b: impl IntoIterator<Item = &'a str>,
) -> Fault {
    partition(a, b).end
}

impl Fault {
    /// Whether everything it names is in the plan and can happen.
    pub(super) fn check(&self, plan: &Plan) -> Result<(), SimulationError> {
        match self {
            Fault::Slow(node, factor) if !(factor.is_finite() && *factor > 0.0) => {
                return Err(SimulationError::Fault(format!(
                    "{node} cannot be {factor} times as slow: expected a positive number"
                )));
            }
            Fault::Panic(node, actor) => {
                let has = |actors: &[&str]| actors.contains(&actor.as_str());
                let coordinates = plan.coordinator.as_str() == node;
                let there = has(&Crew::ACTORS) || coordinates && has(&Crew::COORDINATORS_ACTORS);
                if !there {
                    return Err(SimulationError::Fault(format!(
                        "{node} has no actor {actor:?}: expected one of {:?}, or at the coordinator {:?}",
                        Crew::ACTORS,
                        Crew::COORDINATORS_ACTORS,
                    )));
                }
            }
            _ => {}
        }
        let known = |name: &String| {
            name.parse::<NodeId>()
                .is_ok_and(|node| plan.node(&node).is_some())
        };
        let group = |name: &String| {
            known(name)
                || name
                    .parse::<DomainId>()
                    .is_ok_and(|domain| plan.domain(&domain).is_some())
        };
        let unknown = match self {
            Fault::Crash(node)
            | Fault::Restart(node)
            | Fault::Forget(node)
            | Fault::Slow(node, _)
            | Fault::Panic(node, _) => Some(node).filter(|node| !known(node)),
            Fault::Partition(a, b) | Fault::Heal(a, b) => {
                a.iter().chain(b).find(|name| !group(name))
            }
        };
        unknown.map_or(Ok(()), |name| Err(SimulationError::Unknown(name.clone())))
    }
}

/// A node whose name was checked.
pub(super) fn node(name: &str) -> NodeId {
    name.parse().expect("names of faults are checked first")
}

/// The nodes that names of nodes and domains stand for.
pub(super) fn nodes(plan: &Plan, names: &[String]) -> Vec<NodeId> {
    let stands_for =
        |node: &NodeId, name: &String| node.as_str() == name || node.domain().as_str() == name;
    plan.nodes()
        .map(|node| node.id.clone())
        .filter(|node| names.iter().any(|name| stands_for(node, name)))
        .collect()
}
