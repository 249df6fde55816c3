//! A run that goes on by another topology: what a process looks at before it agrees, and how it begins again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::unix_now;
use super::{Blueprint, Federation, FederationError, Running, Source, Waiting};
use crate::identity::{NodeIdentity, pki};
use crate::topology::{Options, SharedKeys, config_hash};
use tombolo_actors::checkpoint::{self, Store, began_with};
use tombolo_actors::env::{Env, Files, Work, work};
use tombolo_actors::identity::IdentityError;
use tombolo_actors::node::Ahead;
use tombolo_actors::slab::Pool;
use tombolo_core::coordinator::{AMENDED, Amendment};
use tombolo_core::event::Finished;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::policy;
use tombolo_core::tensor::Hash;

/// How often a node that reaches nobody who leads it looks whether they go by another topology now.
const LOOK: Duration = Duration::from_secs(2);

/// What the keys may begin with in which an amended topology differs: who takes part, how they are joined, and when rounds close. Not the
/// model, the rule or the seed: what is counted in one run is counted alike. Policies are no part of a run, and are not among these keys. Nor who may coordinate, which the record says first.
const AMENDABLE: [&str; 9] = [
    "domain.",
    "link.",
    "federation.rounds",
    "round.quorum",
    "round.deadline",
    "round.grace",
    "round.failed_limit",
    "round.close_limit",
    "round.absent",
];

/// The keys in which `amended` differs from the topology of a run and must not.
pub fn unamendable<'a>(running: &'a SharedKeys, amended: &'a SharedKeys) -> Vec<&'a str> {
    let mut differences = running.differences(amended);
    differences.retain(|key| !AMENDABLE.iter().any(|may| key.starts_with(may)));
    differences
}

impl Blueprint {
    /// Looks at the topology's file as it is now, for a run that goes by `running`, and whether these nodes could start by it; none if there is no
    /// file. Where one machine holds all of a development's certificates, those that are missing are made.
    pub fn ahead(
        &self,
        running: &Plan,
        nodes: &BTreeSet<NodeId>,
        makes_pki: bool,
    ) -> Option<Ahead> {
        let (path, nodes) = (self.path()?.to_owned(), nodes.clone());
        let registered = self.registered();
        let (needs, running) = (running.aggregator.needs, SharedKeys::of(running));
        Some(Arc::new(move || {
            let source = Source::read(path.as_ref()).map_err(|diagnosis| diagnosis.to_string())?;
            let options = Options {
                registered: registered.clone(),
            };
            let plan = source.load(&options);
            let mut plan = plan.map_err(|diagnosis| diagnosis.to_string())?;
            plan.aggregator.needs = needs;
            let amended = SharedKeys::of(&plan);
            match unamendable(&running, &amended)[..] {
                [] => {
                    could_start(&plan, &nodes, makes_pki)?;
                    Ok(hashes(&plan))
                }
                ref keys => Err(format!(
                    "its file changes {}, which is the same throughout a run: put that back, or begin another run",
                    keys.join(", ")
                )),
            }
        }))
    }
}

/// Whether nodes have what they need of certificates and roots to begin by a topology; who is not in it any more needs nothing.
fn could_start(plan: &Plan, nodes: &BTreeSet<NodeId>, makes_pki: bool) -> Result<(), String> {
    let unable = |error: IdentityError| format!("it could not begin by its file: {error}");
    if makes_pki {
        pki::ensure_dev_pki(plan, unix_now()).map_err(unable)?;
    }
    for node in nodes.iter().filter(|node| plan.node(node).is_some()) {
        NodeIdentity::load(plan, node, Arc::new(unix_now)).map_err(unable)?;
    }
    Ok(())
}

/// The hashes of a topology.
pub fn hashes(plan: &Plan) -> Amendment {
    let configuration = Hash(config_hash(plan));
    Amendment {
        configuration,
        topology: policy::bind(configuration, plan),
    }
}

/// By which topology a run goes on that has ended for that reason.
pub fn goes_on_by(finished: &Finished) -> Option<Hash> {
    let topology = finished.reason.strip_prefix(AMENDED)?;
    topology.get(..64)?.parse().ok()
}

impl Federation {
    /// The coordinator's records in those files, else in the state folder.
    pub(super) fn records(&self, files: Option<Arc<dyn Files>>) -> Result<Store, FederationError> {
        let plan = self.plan();
        let topology = Hash(config_hash(plan));
        let files = files.unwrap_or_else(|| self.folder_of(&plan.coordinator));
        let began = began_with(files.as_ref(), topology);
        let began = began.map_err(|error| FederationError::Store(error.to_string()))?;
        let store = Store::new(files, began, plan.checkpoint.every, Pool::default());
        Ok(store.going_by(topology))
    }

    fn folder_of(&self, node: &NodeId) -> Arc<dyn Files> {
        crate::world::look(&self.plan().checkpoint.folder, node)
    }

    /// Hash of the topology with which the run began that a node takes part in, as far as its files know. Who may coordinate must know.
    pub(super) fn began_with(
        &self,
        node: &NodeId,
        objects: Option<&Arc<dyn Files>>,
        topology: Hash,
    ) -> Result<Hash, FederationError> {
        let plan = self.plan();
        if !plan.may_coordinate(node) {
            let own = began_with(self.folder_of(node).as_ref(), topology);
            return Ok(own.unwrap_or(topology));
        }
        if *node == plan.coordinator && !self.resume {
            // What is there is refused as it is.
            return Ok(topology);
        }
        let files = objects
            .cloned()
            .unwrap_or_else(|| self.folder_of(&plan.coordinator));
        let began = began_with(files.as_ref(), topology);
        began.map_err(|error| FederationError::Store(error.to_string()))
    }
}

impl Running {
    /// Writes beside what each node remembers that it belongs to the run that goes on by that topology, too.
    pub(super) fn keep_memories(&self, topology: Hash) {
        let ahead = self.ahead.as_ref().and_then(|ahead| ahead().ok());
        let Some(ahead) = ahead.filter(|ahead| ahead.topology == topology) else {
            return tracing::warn!(
                ?topology,
                "the file here is not the amended one: give it to this machine before this process is started again"
            );
        };
        for node in self.crews.keys() {
            let kept = self.world.env(node).map_err(|error| error.to_string());
            let kept = kept.and_then(|env| {
                let files = env.files();
                let amended =
                    checkpoint::amend(files.as_ref(), self.began_with(node), ahead.configuration);
                amended.map_err(|error| error.to_string())
            });
            if let Err(reason) = kept {
                tracing::warn!(%node, reason, "what it remembers between rounds is lost");
            }
        }
    }
}

/// Ends once nobody who leads a node of this process is in reach, and one of those goes by another topology, which this machine has at hand,
/// too: it was away when the others were told.
pub(super) async fn summons(waiting: &Waiting, ahead: Option<&Ahead>, env: &dyn Env) -> Hash {
    let Some(ahead) = ahead else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(LOOK).await;
        for theirs in waiting.topologies() {
            let ahead = ahead.clone();
            let found = work(env, Work::Bytes(0), move || ahead()).await;
            if matches!(found, Ok(Ok(found)) if found.topology == theirs) {
                return theirs;
            }
        }
    }
}
