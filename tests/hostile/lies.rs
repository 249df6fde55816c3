//! What a peer with a good certificate may try: each lie is refused by name, in memory that is stated, and the node goes on.

use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, SendStream, VarInt};
use tombolo_core::event::Event;
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::wire::{
    CONTROL_BYTES_MAX, Commit, Control, FrameHeader, Heartbeat, Object, ObjectHeader, codec,
};

use crate::ledger::{Since, alone, begin, most_since};
use crate::peer::{Greeted, Honest, Hostile, closed, hang_up, say, soon};

/// What a connection costs both ends before anything is said: TLS, congestion control, tables of streams. Both are in this process.
const CONNECTION: usize = 1 << 20;

/// What may be held of a peer that has said hello, whatever it sends: one message, its queue of datagrams, its streams' windows as far as they were
/// filled.
const MESSAGE: usize = CONTROL_BYTES_MAX + CONNECTION;

/// Memory within a quarter of what is stated.
fn within(what: &str, since: Since, cap: usize) {
    let most = most_since(since);
    println!("{what}: {most} bytes of {cap}");
    assert!(
        most <= cap + cap / 4,
        "{what}: {most} bytes, {cap} are stated"
    );
}

/// Asks for what nobody has.
fn question(tag: u64) -> Control {
    let object = Object::Model(4_000_000);
    Control::Fetch { tag, object }
}

/// A node that is well takes an honest hello, whoever came before.
async fn is_well(hostile: &Hostile) {
    let mut greeted = hostile.greet().await;
    greeted.control(1, &question(0)).await;
    greeted.acknowledged(1).await;
    hang_up(&greeted.connection);
}

/// What is said instead of a hello, and why the connection ends.
#[tokio::test]
async fn no_hello_but_a_good_one_opens_the_door() {
    let _alone = alone();
    let honest = Honest::start();
    let hostile = Hostile::new(&honest);
    is_well(&hostile).await;
    let good = codec::encode(&hostile.hello(|_| ())).unwrap();
    let framed = |len: u32, bytes: &[u8]| [&len.to_le_bytes(), bytes].concat();
    let of = |bytes: &[u8]| framed(bytes.len() as u32, bytes);
    let said = |hello| of(&codec::encode(&hello).unwrap());
    let lies: Vec<(&str, &str, Vec<u8>)> = vec![
        (
            "endless",
            "a hello of 4294967295 bytes",
            framed(u32::MAX, &[]),
        ),
        (
            "too long",
            "a hello of 1025 bytes",
            framed(1025, &[0; 1025]),
        ),
        ("empty", "not a valid message", of(&[])),
        (
            "nonsense",
            "protocol version 2 ",
            of(&[&[0xFF; 74][..], &[1]].concat()),
        ),
        (
            "trailing",
            "1 bytes follow the message",
            of(&[&good[..], &[0]].concat()),
        ),
        ("cut", "not a valid message", of(&good[..good.len() - 1])),
        (
            "another version",
            "upgrade plant/gate",
            said(hostile.hello(|it| it.version -= 1)),
        ),
        (
            "another schema",
            "give both the same build",
            said(hostile.hello(|it| it.fingerprint ^= 1)),
        ),
        (
            "another topology",
            "the topology files differ",
            said(hostile.hello(|it| it.topology = Hash([1; 32]))),
        ),
        (
            "no period",
            "heartbeat every",
            said(hostile.hello(|it| it.heartbeat_ms = 0)),
        ),
        (
            "an endless period",
            "heartbeat every",
            said(hostile.hello(|it| it.heartbeat_ms = u64::MAX)),
        ),
    ];
    for (what, reason, bytes) in lies {
        let since = begin();
        let connection = hostile.dial().await;
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        send.write_all(&bytes).await.unwrap();
        let found = closed(&connection).await;
        assert!(found.contains(reason), "{what}: {found}");
        within(what, since, CONNECTION);
    }
    is_well(&hostile).await;
}

/// Before it has said hello a peer has one stream, and room for a hello: it can open no other, and what it pushes stays with it.
#[tokio::test]
async fn before_a_hello_there_is_no_room() {
    let _alone = alone();
    let honest = Honest::start();
    let hostile = Hostile::new(&honest);
    is_well(&hostile).await;
    let since = begin();
    let connection = hostile.dial().await;
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    // A hello that begins and does not end.
    send.write_all(&1024_u32.to_le_bytes()).await.unwrap();
    let moment = Duration::from_millis(500);
    let object = tokio::time::timeout(moment, connection.open_uni()).await;
    assert!(object.is_err(), "a stream of an object before a hello");
    let second = tokio::time::timeout(moment, connection.open_bi()).await;
    assert!(second.is_err(), "a second stream");
    hang_up(&connection);

    // A hello is heard as far as it says it is long; what is behind it waits for room.
    let connection = hostile.dial().await;
    let (mut send, _receive) = connection.open_bi().await.unwrap();
    send.write_all(&1024_u32.to_le_bytes()).await.unwrap();
    let pushed = push(&connection, &mut send, 64 << 20).await;
    println!("{pushed} bytes were taken from a peer that had not said hello");
    assert!(pushed <= 128 << 10, "{pushed}");
    within("pushing before a hello", since, CONNECTION);
    hang_up(&connection);
    is_well(&hostile).await;
}

/// Writes so many bytes, or until the other side takes no more or has closed; says how many were taken off our hands.
async fn push(connection: &Connection, send: &mut SendStream, bytes: usize) -> usize {
    let piece = Bytes::from_static(&[0x55; 16 << 10]);
    let mut pushed = 0;
    while pushed < bytes && connection.close_reason().is_none() {
        let written = send.write_chunk(piece.clone());
        match tokio::time::timeout(Duration::from_secs(1), written).await {
            Ok(Ok(())) => pushed += piece.len(),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    pushed
}

/// What it is, what its refusal says, and the frame: the length that it states and its message.
type Lie = (&'static str, &'static str, (u32, Vec<u8>));

/// Frames that are none, and what the node says to them.
#[tokio::test]
async fn a_frame_that_lies_ends_its_connection_by_name() {
    let _alone = alone();
    let honest = Honest::start();
    let hostile = Hostile::new(&honest);
    is_well(&hostile).await;
    let resync = codec::encode(&Control::Resync).unwrap();
    let endpoint = codec::encode(&Control::Endpoint(vec![1, 2, 3])).unwrap();
    let lying = |len: u64| [&endpoint[..4], &len.to_le_bytes(), &endpoint[12..]].concat();
    let full = |bytes: Vec<u8>| (bytes.len() as u32, bytes);
    let name = codec::encode(&Control::Standing {
        node: "plant/gate".parse().unwrap(),
        word: tombolo_core::membership::Word::Active,
    });
    let name = name.unwrap();
    let at = name.windows(10).position(|it| it == b"plant/gate").unwrap();
    let mut bad_name = name.clone();
    bad_name[at..at + 10].copy_from_slice(b"../../etc/");
    let lies: Vec<Lie> = vec![
        (
            "endless",
            "a message of 4294967295 bytes",
            (u32::MAX, vec![]),
        ),
        (
            "one too many",
            "a message of 2097153 bytes, at most 2097152 are allowed",
            (CONTROL_BYTES_MAX as u32 + 1, vec![]),
        ),
        ("no message", "not a valid message", full(vec![])),
        (
            "an unknown kind",
            "not a valid message",
            full(vec![0xFF; 4]),
        ),
        (
            "trailing bytes",
            "1 bytes follow the message",
            full([&resync[..], &[0]].concat()),
        ),
        (
            "cut short",
            "not a valid message",
            full(endpoint[..endpoint.len() - 1].to_vec()),
        ),
        (
            "a length inside",
            "not a valid message",
            full(lying(u64::MAX)),
        ),
        (
            "a smaller length",
            "not a valid message",
            full(lying(1 << 40)),
        ),
        (
            "a length that just fits",
            "not a valid message",
            full(lying(CONTROL_BYTES_MAX as u64)),
        ),
        (
            "a name that is a path",
            "not a valid message",
            full(bad_name),
        ),
        (
            "a full one of nonsense",
            "not a valid message",
            full(vec![0xEE; CONTROL_BYTES_MAX]),
        ),
    ];
    for (what, reason, (len, message)) in lies {
        let mut greeted = hostile.greet().await;
        let since = begin();
        greeted.frame(len, 1, &message).await;
        let found = closed(&greeted.connection).await;
        assert!(found.contains(reason), "{what}: {found}");
        within(what, since, MESSAGE);
    }
    is_well(&hostile).await;
}

/// A message that is announced at its longest and never ends holds what one message may hold, and nothing else.
#[tokio::test]
async fn a_frame_that_never_ends_holds_one_message() {
    let _alone = alone();
    let honest = Honest::start();
    let hostile = Hostile::new(&honest);
    is_well(&hostile).await;
    let mut greeted = hostile.greet().await;
    let since = begin();
    greeted.frame(CONTROL_BYTES_MAX as u32, 1, &[7; 1000]).await;
    // Objects have room of their own meanwhile: nobody asked for these, and each says that it has no end.
    for tag in 0..200 {
        let opened = tokio::time::timeout(PERIOD, greeted.connection.open_uni()).await;
        let Ok(Ok(mut stream)) = opened else { break };
        let header = ObjectHeader {
            tag,
            len: u64::MAX,
            stripe: 0,
            stripes: 1,
        };
        let _ = stream.write_all(&header.to_bytes()).await;
        push(&greeted.connection, &mut stream, 256 << 10).await;
    }
    assert_eq!(greeted.connection.close_reason(), None);
    within("a frame and streams that never end", since, MESSAGE);
    hang_up(&greeted.connection);
    is_well(&hostile).await;
}

const PERIOD: Duration = Duration::from_secs(5);

/// What was delivered is not delivered again, whatever numbers it comes under, and a number that was passed over does not come back.
#[tokio::test]
async fn replayed_frames_count_once() {
    let _alone = alone();
    let honest = Honest::start();
    let hostile = Hostile::new(&honest);
    let mut greeted = hostile.greet().await;
    let since = begin();
    for sequence in [1, 1, 1, 2, 1, 2, 5, 3, 4, 5] {
        greeted.control(sequence, &question(sequence)).await;
    }
    greeted.control(6, &question(6)).await;
    // Each fetch that counts is answered once: whoever does not have it says so.
    let mut answered = Vec::new();
    let read = async {
        while answered.last() != Some(&6) {
            let (header, message) = greeted.next().await;
            if header.sequence > 0
                && let Control::Missing { tag, .. } = codec::decode(&message).unwrap()
            {
                answered.push(tag);
            }
        }
    };
    soon("the last answer", read).await;
    assert_eq!(answered, [1, 2, 5, 6]);
    within("replayed frames", since, MESSAGE);
    hang_up(&greeted.connection);
}

/// A gateway says what only the coordinator may: it is refused, and its own words still count.
#[tokio::test]
async fn a_message_of_a_role_that_the_sender_has_not_changes_nothing() {
    let _alone = alone();
    let honest = Honest::start();
    let hostile = Hostile::new(&honest);
    let mut greeted = hostile.greet().await;
    let reason = || "you are done".into();
    let since = begin();
    let orders = [
        Control::Finish { reason: reason() },
        Control::Leave { reason: reason() },
        Control::Abort {
            round: 1,
            reason: reason(),
        },
        Control::Commit(Commit {
            round: 1,
            base: Hash::default(),
            hash: Hash([1; 32]),
            contributions: Vec::new(),
        }),
        Control::Rejoin,
    ];
    for (sequence, order) in (1..).zip(&orders) {
        greeted.control(sequence, order).await;
    }
    greeted.acknowledged(orders.len() as u64).await;
    greeted.control(6, &question(0)).await;
    greeted.acknowledged(6).await;
    let ended = |event: &Event| {
        matches!(
            event,
            Event::Round(_) | Event::Finished(_) | Event::LinkDown { .. }
        )
    };
    assert_eq!(honest.seen(ended), []);
    within("orders of a gateway", since, MESSAGE);
    hang_up(&greeted.connection);
    is_well(&hostile).await;
    assert_eq!(honest.left(), None);
}

/// Who asks and asks and never says that it has got an answer is cut off; so is nobody else.
#[tokio::test]
async fn a_flood_of_questions_is_cut_off_at_the_outbox() {
    let _alone = alone();
    let honest = Honest::start();
    let hostile = Hostile::new(&honest);
    is_well(&hostile).await;
    let Greeted {
        connection,
        mut send,
        receive,
    } = hostile.greet().await;
    let since = begin();
    let mut frames = Vec::new();
    for sequence in 1..=6000_u64 {
        let message = codec::encode(&question(sequence)).unwrap();
        let header = FrameHeader {
            len: message.len() as u32,
            sequence,
            acknowledged: 0,
        };
        frames.extend_from_slice(&header.to_bytes());
        frames.extend_from_slice(&message);
    }
    let _ = tokio::time::timeout(PERIOD, send.write_all(&frames)).await;
    let found = closed(&connection).await;
    assert!(
        found.contains("has not acknowledged 4096 messages"),
        "{found}"
    );
    // The answers that were never read are the outbox, and what quinn holds of them.
    within("6,000 questions", since, MESSAGE + (4096 << 10));
    drop(receive);
    is_well(&hostile).await;
}

/// Datagrams are heartbeats: whatever else comes ends the connection by name, the same again is passed over, and the oldest of too many go.
#[tokio::test]
async fn datagrams_are_heartbeats_and_too_many_are_dropped() {
    let _alone = alone();
    let honest = Honest::start();
    let hostile = Hostile::new(&honest);
    let beat = Heartbeat {
        sequence: 1,
        count: 1,
        health: 0,
        sent: Micros(1),
        echo: None,
    };
    let good = beat.to_bytes();
    let spoiled = |at: usize, byte: u8| {
        let mut bad = good;
        bad[at] = byte;
        bad.to_vec()
    };
    let lies = [
        ("another length", vec![0xA5; 1000]),
        ("another version", spoiled(0, 9)),
        ("an unknown flag", spoiled(1, 0x80)),
        ("health beyond the worst", spoiled(2, 0xFF)),
        ("an echo from the future", spoiled(43, 0xFF)),
        ("a count beyond the sequence", spoiled(12, 200)),
    ];
    for (what, datagram) in lies {
        let greeted = hostile.greet().await;
        greeted.connection.send_datagram(datagram.into()).unwrap();
        let found = closed(&greeted.connection).await;
        assert!(
            found.contains("a datagram of plant/gate"),
            "{what}: {found}"
        );
    }
    let mut greeted = hostile.greet().await;
    let since = begin();
    let datagram = Bytes::copy_from_slice(&good);
    for index in 0..20_000 {
        let sent = greeted.connection.send_datagram(datagram.clone());
        assert_eq!(sent, Ok(()), "{index}");
        if index % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    greeted.control(1, &question(0)).await;
    greeted.acknowledged(1).await;
    within("20,000 datagrams", since, MESSAGE);
    hang_up(&greeted.connection);
    is_well(&hostile).await;
}

/// A hello that was kept back knows nothing of the connection that was agreed on meanwhile, and does not take its place.
#[tokio::test]
async fn a_hello_of_the_past_does_not_push_out_what_stands() {
    let _alone = alone();
    let honest = Honest::start();
    let hostile = Hostile::new(&honest);
    let old = hostile.dial().await;
    let mut stands = hostile.greet().await;
    let (mut send, _receive) = old.open_bi().await.unwrap();
    say(&mut send, &hostile.hello(|_| ())).await;
    let found = closed(&old).await;
    assert!(found.contains("a newer connection stands"), "{found}");
    stands.control(1, &question(0)).await;
    stands.acknowledged(1).await;
    stands.connection.close(VarInt::from_u32(0), b"enough");
}

/// Who has a good certificate and says nothing, or not to its end, is let go after a while, and keeps nobody else out.
#[tokio::test]
async fn a_hello_that_does_not_come_or_dribbles_has_an_end() {
    let _alone = alone();
    let honest = Honest::start();
    let hostile = Hostile::new(&honest);
    let (silent, slow) = (hostile.dial().await, hostile.dial().await);
    let (mut send, _receive) = slow.open_bi().await.unwrap();
    send.write_all(&74_u32.to_le_bytes()).await.unwrap();
    is_well(&hostile).await;
    let dribble = async {
        while slow.close_reason().is_none() {
            let _ = send.write_all(&[0]).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let (silent, slow, ()) = tokio::join!(closed(&silent), closed(&slow), dribble);
    for found in [silent, slow] {
        assert!(found.contains("no handshake within 10s"), "{found}");
    }
    is_well(&hostile).await;
    // Of more than a few such connections the oldest goes at once.
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(hostile.dial().await);
    }
    let found = closed(&held[0]).await;
    assert!(found.contains("replaced by a newer connection"), "{found}");
    is_well(&hostile).await;
}
