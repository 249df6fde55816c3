//! Who speaks for a peer: a connection says hello before it takes the place of the one that carries.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic;
use std::time::Duration;

use quinn::{Connection, ConnectionError, VarInt};
use tokio::sync::Notify;

use super::session::{Handover, Session};
use super::{Attached, Carrier, Current, LEFT, Link, Message, OVER, Trouble};
use crate::env::Env;
use crate::node;
use crate::shell::{AbortOnDrop, Cx, Reply, later};
use tombolo_core::mutants;
use tombolo_core::text::clip;

/// Why a second process of an identity is turned away.
pub(super) const DUPLICATE: VarInt = VarInt::from_u32(21);

/// A connection whose place another one has.
pub(super) const REPLACED: VarInt = VarInt::from_u32(2);

/// Connections that shake hands at once. A peer dials one at a time, and so does a duplicate of it; the oldest goes.
const CANDIDATES_MAX: usize = 4;

/// The longest a process that may be gone is waited for before another takes its place.
const PROBE_MOST: Duration = Duration::from_secs(4);

/// Looks for an answer within that time.
const PROBE_LOOKS: u32 = 16;

impl Link {
    /// Lets a connection say hello; what stands goes on meanwhile.
    pub(super) fn attach(&mut self, attached: Attached) {
        let Attached {
            connection,
            shown,
            until,
        } = attached;
        let durable = &self.setup.durable;
        let number = durable.sessions.fetch_add(1, atomic::Ordering::Relaxed) + 1;
        let nudge = Arc::new(Notify::new());
        let handover = Rc::new(Handover::default());
        let (setup, own) = (self.setup.clone(), self.own.clone());
        let candidate = (connection.clone(), nudge.clone(), handover.clone());
        let task = tokio::task::spawn_local(async move {
            let end = Session {
                setup: &setup,
                own: &own,
                connection: &connection,
                number,
                nudge: &nudge,
                handover: &handover,
            }
            .run()
            .await;
            setup.durable.set_left(has_left(&connection));
            if connection.close_reason().is_none() {
                connection.close(VarInt::from_u32(3), end.reason.as_bytes());
            }
            let _ = own.tell(Message::Down(number, end)).await;
            if let Some(reason) = end_of_run(&connection) {
                let over = node::Message::Over(setup.peer.clone(), reason);
                let _ = setup.node.tell(over).await;
            }
        });
        let candidate = Carrier {
            connection: candidate.0,
            nudge: candidate.1,
            handover: candidate.2,
            _task: AbortOnDrop(task),
            shown,
            until,
        };
        self.candidates.insert(number, candidate);
        if self.candidates.len() > CANDIDATES_MAX
            && let Some((_, oldest)) = self.candidates.pop_first()
        {
            oldest
                .connection
                .close(REPLACED, b"replaced by a newer connection");
            self.setup.wire.add(&oldest.connection);
        }
    }

    /// Decides whether a session may take the place of the one that carries. The same process may at any time. Another process of the
    /// same identity may once the one before does not answer: a node that was restarted is back at once, a duplicate of a live one is not
    /// let in, and neither is a node that was taken for dead once another is there.
    pub(super) fn on_greeted(
        &mut self,
        cx: &mut Cx<Self>,
        number: u64,
        incarnation: u64,
        reply: Reply<Result<(), Trouble>>,
    ) {
        let stands = self.setup.wire.connection();
        let stands = stands.filter(|connection| connection.close_reason().is_none());
        let (Some(current), Some(connection)) = (&self.session, stands) else {
            return self.admit(cx, number, incarnation, reply);
        };
        if current.incarnation == incarnation && current.number > number {
            // Its hello is from before what stands was agreed on, and knows nothing of it: frames would be counted anew from there.
            return reply.send(Err("a newer connection stands".to_owned().into()));
        }
        if current.incarnation == incarnation || mutants::is("duplicate-accepted") {
            return self.admit(cx, number, incarnation, reply);
        }
        let before = current.number;
        let nudge = current
            .carrier
            .as_ref()
            .map(|carrier| carrier.nudge.clone());
        let (Some(nudge), Some(candidate)) = (nudge, self.candidates.get(&number)) else {
            return;
        };
        let candidate = candidate.connection.clone();
        let env = self.setup.stage.env.clone();
        let span = self.setup.stage.plan.heartbeat.every;
        let span = span.max(connection.rtt() * 8).min(PROBE_MOST);
        let probe = async move {
            let alive = answers(env.as_ref(), &connection, &nudge, span).await;
            let both = alive && is_there(env.as_ref(), &candidate, span).await;
            (alive, both)
        };
        later(cx, probe, move |link, (alive, both), cx| {
            if !link.is_current(before) {
                return link.on_greeted(cx, number, incarnation, reply);
            }
            if !alive {
                return link.admit(cx, number, incarnation, reply);
            }
            if !both {
                // A process that ended right after its hello is nobody's duplicate.
                return reply.send(Err("it has ended since its hello".to_owned().into()));
            }
            let (node, peer) = (&link.setup.stage.node, &link.setup.peer);
            reply.send(Err(Trouble {
                reason: format!(
                    "another process is {peer} and answers {node}: two have the same certificate; stop one of them, or give it an identity of its own"
                ),
                refused: true,
            }));
        });
    }

    pub(super) fn admit(
        &mut self,
        cx: &mut Cx<Self>,
        number: u64,
        incarnation: u64,
        reply: Reply<Result<(), Trouble>>,
    ) {
        let Some(candidate) = self.candidates.remove(&number) else {
            return;
        };
        let next = Arc::new(candidate.connection.clone());
        match self.session.take() {
            Some(old) if self.gives_way(&old, incarnation) => self.retire(cx, old, next.clone()),
            old => {
                self.session = old;
                let mut why = "replaced by a newer connection".to_owned();
                if let Some(old) = self.setup.wire.connection() {
                    // It may have ended by itself a moment ago, and that says more.
                    if let Some(ended) = old.close_reason() {
                        why = ended.to_string();
                    }
                    old.close(REPLACED, b"replaced by a newer connection");
                }
                self.down(&why);
                self.setup.wire.replace(Some(next));
            }
        }
        self.setup.wire.set_until(candidate.until);
        self.session = Some(Current {
            number,
            incarnation,
            carrier: Some(candidate),
        });
        reply.send(Ok(()));
    }
}

/// Whether the other end of a connection answers within `span`. Anything that comes is an answer, and QUIC acknowledges whatever it gets; but
/// what comes in the first half of that time may be what a dead process sent. A process that was started again in its place says at once that
/// it does not know the connection, which closes it.
async fn answers(env: &dyn Env, connection: &Connection, nudge: &Notify, span: Duration) -> bool {
    nudge.notify_one();
    tokio::select! {
        biased;
        _ = connection.closed() => return false,
        () = env.sleep(span / 2) => {}
    }
    let before = connection.stats().udp_rx.datagrams;
    nudge.notify_one();
    hears(env, connection, before, span / 2).await
}

/// The same of a connection that has only said hello and is not wanted.
async fn is_there(env: &dyn Env, connection: &Connection, span: Duration) -> bool {
    let before = connection.stats().udp_rx.datagrams;
    let knock = async {
        if let Ok((mut send, _)) = connection.open_bi().await {
            let _ = send.write_all(&[0]).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = knock => false,
        heard = hears(env, connection, before, span) => heard,
    }
}

/// Whether anything comes behind so many datagrams within `span`.
async fn hears(env: &dyn Env, connection: &Connection, before: u64, span: Duration) -> bool {
    for _ in 0..PROBE_LOOKS {
        env.sleep(span / PROBE_LOOKS).await;
        if connection.close_reason().is_some() {
            return false;
        }
        if connection.stats().udp_rx.datagrams > before {
            return true;
        }
    }
    false
}

/// Whether the peer closed the connection because it leaves.
pub(crate) fn has_left(connection: &Connection) -> bool {
    matches!(
        connection.close_reason(),
        Some(ConnectionError::ApplicationClosed(close)) if [LEFT, OVER].contains(&close.error_code)
    )
}

/// Why the run is over, if the peer closed the connection with that word.
fn end_of_run(connection: &Connection) -> Option<String> {
    match connection.close_reason() {
        Some(ConnectionError::ApplicationClosed(close)) if close.error_code == OVER => {
            Some(clip(String::from_utf8_lossy(&close.reason).into_owned()))
        }
        _ => None,
    }
}
