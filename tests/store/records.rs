//! The coordinator's records over an object store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo::store::ObjectFiles;
use tombolo_actors::checkpoint::{CheckpointError, Kept, State, Store};
use tombolo_actors::env::Files;
use tombolo_actors::slab::Pool;
use tombolo_core::coordinator::{Held, Paused};
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
            denied: Vec::new(),
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
            balance: None,
        },
        tally: (round, 0, 0),
        leaves: Vec::new(),
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
        .rounds
        .iter()
        .map(|round| matches!(round.kept, Kept::Verified(_)))
        .collect();
    assert_eq!(verified, [true, true, false]);
    assert!(!store.model(2).unwrap().is_empty());
}

/// Everything that the survey complains of.
fn complaints(store: &Store) -> Vec<String> {
    let survey = store.survey().unwrap();
    let rounds = survey
        .rounds
        .into_iter()
        .filter_map(|found| match found.kept {
            Kept::Damaged(error) => Some(error),
            _ => None,
        });
    rounds
        .chain(survey.strays)
        .map(|error| error.to_string())
        .collect()
}

/// Rounds committed one after the other, each followed by what retention does.
fn commit(store: &Store, rounds: std::ops::RangeInclusive<u64>) {
    for round in rounds {
        store.commit(&layout(), &state(round)).unwrap();
        store.retain(round);
    }
}

#[test]
fn a_record_that_rotted_and_still_reads_well_is_named_and_its_state_stays() {
    let objects = Faulty::new();
    let (store, files) = (store(&objects), files(&objects));
    commit(&store, 1..=3);
    assert_eq!(complaints(&store), [""; 0]);
    let path = "commits/000003.json";
    let text = String::from_utf8(files.read(path).unwrap()).unwrap();
    let configuration = CONFIGURATION.to_string();
    let other = configuration.replacen('7', "6", 1);
    for (from, to) in [
        ("hq/a", "hq/z"),
        ("\"accuracy\": 0.5", "\"accuracy\": 0.7"),
        (&configuration, &other),
        ("\"blake3\"", "\"blake2\""),
    ] {
        assert!(text.contains(from), "{text}");
        let rotten = text.replacen(from, to, 1);
        files.replace(path, &[rotten.as_bytes()]).unwrap();
        let named = complaints(&store);
        assert!(named.len() == 1 && named[0].contains(path), "{named:?}");
        let refused = refusal(store.load(&layout())).to_string();
        assert!(refused.contains(path), "{refused}");
    }
    let states = files.list("states").unwrap();
    files.replace(path, &[text.as_bytes()]).unwrap();
    commit(&store, 4..=4);
    files.replace("commits/000004.json", &[b"{}"]).unwrap();
    commit(&store, 5..=5);
    let left = files.list("states").unwrap();
    assert!(states.iter().all(|state| left.contains(state)), "{left:?}");
    assert!(
        left.iter().any(|state| state.starts_with("000004-")),
        "{left:?}"
    );
}

#[test]
fn a_state_that_retention_would_have_kept_is_missed_by_name() {
    let objects = Faulty::new();
    let every = |every| {
        Store::new(
            Arc::new(files(&objects)),
            CONFIGURATION,
            every,
            Pool::default(),
        )
    };
    let files = files(&objects);
    let lose = |round: u64| {
        let begins = format!("{round:06}-");
        let states = files.list("states").unwrap();
        let name = states.iter().find(|name| name.starts_with(&begins));
        files.remove(&format!("states/{}", name.unwrap())).unwrap();
    };
    // What another `every` did not keep is not missed by the next.
    commit(&every(2), 1..=7);
    commit(&every(1), 8..=12);
    assert_eq!(complaints(&every(1)), [""; 0]);
    assert_eq!(complaints(&every(2)), [""; 0]);
    lose(4);
    lose(9);
    let named = complaints(&every(1));
    assert_eq!(named.len(), 2, "{named:?}");
    assert!(
        named[0].contains("states/000004-") && named[0].contains("missing"),
        "{named:?}"
    );
    assert!(named[1].contains("states/000009-"), "{named:?}");
    assert_eq!(complaints(&every(2)).len(), 1, "9 may have gone since");
    // The newest two stay whatever it says.
    lose(11);
    let named = complaints(&every(5));
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(named[0].contains("states/000011-"), "{named:?}");
}

#[test]
fn a_missing_record_is_named_once_and_what_is_none_is_no_round() {
    let objects = Faulty::new();
    let (store, files) = (store(&objects), files(&objects));
    commit(&store, 1..=8);
    let record = files.read("commits/000004.json").unwrap();
    files.remove("commits/000004.json").unwrap();
    let named = complaints(&store);
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(
        named[0].starts_with("commits/000004.json: it is missing"),
        "{named:?}"
    );
    let refused = refusal(store.load(&layout())).to_string();
    assert_eq!(refused, named[0]);
    files.create("commits/000004.json", &record).unwrap();
    // Behind the last record only a state tells of those that are gone, of several in one line.
    for round in [2, 3, 7, 8] {
        files.remove(&format!("commits/{round:06}.json")).unwrap();
    }
    let named = complaints(&store);
    assert_eq!(named.len(), 2, "{named:?}");
    assert!(
        named[0].contains("from here to commits/000003.json"),
        "{named:?}"
    );
    assert!(
        named[1].starts_with("commits/000007.json: it is missing"),
        "{named:?}"
    );
}

#[test]
fn what_lies_among_the_records_and_is_none_is_to_be_removed() {
    for stray in [
        "000009.json.tmp",
        "abc.json",
        "+00009.json",
        "9.json",
        "000000.json",
    ] {
        let objects = Faulty::new();
        let (store, files) = (store(&objects), files(&objects));
        commit(&store, 1..=2);
        let path = format!("commits/{stray}");
        files.create(&path, b"{}").unwrap();
        assert_eq!(store.survey().unwrap().rounds.len(), 2);
        let named = complaints(&store);
        assert_eq!(named.len(), 1, "{named:?}");
        assert!(
            named[0].contains(&path) && named[0].contains("remove it"),
            "{named:?}"
        );
        assert_eq!(refusal(store.load(&layout())).to_string(), named[0]);
        files.remove(&path).unwrap();
        assert!(store.load(&layout()).is_ok());
    }
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

/// A store may do what it is asked and say that it has not: what stands there is what the coordinator goes by.
#[test]
fn a_pause_is_as_it_stands_in_the_store_whatever_the_store_has_said() {
    let objects = Faulty::new();
    let store = store(&objects);
    let pause = |by: &str| {
        Some(Paused {
            by: by.into(),
            since: 1,
        })
    };
    let stands = || store.load(&layout()).unwrap().paused;
    let said = |answer| {
        objects.answers(move |request, _, _| match request {
            Request::Put => answer,
            _ => Answer::Do,
        });
    };
    said(Answer::DoInSilence);
    let held = store.hold(pause("ada")).unwrap();
    assert_eq!((held.paused, held.failed), (pause("ada"), None));
    said(Answer::Refuse);
    let held = store.hold(pause("bob")).unwrap();
    assert_eq!(held.paused, pause("ada"));
    assert!(held.failed.unwrap().contains("pause.json"));
    objects.heals();
    assert_eq!(stands(), pause("ada"));
    objects.answers(|_, _, _| Answer::Deny);
    refusal(store.hold(None));
    objects.heals();
    assert_eq!(store.hold(None).unwrap(), Held::default());
    assert_eq!(stands(), None);
}
