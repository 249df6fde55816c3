//! The link's actor, message by message, on a stage without a network.

use std::marker::PhantomData;

use tokio::sync::oneshot::error::TryRecvError;

use super::*;
use crate::env::Class;
use crate::shell::{Shell, supervise};

#[expect(
    dead_code,
    reason = "shared with the shell's tests, which need all of it"
)]
#[path = "../../tests/shell/stand.rs"]
mod stand;

use stand::{on_one_thread, stage};

/// Takes everything and says nothing.
struct Deaf<M>(PhantomData<fn(M)>);

impl<M: Send + 'static> Actor for Deaf<M> {
    type Message = M;
    const NAME: &'static str = "Deaf";

    fn handle(&mut self, _: M, _: &mut Cx<Self>) {}
}

fn deaf<M: Send + 'static>(stage: &Stage) -> Handle<M> {
    supervise(stage, Class::Node, "deaf", |_| Deaf(PhantomData))
}

/// A link of the coordinator to the gateway of another domain, which dials.
fn link(stage: Stage) -> (Link, Cx<Link>) {
    let own = deaf(&stage);
    let setup = Setup {
        peer: "plant/gate".parse().expect("a name"),
        incarnation: 1,
        topology: Hash::default(),
        shelf: Shelf::default(),
        wire: Arc::default(),
        durable: Arc::default(),
        quic: deaf(&stage),
        node: deaf(&stage),
        stage,
    };
    (Link::new(setup, own), actix::Context::<Shell<Link>>::new())
}

fn begin_session(link: &mut Link, cx: &mut Cx<Link>, number: u64) {
    let task = tokio::task::spawn_local(std::future::pending());
    link.sessions = number;
    link.session = Some((number, AbortOnDrop(task)));
    link.handle(Message::Up(number, Peer::Fresh), cx);
}

/// A peer that started anew counts its tags from the beginning: a word of the session before must not be taken for one of this.
#[test]
fn words_of_another_session_are_dropped() {
    on_one_thread(true, async {
        let (mut link, mut cx) = link(stage().0);
        begin_session(&mut link, &mut cx, 2);
        let object = Object::Step(3);
        let (reply, mut answer) = Reply::channel();
        link.handle(Message::Fetch(object, reply), &mut cx);
        let tag = *link.fetches.keys().next().expect("it is asked for");

        link.handle(Message::Missing(1, tag, "gone".into()), &mut cx);
        assert!(matches!(answer.try_recv(), Err(TryRecvError::Empty)));
        link.handle(Message::Offered(1, OFFER | 5, object), &mut cx);
        assert!(link.offers.is_empty());

        link.handle(Message::Offered(2, OFFER | 5, object), &mut cx);
        assert_eq!(link.offers.len(), 1);
        link.handle(Message::Missing(2, tag, "gone".into()), &mut cx);
        assert!(matches!(
            answer.try_recv(),
            Ok(Err(FetchError::Missing { .. }))
        ));

        link.handle(Message::Down(2, Trouble::from("cut".to_owned())), &mut cx);
        link.handle(Message::Offered(2, OFFER | 6, object), &mut cx);
        assert!(link.offers.is_empty(), "that session has ended");
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
