//! What `Files` promises, asked of every implementation.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Barrier};

use tombolo::sim::SimWorld;
use tombolo::world::{World, WorldOptions};
use tombolo_actors::env::Files;

use crate::node;

fn options(state: &Path) -> WorldOptions {
    WorldOptions {
        state: state.to_owned(),
        nodes: Vec::new(),
        links: Vec::new(),
        seed: 1,
    }
}

/// Runs one promise on every implementation.
fn conform(promise: impl Fn(&str, Arc<dyn Files>)) {
    let world = SimWorld::new(1);
    promise("memory", world.env(&node("d/a")).files());
    let state = tempfile::tempdir().unwrap();
    let world = World::new(options(state.path())).unwrap();
    promise("folder", world.env(&node("d/a")).unwrap().files());
    // Nothing half written is left.
    assert_eq!(parts(&state.path().join("nodes/d.a")), 0);
}

fn parts(folder: &Path) -> usize {
    std::fs::read_dir(folder.join(".partial")).map_or(0, Iterator::count)
}

#[track_caller]
fn fails<T: std::fmt::Debug>(with: ErrorKind, result: std::io::Result<T>, about: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), with, "{error}");
    assert!(error.to_string().contains(about), "{error}");
}

#[test]
fn replace_puts_the_new_file_in_place_of_the_old_and_makes_folders() {
    conform(|kind, files| {
        fails(ErrorKind::NotFound, files.read("a/b/c"), "a/b/c");
        for contents in [&b"one"[..], b"", &[7; 100_000]] {
            files.replace("a/b/c", &[contents]).unwrap();
            assert_eq!(files.read("a/b/c").unwrap(), contents, "{kind}");
        }
        fails(
            ErrorKind::IsADirectory,
            files.replace("a/b", &[b"x"]),
            "a/b",
        );
        fails(ErrorKind::IsADirectory, files.read("a/b"), "a/b");
        fails(
            ErrorKind::NotADirectory,
            files.replace("a/b/c/d", &[b"x"]),
            "a/b/c",
        );
        assert_eq!(files.read("a/b/c").unwrap(), [7; 100_000], "{kind}");
    });
}

#[test]
fn of_eight_that_create_a_file_at_once_exactly_one_wins() {
    conform(|kind, files| {
        for round in 0..20 {
            let path = format!("commits/{round}");
            let start = Barrier::new(8);
            let create = |writer: u8| {
                start.wait();
                files.create(&path, &[writer; 5000])
            };
            let results: Vec<_> = std::thread::scope(|scope| {
                let writers: Vec<_> = (0..8u8).map(|n| scope.spawn(move || create(n))).collect();
                writers.into_iter().map(|w| w.join().unwrap()).collect()
            });
            let winners: Vec<usize> = (0..8).filter(|&n| results[n].is_ok()).collect();
            assert_eq!(winners.len(), 1, "{kind}: {results:?}");
            for error in results.iter().filter_map(|result| result.as_ref().err()) {
                assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{kind}: {error}");
            }
            assert_eq!(files.read(&path).unwrap(), [winners[0] as u8; 5000]);
        }
        files.replace("folder/x", &[b""]).unwrap();
        fails(
            ErrorKind::AlreadyExists,
            files.create("folder", b""),
            "folder",
        );
    });
}

#[test]
fn list_is_sorted_and_empty_for_no_folder() {
    conform(|kind, files| {
        for name in ["10", "9", "b", "a", "sub/inner"] {
            files.replace(&format!("list/{name}"), &[b""]).unwrap();
        }
        assert_eq!(
            files.list("list").unwrap(),
            ["10", "9", "a", "b", "sub"],
            "{kind}"
        );
        assert_eq!(files.list("none/here").unwrap(), [""; 0], "{kind}");
        assert!(
            files.list("").unwrap().contains(&"list".to_owned()),
            "{kind}"
        );
        assert!(
            files
                .list("")
                .unwrap()
                .iter()
                .all(|name| !name.starts_with('.'))
        );
        fails(ErrorKind::NotADirectory, files.list("list/a"), "list/a");
    });
}

#[test]
fn remove_takes_files_and_whole_folders_and_does_not_mind_if_there_is_none() {
    conform(|kind, files| {
        for name in ["r/a", "r/b/c", "r/b/d"] {
            files.replace(name, &[b"x"]).unwrap();
        }
        files.remove("r/b").unwrap();
        assert_eq!(files.list("r").unwrap(), ["a"], "{kind}");
        files.remove("r/a").unwrap();
        files.remove("r/a").unwrap();
        files.remove("never/was").unwrap();
        fails(ErrorKind::NotFound, files.read("r/a"), "r/a");
    });
}

#[test]
fn paths_that_leave_the_folder_or_touch_its_own_files_are_refused() {
    conform(|_, files| {
        for bad in [
            "",
            "/",
            "/etc/x",
            "..",
            "../x",
            "a/../../x",
            "a//b",
            "a/",
            ".",
            "./a",
            ".lock",
            ".partial/1",
            "a\\b",
            "a\0b",
        ] {
            let quoted = format!("{bad:?}");
            fails(ErrorKind::InvalidInput, files.read(bad), &quoted);
            fails(ErrorKind::InvalidInput, files.replace(bad, &[b""]), &quoted);
            fails(ErrorKind::InvalidInput, files.create(bad, b""), &quoted);
            fails(ErrorKind::InvalidInput, files.remove(bad), &quoted);
            if !bad.is_empty() {
                fails(ErrorKind::InvalidInput, files.list(bad), &quoted);
                fails(ErrorKind::InvalidInput, files.settle(bad), &quoted);
            }
        }
    });
}

#[test]
fn what_a_crash_left_half_written_is_cleared_at_the_next_start() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().join("nodes/d.a");
    std::fs::create_dir_all(folder.join(".partial/9")).unwrap();
    std::fs::write(folder.join(".partial/7"), b"half").unwrap();
    let world = World::new(options(state.path())).unwrap();
    world
        .env(&node("d/a"))
        .unwrap()
        .files()
        .replace("x", &[b"1"])
        .unwrap();
    assert_eq!(parts(&folder), 0);
}

#[test]
fn a_folder_has_one_owner_at_a_time() {
    let state = tempfile::tempdir().unwrap();
    let first = World::new(options(state.path())).unwrap();
    let second = World::new(options(state.path())).unwrap();
    let held = first.env(&node("d/a")).unwrap();
    let busy = second.env(&node("d/a")).map(|_| ());
    fails(ErrorKind::ResourceBusy, busy, "nodes/d.a");
    second.env(&node("d/b")).unwrap();
    drop(held);
    drop(first);
    second.env(&node("d/a")).unwrap();
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let state = tempfile::tempdir().unwrap();
    std::fs::write(state.path().join("nodes"), b"a file").unwrap();
    let world = World::new(options(state.path())).unwrap();
    let error = world.env(&node("d/a")).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("nodes"), "{error}");
}
