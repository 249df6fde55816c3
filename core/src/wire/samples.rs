//! One message of each kind, for tests that must know them all.

use super::*;
use crate::view::Out;

/// A kind's name. A new variant does not compile before it is named here, and a test wants a sample of every name.
pub fn name(control: &Control) -> &'static str {
    match control {
        Control::Fetch { .. } => "Fetch",
        Control::Offer { .. } => "Offer",
        Control::Missing { .. } => "Missing",
        Control::Endpoint(_) => "Endpoint",
        Control::Resync => "Resync",
        Control::Open(_) => "Open",
        Control::Weigh { .. } => "Weigh",
        Control::Answer { .. } => "Answer",
        Control::Commit(_) => "Commit",
        Control::Abort { .. } => "Abort",
        Control::Finish { .. } => "Finish",
        Control::DomainJoin(_) => "DomainJoin",
        Control::Reported { .. } => "Reported",
        Control::Stale { .. } => "Stale",
        Control::TrainingFailed { .. } => "TrainingFailed",
        Control::Unreachable { .. } => "Unreachable",
        Control::Contribute(_) => "Contribute",
        Control::Adopted { .. } => "Adopted",
        Control::Rejoin => "Rejoin",
        Control::Train(_) => "Train",
        Control::Measure(_) => "Measure",
        Control::Fold(_) => "Fold",
        Control::Adopt(_) => "Adopt",
        Control::Drop { .. } => "Drop",
        Control::Leave { .. } => "Leave",
        Control::Join(_) => "Join",
        Control::Exported(_) => "Exported",
        Control::Failed { .. } => "Failed",
        Control::Measured(_) => "Measured",
        Control::Folded(_) => "Folded",
        Control::Holds { .. } => "Holds",
        Control::View(_) => "View",
        Control::Standing { .. } => "Standing",
        Control::MemberDiverged(..) => "MemberDiverged",
        Control::Diverged(_) => "Diverged",
        Control::Departing => "Departing",
        Control::Vitals(_) => "Vitals",
        Control::MemberVitals(_) => "MemberVitals",
        Control::Append(_) => "Append",
        Control::Recorded(_) => "Recorded",
        Control::Muster(_) => "Muster",
        Control::Amend(_) => "Amend",
        Control::Consider(_) => "Consider",
        Control::Agreed { .. } => "Agreed",
        Control::MemberAgreed { .. } => "MemberAgreed",
        Control::Renew => "Renew",
        Control::Revoked(_) => "Revoked",
    }
}

/// Kinds of control messages.
pub const KINDS: usize = 47;

/// At least one message of each kind, with every form of what is inside.
pub fn controls() -> Vec<Control> {
    let (round, epoch, reason) = (3, 1, Text::from("why"));
    let node = named("hq/a");
    let hash = Hash([0xAB; 32]);
    vec![
        Control::Fetch {
            tag: 8,
            object: Object::Outline(hash),
        },
        Control::Fetch {
            tag: 10,
            object: Object::Chunk(hash, 5),
        },
        Control::Fetch {
            tag: 9,
            object: Object::Contribution(round, 2),
        },
        Control::Fetch {
            tag: 11,
            object: Object::Rest(round, 2, 1 << 20),
        },
        Control::Offer {
            tag: 6,
            object: Object::Model(round),
        },
        Control::Missing {
            tag: 7,
            lack: Lack::Absent,
            reason: reason.clone(),
        },
        Control::Missing {
            tag: 8,
            lack: Lack::Busy,
            reason: reason.clone(),
        },
        Control::Endpoint(vec![1, 2, 3]),
        Control::Resync,
        Control::Open(Open {
            run: hash,
            round,
            epoch,
            base_round: 2,
            base: hash,
            cohort: vec![node.clone()],
            attempt: 1,
            sync_every: SyncEvery::Steps(50),
            steps: vec![(node.clone(), 73)],
            seed: 7,
            fresh: Some(Fresh {
                oldest: 2,
                spent: vec![(node.clone(), 2)],
            }),
        }),
        Control::Weigh {
            round,
            weights: vec![weight()],
            norms: vec![2.0],
        },
        answer(Answer::Acknowledged),
        answer(Answer::Duplicate),
        answer(Answer::Late),
        answer(Answer::Refused(reason.clone())),
        Control::Commit(Commit {
            round,
            base: hash,
            hash: Hash([0xCD; 32]),
            contributions: vec![(node.domain(), 1)],
        }),
        Control::Abort {
            round,
            reason: reason.clone(),
        },
        Control::Finish {
            reason: reason.clone(),
        },
        Control::DomainJoin(DomainJoin {
            layout: layout(),
            round,
            hash,
            members: vec![node.clone()],
        }),
        Control::Reported {
            round,
            epoch,
            trained_for: 2,
            report: report(),
            effort: effort(),
        },
        Control::Stale {
            round,
            node: node.clone(),
            trained_for: 1,
        },
        Control::TrainingFailed {
            round,
            node: node.clone(),
            reason: reason.clone(),
        },
        Control::Unreachable {
            round,
            node: node.clone(),
            reason: reason.clone(),
        },
        Control::Contribute(Contribution {
            round,
            epoch,
            attempt: 1,
            domain: node.domain(),
            members: vec![node.clone()],
            weight: 10.0,
            exponent: 3,
            chunks: vec![hash],
            encoding: Encoding {
                codec: Codec::TopK {
                    share: 10_000,
                    halves: true,
                },
                lossless: Lossless::Zstd,
                sizes: vec![77],
            },
        }),
        Control::Adopted {
            round,
            hash,
            nodes: vec![node.clone()],
        },
        Control::Rejoin,
        Control::Train(Train {
            token: 5,
            run: hash,
            round,
            epoch,
            model: model(),
            sync_every: SyncEvery::Epochs(1),
            counts_as: Some(50),
            seed: 7,
            oldest: Some(2),
        }),
        Control::Measure(Measure {
            token: 5,
            round,
            epoch,
            node: node.clone(),
            region: region(),
            slices: vec![0, 1],
        }),
        Control::Fold(Fold {
            token: 5,
            round,
            epoch,
            attempt: 1,
            terms: vec![Term {
                node: node.clone(),
                round,
                epoch,
                region: region(),
                factor: 2.5,
                checksums: vec![hash],
            }],
            slices: vec![0],
        }),
        Control::Adopt(model()),
        Control::Drop {
            round,
            reason: reason.clone(),
        },
        Control::Leave {
            reason: reason.clone(),
        },
        Control::Join(Join {
            layout: layout(),
            round,
            hash,
        }),
        Control::Exported(Exported {
            round,
            epoch,
            region: region(),
            samples: 10,
            loss: 1.5,
            steps: 4,
            learning_rate: 0.1,
            effort: effort(),
        }),
        Control::Failed {
            round,
            token: Some(5),
            reason: reason.clone(),
        },
        Control::Failed {
            round,
            token: None,
            reason: reason.clone(),
        },
        measured(Ok(vec![SliceMeasure {
            slice: 1,
            squares: 4.0,
            checksum: hash,
        }])),
        measured(Err(reason.clone())),
        folded(Ok(region())),
        Control::MemberDiverged(node.clone(), divergence()),
        Control::Diverged(divergence()),
        folded(Err((node, reason.clone()))),
        Control::Holds { round, hash },
        Control::View(View {
            epoch,
            coordinator: named("hq/a"),
            gateways: [(named("hq/a").domain(), named("hq/a"))].into(),
            out: [(named("hq/a"), Out::Evicted(2)), (named("hq/b"), Out::Left)].into(),
        }),
        standing(Word::Active),
        standing(Word::Suspect),
        standing(Word::Restoring),
        standing(Word::Overdue),
        standing(Word::Left),
        Control::Departing,
        Control::Muster(Muster {
            round,
            epoch,
            life: 5,
            number: 7,
            ranks: vec![named("hq/a"), named("hq/b")],
            door: vec![1, 2, 3],
        }),
        Control::Amend(hash),
        Control::Consider(hash),
        Control::Agreed {
            topology: hash,
            objection: None,
        },
        Control::MemberAgreed {
            node: named("hq/b"),
            topology: hash,
            objection: Some(reason.clone()),
        },
        Control::Renew,
        Control::Revoked(vec![0x30, 0].try_into().expect("short")),
        Control::Vitals(vitals()),
        Control::MemberVitals(vitals()),
        Control::Append(Append {
            from: 4,
            leaves: vec!["{}".into()],
            head: "head".into(),
            cosigned: vec!["older".into()],
        }),
        Control::Recorded(Recorded {
            size: 5,
            note: "head".into(),
            refused: reason.clone(),
            certificate: vec![0x30, 1],
        }),
    ]
}

fn divergence() -> Divergence {
    Divergence {
        round: 4,
        model: 3,
        expected: Hash([0xAB; 32]),
        found: Hash([0xCD; 32]),
    }
}

/// How a node does.
pub fn vitals() -> Vitals {
    Vitals {
        node: named("hq/a"),
        memory: 1 << 26,
        queued: 2,
        unacknowledged: 3,
        unacknowledged_bytes: 700,
        certificate_s: 86_400,
    }
}

/// A first message of a control stream.
pub fn hello() -> Hello {
    Hello {
        version: 1,
        // Not the fingerprint: it is made from these bytes.
        fingerprint: 0x0123_4567_89AB_CDEF,
        topology: Hash([0xEF; 32]),
        incarnation: 5,
        known: 4,
        received: 3,
        heartbeat_ms: 500,
        at_work: true,
    }
}

fn named(name: &str) -> NodeId {
    name.parse().expect("a name")
}

fn layout() -> Layout {
    Layout::new([("w", vec![2, 3]), ("b", vec![])]).expect("it is small")
}

fn region() -> RegionRef {
    RegionRef {
        owner: named("hq/a"),
        key: 9,
        len: 88,
    }
}

fn model() -> ModelRef {
    ModelRef {
        round: 2,
        hash: Hash([0xAB; 32]),
        region: region(),
    }
}

fn weight() -> Weight {
    Weight {
        node: named("hq/a"),
        weight: 10.0,
        clip: 0.5,
        reason: "clipped".into(),
    }
}

fn report() -> Report {
    Report {
        node: named("hq/a"),
        samples: 10,
        loss: 1.5,
        steps: 4,
        learning_rate: 0.1,
        norm: 2.0,
        finite: true,
    }
}

fn effort() -> Effort {
    Effort {
        steps: 3,
        micros: 900,
    }
}

fn answer(answer: Answer) -> Control {
    Control::Answer {
        round: 3,
        attempt: 1,
        answer,
    }
}

fn measured(result: Result<Vec<SliceMeasure>, Text>) -> Control {
    Control::Measured(Measured {
        token: 5,
        round: 3,
        node: named("hq/a"),
        result,
    })
}

fn folded(result: Result<RegionRef, (NodeId, Text)>) -> Control {
    Control::Folded(Folded {
        token: 5,
        round: 3,
        attempt: 1,
        slices: vec![0],
        result,
    })
}

fn standing(word: Word) -> Control {
    let node = named("hq/a");
    Control::Standing { node, word }
}
