//! What a store refuses a coordinator that is none any more, whatever it still has in hand.

use std::path::Path;
use std::sync::Arc;

use tombolo::topology;
use tombolo_actors::checkpoint::{CheckpointError, Store, Term};
use tombolo_actors::env::Files;
use tombolo_actors::slab::Pool;
use tombolo_core::coordinator::Weighing;
use tombolo_core::event::RoundState;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::view::View;
use tombolo_core::wire::Contribution;

use crate::faulty::{Answer, Faulty, Request};
use crate::records::{CONFIGURATION, RUN, files, layout, refusal, state};

fn plan() -> Plan {
    let text = r#"
        [federation]
        name = "f"
        standby = ["plant/gate", "lab/gate"]
        [[domain]]
        name = "hq"
        nodes = ["gate"]
        [[domain]]
        name = "plant"
        nodes = ["gate"]
        [[domain]]
        name = "lab"
        nodes = ["gate"]
    "#;
    topology::parse("f", text, Path::new(".")).unwrap_or_else(|error| panic!("{error:#}"))
}

fn n(text: &str) -> NodeId {
    text.parse().unwrap()
}

fn as_seen_by(objects: &Arc<Faulty>, node: &str) -> Store {
    let files = Arc::new(files(objects));
    let store = Store::new(files, CONFIGURATION, 1, Pool::default());
    store.shared(n(node), Term::default())
}

/// A coordinator with one committed round and what it has fixed and noted of the next.
fn begun(objects: &Arc<Faulty>) -> Store {
    let hq = as_seen_by(objects, "hq/gate");
    hq.claim(RUN).unwrap();
    hq.load(&layout()).unwrap();
    hq.commit(&layout(), &state(1)).unwrap();
    hq.fix(weighing(2)).unwrap();
    hq.note(&contribution(2)).unwrap();
    hq
}

fn weighing(round: u64) -> Weighing {
    Weighing {
        round,
        epoch: 1,
        base: state(1).record.model_hash,
        cohort: vec![n("hq/gate"), n("plant/gate")],
        reports: Vec::new(),
        refused: Vec::new(),
        weights: Vec::new(),
        trained_for: Vec::new(),
        steps: Vec::new(),
        efforts: Vec::new(),
    }
}

fn contribution(round: u64) -> Contribution {
    Contribution {
        round,
        epoch: 1,
        domain: "plant".parse().unwrap(),
        attempt: 0,
        weight: 3.0,
        exponent: 0,
        chunks: Vec::new(),
        members: vec![n("plant/gate")],
        encoding: Default::default(),
    }
}

#[test]
fn who_cannot_read_the_coordinators_probe_looks_at_another_store() {
    let objects = Faulty::new();
    let error = refusal(as_seen_by(&objects, "plant/gate").appoint(&plan(), &n("hq/gate")));
    assert_eq!(
        error,
        CheckpointError::NoProbe {
            path: "memory:/probe.json".into()
        }
    );
    assert!(
        error.to_string().contains("looks at another store"),
        "{error}"
    );
    assert_eq!(files(&objects).list("views").unwrap(), [""; 0]);
}

#[test]
fn a_store_that_replaces_what_is_there_makes_nobody_coordinator() {
    let objects = Faulty::new();
    begun(&objects);
    objects.answers(|request, _, _| match request {
        Request::Create => Answer::Replace,
        _ => Answer::Do,
    });
    let error = refusal(as_seen_by(&objects, "plant/gate").appoint(&plan(), &n("hq/gate")));
    assert!(matches!(error, CheckpointError::Replaces { .. }), "{error}");
}

#[test]
fn what_could_not_be_gone_on_from_is_not_taken_over() {
    let objects = Faulty::new();
    begun(&objects);
    let files = files(&objects);
    let folder = files.list("states").unwrap().remove(0);
    let model = format!("states/{folder}/model.safetensors");
    files.replace(&model, &[b"rotten"]).unwrap();
    let error = refusal(as_seen_by(&objects, "plant/gate").appoint(&plan(), &n("hq/gate")));
    assert!(error.to_string().contains(&model), "{error}");
    assert_eq!(files.list("views").unwrap(), [""; 0]);
}

#[test]
fn of_two_promoted_at_once_the_second_is_told_of_the_first() {
    let objects = Faulty::new();
    begun(&objects);
    let (plant, lab) = (
        as_seen_by(&objects, "plant/gate"),
        as_seen_by(&objects, "lab/gate"),
    );
    let (view, run) = plant.appoint(&plan(), &n("hq/gate")).unwrap();
    assert_eq!((view.epoch, run), (2, RUN));
    assert_eq!(view.coordinator, n("plant/gate"));
    let again = plant.appoint(&plan(), &n("hq/gate")).unwrap();
    assert_eq!(again.0, view, "asked twice it is what it is");
    let late = refusal(lab.appoint(&plan(), &n("hq/gate")));
    assert_eq!(
        late,
        CheckpointError::Meanwhile {
            by: n("plant/gate"),
            epoch: 2
        }
    );
    assert_eq!(lab.appoint(&plan(), &n("plant/gate")).unwrap().0.epoch, 3);
}

#[test]
fn a_superseded_coordinator_is_refused_whatever_it_writes() {
    let objects = Faulty::new();
    let hq = begun(&objects);
    let plant = as_seen_by(&objects, "plant/gate");
    let (view, _) = plant.appoint(&plan(), &n("hq/gate")).unwrap();
    let found = plant.load(&layout()).unwrap();
    assert_eq!(found.view, Some(view.clone()));
    let before = listing(&objects);
    let superseded = CheckpointError::Superseded {
        by: n("plant/gate"),
        epoch: 2,
    };
    let refused = [
        refusal(hq.commit(&layout(), &state(2))),
        refusal(hq.end(state(2).record, (1, 0, 1), None, Vec::new())),
        refusal(hq.fix(weighing(2))),
        refusal(hq.note(&contribution(2))),
        refusal(hq.load(&layout())),
        refusal(hq.write_view(&View {
            epoch: 3,
            coordinator: n("hq/gate"),
            ..view
        })),
    ];
    assert_eq!(refused, [(); 6].map(|()| superseded.clone()));
    assert_eq!(listing(&objects), before);
    plant.commit(&layout(), &state(2)).unwrap();
    assert_eq!(plant.load(&layout()).unwrap().committed.unwrap().round, 2);
}

/// What lies among the views and is none may be one that lost its name; a view that is missing is named.
#[test]
fn what_is_wrong_with_the_views_is_named() {
    let objects = Faulty::new();
    begun(&objects);
    let plant = as_seen_by(&objects, "plant/gate");
    plant.appoint(&plan(), &n("hq/gate")).unwrap();
    let lab = as_seen_by(&objects, "lab/gate");
    lab.appoint(&plan(), &n("plant/gate")).unwrap();
    let files = files(&objects);
    for stray in ["views/000002.json.bak", "views/2.json", "views/000001.json"] {
        files.replace(stray, &[b"{}"]).unwrap();
        let path = stray.to_owned();
        assert_eq!(refusal(lab.last_view()), CheckpointError::Stray { path });
        files.remove(stray).unwrap();
    }
    let path = "views/000002.json".to_owned();
    files.remove(&path).unwrap();
    assert_eq!(refusal(lab.last_view()), CheckpointError::Missing { path });
}

/// What both write at once bears different names, so neither destroys the other's.
#[test]
fn notes_are_taken_over_and_nothing_of_the_others_is_touched() {
    let objects = Faulty::new();
    let hq = begun(&objects);
    let plant = as_seen_by(&objects, "plant/gate");
    plant.appoint(&plan(), &n("hq/gate")).unwrap();
    let open = plant.load(&layout()).unwrap().open.unwrap();
    assert_eq!(open.weighing, weighing(2));
    assert_eq!(open.noted[0].contribution, contribution(2));
    let notes = files(&objects).list("notes").unwrap();
    assert_eq!(notes, ["000002", "000002-000002"]);
    plant.commit(&layout(), &state(2)).unwrap();
    // It may still tidy up behind the last round that it ended itself.
    hq.retain(1);
    let states = files(&objects).list("states").unwrap();
    assert!(states[1].ends_with("-000002"), "{states:?}");
    plant.retain(2);
    assert_eq!(files(&objects).list("notes").unwrap(), [""; 0]);
    assert_eq!(plant.load(&layout()).unwrap().committed.unwrap().round, 2);
}

/// ROUND-3: the record of an earlier life lands while the next one acknowledges somebody of whom that record knows nothing. What the record
/// does not tell of is found by whoever loads next, and until it was told it stays.
#[test]
fn what_was_acknowledged_behind_the_back_of_a_late_record_is_found() {
    let objects = Faulty::new();
    let hq = begun(&objects);
    let mut record = state(2).record;
    record.counted.clear();
    record.state = RoundState::Aborted;
    record.late = vec![n("hq/a")];
    let sum = contribution(2);
    hq.end(record, (1, 0, 1), None, Vec::new()).unwrap();
    let found = hq.load(&layout()).unwrap();
    assert_eq!(found.committed.unwrap().last.record.round, 2);
    assert_eq!((found.overtaken, found.open), (vec![sum.clone()], None));
    assert_eq!(hq.load(&layout()).unwrap().overtaken, [sum]);
    hq.commit(&layout(), &state(3)).unwrap();
    hq.retain(3);
    assert_eq!(hq.load(&layout()).unwrap().overtaken, []);
    assert_eq!(files(&objects).list("notes").unwrap(), [""; 0]);
}

/// The other half: a life that ended before it could tidy up has acknowledged nothing in vain.
#[test]
fn notes_that_the_record_tells_of_go() {
    let objects = Faulty::new();
    let hq = begun(&objects);
    let mut state = state(2);
    state.record.counted = contribution(2).members;
    hq.commit(&layout(), &state).unwrap();
    assert_eq!(hq.load(&layout()).unwrap().overtaken, []);
    assert_eq!(files(&objects).list("notes").unwrap(), [""; 0]);
}

fn listing(objects: &Arc<Faulty>) -> Vec<String> {
    let files = files(objects);
    let mut all = Vec::new();
    for folder in [
        "commits",
        "states",
        "views",
        "notes/000002",
        "notes/000002-000002",
    ] {
        all.extend(files.list(folder).unwrap());
    }
    all
}
