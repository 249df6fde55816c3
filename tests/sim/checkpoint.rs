//! What a node writes down: versions, damage, orphans, and who may end a round.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo::sim::SimWorld;
use tombolo::topology;
use tombolo_actors::checkpoint::{
    Checkpoint, CheckpointError, FORMAT, Loaded, Message, State, Store,
};
use tombolo_actors::env::{Class, Files};
use tombolo_actors::shell::{Census, Handle, Stage, supervise};
use tombolo_actors::slab::Pool;
use tombolo_core::event::{RoundRecord, RoundState};
use tombolo_core::outer;
use tombolo_core::plan::{OuterKind, OuterPlan};
use tombolo_core::tensor::{Hash, Layout};

const CONFIGURATION: Hash = Hash([7; 32]);

const SGD: OuterPlan = OuterPlan {
    optimizer: OuterKind::Sgd,
    learning_rate: 1.0,
    momentum: 0.0,
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 0.001,
};

fn layout() -> Layout {
    Layout::new([("bias", vec![3]), ("weight", vec![2, 2])]).unwrap()
}

fn record(round: u64, model: &[f32]) -> RoundRecord {
    RoundRecord {
        round,
        epoch: 1,
        state: RoundState::Committed,
        reason: String::new(),
        counted: vec!["hq/a".parse().unwrap()],
        late: Vec::new(),
        denied: Vec::new(),
        refused: Vec::new(),
        accuracy: 0.5,
        loss: 1.0,
        weight_norm: 1.0,
        bytes: 0,
        bytes_down: 0,
        bytes_up: 0,
        model_hash: Hash::of(model),
        elapsed_s: 0.1,
        version: None,
        drifts: Vec::new(),
        balance: None,
    }
}

fn state(round: u64) -> Arc<State> {
    let mut model = Pool::default().take(7);
    for (index, element) in model.iter_mut().enumerate() {
        *element = round as f32 + index as f32 / 8.0;
    }
    let plan = OuterPlan {
        optimizer: OuterKind::Momentum,
        learning_rate: 1.0,
        momentum: 0.9,
        ..SGD
    };
    let mut outer = outer::build(&plan, 7);
    outer.restore(&[("velocity", &[round as f32; 7])]).unwrap();
    Arc::new(State {
        record: record(round, &model),
        tally: (round, 0, 0),
        leaves: Vec::new(),
        model: model.freeze(),
        outer: Arc::new(Mutex::new(outer)),
    })
}

struct Node {
    files: Arc<dyn Files>,
    stage: Stage,
}

impl Node {
    fn checkpoint(&self, configuration: Hash) -> Handle<Message> {
        let stage = self.stage.clone();
        supervise(&self.stage, Class::Node, "hq/a", move |_| {
            Checkpoint::new(stage.clone(), configuration, Pool::default())
        })
    }

    fn checkpoint_on(&self, files: Arc<dyn Files>) -> Handle<Message> {
        let stage = self.stage.clone();
        supervise(&self.stage, Class::Node, "hq/a", move |_| {
            Checkpoint::on(stage.clone(), files.clone(), CONFIGURATION, Pool::default())
        })
    }

    async fn commit(&self, round: u64) -> Result<(), CheckpointError> {
        self.commit_state(state(round)).await
    }

    async fn commit_state(&self, state: Arc<State>) -> Result<(), CheckpointError> {
        let checkpoint = self.checkpoint(CONFIGURATION);
        let asked = checkpoint.ask(|reply| Message::Commit(layout(), state, reply));
        asked.await.unwrap()
    }

    async fn load(&self, configuration: Hash) -> Result<Option<Loaded>, CheckpointError> {
        let checkpoint = self.checkpoint(configuration);
        let asked = checkpoint.ask(|reply| Message::Load(layout(), reply));
        asked.await.unwrap().map(|found| found.committed)
    }

    async fn loaded(&self) -> Loaded {
        self.load(CONFIGURATION)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
            .unwrap()
    }

    fn rounds_kept(&self) -> Vec<u64> {
        let states = self.files.list("states").unwrap();
        let round = |name: &String| name.split('-').next().unwrap().parse().unwrap();
        states.iter().map(round).collect()
    }

    async fn refusal(&self, configuration: Hash) -> CheckpointError {
        match self.load(configuration).await {
            Ok(_) => panic!("it was loaded"),
            Err(error) => error,
        }
    }
}

fn with_node<F: Future<Output = ()> + 'static>(test: impl FnOnce(Node) -> F + 'static) {
    let text = "[federation]\nname = \"f\"\n[checkpoint]\nevery = 10\n[[domain]]\nname = \"hq\"\nnodes = [\"a\"]\n";
    let plan = topology::parse("test", text, std::path::Path::new("."))
        .unwrap_or_else(|diagnosis| panic!("{diagnosis:#}"));
    let world = SimWorld::new(1);
    let run = world.run(|world| async move {
        let node = "hq/a".parse().unwrap();
        let env = world.env(&node);
        let stage = Stage {
            node,
            env: env.clone(),
            plan: Arc::new(plan),
            events: Arc::new(|_| {}),
            census: Census::default(),
            denials: Default::default(),
        };
        test(Node {
            files: env.files(),
            stage,
        })
        .await;
    });
    run.unwrap();
}

#[test]
fn the_newest_committed_state_is_loaded_with_the_optimizer() {
    with_node(|node| async move {
        assert!(node.load(CONFIGURATION).await.unwrap().is_none());
        node.commit(1).await.unwrap();
        node.commit(2).await.unwrap();
        let loaded = node.loaded().await;
        assert_eq!((loaded.round, loaded.last.tally), (2, (2, 0, 0)));
        let model = loaded.model.unwrap();
        assert_eq!((model[0], model[6]), (2.0, 2.75));
        assert_eq!(loaded.outer, [("velocity".to_owned(), vec![2.0; 7])]);
        node.commit(3).await.unwrap();
        node.loaded().await;
        // `every = 10`: of the states the newest two are kept, of the records all.
        assert_eq!(node.rounds_kept(), [2, 3]);
        assert_eq!(node.files.list("commits").unwrap().len(), 3);
    });
}

/// The model file is what PyTorch and everybody else reads: plain safetensors with the tensors' names and shapes.
#[test]
fn a_state_is_plain_safetensors() {
    with_node(|node| async move {
        node.commit(1).await.unwrap();
        let folder = node.files.list("states").unwrap().remove(0);
        let bytes = node
            .files
            .read(&format!("states/{folder}/model.safetensors"))
            .unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let weight = tensors.tensor("weight").unwrap();
        assert_eq!(
            (weight.shape(), weight.dtype()),
            (&[2, 2][..], safetensors::Dtype::F32)
        );
        assert_eq!(&weight.data()[..4], &1.375f32.to_le_bytes());
    });
}

#[test]
fn a_crash_before_the_record_leaves_an_orphan_which_is_removed() {
    with_node(|node| async move {
        node.commit(1).await.unwrap();
        node.files
            .replace(
                "states/000002-0123456789abcdef/model.safetensors",
                &[b"half a mod"],
            )
            .unwrap();
        assert_eq!(node.loaded().await.round, 1);
        assert_eq!(node.files.list("states").unwrap().len(), 1);
    });
}

/// A start reads as little after many rounds as after few, and still finds what is missing. STORE-2
#[test]
fn a_start_reads_the_newest_records_only() {
    const ABORTED: u64 = 3;
    with_node(|node| async move {
        let mut reads = Vec::new();
        for rounds in [20, 200] {
            let last = node.load(CONFIGURATION).await.unwrap();
            let last = last.map_or(0, |loaded| loaded.last.record.round);
            for round in last + 1..=rounds {
                node.commit(round).await.unwrap();
            }
            for round in rounds + 1..=rounds + ABORTED {
                let mut aborted = record(round, &[]);
                aborted.state = RoundState::Aborted;
                let tally = (rounds, 0, round - rounds);
                let checkpoint = node.checkpoint(CONFIGURATION);
                let asked =
                    checkpoint.ask(|reply| Message::Abort(aborted, tally, Vec::new(), reply));
                asked.await.unwrap().unwrap();
            }
            let counting = Arc::new(Counting(node.files.clone(), AtomicU64::new(0)));
            let checkpoint = node.checkpoint_on(counting.clone());
            let asked = checkpoint.ask(|reply| Message::Load(layout(), reply));
            let found = asked.await.unwrap().unwrap().committed.unwrap();
            assert_eq!(
                (found.round, found.last.record.round),
                (rounds, rounds + ABORTED)
            );
            reads.push(counting.1.load(Ordering::Relaxed));
            for round in rounds + 1..=rounds + ABORTED {
                node.files
                    .remove(&format!("commits/{round:06}.json"))
                    .unwrap();
            }
        }
        assert!(reads[1] <= reads[0] + 1 && reads[1] < 20, "{reads:?}");
        // Whatever is gone is missed, wherever it was.
        node.files.remove("commits/000007.json").unwrap();
        let refusal = node.refusal(CONFIGURATION).await.to_string();
        assert!(
            refusal.contains("commits/000007.json: it is missing"),
            "{refusal}"
        );
    });
}

/// Counts what is read.
struct Counting(Arc<dyn Files>, AtomicU64);

impl Files for Counting {
    fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read(path)
    }

    fn replace(&self, path: &str, parts: &[&[u8]]) -> std::io::Result<()> {
        self.0.replace(path, parts)
    }

    fn create(&self, path: &str, contents: &[u8]) -> std::io::Result<()> {
        self.0.create(path, contents)
    }

    fn list(&self, folder: &str) -> std::io::Result<Vec<String>> {
        self.0.list(folder)
    }

    fn remove(&self, path: &str) -> std::io::Result<()> {
        self.0.remove(path)
    }

    fn settle(&self, folder: &str) -> std::io::Result<()> {
        self.0.settle(folder)
    }
}

/// A record says which run it is of. One of another run is refused, naming both; one that does not say is of a version before this.
#[test]
fn a_record_of_another_run_is_refused_and_one_that_does_not_say_is_not() {
    with_node(|node| async move {
        let of_run = |run: u8| {
            let store = Store::new(node.files.clone(), CONFIGURATION, 1, Pool::default());
            store.of_run(Hash([run; 32]))
        };
        of_run(1).commit(&layout(), &state(1)).unwrap();
        assert!(of_run(1).load(&layout()).is_ok());
        // Who does not know the run judges by the rest.
        node.loaded().await;
        let refused = of_run(2).load(&layout()).err().unwrap();
        let (expected, found) = (Hash([2; 32]), Hash([1; 32]));
        let path = "commits/000001.json".to_owned();
        let foreign = CheckpointError::ForeignRecord {
            path: path.clone(),
            expected,
            found,
        };
        assert_eq!(refused, foreign);
        let written = node.files.read(&path).unwrap();
        let mut record: serde_json::Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(record["run"], found.to_string());
        // A version that does not know the run does not know the hash, either.
        record.as_object_mut().unwrap().remove("run");
        record.as_object_mut().unwrap().remove("blake3");
        let old = serde_json::to_vec(&record).unwrap();
        node.files.replace(&path, &[&old]).unwrap();
        assert!(of_run(2).load(&layout()).is_ok());
    });
}

type Refusal = fn(&dyn Files, &str) -> bool;

/// Files that do as they are told, with exceptions.
struct Odd {
    files: Arc<dyn Files>,
    unreadable: Refusal,
    stays: Refusal,
    rots: Refusal,
}

impl Odd {
    fn of(node: &Node) -> Self {
        Odd {
            files: node.files.clone(),
            unreadable: |_, _| false,
            stays: |_, _| false,
            rots: |_, _| false,
        }
    }

    fn check(&self, refuses: Refusal, path: &str) -> std::io::Result<()> {
        match refuses(self.files.as_ref(), path) {
            true => Err(std::io::ErrorKind::PermissionDenied.into()),
            false => Ok(()),
        }
    }
}

impl Files for Odd {
    fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
        self.check(self.unreadable, path)?;
        self.files.read(path)
    }

    fn replace(&self, path: &str, parts: &[&[u8]]) -> std::io::Result<()> {
        let mut bytes = parts.concat();
        if (self.rots)(self.files.as_ref(), path) {
            *bytes.last_mut().unwrap() ^= 1;
        }
        self.files.replace(path, &[&bytes])
    }

    fn create(&self, path: &str, contents: &[u8]) -> std::io::Result<()> {
        self.files.create(path, contents)
    }

    fn list(&self, folder: &str) -> std::io::Result<Vec<String>> {
        self.files.list(folder)
    }

    fn remove(&self, path: &str) -> std::io::Result<()> {
        self.check(self.stays, path)?;
        self.files.remove(path)
    }

    fn settle(&self, folder: &str) -> std::io::Result<()> {
        self.files.settle(folder)
    }
}

#[test]
fn a_commit_stands_though_what_it_replaces_cannot_be_removed() {
    with_node(|node| async move {
        let mut odd = Odd::of(&node);
        odd.stays = |files, path| {
            path.starts_with("notes") || files.list(path).is_ok_and(|names| names.len() > 1)
        };
        let checkpoint = node.checkpoint_on(Arc::new(odd));
        for round in [1, 2, 3] {
            let asked = checkpoint.ask(|reply| Message::Commit(layout(), state(round), reply));
            assert_eq!(asked.await.unwrap(), Ok(()));
        }
        assert_eq!(node.rounds_kept(), [1, 2, 3]);
        assert_eq!(node.loaded().await.round, 3);
    });
}

/// robots#3165, open-instruct#541, cosmos-rl#232: retention leaves what can be loaded, whatever the newest is called.
#[test]
fn no_state_is_removed_while_the_newest_does_not_verify() {
    with_node(|node| async move {
        let mut odd = Odd::of(&node);
        odd.rots =
            |_, path| path.starts_with("states/000003") && path.ends_with("model.safetensors");
        let checkpoint = node.checkpoint_on(Arc::new(odd));
        for round in [1, 2, 3] {
            let asked = checkpoint.ask(|reply| Message::Commit(layout(), state(round), reply));
            assert_eq!(asked.await.unwrap(), Ok(()));
        }
        let refusal = node.refusal(CONFIGURATION).await.to_string();
        assert_eq!(node.rounds_kept(), [1, 2, 3]);
        assert!(refusal.contains("the state of round 3"), "{refusal}");
        assert!(refusal.contains("the model of round 2"), "{refusal}");
    });
}

#[test]
fn a_record_that_cannot_be_read_is_not_taken_for_none() {
    with_node(|node| async move {
        node.commit(1).await.unwrap();
        let mut odd = Odd::of(&node);
        odd.unreadable = |_, path| path.starts_with("commits");
        let checkpoint = node.checkpoint_on(Arc::new(odd));
        let mut other = state(1);
        let outer = tombolo_core::outer::build(&SGD, 7);
        Arc::get_mut(&mut other).unwrap().outer = Arc::new(Mutex::new(outer));
        let asked = checkpoint.ask(|reply| Message::Commit(layout(), other, reply));
        let refusal = asked.await.unwrap().unwrap_err().to_string();
        assert!(refusal.contains("commits/000001.json"), "{refusal}");
        assert_eq!(
            node.loaded().await.outer.len(),
            1,
            "its state was not touched"
        );
    });
}

/// ROUND-5.
#[test]
fn a_round_is_ended_once_whoever_tries() {
    with_node(|node| async move {
        node.commit(1).await.unwrap();
        let mut other = state(1);
        let record = &mut Arc::get_mut(&mut other).unwrap().record;
        record.elapsed_s = 0.2;
        let asked = node.commit_state(other).await;
        assert_eq!(asked, Err(CheckpointError::Taken(1)));
        // Who ended it and did not hear so may ask again.
        assert_eq!(node.commit(1).await, Ok(()));
        assert_eq!(node.loaded().await.round, 1);
    });
}

/// pytorch#126952, safetensors#414: and the one before it does not take its place, for it was announced (STORE-2).
#[test]
fn a_damaged_state_is_refused_naming_the_file() {
    with_node(|node| async move {
        node.commit(1).await.unwrap();
        let folder = node.files.list("states").unwrap().remove(0);
        let path = format!("states/{folder}/model.safetensors");
        let mut bytes = node.files.read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        node.files.replace(&path, &[&bytes]).unwrap();
        let refusal = node.refusal(CONFIGURATION).await.to_string();
        assert!(
            refusal.contains(&path) && refusal.contains("hash"),
            "{refusal}"
        );
    });
}

#[test]
fn a_folder_of_another_configuration_is_refused() {
    with_node(|node| async move {
        node.commit(1).await.unwrap();
        let refusal = node.refusal(Hash([8; 32])).await;
        assert_eq!(
            refusal,
            CheckpointError::OtherRun {
                expected: Hash([8; 32]),
                found: CONFIGURATION
            }
        );
    });
}

/// A record as a version before wrote it: without its hash.
fn unsealed(files: &dyn Files, path: &str) -> String {
    let text = String::from_utf8(files.read(path).unwrap()).unwrap();
    let (body, _) = text.rsplit_once(",\n  \"blake3\"").expect("it is sealed");
    format!("{body}\n}}")
}

/// What rotted and still reads well is no more believed than what does not.
#[test]
fn a_record_of_which_a_byte_has_changed_is_refused_naming_it() {
    for (from, to) in [("hq/a", "hq/z"), ("\"loss\": 1", "\"loss\": 7")] {
        with_node(move |node| async move {
            node.commit(1).await.unwrap();
            let path = "commits/000001.json";
            let text = String::from_utf8(node.files.read(path).unwrap()).unwrap();
            assert!(text.contains(from), "{text}");
            let rotten = text.replacen(from, to, 1);
            node.files.replace(path, &[rotten.as_bytes()]).unwrap();
            let refusal = node.refusal(CONFIGURATION).await.to_string();
            assert!(
                refusal.contains(path) && refusal.contains("its hash is"),
                "{refusal}"
            );
        });
    }
}

/// Moud#29: the format has a version, and another one is refused naming both.
#[test]
fn a_record_of_another_format_version_is_refused_naming_both() {
    with_node(|node| async move {
        node.commit(1).await.unwrap();
        let text = unsealed(node.files.as_ref(), "commits/000001.json");
        let newer = text.replacen(&format!("\"format\": {FORMAT}"), "\"format\": 99", 1);
        assert_ne!(text, newer);
        node.files
            .replace("commits/000001.json", &[newer.as_bytes()])
            .unwrap();
        let refusal = node.refusal(CONFIGURATION).await.to_string();
        assert!(
            refusal.contains("99") && refusal.contains(&FORMAT.to_string()),
            "{refusal}"
        );
    });
}

/// What is left of a run is never removed, and never taken for the beginning of another one.
#[test]
fn missing_records_are_refused_and_no_state_is_removed() {
    for lost in ["commits", "commits/000001.json"] {
        with_node(move |node| async move {
            for round in [1, 2, 3] {
                node.commit(round).await.unwrap();
            }
            let states = node.files.list("states").unwrap();
            node.files.remove(lost).unwrap();
            let refusal = node.refusal(CONFIGURATION).await.to_string();
            assert!(
                refusal.contains("commits/000001.json") && refusal.contains("missing"),
                "{refusal}"
            );
            assert_eq!(node.files.list("states").unwrap(), states);
        });
    }
}

#[test]
fn records_that_were_changed_or_renamed_are_refused_naming_them() {
    let changes: [(&str, &str, &str); 4] = [
        ("\"round\": 2", "\"round\": 9", "round 9"),
        ("\"round\": 2", "\"round\": 18446744073709551615", "is due"),
        (
            "\"tally\": [\n    2",
            "\"tally\": [\n    18446744073709551615",
            "add up",
        ),
        ("\"state\": \"0", "\"state\": null, \"was\": \"0", "\"was\""),
    ];
    for (from, to, said) in changes {
        with_node(move |node| async move {
            node.commit(1).await.unwrap();
            node.commit(2).await.unwrap();
            let path = "commits/000002.json";
            let text = unsealed(node.files.as_ref(), path);
            assert!(text.contains(from), "{text}");
            let changed = text.replacen(from, to, 1);
            node.files.replace(path, &[changed.as_bytes()]).unwrap();
            let refusal = node.refusal(CONFIGURATION).await.to_string();
            assert!(
                refusal.contains(path) && refusal.contains(said),
                "{refusal}"
            );
        });
    }
}

/// Moud#29, and a state of another round or model than its record says.
#[test]
fn a_manifest_that_is_not_the_records_is_refused() {
    for (from, to) in [
        ("\"format\": 1", "\"format\": 9"),
        ("\"round\": 1", "\"round\": 7"),
    ] {
        with_node(move |node| async move {
            node.commit(1).await.unwrap();
            let folder = node.files.list("states").unwrap().remove(0);
            let path = format!("states/{folder}/manifest.json");
            let text = String::from_utf8(node.files.read(&path).unwrap()).unwrap();
            assert!(text.contains(from), "{text}");
            let changed = text.replacen(from, to, 1);
            node.files.replace(&path, &[changed.as_bytes()]).unwrap();
            let refusal = node.refusal(CONFIGURATION).await.to_string();
            assert!(refusal.contains(&path), "{refusal}");
        });
    }
}
