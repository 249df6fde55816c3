//! The coordinator's node as it is, alone in its process, and whoever holds the key of the gateway that it waits for.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn::{Connection, ConnectionError, RecvStream, SendStream, TransportConfig, VarInt};
use tombolo::identity::papers::Papers;
use tombolo::identity::{Clock, NodeIdentity};
use tombolo::topology;
use tombolo::world::{World, WorldOptions};
use tombolo_actors::aggregate::Rule;
use tombolo_actors::crew::{Crew, Kit};
use tombolo_actors::identity::Identity;
use tombolo_actors::shell::{Census, Stage};
use tombolo_core::aggregate;
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};
use tombolo_core::wire::{Control, FINGERPRINT, FrameHeader, Hello, VERSION, codec};
use tombolo_fabric::VerbsProvider;
use tombolo_fabric::memory::Memory;

/// Longer than anything here takes; only a failure waits for it.
pub const PATIENCE: Duration = Duration::from_secs(60);

const TOPOLOGY: &str = r#"
[federation]
name = "small"
rounds = 99999
coordinator = "hq/gate"
[round]
quorum = "all"
deadline = "1h"
[aggregator]
kind = "fedavg"
[[domain]]
name = "hq"
nodes = ["gate"]
[[domain]]
name = "plant"
nodes = ["gate"]
[heartbeat]
every = "5s"
"#;

/// Ends within [`PATIENCE`], or the test fails.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let found = tokio::time::timeout(PATIENCE, future).await;
    found.unwrap_or_else(|_| panic!("it never comes: {what}"))
}

/// `hq/gate`, which waits for `plant/gate`.
pub struct Honest {
    pub plan: Arc<Plan>,
    pub address: SocketAddr,
    events: Arc<Mutex<Vec<Event>>>,
    crew: Crew,
    _world: World,
    _state: tempfile::TempDir,
}

impl Honest {
    pub fn start() -> Honest {
        let plan = Arc::new(topology::parse("small.toml", TOPOLOGY, Path::new(".")).unwrap());
        let state = tempfile::tempdir().unwrap();
        let world = World::new(WorldOptions {
            state: state.path().to_owned(),
            nodes: Vec::new(),
            links: Vec::new(),
            seed: 1,
        })
        .unwrap();
        let node: NodeId = "hq/gate".parse().unwrap();
        let env = world.env(&node).unwrap();
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let sink = {
            let events = events.clone();
            Arc::new(move |event| events.lock().unwrap().push(event))
        };
        let rule = plan.clone();
        let crew = Crew::start(Kit {
            stage: Stage {
                node: node.clone(),
                env,
                plan: plan.clone(),
                events: sink,
                census: Census::default(),
                denials: Default::default(),
            },
            identity: identity(&plan, "hq/gate"),
            device: Memory::new().open(node.as_str()).unwrap(),
            layout: One.layout(),
            trainer: Arc::new(|_| Ok(Box::new(One) as Box<dyn Trainer>)),
            rule: Arc::new(move || Rule::Trait(aggregate::build(&rule.aggregator).unwrap())),
            configuration: Hash(topology::config_hash(&plan)),
            topology: Hash(topology::config_hash(&plan)),
            ahead: None,
            meeting: None,
            run: Hash::default(),
            told: None,
            listen: "127.0.0.1:0".parse().unwrap(),
        })
        .unwrap();
        Honest {
            plan,
            address: crew.address,
            events,
            crew,
            _world: world,
            _state: state,
        }
    }

    /// Why it was told to leave, if it was.
    pub fn left(&self) -> Option<String> {
        self.crew.left.borrow().clone()
    }

    /// What was reported.
    pub fn seen(&self, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let events = self.events.lock().unwrap();
        events
            .iter()
            .filter(|event| wanted(event))
            .cloned()
            .collect()
    }
}

pub fn identity(plan: &Arc<Plan>, name: &str) -> Arc<dyn Identity> {
    let clock: Clock = Arc::new(tombolo::world::unix_now);
    let node = name.parse().unwrap();
    NodeIdentity::seeded_with(plan, &node, 1, clock, Papers::default()).unwrap()
}

/// A process with the key of `plant/gate` that keeps to no rule.
pub struct Hostile {
    endpoint: quinn::Endpoint,
    config: quinn::ClientConfig,
    name: String,
    address: SocketAddr,
    hello: Hello,
}

impl Hostile {
    pub fn new(honest: &Honest) -> Hostile {
        let identity = identity(&honest.plan, "plant/gate");
        let (crypto, name) = identity.client(&"hq/gate".parse().unwrap());
        let mut transport = TransportConfig::default();
        // What waits to be sent is memory of this process, too.
        transport.send_window(64 << 10);
        transport.datagram_send_buffer_size(64 << 10);
        let mut config = quinn::ClientConfig::new(crypto);
        config.transport_config(Arc::new(transport));
        Hostile {
            endpoint: quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap(),
            config,
            name,
            address: honest.address,
            hello: Hello {
                version: VERSION,
                fingerprint: FINGERPRINT,
                topology: Hash(topology::config_hash(&honest.plan)),
                incarnation: 77,
                known: 0,
                received: 0,
                heartbeat_ms: 5_000,
                at_work: true,
            },
        }
    }

    /// A hello as an honest process would say it, but for that.
    pub fn hello(&self, change: impl FnOnce(&mut Hello)) -> Hello {
        let mut hello = self.hello.clone();
        change(&mut hello);
        hello
    }

    /// A connection whose certificates are good.
    pub async fn dial(&self) -> Connection {
        let config = self.config.clone();
        let connecting = self
            .endpoint
            .connect_with(config, self.address, &self.name)
            .unwrap();
        soon("a handshake", connecting).await.unwrap()
    }

    /// A connection on which both have said hello.
    pub async fn greet(&self) -> Greeted {
        let connection = self.dial().await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        say(&mut send, &self.hello(|_| ())).await;
        let theirs = soon("its hello", hear(&mut receive)).await;
        assert_eq!(theirs.version, VERSION);
        Greeted {
            connection,
            send,
            receive,
        }
    }
}

/// See [`Hostile::greet`].
pub struct Greeted {
    pub connection: Connection,
    pub send: SendStream,
    pub receive: RecvStream,
}

impl Greeted {
    /// Sends a frame with whatever in it; what is not taken any more does not matter.
    pub async fn frame(&mut self, len: u32, sequence: u64, message: &[u8]) {
        let header = FrameHeader {
            len,
            sequence,
            acknowledged: 0,
        };
        let _ = self.send.write_all(&header.to_bytes()).await;
        let _ = self.send.write_all(message).await;
    }

    /// Sends a message.
    pub async fn control(&mut self, sequence: u64, control: &Control) {
        let message = codec::encode(control).unwrap();
        let len = message.len() as u32;
        self.frame(len, sequence, &message).await;
    }

    /// Reads on until that number is acknowledged.
    pub async fn acknowledged(&mut self, sequence: u64) {
        let read = async {
            loop {
                let (header, _) = self.next().await;
                assert!(header.acknowledged <= sequence, "{header:?}");
                if header.acknowledged == sequence {
                    return;
                }
            }
        };
        soon("an acknowledgement", read).await;
    }

    /// The next frame.
    pub async fn next(&mut self) -> (FrameHeader, Vec<u8>) {
        let mut header = [0; FrameHeader::BYTES];
        self.receive.read_exact(&mut header).await.unwrap();
        let header = FrameHeader::from_bytes(&header).unwrap();
        let mut message = vec![0; header.len as usize];
        self.receive.read_exact(&mut message).await.unwrap();
        (header, message)
    }
}

/// Why the other side has closed a connection.
pub async fn closed(connection: &Connection) -> String {
    match soon("its end", connection.closed()).await {
        ConnectionError::ApplicationClosed(close) => {
            String::from_utf8_lossy(&close.reason).into_owned()
        }
        other => other.to_string(),
    }
}

pub async fn say(send: &mut SendStream, hello: &Hello) {
    let bytes = codec::encode(hello).unwrap();
    let len = (bytes.len() as u32).to_le_bytes();
    send.write_all(&len).await.unwrap();
    send.write_all(&bytes).await.unwrap();
}

async fn hear(receive: &mut RecvStream) -> Hello {
    let mut len = [0; 4];
    receive.read_exact(&mut len).await.unwrap();
    let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
    receive.read_exact(&mut bytes).await.unwrap();
    codec::decode(&bytes).unwrap()
}

/// Ends a connection as whoever has had enough.
pub fn hang_up(connection: &Connection) {
    connection.close(VarInt::from_u32(0), b"enough");
}

/// A model of one parameter.
struct One;

impl Trainer for One {
    fn layout(&self) -> Layout {
        Layout::new([("one", vec![1])]).unwrap()
    }

    fn initialize(&mut self, _: u64, _: &mut [f32]) -> Result<(), TrainError> {
        Ok(())
    }

    fn train(&mut self, _: &Task, _: &mut [f32]) -> Result<Trained, TrainError> {
        Ok(Trained {
            samples: 1,
            loss: 1.0,
            steps: 1,
            learning_rate: 1.0,
        })
    }

    fn evaluate(&mut self, _: &[f32]) -> Result<Evaluation, TrainError> {
        Ok(Evaluation {
            accuracy: 0.5,
            loss: 1.0,
        })
    }
}
