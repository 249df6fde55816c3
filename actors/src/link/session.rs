//! One connection's life: handshake, frames, objects.

use std::cell::Cell;
use std::cmp::Ordering;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::greeting::{DUPLICATE, REPLACED};
use super::packed;
use super::shelf::heals;
use super::stripes::{Forming, Writer, stripes};
use super::{Agreed, DENIED, Incoming, Message, OFFER, Setup, Trouble, UNTRUSTED};
use crate::node;
use crate::quic::{admit, is_final};
use crate::shell::Handle;
use tombolo_core::compress::Lossless;
use tombolo_core::heartbeat::PERIODS;
use tombolo_core::ids::NodeId;
use tombolo_core::mutants;
use tombolo_core::policy::{self, Action};
use tombolo_core::wire::{
    CONTROL_BYTES_MAX, Control, FINGERPRINT, FrameHeader, Hello, Lack, Object, ObjectHeader,
    VERSION, codec,
};

/// How long a handshake of ours may take once the connection stands.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// How long a peer with which there is nothing to talk about may take to see so for itself.
const PARTING_LIMIT: Duration = Duration::from_secs(1);
/// Of streams that carry part of a model to heal from; all others have 0.
const HEAL_PRIORITY: i32 = -1;
/// The largest hello.
const HELLO_BYTES_MAX: usize = 1024;

/// Whether a session has handed over to another one. It stops at once to read and to write messages; streams that have begun go on.
#[derive(Debug, Default)]
pub(super) struct Handover {
    done: Cell<bool>,
    told: Notify,
}

impl Handover {
    pub fn order(&self) {
        self.done.set(true);
        self.told.notify_one();
    }

    fn is_done(&self) -> bool {
        self.done.get()
    }
}

/// One connection's life.
pub(super) struct Session<'a> {
    pub setup: &'a Setup,
    pub own: &'a Handle<Message>,
    pub connection: &'a Connection,
    pub number: u64,
    /// Makes it send something that must be acknowledged.
    pub nudge: &'a Notify,
    pub handover: &'a Handover,
}

impl Session<'_> {
    /// Runs until the connection ends; says why.
    pub async fn run(&self) -> Trouble {
        match self.carry().await {
            Ok(never) => match never {},
            // The other side found fault with our certificate after our half of the handshake was done.
            Err(trouble) => match self.connection.close_reason() {
                Some(error @ ConnectionError::ConnectionClosed(_))
                    if !trouble.refused && is_final(&error) =>
                {
                    Trouble {
                        reason: format!("{} refused: {error}", self.setup.peer),
                        refused: true,
                    }
                }
                Some(ConnectionError::ApplicationClosed(close))
                    if [DUPLICATE, UNTRUSTED, DENIED].contains(&close.error_code) =>
                {
                    let reason = String::from_utf8_lossy(&close.reason);
                    Trouble {
                        reason: format!("{} refused: {reason}", self.setup.peer),
                        refused: true,
                    }
                }
                // A stream says no more than that its connection is lost.
                Some(error) if !trouble.refused && error != ConnectionError::LocallyClosed => {
                    Trouble::from(error.to_string())
                }
                _ => trouble,
            },
        }
    }

    async fn carry(&self) -> Result<std::convert::Infallible, Trouble> {
        let shake = self.shake_hands();
        let limit = self.setup.stage.env.sleep(HELLO_LIMIT);
        let (mut send, mut receive) = tokio::select! {
            biased;
            streams = shake => streams?,
            () = limit => return Err(format!("no handshake within {HELLO_LIMIT:?}").into()),
        };
        let acknowledge = Notify::new();
        let end = tokio::select! {
            biased;
            end = self.read(&mut receive, &acknowledge) => end,
            end = self.write(&mut send, &acknowledge) => end,
            end = self.objects() => end,
            () = self.handover.told.notified() => {
                // Closing its streams would be taken for the end of the link by a peer that has not changed over yet.
                let _streams = (&send, &receive);
                return self.objects().await.map_err(Trouble::from);
            }
        };
        end.map_err(Trouble::from)
    }

    /// The dialler says hello first. The other side answers once it has made up its mind, so that a session which is not wanted never
    /// begins at either end.
    async fn shake_hands(&self) -> Result<(SendStream, RecvStream), Trouble> {
        let setup = self.setup;
        self.let_in()?;
        let dials = setup.dials();
        let streams = match dials {
            true => self.connection.open_bi().await,
            false => self.connection.accept_bi().await,
        };
        let (mut send, mut receive) = streams.map_err(|error| error.to_string())?;
        let said = self.hello();
        if dials {
            self.say_hello(&mut send, &said).await?;
        }
        let theirs = self.hear_hello(&mut receive).await?;
        let own = self.hello();
        // Who has only a file does not speak for the run.
        let differs = theirs.at_work && theirs.topology != own.topology;
        setup.wire.note_topology(differs.then_some(theirs.topology));
        if let Err(reason) = agree(&own, &theirs, &setup.peer) {
            if !dials {
                self.part(&mut send).await?;
            }
            return Err(Trouble {
                reason,
                refused: true,
            });
        }
        self.be_admitted(theirs.incarnation).await?;
        let ours = self.hello();
        let said = dials.then_some(said.known);
        if said == Some(theirs.incarnation) && ours.known != theirs.incarnation {
            return Err("another process of it was met meanwhile".to_owned().into());
        }
        let incarnation = setup.incarnation;
        let peer = setup.durable.memory().on_hello(incarnation, &theirs, said);
        if !dials {
            self.say_hello(&mut send, &ours).await?;
        }
        let stage = &setup.stage;
        let carries = stage.env.carries(self.connection.remote_address());
        admit(self.connection, &stage.plan, &stage.node, carries);
        setup.durable.set_left(false);
        setup.wire.note_life(setup.stage.env.now());
        setup.wire.agree(Agreed {
            connection: self.connection.clone(),
            every: Duration::from_millis(theirs.heartbeat_ms),
            life: theirs.incarnation,
        });
        self.own
            .tell(Message::Up(self.number, peer))
            .await
            .map_err(|error| error.to_string())?;
        Ok((send, receive))
    }

    /// Whether the policy of this node's site lets the peer have a connection with it. If not, the peer hears which, before a word is said.
    fn let_in(&self) -> Result<(), Trouble> {
        let (stage, peer) = (&self.setup.stage, &self.setup.peer);
        let site = stage.node.domain();
        let verdict = policy::of(&stage.plan, &site, peer, Action::Join, &stage.node);
        if verdict.allowed || mutants::is("anybody-joins") {
            return Ok(());
        }
        stage.deny(&verdict);
        let reason = verdict.to_string();
        self.connection.close(DENIED, reason.as_bytes());
        Err(Trouble {
            reason,
            refused: true,
        })
    }

    /// What this side says of itself.
    fn hello(&self) -> Hello {
        let setup = self.setup;
        let (known, received) = setup.durable.memory().known();
        Hello {
            version: VERSION,
            fingerprint: FINGERPRINT,
            topology: setup.topology,
            incarnation: setup.incarnation,
            known,
            received,
            heartbeat_ms: u64::try_from(setup.stage.plan.heartbeat.every.as_millis())
                .unwrap_or(u64::MAX),
            at_work: setup.presence.has_joined()
                || setup.stage.node == setup.stage.plan.coordinator,
        }
    }

    async fn say_hello(&self, send: &mut SendStream, hello: &Hello) -> Result<(), String> {
        let bytes = codec::encode(hello).map_err(|error| error.to_string())?;
        let len = u32::try_from(bytes.len())
            .expect("a hello is small")
            .to_le_bytes();
        send.write_all(&len)
            .await
            .map_err(|error| error.to_string())?;
        send.write_all(&bytes)
            .await
            .map_err(|error| error.to_string())
    }

    async fn hear_hello(&self, receive: &mut RecvStream) -> Result<Hello, String> {
        let peer = &self.setup.peer;
        let mut len = [0; 4];
        receive
            .read_exact(&mut len)
            .await
            .map_err(|error| error.to_string())?;
        let len = u32::from_le_bytes(len) as usize;
        if len > HELLO_BYTES_MAX {
            return Err(format!("{peer} sent a hello of {len} bytes"));
        }
        let mut bytes = vec![0; len];
        receive
            .read_exact(&mut bytes)
            .await
            .map_err(|error| error.to_string())?;
        codec::decode(&bytes).map_err(|error| format!("hello of {peer}: {error}"))
    }

    /// Shows a peer with which there is nothing to talk about what differs, and lets it close.
    async fn part(&self, send: &mut SendStream) -> Result<(), String> {
        self.say_hello(send, &self.hello()).await?;
        tokio::select! {
            biased;
            _ = self.connection.closed() => {}
            () = self.setup.stage.env.sleep(PARTING_LIMIT) => {}
        }
        Ok(())
    }

    /// Waits until this session may take the place of the one before.
    async fn be_admitted(&self, incarnation: u64) -> Result<(), Trouble> {
        let question = |reply| Message::Greeted(self.number, incarnation, reply);
        let admitted = self.own.ask(question).await;
        let admitted = admitted.map_err(|error| error.to_string())?;
        if let Err(trouble) = &admitted {
            let code = match trouble.refused {
                true => DUPLICATE,
                false => REPLACED,
            };
            self.connection.close(code, trouble.reason.as_bytes());
        }
        admitted
    }

    async fn read(
        &self,
        receive: &mut RecvStream,
        acknowledge: &Notify,
    ) -> Result<std::convert::Infallible, String> {
        let setup = self.setup;
        loop {
            let mut header = [0; FrameHeader::BYTES];
            receive
                .read_exact(&mut header)
                .await
                .map_err(|error| error.to_string())?;
            let header = FrameHeader::from_bytes(&header).map_err(|error| error.to_string())?;
            let mut payload = vec![0; (header.len as usize).min(CONTROL_BYTES_MAX)];
            receive
                .read_exact(&mut payload)
                .await
                .map_err(|error| error.to_string())?;
            setup.wire.note_life(setup.stage.env.now());
            if self.handover.is_done() {
                // Not acknowledged, it comes again on the connection that took over.
                std::future::pending::<()>().await;
            }
            if header.sequence == 0 {
                setup.durable.on_frame(header);
                continue;
            }
            let control: Control = match codec::decode(&payload) {
                Ok(control) => control,
                Err(error) => {
                    // Once is enough: sent again it would be no better.
                    setup.durable.on_frame(header);
                    return Err(format!("a frame of {}: {error}", setup.peer));
                }
            };
            // The place first: a message counts as received once nothing can come between it and the node any more.
            let place = setup.node.reserve().await;
            let place = place.map_err(|error| error.to_string())?;
            let own = self.own.reserve().await;
            let own = own.map_err(|error| error.to_string())?;
            if self.handover.is_done() {
                std::future::pending::<()>().await;
            }
            let new = setup.durable.on_frame(header);
            acknowledge.notify_one();
            if !new {
                continue;
            }
            match control {
                Control::Fetch { tag, object } => self.serve(tag, object)?,
                Control::Offer { tag, object } => {
                    own.fill(Message::Offered(self.number, OFFER | tag, object));
                }
                Control::Missing { tag, lack, reason } => {
                    own.fill(Message::Missing(self.number, tag, lack, reason.into()));
                }
                Control::Renew => own.fill(Message::RenewAsked),
                control => place.fill(node::Message::Inbound(setup.peer.clone(), control)),
            }
        }
    }

    /// Serves a fetch on a stream of its own.
    fn serve(&self, tag: u64, object: Object) -> Result<(), String> {
        let setup = self.setup;
        let node = &setup.stage.node;
        let permit = match heals(object) {
            true => setup.shelf.heal(),
            false => setup.durable.serves.clone().try_acquire_owned().ok(),
        };
        let verdict = policy::serves(&setup.stage.plan, node, &setup.peer, object);
        let (lack, reason) = match (setup.shelf.find(object), permit) {
            _ if !verdict.allowed => {
                setup.stage.deny(&verdict);
                (Lack::Absent, verdict.to_string())
            }
            (Some(bytes), Some(permit)) => {
                let bytes = perhaps_rotten(setup, object, bytes);
                send_object(setup, self.connection, tag, object, bytes, permit);
                return Ok(());
            }
            (None, _) => (
                Lack::Absent,
                format!("{object:?} is not on the shelf of {node}"),
            ),
            (Some(_), None) => (
                Lack::Busy,
                format!("{node} sends as many objects at once as it may"),
            ),
        };
        let missing = Control::Missing {
            tag,
            lack,
            reason: reason.into(),
        };
        let missing = codec::encode(&missing).expect("a short message");
        let pushed = setup.durable.memory().push(missing.into());
        setup.durable.wake.notify_one();
        // Whoever asked must hear something: if only that the connection ended.
        pushed.map_err(|full| full.to_string())
    }

    async fn write(
        &self,
        send: &mut SendStream,
        acknowledge: &Notify,
    ) -> Result<std::convert::Infallible, String> {
        let durable = &self.setup.durable;
        loop {
            loop {
                if self.handover.is_done() {
                    std::future::pending::<()>().await;
                }
                let next = durable.memory().next_frame();
                let Some((header, message)) = next else { break };
                if self.setup.stage.env.send_fails(&self.setup.peer, &message) {
                    return Err("a send failed".to_owned());
                }
                send.write_all(&header.to_bytes())
                    .await
                    .map_err(|error| error.to_string())?;
                send.write_chunk(message)
                    .await
                    .map_err(|error| error.to_string())?;
            }
            tokio::select! {
                biased;
                () = durable.wake.notified() => {}
                () = async {
                    tokio::select! {
                        biased;
                        () = acknowledge.notified() => {}
                        () = self.nudge.notified() => {}
                    }
                } => {
                    let header = durable.memory().acknowledgement();
                    send.write_all(&header.to_bytes()).await.map_err(|error| error.to_string())?;
                }
            }
        }
    }

    async fn objects(&self) -> Result<std::convert::Infallible, String> {
        let mut forming = Forming::default();
        loop {
            let stream = self.connection.accept_uni().await;
            let stream = stream.map_err(|error| error.to_string())?;
            let begun = forming.begin(stream).await?;
            self.setup.wire.note_life(self.setup.stage.env.now());
            let Some((header, stream)) = begun else {
                continue;
            };
            let ObjectHeader { tag, len, .. } = header;
            self.own
                .tell(Message::Begins(self.number, tag, Incoming { len, stream }))
                .await
                .map_err(|error| error.to_string())?;
        }
    }
}

/// A planted fault: the memory of each domain's second node is rotten, and every chunk that it sends has a flipped bit.
fn perhaps_rotten(setup: &Setup, object: Object, bytes: Bytes) -> Bytes {
    let (plan, node) = (&setup.stage.plan, &setup.stage.node);
    let second = || {
        plan.domain(&node.domain())
            .and_then(|domain| domain.rank(node))
            == Some(1)
    };
    if !(mutants::is("rotten-copy") && matches!(object, Object::Chunk(..)) && second()) {
        return bytes;
    }
    let mut rotten = bytes.to_vec();
    if let Some(first) = rotten.first_mut() {
        *first ^= 1;
    }
    rotten.into()
}

/// Sends an object on streams of its own. quinn bounds how many streams the peer lets us open, and each holds only a reference.
pub(super) fn send_object(
    setup: &Setup,
    connection: &Connection,
    tag: u64,
    object: Object,
    bytes: Bytes,
    permit: OwnedSemaphorePermit,
) {
    let (connection, peer) = (connection.clone(), setup.peer.clone());
    let (env, wire) = (setup.stage.env.clone(), setup.wire.clone());
    let ours = setup.stage.node.domain();
    // Parts to heal from are asked of several peers and come as they are.
    let lossless = match object {
        Object::Model(_) => setup.stage.plan.lossless_down(&ours, &peer.domain()),
        _ => Lossless::None,
    };
    tokio::task::spawn_local(async move {
        // It goes back when the object is out.
        let permit = match mutants::is("permit-leak") {
            true => {
                permit.forget();
                None
            }
            false => Some(permit),
        };
        let sent = async {
            // What a round needs goes first on this connection.
            let priority = heals(object).then_some(HEAL_PRIORITY);
            let carries = env.carries(connection.remote_address());
            let (len, stripes) = (bytes.len() as u64, stripes(bytes.len(), carries));
            let mut stream = Writer::open(&connection, tag, len, stripes, priority).await?;
            match lossless {
                Lossless::None => stream.write(bytes).await?,
                lossless => {
                    let packed = packed::send(env.as_ref(), lossless, bytes, &mut stream);
                    wire.note_model(packed.await?);
                }
            }
            stream.finish().await?;
            Ok::<(), String>(())
        };
        if let Err(error) = sent.await {
            tracing::debug!(%peer, ?object, %error, "object was not sent");
        }
        drop(permit);
    });
}

/// Whether two sides may talk; if not, why, naming both values.
fn agree(ours: &Hello, theirs: &Hello, peer: &NodeId) -> Result<(), String> {
    if (ours.version, ours.fingerprint) != (theirs.version, theirs.fingerprint) {
        let advice = match ours.version.cmp(&theirs.version) {
            Ordering::Less => "upgrade this node".to_owned(),
            Ordering::Greater => format!("upgrade {peer}"),
            Ordering::Equal => "give both the same build".to_owned(),
        };
        return Err(format!(
            "protocol version {} ({:016x}) here, {} ({:016x}) at {peer}: {advice}",
            ours.version, ours.fingerprint, theirs.version, theirs.fingerprint,
        ));
    }
    if ours.topology != theirs.topology {
        return Err(format!(
            "the topology files differ: {:?} here, {:?} at {peer}: give both the same file, and `tombolo amend` it if the run is at work",
            ours.topology, theirs.topology
        ));
    }
    // The periods may differ: the link is held to the slower one.
    if !PERIODS.contains(&Duration::from_millis(theirs.heartbeat_ms)) {
        return Err(format!(
            "heartbeat every {} ms here, {} ms at {peer}: expected {:?} to {:?} there",
            ours.heartbeat_ms,
            theirs.heartbeat_ms,
            PERIODS.start(),
            PERIODS.end()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::tensor::Hash;

    fn hello() -> Hello {
        Hello {
            version: 3,
            fingerprint: 0xabc,
            topology: Hash([1; 32]),
            incarnation: 1,
            known: 0,
            received: 0,
            heartbeat_ms: 500,
            at_work: true,
        }
    }

    fn refusal(change: impl FnOnce(&mut Hello)) -> String {
        let mut theirs = hello();
        change(&mut theirs);
        agree(&hello(), &theirs, &"plant/gate".parse().unwrap()).unwrap_err()
    }

    /// PhotoLabellerServer#11, northstar#254: the refusal shows both versions and says which side to upgrade.
    #[test]
    fn another_version_is_refused_naming_both_and_who_is_older() {
        let newer = refusal(|theirs| theirs.version = 4);
        assert!(
            newer.contains("version 3")
                && newer.contains(", 4 (")
                && newer.ends_with("upgrade this node"),
            "{newer}"
        );
        let older = refusal(|theirs| theirs.version = 2);
        assert!(older.ends_with("upgrade plant/gate"), "{older}");
        let build = refusal(|theirs| theirs.fingerprint = 0xdef);
        assert!(
            build.contains("0abc") && build.contains("0def") && build.ends_with("the same build"),
            "{build}"
        );
    }

    /// flower#775, flower#4300: settings that must agree are compared before anything is trusted to them.
    #[test]
    fn another_topology_is_refused_naming_both() {
        let topology = refusal(|theirs| theirs.topology = Hash([2; 32]));
        assert!(
            topology.contains("0101") && topology.contains("0202"),
            "{topology}"
        );
    }

    /// flower#775: another period is agreed upon, as long as it makes sense.
    #[test]
    fn a_heartbeat_without_sense_is_refused_naming_both() {
        for bad in [0, 9, 60_001, u64::MAX] {
            let heartbeat = refusal(|theirs| theirs.heartbeat_ms = bad);
            assert!(
                heartbeat.contains("500 ms here")
                    && heartbeat.contains(&format!("{bad} ms at plant/gate"))
                    && heartbeat.ends_with("expected 10ms to 60s there"),
                "{heartbeat}"
            );
        }
        for good in [10, 900, 60_000] {
            let mut theirs = hello();
            theirs.heartbeat_ms = good;
            assert_eq!(
                agree(&hello(), &theirs, &"plant/gate".parse().unwrap()),
                Ok(())
            );
        }
    }

    #[test]
    fn equal_sides_agree() {
        assert_eq!(
            agree(&hello(), &hello(), &"plant/gate".parse().unwrap()),
            Ok(())
        );
    }
}
