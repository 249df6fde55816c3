//! Files over an object store, in virtual time.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo::store::ObjectFiles;
use tombolo_actors::env::Files;

use crate::faulty::{Answer, Faulty, Request};

const PATIENCE: Duration = Duration::from_secs(60);

fn files(store: &Arc<Faulty>) -> ObjectFiles {
    ObjectFiles::in_virtual_time(store.clone(), PATIENCE).unwrap()
}

#[test]
fn objects_are_files() {
    let files = files(&Faulty::new());
    assert_eq!(files.list("states").unwrap(), [""; 0]);
    assert_eq!(files.read("a/b").unwrap_err().kind(), ErrorKind::NotFound);
    files.create("a/b", b"first").unwrap();
    let again = files.create("a/b", b"second").unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert_eq!(files.read("a/b").unwrap(), b"first");
    files.replace("a/b", &[b"th", b"ird"]).unwrap();
    assert_eq!(files.read("a/b").unwrap(), b"third");
    files.replace("a/deep/c", &[b"c"]).unwrap();
    files.replace("a/deep/er/d", &[b"d"]).unwrap();
    files.replace("ab/e", &[b"e"]).unwrap();
    assert_eq!(files.list("a").unwrap(), ["b", "deep"]);
    assert_eq!(files.list("").unwrap(), ["a", "ab"]);
    files.remove("a/deep").unwrap();
    files.remove("a/deep").unwrap();
    assert_eq!(files.list("a").unwrap(), ["b"]);
    files.remove("a/b").unwrap();
    assert_eq!(files.list("").unwrap(), ["ab"]);
    files.settle("ab").unwrap();
    assert_eq!(files.locate("ab/e"), "memory:/ab/e");
}

/// flower#3006: what is larger than one request goes in parts and comes back whole.
#[test]
fn an_object_of_many_parts_is_whole() {
    let files = files(&Faulty::new());
    let (first, second): (Vec<u8>, Vec<u8>) = (
        (0..40 << 20).map(|n: u32| n.to_le_bytes()[1]).collect(),
        vec![7; 30 << 20],
    );
    files.replace("model", &[&first, &second]).unwrap();
    let whole = files.read("model").unwrap();
    assert!(whole == [first, second].concat());
}

#[test]
fn thirty_seconds_of_refused_uploads_pass() {
    let store = Faulty::new();
    let tries = Arc::new(AtomicU64::new(0));
    let counted = tries.clone();
    store.answers(move |request, _, since| match request {
        Request::Put | Request::Create if since < Duration::from_secs(30) => {
            counted.fetch_add(1, Ordering::Relaxed);
            Answer::Refuse
        }
        _ => Answer::Do,
    });
    let files = files(&store);
    files.create("commits/000001.json", b"one").unwrap();
    assert_eq!(files.read("commits/000001.json").unwrap(), b"one");
    // 0.2, 0.4 ... 5 s between them.
    assert_eq!(tries.load(Ordering::Relaxed), 10);
}

#[test]
fn patience_ends_and_says_what_and_where() {
    let store = Faulty::new();
    store.answers(|_, _, _| Answer::Refuse);
    let files = files(&store);
    let error = files.replace("states/1/model", &[b"m"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let text = error.to_string();
    assert!(
        text.starts_with("failed to write memory:/states/1/model: tried 16 times in 5"),
        "{text}"
    );
    assert!(text.contains("503 Slow Down"), "{text}");
    for error in [
        files.read("a").unwrap_err(),
        files.list("a").unwrap_err(),
        files.replace("big", &[&vec![1; 17 << 20]]).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
}

#[test]
fn a_store_that_never_answers_is_given_up() {
    let store = Faulty::new();
    store.answers(|_, _, _| Answer::Hang);
    let error = files(&store).read("probe.json").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(
        error.to_string().contains("no answer within 30s"),
        "{error}"
    );
}

#[test]
fn who_is_denied_is_not_tried_again() {
    let store = Faulty::new();
    let tries = Arc::new(AtomicU64::new(0));
    let counted = tries.clone();
    store.answers(move |_, _, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        Answer::Deny
    });
    let error = files(&store).create("probe.json", b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("credentials"), "{error}");
    assert_eq!(tries.load(Ordering::Relaxed), 1);
}

#[test]
fn a_create_whose_answer_is_lost_has_happened_once() {
    let store = Faulty::new();
    let mut lost = false;
    store.answers(move |request, _, _| match request {
        Request::Create if !std::mem::replace(&mut lost, true) => Answer::DoInSilence,
        _ => Answer::Do,
    });
    let files = files(&store);
    let error = files.create("commits/000001.json", b"one").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(files.read("commits/000001.json").unwrap(), b"one");
}
