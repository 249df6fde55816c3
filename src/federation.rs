//! A federation on this machine: reads the plan, makes what is missing, starts the nodes' actors, follows them to the end.
//!
//! [`Federation`] is the builder, [`Running`] the federation while it runs, [`Report`] what came of it.

mod amendment;
mod blueprint;
mod ledger;
mod paths;
mod pulse;
mod recorder;
mod report;
mod running;
mod state;
mod vitals;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{broadcast, watch};

use tombolo_actors::aggregate::Weigh;
use tombolo_actors::checkpoint::{Probe, Store};
use tombolo_actors::crew::{Crew, Kit};
use tombolo_actors::env::Files;
use tombolo_actors::shell::{Census, Stage};
use tombolo_core::aggregate::Aggregator;
use tombolo_core::event::{Event, RoundState};
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;
use tombolo_core::trainer::Trainer;

use crate::control::{Control, History, Sources};
use crate::explain::last_told;
use crate::fabric::{Choice, Fabrics, NoFabric};
use crate::identity::{NodeIdentity, pki};
use crate::store::{self, ObjectFiles, ObjectStore};
use crate::topology::{self, Diagnosis, Options, SharedKeys, TopologyFile};
use crate::world::{World, WorldOptions};
use tombolo_actors::identity::IdentityError;

pub use amendment::{goes_on_by, hashes};
pub(crate) use blueprint::{Blueprint, Built};
pub use ledger::Ledger;
pub(crate) use paths::{LINKS_LOOK, Paths};
pub use pulse::Pulse;
pub(crate) use recorder::Recorders;
pub use report::Report;
pub use running::{DEPARTED, Interrupt, NOT_DRAINED, Running, STEPPED_DOWN};
pub use state::{StateError, StateFolder, Title};
pub use tombolo_core::waiting::named;
pub(crate) use waiting::Waiting;

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
    /// The store of the coordinator's records.
    #[error("{0}")]
    Store(String),
    /// There is a run in the store of the coordinator's records.
    #[error(
        "the store {0} holds a run already; give --resume to go on with it, or `store` another URL"
    )]
    StoreOccupied(String),
    /// The trainer.
    #[error("the trainer of {node} cannot be made: {reason}")]
    Trainer {
        /// Whose.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// A rule that the program registered, in a mode in which it cannot be.
    #[error("{0}")]
    Rule(String),
    /// A fabric that cannot be had.
    #[error(transparent)]
    Fabric(#[from] NoFabric),
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
    /// The run is over, and its report could not be written.
    #[error("{error}; the run itself {}", how_it_ended(report))]
    Report {
        /// What came of the run.
        report: Box<Report>,
        /// Why it is not on disk.
        error: StateError,
    },
    /// A node that the plan does not have.
    #[error("the topology declares no node {0}: `tombolo check` lists them")]
    UnknownNode(NodeId),
    /// This machine.
    #[error("{0}")]
    Machine(String),
}

fn how_it_ended(report: &Report) -> String {
    match report.finished.reason.as_str() {
        "" => "came to its end".to_owned(),
        reason => format!("ended for another reason: {reason}"),
    }
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
    blueprint: Blueprint,
    objects: Option<Arc<dyn ObjectStore>>,
    resume: bool,
    emulate: bool,
}

/// Where a topology comes from: read once, judged as often as more is known of the program that uses it.
#[derive(Clone)]
pub(crate) struct Source(TopologyFile);

impl Source {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self, Diagnosis> {
        topology::read(path).map(Source)
    }

    /// Text whose relative paths resolve against `folder`.
    pub(crate) fn text(text: &str, folder: impl AsRef<Path>) -> Self {
        Source(TopologyFile {
            name: "topology".to_owned(),
            text: text.to_owned(),
            folder: absolute(folder.as_ref()),
            is_pipe: false,
        })
    }

    /// Checks it.
    pub(crate) fn load(&self, options: &Options) -> Result<Plan, Diagnosis> {
        let file = &self.0;
        topology::parse_with(&file.name, &file.text, &file.folder, options)
    }

    /// The rule that the file names, so that it may be registered after the file was read.
    pub(crate) fn named_rule(&self) -> Vec<String> {
        let table = self.0.text.parse::<toml::Table>().ok();
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
        Self::from_source(Source::read(path.as_ref())?)
    }

    /// Reads a topology from text. Relative paths in it resolve against `folder`.
    ///
    /// # Errors
    /// [`FederationError::Topology`] with every mistake.
    pub fn from_toml(text: &str, folder: impl AsRef<Path>) -> Result<Self, FederationError> {
        Self::from_source(Source::text(text, folder))
    }

    fn from_source(source: Source) -> Result<Self, FederationError> {
        Ok(Federation {
            blueprint: Blueprint::read(source)?,
            objects: None,
            resume: false,
            emulate: false,
        })
    }

    /// The plan as it stands.
    pub fn plan(&self) -> &Plan {
        &self.blueprint.plan
    }

    /// What the coordinator has written down, for reading, also while a run is at work.
    ///
    /// # Errors
    /// [`FederationError::Store`]: there is no way to the object store.
    pub fn store(&self) -> Result<Store, FederationError> {
        self.records(self.open_store()?)
    }

    /// Where that is, for people.
    pub fn store_place(&self) -> String {
        let checkpoint = &self.plan().checkpoint;
        match &checkpoint.store {
            Some(url) => url.clone(),
            None => checkpoint.folder.display().to_string(),
        }
    }

    /// The object store of the coordinator's records; none if they lie in a folder.
    fn open_store(&self) -> Result<Option<Arc<dyn Files>>, FederationError> {
        let plan = self.plan();
        let failed = |error: std::io::Error| FederationError::Store(error.to_string());
        let patience = store::patience(plan);
        Ok(match (&self.objects, &plan.checkpoint.store) {
            (Some(objects), _) => {
                let files = ObjectFiles::new(objects.clone(), self.store_place(), patience);
                Some(Arc::new(files.map_err(failed)?))
            }
            (None, Some(url)) => Some(store::open(url, patience).map_err(failed)?),
            (None, None) => None,
        })
    }

    /// Whose run an object store holds, if it may be gone on with.
    fn probe(&self, store: &Store) -> Result<Option<Probe>, FederationError> {
        let probe = store.probe();
        let probe = probe.map_err(|error| FederationError::Store(error.to_string()))?;
        match probe {
            Some(_) if !self.resume => Err(FederationError::StoreOccupied(self.store_place())),
            probe => Ok(probe),
        }
    }

    /// The text of a topology that came through a pipe, so that no other process can read it there.
    pub fn piped(&self) -> Option<&str> {
        self.blueprint.piped()
    }

    /// Trains with trainers of your own instead of the built-in model.
    #[must_use]
    pub fn trainer<T: Trainer + 'static>(
        mut self,
        make: impl Fn(&NodeId) -> T + Send + Sync + 'static,
    ) -> Self {
        self.blueprint.trainer(move |node| Ok(make(node)));
        self
    }

    /// As [`trainer`](Self::trainer), with trainers whose making may fail: the federation then does not start, or the node does not train.
    #[must_use]
    pub fn try_trainer<T: Trainer + 'static, E: std::fmt::Display>(
        mut self,
        make: impl Fn(&NodeId) -> Result<T, E> + Send + Sync + 'static,
    ) -> Self {
        self.blueprint
            .trainer(move |node| make(node).map_err(|error| error.to_string()));
        self
    }

    /// Registers an aggregation rule under the name that `[aggregator] kind` uses.
    #[must_use]
    pub fn aggregator<A: Aggregator + 'static>(
        mut self,
        name: &str,
        make: impl Fn() -> A + Send + Sync + 'static,
    ) -> Self {
        self.blueprint.aggregator(name, make);
        self
    }

    /// Registers an actix actor of your own as aggregation rule: `start` runs on an arbiter of its own and returns whoever answers
    /// [`Weigh`]. A handler that blocks there holds up nothing else: a round for which it gives no weights within `close_limit` is aborted.
    #[must_use]
    pub fn aggregator_actor(
        mut self,
        name: &str,
        start: impl Fn() -> actix::Recipient<Weigh> + Send + Sync + 'static,
    ) -> Self {
        self.blueprint.aggregator_actor(name, start);
        self
    }

    /// Keeps state in another folder than the topology says.
    #[must_use]
    pub fn state(mut self, folder: impl AsRef<Path>) -> Self {
        self.blueprint.plan.checkpoint.folder = absolute(folder.as_ref());
        self
    }

    /// Keeps the coordinator's records in an object store of yours, which must be able to create an object only if it is absent.
    #[must_use]
    pub fn store_in(mut self, objects: Arc<dyn ObjectStore>) -> Self {
        self.objects = Some(objects);
        let place = "an object store of the program's own".to_owned();
        self.blueprint.plan.checkpoint.store = Some(place);
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
        let nodes = self.plan().nodes().map(|node| node.id.clone()).collect();
        self.make_pki()?;
        self.start(nodes)
    }

    /// Starts one node of the federation; the others run elsewhere. Its certificate must be there.
    ///
    /// # Errors
    /// See [`FederationError`]; nothing has joined then.
    pub async fn spawn_node(self, node: &NodeId) -> Result<Running, FederationError> {
        self.spawn_nodes([node.clone()]).await
    }

    /// Starts some nodes of the federation in this process; the others run elsewhere. Their certificates must be there.
    ///
    /// # Errors
    /// See [`FederationError`]; nothing has joined then.
    ///
    /// # Panics
    /// If no node is named.
    pub async fn spawn_nodes(
        self,
        nodes: impl IntoIterator<Item = NodeId>,
    ) -> Result<Running, FederationError> {
        let nodes: BTreeSet<NodeId> = nodes.into_iter().collect();
        if let Some(unknown) = nodes.iter().find(|node| self.plan().node(node).is_none()) {
            return Err(FederationError::UnknownNode(unknown.clone()));
        }
        self.start(nodes)
    }

    /// Elements of the model; none if its trainer cannot be made here.
    pub fn elements(&self) -> Option<usize> {
        let first = self.plan().nodes().next()?.id.clone();
        let built = self.blueprint.clone().build(&first).ok()?;
        Some(built.layout.len())
    }

    /// What rounds are computed with, and where their states lie.
    pub(crate) fn built(&self) -> Result<(Built, Store), FederationError> {
        let first = self.plan().coordinator.clone();
        let built = self.blueprint.clone().build(&first);
        let built = built.map_err(FederationError::Machine)?;
        Ok((built, self.store()?))
    }

    /// Makes a development PKI if there is none, and checks what would stop the nodes from starting, without starting them.
    ///
    /// # Errors
    /// See [`FederationError`].
    pub fn prepare(&self) -> Result<(), FederationError> {
        self.blueprint.check_rules()?;
        self.blueprint.check_mode().map_err(FederationError::Rule)?;
        self.make_pki()?;
        let plan = self.plan();
        let nodes = plan.nodes().map(|node| node.id.clone()).collect();
        check_ports(plan, &nodes)?;
        // The processes that train know how much they register.
        choose_fabrics(plan, &Fabrics::new(&plan.checkpoint.folder), &nodes, 0)?;
        let (keys, objects) = (SharedKeys::of(plan), self.open_store()?);
        let began = self.began_with(&plan.coordinator, objects.as_ref(), keys.hash())?;
        StateFolder::check(&plan.checkpoint.folder, &keys, began, self.resume)?;
        if let Some(files) = objects {
            self.probe(&self.records(Some(files))?)?;
        }
        forget_addresses(plan, &nodes)
    }

    pub(crate) fn make_pki(&self) -> Result<(), FederationError> {
        for ensured in pki::ensure_dev_pki(self.plan(), unix_now())? {
            tracing::info!("{ensured}");
        }
        Ok(())
    }

    /// Whatever can fail comes before the state folder is taken: a start that was refused leaves no run behind.
    fn start(self, nodes: BTreeSet<NodeId>) -> Result<Running, FederationError> {
        self.blueprint.check_rules()?;
        self.blueprint.check_mode().map_err(FederationError::Rule)?;
        // Whoever never coordinates needs no way to the store, nor credentials for it.
        let may_coordinate = |node| self.plan().may_coordinate(node);
        let objects = match nodes.iter().any(may_coordinate) {
            true => self.open_store()?,
            false => None,
        };
        let machine = |error: std::io::Error| FederationError::Machine(error.to_string());
        let first = nodes.iter().next().expect("at least one node is started");
        let built = self.blueprint.clone().build(first);
        let built = built.map_err(|reason| FederationError::Trainer {
            node: first.clone(),
            reason,
        })?;
        let plan = built.plan.clone();
        let ahead = self.blueprint.ahead(&plan, &nodes, self.emulate);
        let hosts_coordinator = nodes.contains(&plan.coordinator);
        let mut identities = BTreeMap::new();
        for node in &nodes {
            let identity = NodeIdentity::load(&plan, node, Arc::new(unix_now))?;
            identities.insert(node.clone(), identity);
        }
        check_ports(&plan, &nodes)?;
        let folder = &plan.checkpoint.folder;
        tracing::debug!(?folder, "state folder");
        let fabrics = Fabrics::new(folder);
        // The model, and an update of it.
        let registered = 2 * 4 * built.layout.len() as u64;
        let fabric_of = choose_fabrics(&plan, &fabrics, &nodes, registered)?;
        let (mut state, mut run) = (None, Hash::default());
        let mut began = BTreeMap::new();
        for node in &nodes {
            let with = self.began_with(node, objects.as_ref(), built.configuration)?;
            began.insert(node.clone(), with);
        }
        if hosts_coordinator {
            let store = objects.clone().map(|files| self.records(Some(files)));
            let store = store.transpose()?;
            let probe = store.as_ref().map(|store| self.probe(store)).transpose()?;
            let keys = SharedKeys::of(&plan);
            let opened = StateFolder::open(folder, &keys, began[&plan.coordinator], self.resume)?;
            // Another machine may have begun it, or this one's folder is new.
            run = probe.flatten().map_or(opened.run(), |probe| probe.run);
            if let Some(store) = store {
                let claimed = store.claim(run);
                claimed.map_err(|error| FederationError::Store(error.to_string()))?;
            }
            state = Some(opened);
        }
        let mut options = WorldOptions::from(plan.as_ref());
        if self.emulate {
            options.links.clone_from(&plan.links);
        }
        let world = World::new(options).map_err(machine)?;
        match objects {
            Some(files) => world.keep_records_in(files),
            None if plan.shares_store() => world.keep_records_of(&plan.coordinator),
            None => {}
        }

        // Before this process records anything.
        let may_coordinate = nodes.iter().any(|node| plan.may_coordinate(node));
        let told = may_coordinate.then(|| last_told(&plan.checkpoint.folder));
        let told = told.flatten();

        let (events, from_the_first) = broadcast::channel(EVENTS_KEPT);
        let all_events = vec![events.subscribe(), from_the_first];
        let recorders = Recorders::start(&plan.checkpoint.folder, first, hosts_coordinator);
        let recorders = Arc::new(Mutex::new(recorders.map_err(machine)?));
        let history = Arc::new(History::new(plan.rounds));
        let ledger = Arc::new(Ledger::default());
        let (roles, role_changes) = watch::channel(());
        let sink: Arc<dyn Fn(Event) + Send + Sync> = {
            let (events, recorders) = (events.clone(), recorders.clone());
            let (history, ledger, hosted) = (history.clone(), ledger.clone(), nodes.clone());
            let clock = world.clock();
            Arc::new(move |event: Event| {
                tracing::debug!(?event);
                history.record(&event);
                let mut recorders = recorders.lock().unwrap_or_else(PoisonError::into_inner);
                recorders.record(clock(), &event);
                drop(recorders);
                ledger.record(&event);
                match &event {
                    Event::CoordinatorSteppedDown {
                        by,
                        epoch,
                        acted: true,
                        ..
                    } if !hosted.contains(by) => ledger.end(format!(
                        "{STEPPED_DOWN}{by} is the coordinator since membership view {epoch}; start this process again with --resume, and it goes on without coordinating"
                    )),
                    Event::CoordinatorSteppedDown { .. } | Event::CoordinatorPromoted { .. } => {
                        roles.send_replace(());
                    }
                    _ => {}
                }
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
            let device = fabrics
                .open(&fabric_of[&node.domain()], node)
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
                denials: Default::default(),
            };
            let kit = Kit {
                stage,
                identity,
                device,
                layout: built.layout.clone(),
                trainer: built.trainer.clone(),
                rule: built.rule.clone(),
                configuration: began[node],
                topology: built.configuration,
                ahead: ahead.clone(),
                meeting: plan
                    .domain(&node.domain())
                    .and_then(|domain| fabrics.meeting(domain)),
                run,
                told,
                listen,
            };
            crews.insert(node.clone(), Crew::start(kit).map_err(machine)?);
        }
        let env = world.env(first).map_err(machine)?;
        let clock = {
            let env = env.clone();
            let clock: waiting::Clock = Arc::new(move || env.now());
            clock
        };
        let pulse = Pulse::start(&env);
        let running_clock = clock.clone();
        let paths = Paths::new(crews.values(), |peer| !crews.contains_key(peer));
        let waiting = Waiting::new(&plan, &crews, world.addresses(), clock);
        let waiting = Arc::new(waiting);
        let sources = Sources::new(
            &plan,
            &crews,
            census.clone(),
            history,
            waiting.clone(),
            env.clone(),
        );
        let control = Control::serve(folder, first, sources).map_err(machine)?;
        Ok(Running {
            plan: plan.clone(),
            crews,
            events,
            ledger,
            census,
            waiting,
            paths,
            sink,
            all_events,
            clock: running_clock,
            pulse: Some(pulse),
            _control: control,
            world,
            state,
            recorders,
            began_with: began,
            env,
            ahead,
            role_changes,
        })
    }
}

/// A path as messages name it, whatever the current folder of whoever reads them.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// What the domains of these nodes use here, each of which registers at least `bytes`, and a warning where it is probably not as meant.
fn choose_fabrics(
    plan: &Plan,
    fabrics: &Fabrics,
    nodes: &BTreeSet<NodeId>,
    bytes: u64,
) -> Result<BTreeMap<DomainId, Choice>, NoFabric> {
    let mut choices = BTreeMap::new();
    for domain in &plan.domains {
        let here = nodes.iter().filter(|node| node.domain() == domain.id);
        let count = here.count() as u64;
        if count == 0 {
            continue;
        }
        let choice = fabrics.choose(domain, count * bytes)?;
        match choice.is_doubtful {
            true => tracing::warn!("{choice}"),
            false => tracing::info!("{choice}"),
        }
        choices.insert(domain.id.clone(), choice);
    }
    Ok(choices)
}

/// Tries the addresses that the topology gives, so that a port which is taken is found before anybody joins.
pub(crate) fn check_ports(plan: &Plan, nodes: &BTreeSet<NodeId>) -> Result<(), FederationError> {
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
