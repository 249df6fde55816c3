//! What our own encoders make, as the beginning of a corpus; and what nobody should take.

use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde::Serialize;
use tombolo::Federation;
use tombolo::control::{Request, Response};
use tombolo::identity::files::DomainFiles;
use tombolo::identity::pki;
use tombolo::identity::{lifecycle, spiffe};
use tombolo_core::compress::{Lossless, Packer};
use tombolo_core::coordinator::Wish;
use tombolo_core::event::RoundState;
use tombolo_core::ids::NodeId;
use tombolo_core::record::{
    Der, FORMAT, Head, Leaf, Note, PublicKey, Root, Signature, Signer, Verifier, origin, prove,
    signer_name,
};
use tombolo_core::relay::{Header, Part, Tag};
use tombolo_core::tensor::Hash;
use tombolo_core::view::View;
use tombolo_core::wire::{Control, FrameHeader, codec};

use crate::targets::corpus::{FEDERATION, NOW, PIECE, SITES, chunks, proven, zeros};

/// Writes the corpus, if the environment says so.
pub fn write_if_asked(folder: &dyn Fn(&str) -> PathBuf) {
    if std::env::var("TOMBOLO_FUZZ_SEEDS").as_deref() != Ok("write") {
        return;
    }
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = folder(target);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), bytes).unwrap();
    };
    wire(&write);
    tensors(&write);
    record(&write);
    // Keys are drawn anew each time, and the targets hold the root that they know.
    if !folder("root").join("good-hq.der").exists() {
        identity(&write);
    }
    files(&write);
    run(&write);
}

type Write<'a> = &'a dyn Fn(&str, &str, &[u8]);

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

fn n(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn wire(write: Write) {
    let header = Header {
        part: Part::Whole,
        passed_on: true,
        number: 7,
        node: Tag::of(&n("hq/gate")),
    };
    let tunnel = |contents: &[u8], room| {
        let datagrams = header.cut(contents, room).into_iter();
        let behind = datagrams.map(|it| [&(it.len() as u16).to_le_bytes(), &it[..]].concat());
        behind.collect::<Vec<_>>().concat()
    };
    write("tunnel", "good-whole", &tunnel(b"a packet", 1200));
    write("tunnel", "good-halves", &tunnel(b"a packet", 16));
    let message = codec::encode(&Control::Resync).unwrap();
    let frame = |sequence, acknowledged, message: &[u8]| {
        let len = message.len() as u32;
        let header = FrameHeader {
            len,
            sequence,
            acknowledged,
        };
        [&header.to_bytes(), message].concat()
    };
    let twice = [
        frame(1, 0, &message),
        frame(2, 7, &message),
        frame(0, 9, &[]),
    ]
    .concat();
    write("frames", "good-three.bin", &twice);
    let again = [
        frame(5, 0, &message),
        frame(5, 0, &message),
        frame(1, 0, &message),
    ]
    .concat();
    write("frames", "good-replayed.bin", &again);
    write("frames", "bad-no-message.bin", &frame(1, 0, &[0xFF; 4]));
    let endless = FrameHeader {
        len: u32::MAX,
        sequence: 1,
        acknowledged: 0,
    };
    write("frames", "bad-endless.bin", &endless.to_bytes());
    let huge = codec::encode(&Control::Endpoint(vec![1, 2, 3])).unwrap();
    let lying = [&huge[..4], &(1u64 << 40).to_le_bytes(), &huge[12..]].concat();
    write("control", "bad-length.bin", &lying);
    let shm = [&[1, 3][..], b"shm", &[7; 32], &[4], b"name"].concat();
    write("endpoint", "good-shm.bin", &shm);
    write("endpoint", "bad-long.bin", &[1; 257]);
}

fn tensors(write: Write) {
    write("outline", "good-zeros.bin", &zeros());
    write("outline", "bad-other.bin", &[7; 96]);
    for (target, bytes) in chunks() {
        write(target, "good.bin", &bytes);
    }
    let plain = "all work and no play makes jack a dull boy; ".repeat(20);
    let bomb = vec![0; 64 << 20];
    for (target, method) in [
        ("lossless_snappy", Lossless::Snappy),
        ("lossless_lz4", Lossless::Lz4),
        ("lossless_zstd", Lossless::Zstd),
    ] {
        let pack = |bytes: &[u8]| {
            let mut packed = Vec::new();
            Packer::new(method).pack(bytes, &mut packed);
            packed
        };
        write(target, "good-text.bin", &pack(plain.as_bytes()));
        write(target, "good-plain.bin", &[0, 1, 2, 3]);
        write(target, "good-full.bin", &pack(&vec![0; PIECE]));
        write(target, "bad-one-more.bin", &pack(&vec![0; PIECE + 1]));
        // States what it may be and is a thousand times more.
        let mut lying = pack(&bomb);
        lying[1..5].copy_from_slice(&(PIECE as u32).to_le_bytes());
        lying.truncate(12 << 10);
        write(target, "bad-bomb.bin", &lying);
    }
    let data = [0; 24];
    let tensor = TensorView::new(Dtype::F32, vec![2, 3], &data).unwrap();
    write(
        "safetensors",
        "good.bin",
        &serialize([("weight", tensor)], None).unwrap(),
    );
    let huge = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    write("safetensors", "bad-header.bin", &huge);
    let shape = br#"{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#;
    let overflow = [&(shape.len() as u64).to_le_bytes()[..], shape].concat();
    write("safetensors", "bad-overflow.bin", &overflow);
}

/// Signs with what is no signature: only the form matters here.
struct Scribbler;

impl Verifier for Scribbler {
    fn holder(
        &self,
        _: &str,
        _: &std::collections::BTreeMap<tombolo_core::ids::DomainId, Vec<Vec<u8>>>,
        _: &[u8],
    ) -> Result<(NodeId, PublicKey), String> {
        Err("nobody".into())
    }

    fn verify(&self, _: &PublicKey, _: &[u8], _: &Signature) -> bool {
        true
    }
}

impl Signer for Scribbler {
    fn certificate(&self) -> Vec<u8> {
        Vec::new()
    }

    fn sign(&self, message: &[u8]) -> Result<(PublicKey, Signature), String> {
        Ok(([message.len() as u8; 32], [9; 64]))
    }

    fn pins(&self, _: &tombolo_core::ids::DomainId, _: &[u8]) -> bool {
        true
    }
}

fn record(write: Write) {
    let (hq, plant) = (n("hq/gate"), n("plant/gate"));
    let view = View {
        epoch: 1,
        coordinator: hq.clone(),
        gateways: [&hq, &plant]
            .map(|node| (node.domain(), node.clone()))
            .into(),
        out: [].into(),
    };
    let root = |node: &NodeId| Leaf::Root {
        domain: node.domain(),
        certificate: Der(format!("root of {}", node.domain()).into_bytes()),
    };
    let certificate = |node: &NodeId| Leaf::Certificate {
        node: node.clone(),
        certificate: Der(node.as_str().as_bytes().to_vec()),
    };
    let contribution = |node: &NodeId| Leaf::Contribution {
        round: 1,
        epoch: 1,
        domain: node.domain(),
        attempt: 0,
        weight: 30.5,
        hash: Hash([5; 32]),
        members: vec![node.clone()],
    };
    let update = |node: &NodeId| Leaf::Update {
        round: 1,
        node: node.clone(),
        weight: 30.5,
        clip: 1.0,
    };
    let leaves = [
        Leaf::Begun {
            format: FORMAT,
            federation: FEDERATION.into(),
            run: Hash([7; 32]),
            configuration: Hash([8; 32]),
            coordinators: vec![hq.clone()],
        },
        root(&hq),
        root(&plant),
        certificate(&hq),
        certificate(&plant),
        Leaf::Membership { view },
        update(&hq),
        update(&plant),
        contribution(&hq),
        contribution(&plant),
        Leaf::Checkpoint {
            round: 1,
            model: Hash([6; 32]),
        },
        Leaf::Round {
            round: 1,
            epoch: 1,
            state: RoundState::Committed,
            reason: "everyone".into(),
            model: Hash([6; 32]),
        },
    ];
    let lines: Vec<String> = leaves.iter().map(Leaf::line).collect();
    for (index, line) in lines.iter().enumerate() {
        write("leaf", &format!("good-{index:02}.json"), line.as_bytes());
    }
    write(
        "leaf",
        "bad-space.json",
        lines[0].replace(":", ": ").as_bytes(),
    );
    write("record", "good.jsonl", lines.join("\n").as_bytes());
    write(
        "record",
        "bad-order.jsonl",
        lines[1..].join("\n").as_bytes(),
    );

    let run = Hash([7; 32]);
    let origin = origin(FEDERATION, &run);
    let mut note = Note::new(Head {
        origin: origin.clone(),
        size: 7,
        root: Root([3; 32]),
    });
    note.sign(&Scribbler).unwrap();
    for node in [&hq, &plant] {
        note.cosign(&Scribbler, signer_name(FEDERATION, node), NOW)
            .unwrap();
    }
    write("note", "good.txt", note.text().as_bytes());
    write(
        "note",
        "bad-size.txt",
        note.text().replace("\n7\n", "\n07\n").as_bytes(),
    );
    for index in [0, 6] {
        let proof = prove(&origin, &proven(), index).unwrap();
        write("proof", &format!("good-{index}.json"), &json(&proof));
        let name = format!("bad-{index}.json");
        write(
            "proof",
            &name,
            &json(&tombolo_core::record::Proof {
                index: index ^ 1,
                ..proof
            }),
        );
    }
}

fn identity(write: Write) {
    let folder = tempfile::tempdir().unwrap();
    let plan = tombolo::topology::parse("sites.toml", SITES, folder.path()).unwrap();
    pki::ensure_dev_pki(&plan, NOW).unwrap();
    let files = DomainFiles::of_plan(&plan.domains[0]);
    let der = |path: &Path| {
        use rustls_pki_types::pem::PemObject;
        rustls_pki_types::CertificateDer::from_pem_file(path)
            .unwrap()
            .to_vec()
    };
    let root = der(files.root());
    let leaf = der(&files.leaf("gate"));
    let other = der(&DomainFiles::of_plan(&plan.domains[1]).leaf("gate"));
    write("root", "good-hq.der", &root);
    write("root", "bad-leaf.der", &leaf);
    write("certificate", "good-gate.der", &leaf);
    write("certificate", "bad-root.der", &root);
    write("certificate", "bad-plant.der", &other);
    lifecycle::revoke(&plan, &n("hq/a"), NOW).unwrap();
    let pem = fs::read(files.lists()).unwrap();
    use rustls_pki_types::pem::PemObject;
    let list = rustls_pki_types::CertificateRevocationListDer::from_pem_slice(&pem).unwrap();
    write("revocation_list", "good.der", &list);
    write("revocation_list", "bad-end.der", &list[..list.len() - 1]);
    write(
        "spiffe_name",
        "good.txt",
        spiffe::uri(FEDERATION, &n("hq/gate")).as_bytes(),
    );
    write(
        "spiffe_name",
        "bad.txt",
        b"spiffe://hq.harbour.example/node/gate",
    );
}

fn files(write: Write) {
    write("topology", "good-sites.toml", SITES.as_bytes());
    write(
        "topology",
        "bad-equals.toml",
        "x=y\n".repeat(200).as_bytes(),
    );
    write(
        "topology",
        "bad-deep.toml",
        format!("a = {}", "[".repeat(300)).as_bytes(),
    );
    let faults = "[[fault]]\nkind = \"crash\"\nnode = \"hq/gate\"\nat = \"5s\"\nuntil = \"9s\"\n\
                  [[fault]]\nkind = \"loss\"\nfrom = [\"hq\"]\nshare = \"10%\"\nat = \"1s\"\n";
    write("faults", "good.toml", faults.as_bytes());
    write(
        "faults",
        "bad-kind.toml",
        faults.replace("crash", "crsh").as_bytes(),
    );
    let requests = [
        Request::Status,
        Request::Readmit { node: n("hq/a") },
        Request::Promote { node: n("hq/a") },
        Request::Order {
            wish: Wish::Pause,
            by: "ada".into(),
        },
    ];
    for (index, request) in requests.iter().enumerate() {
        write("request", &format!("good-{index}.json"), &json(request));
    }
    write("request", "bad.json", br#"{"request":"stop"}"#);
    let responses = [
        Response::Readmitted {
            node: n("hq/a"),
            left_s: 1.5,
        },
        Response::Error {
            message: "no".into(),
        },
    ];
    for (index, response) in responses.iter().enumerate() {
        write("response", &format!("good-{index}.json"), &json(response));
    }
}

/// What a run of three rounds leaves behind.
fn run(write: Write) {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let report = runtime.block_on(async {
        // On one machine nodes need no addresses.
        let begin = SITES.split_once("[[domain]]").unwrap().0;
        let end = SITES.split_once("[[link]]").unwrap().1;
        let sites = "[[domain]]\nname = \"hq\"\nnodes = [\"gate\", \"a\"]\n[[domain]]\nname = \"plant\"\nnodes = [\"gate\"]";
        let here = format!("{begin}{sites}\n[[link]]{end}");
        let federation = Federation::from_toml(&here, folder.path()).unwrap();
        let running = federation.state(&state).spawn().await.unwrap();
        running.run().await.unwrap()
    });
    assert!(report.succeeded());
    let mut kinds = std::collections::BTreeSet::new();
    for path in under(&state) {
        let bytes = fs::read(&path).unwrap();
        let text = path.to_str().unwrap();
        if text.ends_with("commits/000002.json") {
            write("commit_record", "good.json", &bytes);
            let half =
                String::from_utf8(bytes)
                    .unwrap()
                    .replacen("\"round\": 2", "\"round\": 3", 1);
            write("commit_record", "bad-rotten.json", half.as_bytes());
        } else if text.ends_with("manifest.json") {
            write("manifest", "good.json", &bytes);
        } else if text.ends_with("/events.jsonl") {
            for line in String::from_utf8(bytes).unwrap().lines() {
                let value: serde_json::Value = serde_json::from_str(line).unwrap();
                let kind = value["event"].as_str().unwrap().to_owned();
                if kinds.insert(kind.clone()) {
                    write("event", &format!("good-{kind}.json"), line.as_bytes());
                }
            }
        }
    }
    let view = serde_json::json!({ "epoch": 2, "coordinator": "hq/gate", "gateways": { "hq": "hq/gate" }, "out": { "hq/a": "left", "hq/b": { "evicted": 1 } } });
    let view: View = serde_json::from_value(view).unwrap();
    write("view", "good.json", &json(&view));
    write(
        "view",
        "bad-name.json",
        br#"{"epoch":2,"coordinator":"HQ","gateways":{},"out":{}}"#,
    );
    write("event", "bad-at.json", br#"{"at":-1.0,"event":"finished"}"#);
}

/// Every file below a folder.
fn under(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(under(&path)),
            false => found.push(path),
        }
    }
    found
}
