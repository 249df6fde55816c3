//! Puts one node's actors together and starts them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{SetOnce, watch};

use crate::aggregate::{self, Aggregate, Rule};
use crate::checkpoint::{self, Checkpoint, Term};
use crate::clock_sync::{self, ClockSync};
use crate::collective::{self, Collective};
use crate::coordinator::{self, Coordinator, TrainerFactory};
use crate::credentials::{self, Credentials};
use crate::env::{Class, Env};
use crate::heartbeat::{self, Heartbeat};
use crate::identity::Identity;
use crate::link::{self, Link, Shelf, Wire};
use crate::node::{self, Ahead, Company, Node};
use crate::quic::{self, Quic};
use crate::record::{self, Record};
use crate::residual::Residual;
use crate::shell::{ASKS_MAX, Handle, Passing, Stage, TellError, supervise};
use crate::slab::Pool;
use crate::step::{Meeting, Musters};
use crate::verbs::{self, Fabric, Verbs};
use tombolo_core::event::Event;
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::policy;
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::time::Micros;
use tombolo_core::view::Seen;
use tombolo_core::waiting::Patience;
use tombolo_fabric::Device;

/// Makes the rule; called once for each life of the aggregator's actor, on its arbiter, where a user's own actor starts, too.
pub type RuleFactory = Arc<dyn Fn() -> Rule + Send + Sync>;

/// What a node brings along.
pub struct Kit {
    /// Where it acts.
    pub stage: Stage,
    /// Who it is.
    pub identity: Arc<dyn Identity>,
    /// Its access to the fabric.
    pub device: Arc<dyn Device>,
    /// Names and shapes of the model.
    pub layout: Layout,
    /// Makes trainers.
    pub trainer: TrainerFactory,
    /// Makes the rule; used on the coordinator's node.
    pub rule: RuleFactory,
    /// Hash of everything in the configuration that decides the outcome, as the run began with it.
    pub configuration: Hash,
    /// The same of the topology by which the run goes on: peers must have the same.
    pub topology: Hash,
    /// Looks for a topology by which it may go on after that; none if this node came from no file.
    pub ahead: Option<Ahead>,
    /// Where it trains together with its neighbours, if that can be.
    pub meeting: Option<Meeting>,
    /// Drawn when the run began; used on the coordinator's node, which tells the others.
    pub run: Hash,
    /// The last round of whose end a process before this one has told, 0 before the first; none if nobody knows. Used on the coordinator's
    /// node: what was recorded behind it and not told is told by this one.
    pub told: Option<Round>,
    /// Where it listens.
    pub listen: SocketAddr,
}

/// A node's actors.
#[derive(Clone)]
pub struct Crew {
    /// Who.
    pub node_id: NodeId,
    /// Where its endpoint is bound.
    pub address: SocketAddr,
    /// The node.
    pub node: Handle<node::Message>,
    /// Its endpoint's actor.
    pub quic: Handle<quic::Message>,
    /// Its fabric's actor.
    pub verbs: Handle<verbs::Message>,
    /// Its rank.
    pub collective: Handle<collective::Message>,
    /// Its state.
    pub checkpoint: Handle<checkpoint::Message>,
    /// Its copy of the record.
    pub record: Handle<record::Message>,
    /// Its certificates.
    pub credentials: Handle<credentials::Message>,
    /// Who it is, as its peers see it.
    pub identity: Arc<dyn Identity>,
    /// By peer.
    pub links: BTreeMap<NodeId, Handle<link::Message>>,
    /// By peer.
    pub heartbeats: BTreeMap<NodeId, Handle<heartbeat::Message>>,
    /// By peer.
    pub clock_syncs: BTreeMap<NodeId, Handle<clock_sync::Message>>,
    /// By peer: its clock, for status.
    pub clocks: BTreeMap<NodeId, Arc<clock_sync::Known>>,
    /// By peer: liveness for status.
    pub liveness: BTreeMap<NodeId, Arc<Mutex<tombolo_core::heartbeat::Heartbeat>>>,
    /// By peer.
    pub wires: BTreeMap<NodeId, Arc<Wire>>,
    /// By peer: what it has not acknowledged.
    pub outboxes: BTreeMap<NodeId, Arc<link::Durable>>,
    /// On nodes that may coordinate; at work on one of them.
    pub coordinator: Option<Handle<coordinator::Message>>,
    /// On nodes that may coordinate.
    pub aggregate: Option<Handle<aggregate::Message>>,
    /// For status; filled on the coordinator's node.
    pub board: Arc<Mutex<coordinator::Board>>,
    /// The view by which it goes.
    pub seen: Arc<Mutex<Seen>>,
    /// Whether it is there for the others.
    pub presence: Arc<node::Presence>,
    /// Becomes the reason once the run is over for this node.
    pub left: watch::Receiver<Option<String>>,
    /// Its fabric.
    pub fabric: Fabric,
    /// Which life of the node this is, as its peers are told.
    pub incarnation: u64,
    endpoint: quinn::Endpoint,
    env: Arc<dyn Env>,
}

/// The last word of a node to its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Farewell {
    /// It leaves; the others go on.
    Leaves,
    /// The run is over, for this reason; none if all rounds were run.
    Over(String),
}

impl Crew {
    /// Waits until those peers have acknowledged all that they were told, or have left. False if one did not within `limit`.
    pub async fn settle(&self, peers: impl Fn(&NodeId) -> bool, limit: Duration) -> bool {
        let links = self.links.iter().filter(|(peer, _)| peers(peer));
        let settled = async {
            for (_, link) in links {
                // A link whose actor is gone has nothing more to carry.
                let _ = link.ask_again(ASKS_MAX, link::Message::Settle).await;
            }
        };
        tokio::select! {
            biased;
            () = settled => true,
            () = self.env.sleep(limit) => false,
        }
    }

    /// Closes the endpoint: peers learn at once that this node leaves. What they have not acknowledged is lost to them.
    pub fn close(&self, farewell: &Farewell) {
        match farewell {
            Farewell::Leaves => self.endpoint.close(link::LEFT, b"this node leaves"),
            Farewell::Over(reason) => self.endpoint.close(link::OVER, reason.as_bytes()),
        }
    }

    /// Whether this node coordinates, as far as it knows.
    pub fn coordinates(&self) -> bool {
        let board = self.board.lock();
        board.unwrap_or_else(PoisonError::into_inner).acts
    }

    /// The types of actors that every node has.
    pub const ACTORS: [&str; 10] = [
        "Node",
        "Quic",
        "Verbs",
        "Collective",
        "Checkpoint",
        "Record",
        "Credentials",
        "Link",
        "Heartbeat",
        "ClockSync",
    ];

    /// The types that only nodes have that may coordinate.
    pub const COORDINATORS_ACTORS: [&str; 2] = ["Coordinator", "Aggregate"];

    /// Makes an actor of this node panic, by its type's name; for those of each peer all of them.
    ///
    /// # Errors
    /// A queue is full, or there is no actor of that name here.
    pub fn inject_panic(&self, actor: &str, reason: &str) -> Result<(), TellError> {
        match actor {
            "Node" => self.node.inject_panic(reason),
            "Quic" => self.quic.inject_panic(reason),
            "Verbs" => self.verbs.inject_panic(reason),
            "Collective" => self.collective.inject_panic(reason),
            "Checkpoint" => self.checkpoint.inject_panic(reason),
            "Record" => self.record.inject_panic(reason),
            "Credentials" => self.credentials.inject_panic(reason),
            "Link" => self
                .links
                .values()
                .try_for_each(|link| link.inject_panic(reason)),
            "Heartbeat" => self
                .heartbeats
                .values()
                .try_for_each(|heartbeat| heartbeat.inject_panic(reason)),
            "ClockSync" => self
                .clock_syncs
                .values()
                .try_for_each(|clock| clock.inject_panic(reason)),
            "Coordinator" => self
                .coordinator
                .as_ref()
                .map_or(Err(TellError::Stopped), |handle| {
                    handle.inject_panic(reason)
                }),
            "Aggregate" => self
                .aggregate
                .as_ref()
                .map_or(Err(TellError::Stopped), |handle| {
                    handle.inject_panic(reason)
                }),
            _ => Err(TellError::Stopped),
        }
    }

    /// Makes two actors of this node wait for each other, by their types' names: a fault for tests and simulations.
    ///
    /// # Errors
    /// A queue is full, or there is no such actor of which a node has one.
    pub fn inject_deadlock(&self, actor: &str, other: &str) -> Result<(), TellError> {
        let (first, second) = (self.passing(actor)?, self.passing(other)?);
        self.inject_wait(actor, second)?;
        self.inject_wait(other, first)
    }

    fn passing(&self, actor: &str) -> Result<Passing, TellError> {
        Ok(match actor {
            "Node" => self.node.passing(),
            "Quic" => self.quic.passing(),
            "Verbs" => self.verbs.passing(),
            "Collective" => self.collective.passing(),
            "Checkpoint" => self.checkpoint.passing(),
            _ => return Err(TellError::Stopped),
        })
    }

    fn inject_wait(&self, actor: &str, passing: Passing) -> Result<(), TellError> {
        match actor {
            "Node" => self.node.inject_wait(passing),
            "Quic" => self.quic.inject_wait(passing),
            "Verbs" => self.verbs.inject_wait(passing),
            "Collective" => self.collective.inject_wait(passing),
            "Checkpoint" => self.checkpoint.inject_wait(passing),
            _ => Err(TellError::Stopped),
        }
    }

    /// Messages in the longest queue of this node's actors.
    pub fn longest_queue(&self) -> usize {
        let own = [
            self.node.depth(),
            self.quic.depth(),
            self.verbs.depth(),
            self.collective.depth(),
            self.checkpoint.depth(),
            self.record.depth(),
            self.credentials.depth(),
            self.coordinator.as_ref().map_or(0, Handle::depth),
            self.aggregate.as_ref().map_or(0, Handle::depth),
        ];
        let links = self.links.values().map(Handle::depth);
        let heartbeats = self.heartbeats.values().map(Handle::depth);
        let clocks = self.clock_syncs.values().map(Handle::depth);
        own.into_iter()
            .chain(links)
            .chain(heartbeats)
            .chain(clocks)
            .max()
            .unwrap_or(0)
    }

    /// The time of this node's monotonic clock.
    pub fn now(&self) -> Micros {
        self.env.now()
    }

    /// Waits until what was said last has been sent.
    pub async fn drained(&self) {
        self.endpoint.wait_idle().await;
    }

    /// Starts a node.
    ///
    /// # Errors
    /// The socket cannot be bound or the address cannot be made known; the message names it.
    pub fn start(kit: Kit) -> io::Result<Crew> {
        let Kit {
            stage,
            identity,
            device,
            layout,
            trainer,
            rule,
            configuration,
            topology,
            ahead,
            meeting,
            run,
            told,
            listen,
        } = kit;
        let (plan, me) = (stage.plan.clone(), stage.node.clone());
        let bound = policy::bind(topology, &plan);
        let socket = quic::bind(&stage.env, &plan, &stage.node, identity.as_ref(), listen)
            .map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("{me} cannot listen on {listen}: {error}"),
                )
            })?;
        let endpoint = socket.endpoint.clone();
        let address = endpoint.local_addr()?;
        stage.env.advertise(&me, address)?;
        let incarnation = stage.env.rng("incarnation").next_u64() | 1;
        stage.report(Event::NodeStarted {
            node: me.clone(),
            address: address.to_string(),
            life: incarnation,
        });

        let wait = plan.heartbeat.every * tombolo_core::heartbeat::PERIODS_SILENT;
        let fabric = Fabric::new(device, wait);
        let (pool, shelf) = (Pool::default(), Shelf::default());
        let residual: Arc<Residual> = Arc::default();
        let on_wan = plan.may_coordinate(&me) || plan.may_be_gateway(&me);
        let class = if on_wan { Class::Gateway } else { Class::Node };

        let verbs = {
            let (stage, fabric) = (stage.clone(), fabric.clone());
            supervise(&stage.clone(), Class::Node, me.as_str(), move |_| {
                Verbs::new(stage.clone(), fabric.clone())
            })
        };
        let collective = {
            let (stage, fabric, pool, elements) =
                (stage.clone(), fabric.clone(), pool.clone(), layout.len());
            let residual = residual.clone();
            let ranks = plan
                .domain(&me.domain())
                .map_or(1, |domain| domain.nodes.len());
            supervise(&stage.clone(), Class::Node, me.as_str(), move |_| {
                let (fabric, pool) = (fabric.clone(), pool.clone());
                Collective::new(
                    stage.clone(),
                    elements,
                    ranks,
                    fabric,
                    pool,
                    residual.clone(),
                )
            })
        };
        let term = Term::default();
        let checkpoint = {
            let (stage, pool, term) = (stage.clone(), pool.clone(), term.clone());
            supervise(&stage.clone(), Class::Node, me.as_str(), move |_| {
                let checkpoint = Checkpoint::new(stage.clone(), configuration, pool.clone());
                let checkpoint = checkpoint.going_by(topology).of_run(run);
                match stage.plan.shares_store() {
                    true => checkpoint.shared(term.clone()),
                    false => checkpoint,
                }
            })
        };
        let known_links = Arc::new(OnceLock::new());
        let quic = {
            let (stage, endpoint, identity, links) = (
                stage.clone(),
                socket.clone(),
                identity.clone(),
                known_links.clone(),
            );
            supervise(&stage.clone(), class, me.as_str(), move |_| {
                Quic::new(
                    stage.clone(),
                    identity.clone(),
                    endpoint.clone(),
                    links.clone(),
                )
            })
        };
        let company = Arc::new(SetOnce::new());
        let (left_sender, left) = watch::channel(None);
        let seen = Arc::new(Mutex::new(Seen::new(&plan, me.clone())));
        let patience = Patience::new(&plan, &me, stage.env.now());
        let presence = Arc::new(node::Presence::new(patience));
        let record = {
            let setup = record::Setup {
                stage: stage.clone(),
                identity: identity.clone(),
                topology,
                company: company.clone(),
                checkpoint: checkpoint.clone(),
                seen: seen.clone(),
            };
            supervise(&stage, class, me.as_str(), move |_| {
                Record::new(setup.clone())
            })
        };
        let credentials = {
            let setup = credentials::Setup {
                stage: stage.clone(),
                identity: identity.clone(),
                company: company.clone(),
                record: record.clone(),
                seen: seen.clone(),
            };
            supervise(&stage, class, me.as_str(), move |_| {
                Credentials::new(setup.clone())
            })
        };
        let node = {
            let setup = node::Setup {
                stage: stage.clone(),
                layout: layout.clone(),
                configuration,
                topology: bound,
                ahead: ahead.clone(),
                musters: Musters::new(me.clone(), incarnation, meeting, company.clone()),
                trainer: trainer.clone(),
                shelf: shelf.clone(),
                fabric: fabric.clone(),
                verbs: verbs.clone(),
                collective: collective.clone(),
                record: record.clone(),
                credentials: credentials.clone(),
                left: left_sender,
                company: company.clone(),
                seen: seen.clone(),
                presence: presence.clone(),
                residual,
            };
            supervise(&stage, Class::Node, me.as_str(), move |own| {
                Node::new(setup.clone(), own.clone())
            })
        };

        let (mut clock_syncs, mut clocks) = (BTreeMap::new(), BTreeMap::new());
        let (mut links, mut heartbeats, mut liveness, mut wires, mut outboxes) = (
            BTreeMap::new(),
            BTreeMap::new(),
            BTreeMap::new(),
            BTreeMap::new(),
            BTreeMap::new(),
        );
        for peer in plan.peers(&me) {
            let wire = Arc::new(Wire::default());
            let durable: Arc<link::Durable> = Arc::default();
            let setup = link::Setup {
                stage: stage.clone(),
                identity: identity.clone(),
                peer: peer.clone(),
                incarnation,
                topology: bound,
                presence: presence.clone(),
                shelf: shelf.clone(),
                wire: wire.clone(),
                durable: durable.clone(),
                quic: quic.clone(),
                node: node.clone(),
            };
            let key = format!("{me} {peer}");
            let link = supervise(&stage, class, &key, move |own| {
                Link::new(setup.clone(), own.clone())
            });
            let spread = stage.env.rng(&format!("heartbeat {peer}"));
            let machine = Arc::new(Mutex::new(tombolo_core::heartbeat::Heartbeat::new(
                &plan.heartbeat,
                spread,
            )));
            let setup = clock_sync::Setup {
                stage: stage.clone(),
                peer: peer.clone(),
                known: Arc::default(),
            };
            clocks.insert(peer.clone(), setup.known.clone());
            let clock = supervise(&stage, Class::Network, &key, move |_| {
                ClockSync::new(setup.clone())
            });
            clock_syncs.insert(peer.clone(), clock.clone());
            let setup = heartbeat::Setup {
                stage: stage.clone(),
                peer: peer.clone(),
                wire: wire.clone(),
                link: link.clone(),
                machine: machine.clone(),
                node: node.clone(),
                clock,
            };
            let heartbeat = supervise(&stage, Class::Network, &key, move |own| {
                Heartbeat::new(setup.clone(), own.clone())
            });
            links.insert(peer.clone(), link);
            heartbeats.insert(peer.clone(), heartbeat);
            liveness.insert(peer.clone(), machine);
            outboxes.insert(peer.clone(), durable);
            wires.insert(peer, wire);
        }

        let board = Arc::new(Mutex::new(coordinator::Board {
            acts: me == plan.coordinator,
            ..Default::default()
        }));
        let (mut coordinator, mut aggregate) = (None, None);
        if plan.may_coordinate(&me) {
            let env = stage.env.clone();
            let rule_actor = supervise(&stage, Class::Rule, me.as_str(), move |_| {
                Aggregate::new(env.clone(), rule())
            });
            let setup = coordinator::Setup {
                stage: stage.clone(),
                run,
                layout,
                trainer,
                shelf,
                pool,
                node: node.clone(),
                aggregate: rule_actor.clone(),
                checkpoint: checkpoint.clone(),
                record: record.clone(),
                term,
                links: links.clone(),
                wires: wires.clone(),
                board: Arc::clone(&board),
                durable: Arc::new(Mutex::new(coordinator::Durable::new(told))),
            };
            coordinator = Some(supervise(&stage, class, me.as_str(), move |own| {
                Coordinator::new(setup.clone(), own.clone())
            }));
            aggregate = Some(rule_actor);
        }
        if company
            .set(Company {
                links: links.clone(),
                wires: wires.clone(),
                clocks: clocks.clone(),
                coordinator: coordinator.clone(),
            })
            .is_err()
        {
            unreachable!("a node's company is set once");
        }
        quic.post(quic::Message::Links(links.clone()))
            .map_err(io::Error::other)?;
        Ok(Crew {
            node_id: me,
            address,
            node,
            quic,
            verbs,
            collective,
            checkpoint,
            record,
            credentials,
            identity,
            links,
            heartbeats,
            clock_syncs,
            clocks,
            liveness,
            wires,
            outboxes,
            coordinator,
            aggregate,
            board,
            seen,
            presence,
            left,
            fabric,
            incarnation,
            endpoint,
            env: stage.env,
        })
    }
}
