//! A federation on this machine: reads the plan, makes what is missing, starts the nodes' actors, follows them to the end.
//!
//! [`Federation`] is the builder, [`Running`] the federation while it runs, [`Report`] what came of it.

mod ledger;
mod plugins;
mod recorder;
mod report;
mod running;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::broadcast;

use tombolo_actors::aggregate::Weigh;
use tombolo_actors::crew::{Crew, Kit};
use tombolo_actors::shell::{Census, Stage};
use tombolo_core::aggregate::Aggregator;
use tombolo_core::event::{Event, RoundState};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;
use tombolo_core::trainer::Trainer;
use tombolo_fabric::{VerbsProvider, shm::Shm};

use crate::control::{Control, History, Sources};
use crate::identity::{NodeIdentity, pki};
use crate::topology::{self, Diagnosis, Options};
use crate::world::{World, WorldOptions};
use tombolo_actors::identity::IdentityError;

pub use ledger::Ledger;
pub(crate) use plugins::Plugins;
pub use recorder::Recorder;
pub use report::Report;
pub use running::{DEPARTED, Interrupt, NOT_DRAINED, Running};
pub use state::{StateError, StateFolder};

/// Events that a slow listener may fall behind before it misses some.
const EVENTS_KEPT: usize = 8192;

/// Why a federation cannot start or go on. The variant says who is to blame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FederationError {
    /// The topology.
    #[error("the topology has mistakes:\n{0}")]
    Topology(Box<Diagnosis>),
    /// Certificates and keys.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The state folder.
    #[error(transparent)]
    State(#[from] StateError),
    /// The trainer.
    #[error("the trainer of {node} cannot be made: {reason}")]
    Trainer {
        /// Whose.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// A socket that cannot be had.
    #[error(
        "{node} cannot listen on {address}: {reason}; free the port, or change `listen` of {node} in the topology"
    )]
    Listen {
        /// Whose.
        node: NodeId,
        /// Which.
        address: SocketAddr,
        /// The system's words.
        reason: String,
    },
    /// A node that the plan does not have.
    #[error("the topology declares no node {0}: `tombolo check` lists them")]
    UnknownNode(NodeId),
    /// This machine.
    #[error("{0}")]
    Machine(String),
}

impl From<Diagnosis> for FederationError {
    fn from(diagnosis: Diagnosis) -> Self {
        FederationError::Topology(Box::new(diagnosis))
    }
}

/// Builds a federation from a topology.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let federation = tombolo::Federation::from_path("harbour.toml")?.spawn().await?;
/// let report = federation.run().await?;
/// println!("{:.3}", report.finished.accuracy);
/// # Ok(()) }
/// ```
pub struct Federation {
    source: Source,
    plan: Plan,
    plugins: Plugins,
    resume: bool,
    emulate: bool,
}

/// Where a topology comes from.
pub(crate) enum Source {
    Path(PathBuf),
    Text {
        name: String,
        text: String,
        folder: PathBuf,
    },
}

impl Source {
    /// Text whose relative paths resolve against `folder`.
    pub(crate) fn text(text: &str, folder: impl AsRef<Path>) -> Self {
        Source::Text {
            name: "topology".to_owned(),
            text: text.to_owned(),
            folder: folder.as_ref().to_owned(),
        }
    }

    /// Reads and checks it.
    pub(crate) fn load(&self, options: &Options) -> Result<Plan, Diagnosis> {
        match self {
            Source::Path(path) => topology::load_with(path, options),
            Source::Text { name, text, folder } => {
                topology::parse_with(name, text, folder, options)
            }
        }
    }

    /// The rule that the file names, so that it may be registered after the file was read.
    pub(crate) fn named_rule(&self) -> Vec<String> {
        let text = match self {
            Source::Path(path) => std::fs::read_to_string(path).unwrap_or_default(),
            Source::Text { text, .. } => text.clone(),
        };
        let table = text.parse::<toml::Table>().ok();
        let kind = table
            .as_ref()
            .and_then(|table| table.get("aggregator")?.get("kind")?.as_str());
        kind.map(ToOwned::to_owned).into_iter().collect()
    }
}

impl Federation {
    /// Reads a topology file.
    ///
    /// # Errors
    /// [`FederationError::Topology`] with every mistake.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, FederationError> {
        Self::from_source(Source::Path(path.as_ref().to_owned()))
    }

    /// Reads a topology from text. Relative paths in it resolve against `folder`.
    ///
    /// # Errors
    /// [`FederationError::Topology`] with every mistake.
    pub fn from_toml(text: &str, folder: impl AsRef<Path>) -> Result<Self, FederationError> {
        Self::from_source(Source::text(text, folder))
    }

    fn from_source(source: Source) -> Result<Self, FederationError> {
        let options = Options {
            registered: source.named_rule(),
        };
        let plan = source.load(&options)?;
        Ok(Federation {
            source,
            plan,
            plugins: Plugins::default(),
            resume: false,
            emulate: false,
        })
    }

    /// The plan as it stands.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Trains with trainers of your own instead of the built-in model.
    #[must_use]
    pub fn trainer<T: Trainer + 'static>(
        mut self,
        make: impl Fn(&NodeId) -> T + Send + Sync + 'static,
    ) -> Self {
        self.plugins.trainer(make);
        self
    }

    /// Registers an aggregation rule under the name that `[aggregator] kind` uses.
    #[must_use]
    pub fn aggregator<A: Aggregator + 'static>(
        mut self,
        name: &str,
        make: impl Fn() -> A + Send + Sync + 'static,
    ) -> Self {
        self.plugins.aggregator(name, make);
        self
    }

    /// Registers an actix actor of your own as aggregation rule: `start` runs on the coordinator's arbiter and returns whoever answers
    /// [`Weigh`].
    #[must_use]
    pub fn aggregator_actor(
        mut self,
        name: &str,
        start: impl Fn() -> actix::Recipient<Weigh> + Send + Sync + 'static,
    ) -> Self {
        self.plugins.aggregator_actor(name, start);
        self
    }

    /// Keeps state in another folder than the topology says.
    #[must_use]
    pub fn state(mut self, folder: impl AsRef<Path>) -> Self {
        self.plan.checkpoint.folder = folder.as_ref().to_owned();
        self
    }

    /// Goes on from the last committed round of the state folder instead of refusing to use it again.
    #[must_use]
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Emulates the topology's paths for a single node, too: for one process of a federation that runs on one machine.
    #[must_use]
    pub fn emulate(mut self, emulate: bool) -> Self {
        self.emulate = emulate;
        self
    }

    /// Starts every node in this process, its paths emulated as the topology says, making a development PKI if there is none.
    ///
    /// # Errors
    /// See [`FederationError`]; nothing has joined then.
    pub async fn spawn(mut self) -> Result<Running, FederationError> {
        self.emulate = true;
        let nodes = self.plan.nodes().map(|node| node.id.clone()).collect();
        self.make_pki()?;
        self.start(nodes)
    }

    /// Starts one node of the federation; the others run elsewhere. Its certificate must be there.
    ///
    /// # Errors
    /// See [`FederationError`]; nothing has joined then.
    pub async fn spawn_node(self, node: &NodeId) -> Result<Running, FederationError> {
        if self.plan.node(node).is_none() {
            return Err(FederationError::UnknownNode(node.clone()));
        }
        self.start(BTreeSet::from([node.clone()]))
    }

    /// Makes a development PKI if there is none, and checks what would stop the nodes from starting, without starting them.
    ///
    /// # Errors
    /// See [`FederationError`].
    pub fn prepare(&self) -> Result<(), FederationError> {
        self.check_rules()?;
        self.make_pki()?;
        let nodes = self.plan.nodes().map(|node| node.id.clone()).collect();
        check_ports(&self.plan, &nodes)?;
        let folder = &self.plan.checkpoint.folder;
        StateFolder::check(folder, self.configuration(), self.resume)?;
        forget_addresses(&self.plan, &nodes)
    }

    fn make_pki(&self) -> Result<(), FederationError> {
        for ensured in pki::ensure_dev_pki(&self.plan, unix_now())? {
            tracing::info!("{ensured}");
        }
        Ok(())
    }

    /// Only at the start it is known which rules are registered; one that is not can then be shown in its place in the file.
    fn check_rules(&self) -> Result<(), FederationError> {
        self.source.load(&self.plugins.options())?;
        Ok(())
    }

    fn configuration(&self) -> Hash {
        Hash(topology::config_hash(&self.plan))
    }

    /// Whatever can fail comes before the state folder is taken: a start that was refused leaves no run behind.
    fn start(self, nodes: BTreeSet<NodeId>) -> Result<Running, FederationError> {
        self.check_rules()?;
        let configuration = self.configuration();
        let hosts_coordinator = nodes.contains(&self.plan.coordinator);
        let machine = |error: std::io::Error| FederationError::Machine(error.to_string());
        let plan = Arc::new(self.plan);
        let mut identities = BTreeMap::new();
        for node in &nodes {
            let identity = NodeIdentity::load(&plan, node, Arc::new(unix_now))?;
            identities.insert(node.clone(), identity);
        }
        check_ports(&plan, &nodes)?;
        let make_trainer = self.plugins.trainer_factory(plan.clone());
        let rule = self.plugins.rule_factory(&plan);
        let first = nodes.iter().next().expect("at least one node is started");
        let trainer = make_trainer(first).map_err(|reason| FederationError::Trainer {
            node: first.clone(),
            reason,
        })?;
        let layout = trainer.layout();
        drop(trainer);
        let folder = &plan.checkpoint.folder;
        let state = if hosts_coordinator {
            Some(StateFolder::open(folder, configuration, self.resume)?)
        } else {
            None
        };
        let mut options = WorldOptions::from(plan.as_ref());
        if self.emulate {
            options.links.clone_from(&plan.links);
        }
        let world = World::new(options).map_err(machine)?;
        let provider = Shm::new(plan.checkpoint.folder.join("run").join("fabric"));

        let (events, _) = broadcast::channel(EVENTS_KEPT);
        let recorder = hosts_coordinator
            .then(|| Recorder::start(folder_events(&plan)))
            .transpose()
            .map_err(machine)?;
        let history = Arc::new(History::new(plan.rounds));
        let ledger = Arc::new(Ledger::default());
        let sink = {
            let (events, lines) = (events.clone(), recorder.as_ref().map(Recorder::sender));
            let (history, ledger) = (history.clone(), ledger.clone());
            Arc::new(move |event: Event| {
                tracing::debug!(?event);
                history.record(&event);
                if let Some(lines) = &lines {
                    lines.record(&event);
                }
                ledger.record(&event);
                // Nobody listening is no error.
                let _ = events.send(event);
            })
        };
        let census = Census::default();
        let mut crews = BTreeMap::new();
        // Each takes its node's folder for this process; only then nobody else can be that node.
        for node in &nodes {
            world.env(node).map_err(machine)?;
        }
        forget_addresses(&plan, &nodes)?;
        for node in &nodes {
            let env = world.env(node).map_err(machine)?;
            let identity = identities.remove(node).expect("loaded above");
            let device = provider
                .open(node.as_str())
                .map_err(|error| FederationError::Machine(error.to_string()))?;
            let planned = plan.node(node).expect("nodes are taken from the plan");
            let listen = planned
                .listen
                .unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
            let stage = Stage {
                node: node.clone(),
                env,
                plan: plan.clone(),
                events: sink.clone(),
                census: census.clone(),
            };
            let kit = Kit {
                stage,
                identity,
                device,
                layout: layout.clone(),
                trainer: make_trainer.clone(),
                rule: rule.clone(),
                configuration,
                listen,
            };
            crews.insert(node.clone(), Crew::start(kit).map_err(machine)?);
        }
        let env = world.env(first).map_err(machine)?;
        let sources = Sources::new(&plan, &crews, census.clone(), history, env);
        let control = Control::serve(folder, first, sources).map_err(machine)?;
        Ok(Running {
            plan: plan.clone(),
            crews,
            events,
            ledger,
            census,
            _control: control,
            world,
            state,
            recorder,
        })
    }
}

/// Tries the addresses that the topology gives, so that a port which is taken is found before anybody joins.
fn check_ports(plan: &Plan, nodes: &BTreeSet<NodeId>) -> Result<(), FederationError> {
    for node in plan.nodes().filter(|node| nodes.contains(&node.id)) {
        let Some(address) = node.listen else { continue };
        std::net::UdpSocket::bind(address).map_err(|error| FederationError::Listen {
            node: node.id.clone(),
            address,
            reason: error.to_string(),
        })?;
    }
    Ok(())
}

/// Removes the nodes' addresses of an earlier run: whoever starts first must not dial them.
fn forget_addresses(plan: &Plan, nodes: &BTreeSet<NodeId>) -> Result<(), FederationError> {
    for node in nodes {
        crate::world::forget_address(&plan.checkpoint.folder, node)
            .map_err(|error| FederationError::Machine(error.to_string()))?;
    }
    Ok(())
}

fn folder_events(plan: &Plan) -> PathBuf {
    plan.checkpoint.folder.join("events.jsonl")
}

fn unix_now() -> u64 {
    crate::world::unix_now()
}

/// A word for a state, as tables show it.
pub fn state_word(state: RoundState) -> &'static str {
    match state {
        RoundState::Committed => "committed",
        RoundState::Degraded => "degraded",
        RoundState::Aborted => "aborted",
    }
}
