//! The link's actor, message by message, on a stage without a network.

use std::any::Any;

use tokio::sync::oneshot::error::TryRecvError;

use super::*;
use crate::env::Class;
use crate::identity::{IdentityError, Paper};
use crate::shell::{Shell, supervise};
use crate::testing::deaf;
use crate::testing::stand::{on_one_thread, stage};
use tombolo_core::ids::DomainId;
use tombolo_core::record::{PublicKey, Signature, Signer, Verifier};

/// A link of the coordinator to the gateway of another domain, which dials.
fn link(stage: Stage) -> (Link, Cx<Link>) {
    let own = deaf(&stage);
    let link = Link::new(setup(stage), own);
    (link, actix::Context::<Shell<Link>>::new())
}

fn setup(stage: Stage) -> Setup {
    Setup {
        peer: "plant/gate".parse().expect("a name"),
        identity: Arc::new(Unasked),
        incarnation: 1,
        topology: Hash::default(),
        presence: Arc::new(crate::node::Presence::new(
            tombolo_core::waiting::Patience::new(&stage.plan, &stage.node, stage.env.now()),
        )),
        shelf: Shelf::default(),
        wire: Arc::default(),
        durable: Arc::default(),
        quic: deaf(&stage),
        node: deaf(&stage),
        stage,
    }
}

/// An identity that nobody asks for anything but its certificate.
struct Unasked;

impl Identity for Unasked {
    fn node(&self) -> &NodeId {
        unreachable!()
    }

    fn server(&self) -> Arc<dyn quinn::crypto::ServerConfig> {
        unreachable!()
    }

    fn client(&self, _: &NodeId) -> (Arc<dyn quinn::crypto::ClientConfig>, String) {
        unreachable!()
    }

    fn roots(&self) -> Vec<(DomainId, Vec<u8>)> {
        unreachable!()
    }

    fn peer(&self, _: Option<Box<dyn Any>>) -> Result<NodeId, IdentityError> {
        unreachable!()
    }

    fn own(&self) -> Paper {
        Paper::default()
    }

    fn recheck(&self, _: Option<Box<dyn Any>>) -> Result<Paper, IdentityError> {
        unreachable!()
    }
}

impl Signer for Unasked {
    fn certificate(&self) -> Vec<u8> {
        unreachable!()
    }

    fn sign(&self, _: &[u8]) -> Result<(PublicKey, Signature), String> {
        unreachable!()
    }

    fn pins(&self, _: &DomainId, _: &[u8]) -> bool {
        unreachable!()
    }
}

impl Verifier for Unasked {
    fn holder(
        &self,
        _: &str,
        _: &BTreeMap<DomainId, Vec<Vec<u8>>>,
        _: &[u8],
    ) -> Result<(NodeId, PublicKey), String> {
        unreachable!()
    }

    fn verify(&self, _: &PublicKey, _: &[u8], _: &Signature) -> bool {
        unreachable!()
    }
}

fn begin_session(link: &mut Link, cx: &mut Cx<Link>, number: u64) {
    link.session = Some(Current {
        number,
        incarnation: 1,
        carrier: None,
    });
    link.handle(Message::Up(number, Peer::Fresh), cx);
}

/// A peer that started anew counts its tags from the beginning: a word of the session before must not be taken for one of this.
#[test]
fn words_of_another_session_are_dropped() {
    on_one_thread(true, async {
        let (mut link, mut cx) = link(stage().0);
        begin_session(&mut link, &mut cx, 2);
        let object = Object::Model(3);
        let (reply, mut answer) = Reply::channel();
        link.handle(Message::Fetch(object, reply), &mut cx);
        let tag = *link.fetches.keys().next().expect("it is asked for");

        link.handle(
            Message::Missing(1, tag, Lack::Absent, "gone".into()),
            &mut cx,
        );
        assert!(matches!(answer.try_recv(), Err(TryRecvError::Empty)));
        link.handle(Message::Offered(1, OFFER | 5, object), &mut cx);
        assert!(link.offers.is_empty());

        link.handle(Message::Offered(2, OFFER | 5, object), &mut cx);
        assert_eq!(link.offers.len(), 1);
        link.handle(
            Message::Missing(2, tag, Lack::Absent, "gone".into()),
            &mut cx,
        );
        assert!(matches!(
            answer.try_recv(),
            Ok(Err(FetchError::Missing { .. }))
        ));

        link.handle(Message::Down(2, Trouble::from("cut".to_owned())), &mut cx);
        link.handle(Message::Offered(2, OFFER | 6, object), &mut cx);
        assert!(link.offers.is_empty(), "that session has ended");
    });
}

/// Who waits no longer takes up no room, whatever the peer does or does not answer.
#[test]
fn a_fetch_that_nobody_waits_for_keeps_no_other_one_out() {
    on_one_thread(true, async {
        let (mut link, mut cx) = link(stage().0);
        begin_session(&mut link, &mut cx, 1);
        let mut fetch = |object| {
            let (reply, answer) = Reply::channel();
            link.handle(Message::Fetch(object, reply), &mut cx);
            answer
        };
        let mut waiting: Vec<_> = (1..=FETCHES_MAX as u64)
            .map(|round| fetch(Object::Model(round)))
            .collect();
        let busy = fetch(Object::Model(90)).try_recv();
        assert!(matches!(busy, Ok(Err(FetchError::Busy(_)))));
        waiting.pop();
        let answer = fetch(Object::Model(91)).try_recv();
        assert!(matches!(answer, Err(TryRecvError::Empty)), "{answer:?}");
        drop(waiting);
        let mut waiting: Vec<_> = (1..=FETCHES_MAX as u64)
            .map(|round| fetch(Object::Model(round)))
            .collect();
        let answers = waiting.iter_mut().map(|answer| answer.try_recv());
        assert!(
            answers
                .into_iter()
                .all(|answer| matches!(answer, Err(TryRecvError::Empty)))
        );
    });
}

#[test]
fn a_refusal_is_said_once_and_again_after_the_link_was_up() {
    on_one_thread(true, async {
        let (stage, _, events) = stage();
        let (mut link, mut cx) = link(stage);
        let refusals = || {
            let events = events.lock().expect("nobody panicked");
            let refused = |event: &&Event| matches!(event, Event::LinkRefused { .. });
            events.iter().filter(refused).count()
        };
        let refused = || Trouble {
            reason: "another topology".into(),
            refused: true,
        };
        link.handle(Message::DialFailed(refused()), &mut cx);
        link.handle(Message::DialFailed(refused()), &mut cx);
        assert_eq!(refusals(), 1);
        begin_session(&mut link, &mut cx, 1);
        link.handle(Message::Down(1, refused()), &mut cx);
        assert_eq!(refusals(), 2);
    });
}

/// FATE#683, FATE#4040: who ends a run knows that its peers have heard so, or that they have left.
#[test]
fn a_link_is_settled_once_all_was_acknowledged_or_the_peer_has_left() {
    on_one_thread(true, async {
        let stage = stage().0;
        let setup = setup(stage.clone());
        let durable = setup.durable.clone();
        let link = supervise(&stage, Class::Node, "link", move |own| {
            Link::new(setup.clone(), own.clone())
        });
        let settled = async || {
            let asked = link.ask(Message::Settle);
            tokio::time::timeout(std::time::Duration::from_secs(60), asked)
                .await
                .is_ok()
        };
        assert!(settled().await, "nothing was said");
        let word = || {
            let reason = "the run is over".into();
            Message::Send(Control::Finish { reason })
        };
        link.deliver(word());
        link.deliver(word());
        assert!(!settled().await);
        let acknowledge = |acknowledged| FrameHeader {
            len: 0,
            sequence: 0,
            acknowledged,
        };
        durable.on_frame(acknowledge(1));
        assert!(!settled().await, "one is left");
        let (settled_then, ()) = tokio::join!(settled(), async {
            tokio::task::yield_now().await;
            durable.on_frame(acknowledge(2));
        });
        assert!(settled_then);

        link.deliver(word());
        durable.set_left(true);
        assert!(settled().await, "nobody is there to hear it");
        durable.set_left(false);
        assert!(!settled().await, "it is back");
    });
}
