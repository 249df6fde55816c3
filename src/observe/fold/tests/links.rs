//! What the picture shows of links.

use super::*;

#[test]
fn a_link_shows_what_both_of_its_ends_say() {
    let (node, peer) = (n("plant/gate"), n("hq/gate"));
    let measured = |node: &str, peer: &str, sent, received| {
        Event::LinkMeasured(Measured {
            node: n(node),
            peer: n(peer),
            round_trip_ms: Some(40.5),
            heartbeat_loss: 0.25,
            sent,
            received,
            unacknowledged: 3,
            unacknowledged_bytes: sent,
            models: Shrunk {
                plain: 4 * sent,
                travelled: sent,
            },
        })
    };
    let sum = |from: &str, to: &str, plain| {
        Event::Transferred(Transfer {
            round: 1,
            cargo: Cargo::Contribution,
            from: d(from),
            to: d(to),
            bytes: 10,
            plain,
            waited_us: 0,
            rate: None,
            cuts: 0,
        })
    };
    let mut picture = picture(vec![
        (
            1.0,
            Event::LinkUp {
                node: node.clone(),
                peer: peer.clone(),
            },
        ),
        (
            1.0,
            Event::LinkUp {
                node: n("hq/a"),
                peer: n("hq/gate"),
            },
        ),
        (2.0, measured("plant/gate", "hq/gate", 100, 70)),
        (2.0, measured("hq/gate", "plant/gate", 75, 90)),
        (3.0, sum("plant", "hq", 40)),
        (3.0, sum("plant", "hq", 40)),
        (3.0, sum("lab", "hq", 40)),
        // Of an older version, which did not say it.
        (3.0, sum("plant", "hq", 0)),
    ]);
    assert_eq!(
        picture.links.len(),
        1,
        "of a site's own links nothing is drawn"
    );
    let link = picture.links[0].clone();
    assert_eq!((link.a, link.b), (peer.clone(), node.clone()));
    let way = |bytes, sums| WayPicture {
        bytes,
        sums,
        models: Shrunk {
            plain: 4 * bytes,
            travelled: bytes,
        },
        unacknowledged: Some(3),
        unacknowledged_bytes: Some(bytes),
    };
    let (plain, travelled) = (80, 20);
    assert_eq!(link.a_to_b, way(75, Shrunk::default()));
    assert_eq!(link.b_to_a, way(100, Shrunk { plain, travelled }));
    assert_eq!(link.b_to_a.tensors(), [480, 120]);
    assert_eq!(
        (link.round_trip_ms, link.heartbeat_loss),
        (Some(40.5), Some(0.25))
    );
    assert_eq!((link.state, link.downs), (LinkState::Up, 0));
    let reason = "reset".to_owned();
    let down = Event::LinkDown {
        node: node.clone(),
        peer: peer.clone(),
        reason,
    };
    apply(&mut picture, vec![(3.0, down.clone()), (3.0, down)]);
    let link = &picture.links[0];
    assert_eq!(
        (link.state, link.reason.as_str(), link.downs),
        (LinkState::Connecting, "reset", 1)
    );
    let lost = Event::PeerLost { node, peer };
    apply(
        &mut picture,
        vec![
            (4.0, lost),
            (4.0, measured("hq/gate", "plant/gate", 75, 90)),
        ],
    );
    assert_eq!(
        picture.links[0].state,
        LinkState::Lost,
        "a packet that was counted is no sign of life"
    );
}
