//! The coordinator's records over an object store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo::store::ObjectFiles;
use tombolo_actors::checkpoint::{CheckpointError, State, Store};
use tombolo_actors::env::Files;
use tombolo_actors::slab::Pool;
use tombolo_core::event::{RoundRecord, RoundState};
use tombolo_core::outer;
use tombolo_core::plan::{OuterKind, OuterPlan};
use tombolo_core::tensor::{Hash, Layout};

use crate::faulty::{Answer, Faulty, Request};

pub const CONFIGURATION: Hash = Hash([7; 32]);

pub const RUN: Hash = Hash([3; 32]);

pub fn layout() -> Layout {
    Layout::new([("weight", vec![4])]).unwrap()
}

pub fn state(round: u64) -> State {
    let mut model = Pool::default().take(4);
    model.fill(round as f32);
    let momentum = OuterPlan {
        optimizer: OuterKind::Momentum,
        learning_rate: 1.0,
        momentum: 0.9,
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 0.001,
    };
    State {
        record: RoundRecord {
            round,
            epoch: 1,
            state: RoundState::Committed,
            reason: String::new(),
            counted: vec!["hq/a".parse().unwrap()],
            late: Vec::new(),
            refused: Vec::new(),
            accuracy: 0.5,
            loss: 1.0,
            weight_norm: 1.0,
            bytes: 0,
            bytes_down: 0,
            bytes_up: 0,
            model_hash: Hash::of(&model),
            elapsed_s: 0.1,
            version: None,
            drifts: Vec::new(),
        },
        tally: (round, 0, 0),
        model: model.freeze(),
        outer: Arc::new(Mutex::new(outer::build(&momentum, 4))),
    }
}

fn store(objects: &Arc<Faulty>) -> Store {
    let files = files(objects);
    Store::new(Arc::new(files), CONFIGURATION, 1, Pool::default())
}

pub fn files(objects: &Arc<Faulty>) -> ObjectFiles {
    ObjectFiles::in_virtual_time(objects.clone(), Duration::from_secs(60)).unwrap()
}

pub fn refusal<T>(result: Result<T, CheckpointError>) -> CheckpointError {
    match result {
        Ok(_) => panic!("it was taken"),
        Err(error) => error,
    }
}

#[test]
fn a_state_is_committed_once_and_loaded() {
    let objects = Faulty::new();
    let store = store(&objects);
    assert!(store.load(&layout()).unwrap().committed.is_none());
    store.commit(&layout(), &state(1)).unwrap();
    store.commit(&layout(), &state(2)).unwrap();
    // Asked again it finds its own work done; another outcome of the round is refused.
    store.commit(&layout(), &state(2)).unwrap();
    let mut other = state(2);
    other.record.accuracy = 0.9;
    let taken = refusal(store.commit(&layout(), &other));
    assert_eq!(taken, CheckpointError::Taken(2));
    let found = store.load(&layout()).unwrap().committed.unwrap();
    assert_eq!((found.round, found.last.tally), (2, (2, 0, 0)));
    assert_eq!(found.model.unwrap()[0], 2.0);
}

#[test]
fn a_record_whose_answer_was_lost_is_known_as_ones_own() {
    let objects = Faulty::new();
    let store = store(&objects);
    let mut lost = false;
    objects.answers(move |request, _, _| match request {
        Request::Create if !std::mem::replace(&mut lost, true) => Answer::DoInSilence,
        _ => Answer::Do,
    });
    store.commit(&layout(), &state(1)).unwrap();
    assert_eq!(
        store
            .load(&layout())
            .unwrap()
            .committed
            .unwrap()
            .last
            .record
            .round,
        1
    );
}

/// cosmos-rl#232: what is not what it was is named, and so is the newest before it that can be copied.
#[test]
fn a_rotten_or_missing_object_is_named_with_the_one_to_fall_back_on() {
    let objects = Faulty::new();
    let (store, files) = (store(&objects), files(&objects));
    for round in 1..=3 {
        store.commit(&layout(), &state(round)).unwrap();
    }
    let newest = files.list("states").unwrap().pop().unwrap();
    let model = format!("states/{newest}/model.safetensors");
    let mut bytes = files.read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    files.replace(&model, &[&bytes]).unwrap();
    let rotten = refusal(store.load(&layout()));
    assert!(
        matches!(
            &rotten,
            CheckpointError::Newest {
                round: 3,
                intact: Some(2),
                ..
            }
        ),
        "{rotten}"
    );
    assert!(rotten.to_string().contains(&model), "{rotten}");
    assert!(rotten.to_string().contains("its hash is"), "{rotten}");
    files.remove(&model).unwrap();
    let missing = refusal(store.load(&layout()));
    assert!(missing.to_string().contains("it is missing"), "{missing}");
    let survey = store.survey().unwrap();
    let verified: Vec<bool> = survey
        .iter()
        .map(|round| matches!(round.kept, tombolo_actors::checkpoint::Kept::Verified(_)))
        .collect();
    assert_eq!(verified, [true, true, false]);
    assert!(!store.model(2).unwrap().is_empty());
}

#[test]
fn a_store_that_cannot_create_if_absent_is_refused_by_name() {
    let objects = Faulty::new();
    objects.answers(|request, _, _| match request {
        Request::Create => Answer::Replace,
        _ => Answer::Do,
    });
    let replaces = refusal(store(&objects).claim(RUN));
    assert_eq!(
        replaces,
        CheckpointError::Replaces {
            path: "memory:/probe.json".into()
        }
    );
    assert!(
        replaces.to_string().contains("two coordinators"),
        "{replaces}"
    );
    objects.answers(|request, _, _| match request {
        Request::Create => Answer::Unable,
        _ => Answer::Do,
    });
    let unable = refusal(store(&objects).claim(RUN)).to_string();
    assert!(unable.contains("memory:/probe.json"), "{unable}");
    assert!(
        unable.contains("cannot create an object only if it is absent"),
        "{unable}"
    );
}

#[test]
fn a_store_belongs_to_one_run() {
    let objects = Faulty::new();
    let store = store(&objects);
    assert_eq!(store.probe().unwrap(), None);
    store.claim(RUN).unwrap();
    store.claim(RUN).unwrap();
    assert_eq!(store.probe().unwrap().unwrap().run, RUN);
    let other = refusal(store.claim(Hash([4; 32])));
    assert!(other.to_string().contains("another run"), "{other}");
    let files = Arc::new(files(&objects));
    let stranger = Store::new(files, Hash([8; 32]), 1, Pool::default());
    let refused = refusal(stranger.probe());
    assert!(
        matches!(refused, CheckpointError::OtherRun { .. }),
        "{refused}"
    );
}
