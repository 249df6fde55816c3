//! Whole runs whose coordinator keeps its records in an object store.

use std::path::Path;
use std::sync::Arc;

use tombolo::store::ObjectFiles;
use tombolo::{Federation, FederationError, Report};
use tombolo_actors::env::Files;

use crate::faulty::{Answer, Faulty, Request};

const SMALL: &str = r#"
    [federation]
    name = "small"
    rounds = 4
    sync_every = 1
    [round]
    close_limit = "1s"
    failed_limit = 2
    [model]
    trainer = "digits-softmax"
    [[domain]]
    name = "hq"
    nodes = ["gate"]
    [[domain]]
    name = "plant"
    nodes = ["gate"]
"#;

fn federation(folder: &Path, state: &str, objects: &Arc<Faulty>) -> Federation {
    let federation = Federation::from_toml(SMALL, folder).unwrap();
    federation
        .state(folder.join(state))
        .store_in(objects.clone())
}

async fn run(federation: Federation) -> Report {
    let running = federation.spawn().await;
    let running = running.unwrap_or_else(|error| panic!("{error}"));
    running
        .run()
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

fn ended(report: &Report) -> (u64, u64, u64) {
    let finished = &report.finished;
    (finished.committed, finished.degraded, finished.aborted)
}

#[tokio::test]
async fn a_run_keeps_its_records_in_the_store_and_nothing_of_them_in_its_folder() {
    let (folder, objects) = (tempfile::tempdir().unwrap(), Faulty::new());
    let report = run(federation(folder.path(), "state", &objects)).await;
    assert_eq!(ended(&report), (4, 0, 0), "{}", report.finished.reason);
    let files = ObjectFiles::in_virtual_time(objects.clone(), Default::default()).unwrap();
    assert_eq!(files.list("commits").unwrap().len(), 4);
    assert_eq!(files.list("").unwrap(), ["commits", "probe.json", "states"]);
    let own = folder.path().join("state/nodes/hq.gate");
    assert!(own.is_dir() && !own.join("commits").exists());
}

#[tokio::test]
async fn an_outage_shorter_than_the_patience_costs_nothing() {
    let (folder, objects) = (tempfile::tempdir().unwrap(), Faulty::new());
    let mut refusals = 0;
    objects.answers(move |request, path, _| {
        let concerned = request != Request::Get && path.starts_with("states/000002");
        if concerned && refusals < 2 {
            refusals += 1;
            return Answer::Refuse;
        }
        Answer::Do
    });
    let report = run(federation(folder.path(), "state", &objects)).await;
    assert_eq!(ended(&report), (4, 0, 0), "{}", report.finished.reason);
}

/// A store that stays away ends the run with the reason, the model of the last record kept; another machine goes on from it.
#[tokio::test]
async fn an_outage_that_lasts_ends_the_run_and_another_machine_goes_on() {
    let (folder, objects) = (tempfile::tempdir().unwrap(), Faulty::new());
    objects.answers(|request, path, _| match request {
        Request::Put | Request::Create if path.starts_with("states/000003") => Answer::Refuse,
        _ => Answer::Do,
    });
    let report = run(federation(folder.path(), "state", &objects)).await;
    let reason = &report.finished.reason;
    assert!(reason.contains("states/000003"), "{reason}");
    assert!(reason.contains("503 Slow Down"), "{reason}");
    assert_eq!(ended(&report), (2, 0, 0));
    let kept = report.finished.model_hash;

    objects.heals();
    let again = federation(folder.path(), "elsewhere", &objects);
    let Err(occupied) = again.spawn().await else {
        panic!("it began anew in a store that holds a run");
    };
    assert!(
        matches!(occupied, FederationError::StoreOccupied(_)),
        "{occupied}"
    );
    let report = run(federation(folder.path(), "elsewhere", &objects).resume(true)).await;
    assert_eq!(ended(&report), (4, 0, 0), "{}", report.finished.reason);
    assert_ne!(report.finished.model_hash, kept);
}

#[tokio::test]
async fn a_store_that_cannot_create_if_absent_starts_no_run() {
    let (folder, objects) = (tempfile::tempdir().unwrap(), Faulty::new());
    objects.answers(|request, _, _| match request {
        Request::Create => Answer::Replace,
        _ => Answer::Do,
    });
    let Err(error) = federation(folder.path(), "state", &objects).spawn().await else {
        panic!("it started");
    };
    assert!(
        error.to_string().contains("only if it is absent"),
        "{error}"
    );
}
