//! One peer's liveness: sends a datagram each period, and climbs the ladder when nothing comes back.
//!
//! Sending and watching run in a plain task, so that a busy mailbox never makes a healthy peer look dead; the actor passes verdicts on.

use std::sync::{Arc, Mutex, PoisonError};

use crate::link::Wire;
use crate::node;
use crate::shell::{AbortOnDrop, Actor, Cx, Handle, Stage};
use tombolo_core::event::Event;
use tombolo_core::heartbeat::{self, Verdict};
use tombolo_core::ids::NodeId;
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::time::Micros;

/// What it takes: a verdict of its watch.
#[derive(Debug)]
pub struct Message(Verdict);

/// See the module.
pub struct Heartbeat {
    stage: Stage,
    peer: NodeId,
    wire: Arc<Wire>,
    machine: Arc<Mutex<heartbeat::Heartbeat>>,
    node: Handle<node::Message>,
    own: Handle<Message>,
    task: Option<AbortOnDrop<()>>,
}

impl Heartbeat {
    /// A watch over `peer`; `machine` outlives the actor.
    pub fn new(
        stage: Stage,
        peer: NodeId,
        wire: Arc<Wire>,
        machine: Arc<Mutex<heartbeat::Heartbeat>>,
        node: Handle<node::Message>,
        own: Handle<Message>,
    ) -> Self {
        Heartbeat {
            stage,
            peer,
            wire,
            machine,
            node,
            own,
            task: None,
        }
    }
}

impl Actor for Heartbeat {
    type Message = Message;
    const NAME: &'static str = "Heartbeat";

    fn started(&mut self, _: &mut Cx<Self>) {
        let lost = {
            let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
            machine.state() == "lost"
        };
        if lost {
            // The actor before this one may have failed over this very verdict.
            let verdict = node::Message::Verdict(self.peer.clone(), Verdict::Lost);
            self.node.deliver(verdict);
        }
        let watch = Watch {
            stage: self.stage.clone(),
            wire: self.wire.clone(),
            machine: self.machine.clone(),
            own: self.own.clone(),
        };
        self.task = Some(AbortOnDrop(tokio::task::spawn_local(watch.run())));
    }

    fn handle(&mut self, Message(verdict): Message, _: &mut Cx<Self>) {
        let (node, peer) = (self.stage.node.clone(), self.peer.clone());
        self.stage.report(match verdict {
            Verdict::Suspected { silent } => {
                let silent_ms = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
                Event::PeerSuspected {
                    node,
                    peer,
                    silent_ms,
                }
            }
            Verdict::Recovered => Event::PeerRecovered { node, peer },
            Verdict::Lost => Event::PeerLost { node, peer },
        });
        self.node
            .deliver(node::Message::Verdict(self.peer.clone(), verdict));
    }
}

struct Watch {
    stage: Stage,
    wire: Arc<Wire>,
    machine: Arc<Mutex<heartbeat::Heartbeat>>,
    own: Handle<Message>,
}

impl Watch {
    async fn run(self) {
        let every = self.stage.plan.heartbeat.every;
        let mut sequence: u64 = 0;
        let mut next_beat = self.stage.env.now();
        let mut heard = Micros::default();
        loop {
            let now = self.stage.env.now();
            if now >= next_beat {
                next_beat = now + every;
                sequence += 1;
                if let Some(connection) = self.wire.connection() {
                    // A datagram that does not fit into the congestion window is as good as lost: the next one follows.
                    let _ = connection.send_datagram(sequence.to_le_bytes().to_vec().into());
                }
            }
            let mut out = Outcome::default();
            let last = self.wire.heard();
            {
                let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
                if last > heard {
                    heard = last;
                    machine.handle(heartbeat::Message::Heard, &mut Context::new(last, &mut out));
                }
                machine.on_wake(&mut Context::new(now, &mut out));
            }
            for verdict in out.effects {
                if self.own.tell(Message(verdict)).await.is_err() {
                    return;
                }
            }
            let wake = out.wake_at.map_or(next_beat, |at| at.min(next_beat));
            self.stage
                .env
                .sleep(wake.since(now).max(std::time::Duration::from_millis(1)))
                .await;
        }
    }
}
