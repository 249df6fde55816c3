//! A federation's record without the federation: a coordinator, three domains' keepers, and keys that anybody could forge but nobody does.

mod roots;
mod tampering;

use std::collections::BTreeMap;

use super::audit::{self, Finding};
use super::*;
use crate::event::RoundState;
use crate::ids::{DomainId, NodeId, Round};
use crate::rng::Rng;
use crate::tensor::Hash;
use crate::view::{Out, View};
use crate::wire::{Append, Contribution, Encoding, Recorded};

fn n(text: &str) -> NodeId {
    text.parse().unwrap()
}

/// A node's keys: certificate and signature are what they say, by a hash.
struct Keys(NodeId);

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    *blake3::hash(&parts.concat()).as_bytes()
}

fn public(node: &NodeId) -> PublicKey {
    hash(&[b"key", node.as_str().as_bytes()])
}

fn signature(key: &PublicKey, message: &[u8]) -> Signature {
    let half = hash(&[key, message]);
    let mut both = [0; 64];
    both[..32].copy_from_slice(&half);
    both[32..].copy_from_slice(&half);
    both
}

fn root(domain: &DomainId) -> Vec<u8> {
    format!("root {domain}").into_bytes()
}

fn certificate(node: &NodeId) -> Vec<u8> {
    format!("certificate {node}").into_bytes()
}

impl Verifier for Keys {
    fn holder(
        &self,
        _: &str,
        roots: &BTreeMap<DomainId, Vec<Vec<u8>>>,
        certificate: &[u8],
    ) -> Result<(NodeId, PublicKey), String> {
        let text = std::str::from_utf8(certificate).ok();
        let node = text.and_then(|text| text.strip_prefix("certificate "));
        let node: NodeId = node
            .and_then(|node| node.parse().ok())
            .ok_or("no certificate")?;
        let trusted = roots.get(&node.domain());
        match trusted.is_some_and(|roots| roots.contains(&root(&node.domain()))) {
            true => Ok((node.clone(), public(&node))),
            false => Err("not signed by its domain's root".into()),
        }
    }

    fn verify(&self, key: &PublicKey, message: &[u8], it: &Signature) -> bool {
        signature(key, message) == *it
    }
}

impl Signer for Keys {
    fn certificate(&self) -> Vec<u8> {
        certificate(&self.0)
    }

    fn sign(&self, message: &[u8]) -> Result<(PublicKey, Signature), String> {
        let key = public(&self.0);
        Ok((key, signature(&key, message)))
    }

    fn pins(&self, domain: &DomainId, pinned: &[u8]) -> bool {
        pinned == root(domain)
    }
}

const GATES: [&str; 3] = ["hq/gate", "plant/gate", "port/gate"];
const RUN: Hash = Hash([7; 32]);
/// From this round on the second site coordinates.
const PROMOTED: Round = 4;
/// Rounds of the record that is tampered with.
const ROUNDS: Round = 5;

fn view(epoch: u64, coordinator: &str) -> View {
    let gateways = GATES.map(n).into_iter();
    View {
        epoch,
        coordinator: n(coordinator),
        gateways: gateways.map(|node| (node.domain(), node)).collect(),
        out: BTreeMap::new(),
    }
}

fn contribution(round: Round, domain: &str, salt: u64) -> Contribution {
    Contribution {
        round,
        epoch: 1,
        attempt: 0,
        domain: domain.parse().unwrap(),
        members: vec![n(&format!("{domain}/a")), n(&format!("{domain}/gate"))],
        weight: 30.5,
        exponent: 4,
        chunks: vec![Hash::of_bytes(
            &[round.to_le_bytes(), salt.to_le_bytes()].concat(),
        )],
        encoding: Encoding::default(),
    }
}

fn model(round: Round, salt: u64) -> Hash {
    Hash::of_bytes(&[round.to_be_bytes(), salt.to_be_bytes()].concat())
}

fn begun() -> Vec<Leaf> {
    let mut leaves = vec![Leaf::Begun {
        format: FORMAT,
        federation: "harbour".into(),
        run: RUN,
        configuration: Hash([1; 32]),
        coordinators: vec![n(GATES[0]), n(GATES[1])],
    }];
    for gate in GATES.map(n) {
        let certificate = Der(root(&gate.domain()));
        let domain = gate.domain();
        leaves.push(Leaf::Root {
            domain,
            certificate,
        });
    }
    for node in GATES.map(n) {
        let certificate = Der(certificate(&node));
        leaves.push(Leaf::Certificate { node, certificate });
    }
    let view = view(1, GATES[0]);
    leaves.push(Leaf::Membership { view });
    leaves
}

/// One round of all three domains; `salt` makes it another one.
fn round(number: Round, salt: u64) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    if number == 1 {
        leaves = begun();
    }
    let epoch = if number >= PROMOTED { 2 } else { 1 };
    if number == PROMOTED {
        let node = n(GATES[1]);
        leaves.push(Leaf::Promoted { node, epoch });
        let mut view = view(2, GATES[1]);
        view.out.insert(n("port/b"), Out::Evicted(1));
        leaves.push(Leaf::Membership { view });
    }
    let sums: Vec<Contribution> = ["hq", "plant", "port"]
        .map(|domain| contribution(number, domain, salt))
        .into();
    for sum in &sums {
        for (node, weight) in sum.members.iter().zip([10.25, 20.25]) {
            let (node, clip) = (node.clone(), 0.5);
            leaves.push(Leaf::Update {
                round: number,
                node,
                weight,
                clip,
            });
        }
    }
    for sum in sums {
        leaves.push(Leaf::Contribution {
            round: number,
            epoch,
            attempt: sum.attempt,
            weight: sum.weight,
            hash: sum.hash(),
            domain: sum.domain,
            members: sum.members,
        });
    }
    let model = model(number, salt);
    if number.is_multiple_of(2) {
        leaves.push(Leaf::Checkpoint {
            round: number,
            model,
        });
    }
    let (state, reason) = (RoundState::Committed, String::new());
    leaves.push(Leaf::Round {
        round: number,
        epoch,
        state,
        reason,
        model,
    });
    leaves
}

fn lines(leaves: &[Leaf]) -> Vec<String> {
    leaves.iter().map(Leaf::line).collect()
}

/// A domain's gateway with its copy on its disk.
#[derive(Clone)]
struct Site {
    keeper: Keeper,
    lines: Vec<String>,
    checkpoint: Option<String>,
    cosigned: Option<String>,
}

impl Site {
    fn new(node: &str) -> Site {
        Site {
            keeper: Keeper::new(n(node)),
            lines: Vec::new(),
            checkpoint: None,
            cosigned: None,
        }
    }

    fn take(
        &mut self,
        from: &NodeId,
        append: &Append,
        me: &str,
    ) -> (Offered, Vec<Trespass>, Recorded) {
        let offered = self
            .keeper
            .offer(from, append, &Keys(n(me)), 1_800_000_000 + append.from);
        let (mut found, mut recorded) = (Vec::new(), Recorded::default());
        match &offered {
            Offered::Taken(next) => {
                found.clone_from(&next.found);
                let reason = "silent".to_owned();
                found.extend(next.silent.iter().map(|by| Trespass {
                    by: by.clone(),
                    forks: false,
                    reason: reason.clone(),
                }));
                self.lines.truncate(usize::try_from(next.from).unwrap());
                self.lines.extend(next.lines.iter().cloned());
                self.checkpoint = Some(next.note.text());
                self.cosigned = next
                    .cosigned
                    .as_ref()
                    .map(Note::text)
                    .or(self.cosigned.take());
                recorded.note = next.note.text();
                self.keeper.adopt((**next).clone());
            }
            Offered::Known(note) => recorded.note = note.text(),
            Offered::Elsewhere => {}
            Offered::Refused(trespass) => recorded.refused = trespass.reason.as_str().into(),
        }
        recorded.size = self.keeper.size();
        (offered, found, recorded)
    }

    fn copy(&self, name: &str) -> audit::Copy<'_> {
        audit::Copy {
            name: name.to_owned(),
            lines: Box::new(self.lines.iter().cloned().map(Ok)),
            checkpoint: self.checkpoint.clone(),
            cosigned: self.cosigned.clone(),
        }
    }
}

/// All sites, and the coordinator beside the one that coordinates.
struct World {
    sites: Vec<Site>,
    scribe: Scribe,
    size_before: u64,
}

impl World {
    fn new() -> World {
        World {
            sites: GATES.map(Site::new).into(),
            scribe: Scribe::default(),
            size_before: 0,
        }
    }

    /// The coordinator tells a round; `lie` are the leaves that one site is told instead. What anybody found, with who found it.
    fn tell(
        &mut self,
        by: usize,
        leaves: &[String],
        lie: Option<(usize, &[String])>,
    ) -> Vec<(usize, Trespass)> {
        let (me, keys) = (n(GATES[by]), Keys(n(GATES[by])));
        let before = self.sites[by].keeper.tree().clone();
        let own = self.sites[by].keeper.newest().cloned();
        let cosigned = self.scribe.cosigned(own.as_ref(), self.size_before);
        let origin = origin("harbour", &RUN);
        let append = self
            .scribe
            .offer(&origin, &before, leaves.to_vec(), cosigned.clone(), &keys)
            .unwrap();
        let mut found = Vec::new();
        self.size_before = before.size() + leaves.len() as u64;
        let order = [by]
            .into_iter()
            .chain((0..GATES.len()).filter(|at| *at != by));
        for at in order {
            let append = match lie {
                Some((whom, lie)) if whom == at => {
                    let tree = self.sites[at].keeper.tree().clone();
                    self.scribe
                        .offer(&origin, &tree, lie.to_vec(), cosigned.clone(), &keys)
                        .unwrap()
                }
                _ => append.clone(),
            };
            let (offered, noticed, recorded) = self.sites[at].take(&me, &append, GATES[at]);
            found.extend(noticed.into_iter().map(|trespass| (at, trespass)));
            if let Offered::Refused(trespass) = offered {
                found.push((at, trespass));
            }
            let keeper = &self.sites[by].keeper;
            let heard = self
                .scribe
                .on_recorded(keeper, &n(GATES[at]), &recorded, &keys);
            found.extend(heard.found.map(|trespass| (by, trespass)));
        }
        found
    }

    fn run(&mut self, rounds: std::ops::RangeInclusive<Round>) {
        for number in rounds {
            let by = usize::from(number >= PROMOTED);
            let found = self.tell(by, &lines(&round(number, 0)), None);
            assert_eq!(found, [], "round {number}");
        }
    }

    fn audit(&self) -> audit::Report {
        let copies = self.sites.iter().zip(GATES);
        audit::audit(
            copies.map(|(site, name)| site.copy(name)).collect(),
            &Keys(n("no/body")),
        )
    }
}

#[test]
fn every_site_ends_with_the_same_record_and_the_audit_finds_nothing() {
    let mut world = World::new();
    world.run(1..=9);
    let report = world.audit();
    assert_eq!(report.findings, []);
    for (copy, gate) in report.copies.iter().zip(GATES) {
        assert_eq!((copy.tally, copy.account.round()), ((9, 0, 0), 9));
        assert_eq!(copy.node, Some(n(gate)));
        assert_eq!(
            copy.head.as_ref().unwrap().head,
            report.copies[0].head.as_ref().unwrap().head
        );
        assert_eq!(
            copy.cosigners.len(),
            3,
            "{gate} holds everybody's signature of the head before"
        );
    }
    // The cosignatures that came with round 9 are of the head of round 8: they lag by one round.
    let older = Note::parse(world.sites[2].cosigned.as_ref().unwrap()).unwrap();
    let last = lines(&round(9, 0)).len() as u64;
    assert_eq!(older.head.size + last, world.sites[2].keeper.size());
}

#[test]
fn a_leaf_is_taken_in_its_only_form() {
    for leaf in begun()
        .iter()
        .chain(&round(2, 0))
        .chain(&round(PROMOTED, 0))
    {
        let line = leaf.line();
        assert_eq!(Leaf::parse(&line).as_ref(), Ok(leaf));
        assert!(Leaf::parse(&format!(" {line}")).is_err(), "{line}");
        let padded = line.replacen(':', ": ", 1);
        assert!(Leaf::parse(&padded).is_err(), "{padded}");
        let longer = line.replacen('{', r#"{"more":1,"#, 1);
        assert!(Leaf::parse(&longer).is_err(), "{longer}");
    }
    assert!(Leaf::parse(&"x".repeat(LEAF_BYTES_MAX + 1)).is_err());
}

#[test]
fn a_note_is_text_that_other_tools_read() {
    let (head, node) = (
        Head {
            origin: "harbour/run".into(),
            size: 3,
            root: Root([5; 32]),
        },
        n(GATES[1]),
    );
    let mut note = Note::new(head);
    note.sign(&Keys(node.clone())).unwrap();
    note.cosign(
        &Keys(node.clone()),
        signer_name("harbour", &node),
        1_800_000_000,
    )
    .unwrap();
    let text = note.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "harbour/run",
            "3",
            "BQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU=",
            ""
        ]
    );
    assert!(lines[4].starts_with("\u{2014} harbour/run "), "{text}");
    assert!(
        lines[5].starts_with("\u{2014} plant.harbour/node/gate "),
        "{text}"
    );
    assert_eq!(Note::parse(&text).as_ref(), Ok(&note));
    for broken in [
        "",
        "\n\n",
        "a\n1\n\n",
        &text.replace("\n3\n", "\n03\n"),
        &text.replace("BQUF", "BQU"),
        &text[..text.len() - 1],
    ] {
        assert!(Note::parse(broken).is_err(), "{broken:?}");
    }
}

#[test]
fn a_coordinator_that_tells_two_domains_different_leaves_is_named_within_a_round() {
    let mut world = World::new();
    world.run(1..=2);
    let lie = lines(&round(3, 666));
    let found = world.tell(0, &lines(&round(3, 0)), Some((2, &lie)));
    // Its own machine sees the other root at once; one that lies would say nothing.
    assert!(found.iter().all(|(at, _)| *at == 0), "{found:?}");
    let mut honest = world.sites.clone();
    let mut next = round(PROMOTED, 0);
    next.drain(..2);
    next.iter_mut().for_each(|leaf| {
        if let Leaf::Contribution { epoch, .. } | Leaf::Round { epoch, .. } = leaf {
            *epoch = 1;
        }
    });
    let next = lines(&next);
    let found = world.tell(0, &next, Some((2, &next)));
    let by_plant: Vec<&Trespass> = found
        .iter()
        .filter(|(at, _)| *at == 1)
        .map(|(_, it)| it)
        .collect();
    assert_eq!(by_plant.len(), 1, "{found:?}");
    assert_eq!(
        (&by_plant[0].by, by_plant[0].forks),
        (&n(GATES[0]), true),
        "{:?}",
        by_plant[0]
    );
    assert!(
        by_plant[0].reason.contains("two histories"),
        "{}",
        by_plant[0].reason
    );
    let by_port = found
        .iter()
        .any(|(at, it)| *at == 2 && it.forks && it.by == n(GATES[0]));
    assert!(
        by_port,
        "the domain that was lied to finds it, too: {found:?}"
    );
    // The same if it tells everybody the same from there on: what does not follow is refused, with the proof.
    let cosigned = vec![honest[1].checkpoint.clone().unwrap()];
    let tree = honest[0].keeper.tree();
    let append = world
        .scribe
        .offer(
            &origin("harbour", &RUN),
            tree,
            next,
            cosigned,
            &Keys(n(GATES[0])),
        )
        .unwrap();
    match honest[2].take(&n(GATES[0]), &append, GATES[2]).0 {
        Offered::Refused(trespass) => assert!(trespass.forks, "{trespass:?}"),
        other => panic!("{other:?}"),
    }
    let report = world.audit();
    let signed_both = |finding: &Finding| finding.reason.contains("hq/gate has signed both");
    assert!(
        report.findings.iter().any(signed_both),
        "{:#?}",
        report.findings
    );
}

#[test]
fn a_keeper_takes_nothing_that_contradicts_what_it_knows_itself() {
    let mut world = World::new();
    world.run(1..=2);
    let me = n(GATES[0]);
    let offer = |world: &World, leaves: &[Leaf], by: &NodeId| {
        let tree = world.sites[1].keeper.tree();
        let origin = origin("harbour", &RUN);
        world
            .scribe
            .offer(&origin, tree, lines(leaves), Vec::new(), &Keys(by.clone()))
            .unwrap()
    };
    let refused =
        |world: &World, append: &Append| match world.sites[1].clone().take(&me, append, GATES[1]).0
        {
            Offered::Refused(trespass) => trespass.reason,
            other => panic!("{other:?}"),
        };
    let honest = offer(&world, &round(3, 0), &me);

    let mut sent = world.sites[1].clone();
    sent.keeper.sent(contribution(3, "plant", 1));
    world.sites.push(sent);
    world.sites.swap_remove(1);
    assert!(refused(&world, &honest).contains("was sent with hash"));
    world.sites[1].keeper.sent(contribution(3, "plant", 0));
    assert!(matches!(
        world.sites[1].clone().take(&me, &honest, GATES[1]).0,
        Offered::Taken(_)
    ));
    world.sites[1].keeper.committed(3, model(3, 9));
    assert!(refused(&world, &honest).contains("this domain was given"));
    world.sites[1].keeper.committed(3, model(3, 0));

    let forged = offer(&world, &round(3, 0), &n(GATES[1]));
    assert!(refused(&world, &forged).contains("who does not coordinate"));
    let forged = offer(&world, &round(3, 0), &n(GATES[2]));
    assert!(refused(&world, &forged).contains("nobody who may coordinate"));
    let mut cut = honest.clone();
    cut.leaves.remove(2);
    assert!(refused(&world, &cut).contains("leaf"));
    let mut told = honest.clone();
    told.head = told.head.replace("harbour/", "harbor/");
    assert!(refused(&world, &told).contains("keeps that of"));
    let stranger = DomainId::clone(&n("port/a").domain());
    let certificate = Der(b"root of somebody".to_vec());
    let rooted = [
        vec![Leaf::Root {
            domain: stranger,
            certificate,
        }],
        round(3, 0),
    ]
    .concat();
    assert!(refused(&world, &offer(&world, &rooted, &me)).contains("not pinned"));
    let mut vast = honest.clone();
    vast.leaves = vec!["x".repeat(1 << 20); 3];
    assert!(refused(&world, &vast).contains("at most"));
    assert!(matches!(
        world.sites[1].take(&me, &honest, GATES[1]).0,
        Offered::Taken(_)
    ));
}

#[test]
fn a_site_that_was_away_says_what_it_lacks_and_a_coordinator_that_lost_rounds_is_told() {
    let mut world = World::new();
    world.run(1..=3);
    let mut away = std::mem::replace(&mut world.sites[2], Site::new(GATES[2]));
    let found = world.tell(1, &lines(&round(4, 0)), None);
    assert_eq!(found, []);
    assert_eq!(world.sites[2].keeper.size(), 0, "nothing follows nothing");
    let keys = Keys(n(GATES[1]));
    let recorded = Recorded::default();
    let heard = world
        .scribe
        .on_recorded(&world.sites[0].keeper, &n(GATES[2]), &recorded, &keys);
    assert_eq!(heard.lacks, Some(0));
    let all = world.sites[0].lines.clone();
    let origin = origin("harbour", &RUN);
    let append = world
        .scribe
        .offer(&origin, &Tree::default(), all, Vec::new(), &keys)
        .unwrap();
    world.sites[2].take(&n(GATES[1]), &append, GATES[2]);
    assert_eq!(world.sites[2].keeper.tree(), world.sites[0].keeper.tree());
    // One that kept its first three rounds takes only what is new of it.
    away.take(&n(GATES[1]), &append, GATES[2]);
    assert_eq!(away.lines, world.sites[0].lines);

    let ahead = Recorded {
        size: 99,
        ..Recorded::default()
    };
    let heard = world
        .scribe
        .on_recorded(&world.sites[0].keeper, &n(GATES[1]), &ahead, &keys);
    assert!(heard.found.unwrap().reason.contains("taken back"));
}

#[test]
fn a_domain_whose_cosignature_is_kept_from_the_others_is_named_once() {
    let mut world = World::new();
    world.run(1..=1);
    let mut named = Vec::new();
    for number in 2..=8 {
        let port = world.sites.remove(2);
        world.sites.push(Site::new(GATES[2]));
        let by = usize::from(number >= PROMOTED);
        named.extend(
            world
                .tell(by, &lines(&round(number, 0)), None)
                .into_iter()
                .map(|(at, it)| (number, at, it.by)),
        );
        world.sites[2] = port;
    }
    let by_plant: Vec<_> = named.iter().filter(|(_, at, _)| *at == 1).collect();
    assert_eq!(by_plant.len(), 1, "{named:?}");
    assert_eq!(by_plant[0].2, n(GATES[2]));
}

#[test]
fn a_copy_that_was_edited_is_named_when_its_node_starts_again() {
    let mut world = World::new();
    world.run(1..=6);
    let site = &world.sites[1];
    let restored = |lines: &[String]| {
        let (mut account, mut tree, keys) =
            (Account::default(), Tree::default(), Keys(n(GATES[1])));
        for line in lines {
            account.take(line, &keys).map_err(|flaw| flaw.to_string())?;
            tree.push(line);
        }
        let note = Note::parse(site.checkpoint.as_ref().unwrap()).unwrap();
        Keeper::restore(n(GATES[1]), account, tree, note, &keys)
    };
    assert_eq!(restored(&site.lines).unwrap().size(), site.keeper.size());
    let mut edited = site.lines.clone();
    let at = edited
        .iter()
        .position(|line| line.contains("\"clip\":0.5"))
        .unwrap();
    edited[at] = edited[at].replace("0.5", "0.75");
    assert!(
        restored(&edited)
            .unwrap_err()
            .contains("a leaf was changed")
    );
    assert!(restored(&site.lines[..site.lines.len() - 1]).is_err());
}
