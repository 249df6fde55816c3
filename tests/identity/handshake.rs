//! What happens on the wire.

use std::sync::Arc;

use rustls::NamedGroup;
use rustls::pki_types::CertificateDer;
use tombolo::identity::NodeIdentity;
use tombolo::identity::papers::{Papers, Standing};
use tombolo_actors::identity::{Identity, IdentityError, PeerFault};

use crate::world::*;

#[tokio::test]
async fn nodes_meet_within_and_across_domains() {
    let world = World::new();
    for (client, server) in [
        ("hq/gate", "plant/gate"),
        ("plant/gate", "hq/gate"),
        ("hq/a", "hq/gate"),
    ] {
        let (dialler, answerer) = (world.load(client).unwrap(), world.load(server).unwrap());
        let met = meet(answers(&answerer), dials(&dialler, server)).await;
        let seen = |me: &Arc<dyn Identity>, side: &Result<quinn::Connection, String>| {
            let connection = side.as_ref().unwrap();
            me.peer(connection.peer_identity()).unwrap()
        };
        assert_eq!(seen(&dialler, &met.client), node(server));
        assert_eq!(seen(&answerer, &met.server), node(client));
        assert_eq!(dialler.node(), &node(client));
    }
}

/// The forgery that a common root store lets through.
#[tokio::test]
async fn a_domain_cannot_forge_a_node_of_another() {
    let world = World::new();
    let forger = world.forge("plant", &["spiffe://hq.harbour/node/gate"]);
    let plant = world.load("plant/gate").unwrap();

    let met = meet(forger.answers(), dials(&plant, "hq/gate")).await;
    let error = met.client_error();
    assert!(
        error.contains("does not verify against the roots of its trust domain"),
        "{error}"
    );
    assert!(error.contains("spiffe://hq.harbour/node/gate"), "{error}");

    let met = meet(answers(&plant), forger.dials()).await;
    let error = met.server_error();
    assert!(
        error.contains("does not verify against the roots of its trust domain"),
        "{error}"
    );

    // The same hand with its own domain's name is let in: it was the name, not the forger's TLS.
    let own = world.forge("plant", &["spiffe://plant.harbour/node/a"]);
    assert!(
        meet(own.answers(), dials(&plant, "plant/a"))
            .await
            .is_accepted()
    );
    assert!(meet(answers(&plant), own.dials()).await.is_accepted());
}

/// NVFlare#3018, nucypher#459: node B's certificate cannot speak for node A, and the refusal lists both names.
#[tokio::test]
async fn a_node_cannot_speak_for_its_neighbour() {
    let world = World::new();
    let (a, gate) = (world.load("hq/a").unwrap(), world.load("hq/gate").unwrap());
    let met = meet(answers(&a), dials(&gate, "hq/gate")).await;
    let error = met.client_error();
    assert!(
        error.contains(
            r#"expected "spiffe://hq.harbour/node/gate", presented "spiffe://hq.harbour/node/a""#
        ),
        "{error}"
    );
    // The server hears why, too: the reason crosses the wire.
    assert!(
        met.server_error().contains("presented"),
        "{}",
        met.server_error()
    );
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let world = World::new();
    let mut stranger = world.forge("hq", &["spiffe://hq.harbour/node/a"]);
    stranger.chain.clear();
    let met = meet(answers(&world.load("hq/gate").unwrap()), stranger.dials()).await;
    let error = met.server_error();
    assert!(error.contains("peer sent no certificates"), "{error}");
}

/// istio#32176, skupper#456, dapr#4517: not-yet-valid and expired are told apart, with both times.
#[tokio::test]
async fn times_out_of_range_are_told_apart_with_both_times() {
    for (issued, now, expected) in [
        (
            NOW,
            NOW + 8 * DAY,
            "has expired: valid until 2027-01-22T08:00:00Z, now 2027-01-23T08:00:00Z",
        ),
        (
            NOW + HOUR,
            NOW,
            "is not yet valid: valid from 2027-01-15T08:50:00Z, now 2027-01-15T08:00:00Z",
        ),
    ] {
        let world = World::new();
        world.reissue("hq/gate", issued);
        world.reissue("plant/gate", now);
        let hq = world.load_at("hq/gate", issued).unwrap();
        let plant = world.load_at("plant/gate", now).unwrap();
        let met = meet(answers(&hq), dials(&plant, "hq/gate")).await;
        assert!(
            met.client_error().contains(expected),
            "{}",
            met.client_error()
        );

        let careless = Forger {
            chain: vec![world.certificate("hq/gate")],
            key: Arc::new(world.key("hq/gate")),
            ..world.forge("hq", &[])
        };
        let met = meet(answers(&plant), careless.dials()).await;
        assert!(
            met.server_error().contains(expected),
            "{}",
            met.server_error()
        );
    }
}

/// istio#32176: certificates that the product issues tolerate five minutes of clock skew, either way.
#[tokio::test]
async fn five_minutes_of_clock_skew_are_tolerated() {
    let world = World::new();
    world.reissue("hq/gate", NOW + 5 * MINUTE);
    let ahead = world.load_at("hq/gate", NOW + 5 * MINUTE).unwrap();
    let behind = world.load("plant/gate").unwrap();
    assert!(
        meet(answers(&ahead), dials(&behind, "hq/gate"))
            .await
            .is_accepted()
    );
    assert!(
        meet(answers(&behind), dials(&ahead, "plant/gate"))
            .await
            .is_accepted()
    );
}

#[tokio::test]
async fn exactly_one_uri_name_of_this_federation_is_needed() {
    let world = World::new();
    let gate = world.load("hq/gate").unwrap();
    for (uris, expected) in [
        (&[][..], "0 URI names presented []"),
        (
            &[
                "spiffe://hq.harbour/node/a",
                "spiffe://hq.harbour/node/gate",
            ],
            r#"2 URI names presented ["spiffe://hq.harbour/node/a", "spiffe://hq.harbour/node/gate"]"#,
        ),
        (
            &["spiffe://hq.harbour/node/a", "https://example.com/"],
            "2 URI names presented",
        ),
        (
            &["spiffe://hq.elsewhere/node/a"],
            r#"of federation "elsewhere", expected federation "harbour""#,
        ),
        (
            &["spiffe://moon.harbour/node/a"],
            "expected a domain whose root is pinned here",
        ),
        (
            &["spiffe://hq.harbour/agent/a"],
            "expected spiffe://<domain>.harbour/node/<name>",
        ),
    ] {
        let forger = world.forge("hq", uris);
        let met = meet(forger.answers(), dials(&gate, "hq/a")).await;
        assert!(
            met.client_error().contains(expected),
            "{}",
            met.client_error()
        );
        let met = meet(answers(&gate), forger.dials()).await;
        assert!(
            met.server_error().contains(expected),
            "{}",
            met.server_error()
        );
    }
}

#[tokio::test]
async fn required_post_quantum_refuses_a_classical_peer() {
    let mut world = World::new();
    let mut classical = world.forge("hq", &["spiffe://hq.harbour/node/a"]);
    classical.groups = vec![NamedGroup::X25519];
    let modern = world.forge("hq", &["spiffe://hq.harbour/node/a"]);

    let prefers = world.load("hq/gate").unwrap();
    assert!(
        meet(answers(&prefers), classical.dials())
            .await
            .is_accepted()
    );
    assert!(
        meet(classical.answers(), dials(&prefers, "hq/a"))
            .await
            .is_accepted()
    );
    assert_eq!(
        classical.hello.lock().unwrap().groups,
        [NamedGroup::X25519MLKEM768, NamedGroup::X25519]
    );

    world.plan.security.post_quantum_required = true;
    let requires = world.load("hq/gate").unwrap();
    assert!(meet(answers(&requires), modern.dials()).await.is_accepted());
    assert!(
        meet(modern.answers(), dials(&requires, "hq/a"))
            .await
            .is_accepted()
    );
    assert_eq!(
        modern.hello.lock().unwrap().groups,
        [NamedGroup::X25519MLKEM768]
    );
    let met = meet(answers(&requires), classical.dials()).await;
    assert!(
        met.server_error().contains("NoKxGroupsInCommon"),
        "{}",
        met.server_error()
    );
    assert!(met.client.is_err());
    let met = meet(classical.answers(), dials(&requires, "hq/a")).await;
    assert!(met.client.is_err() && met.server.is_err());
}

#[tokio::test]
async fn another_protocol_is_refused() {
    let world = World::new();
    let mut other = world.forge("hq", &["spiffe://hq.harbour/node/a"]);
    other.alpn = "h3";
    let gate = world.load("hq/gate").unwrap();
    assert!(meet(answers(&gate), other.dials()).await.server.is_err());
    assert!(
        meet(other.answers(), dials(&gate, "hq/a"))
            .await
            .client
            .is_err()
    );
}

/// The name in the handshake routes and proves nothing: a wrong one changes nothing, a right one does not help.
#[tokio::test]
async fn the_server_name_only_routes() {
    let world = World::new();
    let (hq, plant) = (
        world.load("hq/gate").unwrap(),
        world.load("plant/gate").unwrap(),
    );
    let (config, name) = dials(&plant, "hq/gate");
    assert_eq!(name, "gate.hq.harbour.tombolo");
    let met = meet(answers(&hq), (config, "elsewhere.example".into())).await;
    assert!(met.is_accepted());
}

#[tokio::test]
async fn no_session_is_resumed_and_nothing_is_sent_early() {
    let world = World::new();
    let (hq, plant) = (
        world.load("hq/gate").unwrap(),
        world.load("plant/gate").unwrap(),
    );
    // Neither when we dial, nor when somebody dials us who would like to.
    let eager = world.forge("hq", &["spiffe://hq.harbour/node/a"]);
    for (config, name) in [dials(&plant, "hq/gate"), eager.dials()] {
        let any = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
        let server = quinn::Endpoint::server(answers(&hq), any).unwrap();
        let dialler = quinn::Endpoint::client(any).unwrap();
        let address = server.local_addr().unwrap();
        for _ in 0..2 {
            let connecting = dialler
                .connect_with(config.clone(), address, &name)
                .unwrap();
            let Err(connecting) = connecting.into_0rtt() else {
                panic!("early data was possible")
            };
            let accept = async { server.accept().await.unwrap().await.unwrap() };
            let (client, server) = tokio::join!(connecting, accept);
            let client = client.unwrap();
            // Crypto data goes before stream data, so a ticket would have arrived with this.
            let mut stream = server.open_uni().await.unwrap();
            stream.write_all(b"x").await.unwrap();
            client.accept_uni().await.unwrap();
        }
    }
}

/// Virtual traces repeat only if sizes do: the same seed and another give certificates of one length.
#[tokio::test]
async fn seeded_identities_meet_and_have_fixed_sizes() {
    let world = World::empty();
    let mut certificates: Vec<CertificateDer<'static>> = Vec::new();
    for (seed, now) in [(7, NOW), (7, 0), (8, NOW + 3_650 * DAY)] {
        let seeded =
            |name: &str| NodeIdentity::seeded(&world.plan, &node(name), seed, clock(now)).unwrap();
        let (hq, plant) = (seeded("hq/gate"), seeded("plant/gate"));
        let met = meet(answers(&hq), dials(&plant, "hq/gate")).await;
        let identity = met.client.as_ref().unwrap().peer_identity().unwrap();
        let chain = identity.downcast::<Vec<CertificateDer<'static>>>().unwrap();
        assert_eq!(chain.len(), 1);
        certificates.push(chain[0].clone());
        assert!(met.server.is_ok());
    }
    assert_eq!(certificates[0], certificates[1]);
    assert_ne!(certificates[0], certificates[2]);
    assert_eq!(certificates[0].len(), certificates[2].len());
    assert_eq!(std::fs::read_dir(world.path("")).unwrap().count(), 0);

    let one = NodeIdentity::seeded(&world.plan, &node("hq/gate"), 7, clock(NOW)).unwrap();
    let other = NodeIdentity::seeded(&world.plan, &node("plant/gate"), 8, clock(NOW)).unwrap();
    let met = meet(answers(&one), dials(&other, "hq/gate")).await;
    assert!(met.client_error().contains("does not verify"));
}

/// istio#32176, skupper#456, dapr#4517: not yet valid is told from expired, also where a simulation lets it happen.
#[tokio::test]
async fn a_simulated_certificate_goes_stale_and_is_good_again() {
    const SIMULATED_NOW: u64 = 1_767_225_600;
    let world = World::empty();
    let papers = Papers::default();
    let seeded = |name: &str, papers: &Papers| {
        let clock = clock(SIMULATED_NOW);
        NodeIdentity::seeded_with(&world.plan, &node(name), 7, clock, papers.clone()).unwrap()
    };
    let hq = seeded("hq/gate", &papers);
    let plant = seeded("plant/gate", &Papers::default());
    for (standing, refusal) in [
        (Standing::Good, None),
        (
            Standing::Expired,
            Some("has expired: valid until 2025-12-31"),
        ),
        (
            Standing::NotYetValid,
            Some("is not yet valid: valid from 2040-01-01"),
        ),
        (Standing::Good, None),
    ] {
        papers.show(standing);
        let dialled = meet(answers(&hq), dials(&plant, "hq/gate")).await;
        let dialling = meet(answers(&plant), dials(&hq, "plant/gate")).await;
        match refusal {
            None => assert!(dialled.is_accepted() && dialling.is_accepted()),
            Some(said) => {
                let (client, server) = (dialled.client_error(), dialling.server_error());
                assert!(client.contains(said), "{client}");
                assert!(server.contains(said), "{server}");
            }
        }
    }
}

#[test]
fn a_peer_is_named_by_its_certificate_or_not_at_all() {
    let world = World::new();
    let gate = world.load("hq/gate").unwrap();
    let peer = |chain: Vec<CertificateDer<'static>>| gate.peer(Some(Box::new(chain)));
    let good = world.forge("plant", &["spiffe://plant.harbour/node/a"]);
    assert_eq!(peer(good.chain).unwrap(), node("plant/a"));
    for nothing in [
        gate.peer(None),
        peer(Vec::new()),
        gate.peer(Some(Box::new(7))),
    ] {
        assert!(matches!(
            nothing,
            Err(IdentityError::Peer(PeerFault::Anonymous))
        ));
    }
    assert!(matches!(
        peer(vec![CertificateDer::from(vec![0x30, 0x80])]),
        Err(IdentityError::Peer(PeerFault::Malformed { .. }))
    ));
    let stranger = world.forge("hq", &["spiffe://moon.harbour/node/a"]);
    assert!(matches!(
        peer(stranger.chain),
        Err(IdentityError::Peer(PeerFault::Domain { .. }))
    ));
}
