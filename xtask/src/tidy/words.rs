//! What may not stand where: clocks and runtimes in `core/`, `unsafe` outside `fabric/`, left-over marks, folders of somebody's machine.

use super::{Fault, Tree, code};

/// Core is given what it needs; it touches nothing. Values such as `std::net::SocketAddr` are no IO.
const OUT_OF_CORE: &[&str] = &[
    "Instant",
    "SystemTime",
    "std::thread",
    "std::fs",
    "std::io",
    "std::env",
    "std::process",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "tokio",
    "actix",
    "quinn",
    "rand",
    "rustix",
];

/// Unfinished code, and tests that do not run.
const UNFINISHED: &[&str] = &["todo!", "unimplemented!", "dbg!", "#[ignore"];

/// Decompresses without a bound of ours; the frame API does not.
const UNBOUNDED: &str = "lz4_flex::block";

/// Marks of unfinished business, in comments too.
const MARKS: &[&str] = &[
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("HA", "CK"),
];

/// Folders that exist on one machine only.
const FOLDERS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/tm", "p/"),
    concat!("/Us", "ers/"),
];

/// Files that may name such a folder, and why.
const FOLDERS_GRANTED: &[(&str, &str)] = &[(
    "fabric/src/folder.rs",
    "a name that a hostile peer could send",
)];

/// Faults in the words of source and documents.
pub fn check(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (file, text) in tree.iter().filter(|(file, _)| !file.ends_with(".lock")) {
        let mut fault = |line: usize, message: String| {
            faults.push(Fault {
                file: file.clone(),
                line,
                message,
            });
        };
        if file.ends_with(".rs") {
            if file.ends_with("/mod.rs") {
                fault(
                    0,
                    "use foo.rs beside foo/, so that every tab has a name".into(),
                );
            }
            for (index, line) in code::only(text).lines().enumerate() {
                in_code(file, line, &mut |message| fault(index + 1, message));
            }
        }
        let granted = FOLDERS_GRANTED.iter().any(|(name, _)| name == file);
        for (index, line) in text.lines().enumerate() {
            for mark in MARKS.iter().filter(|mark| code::has_word(line, mark)) {
                fault(index + 1, format!("{mark}: finish it, or write an issue"));
            }
            for folder in FOLDERS
                .iter()
                .filter(|folder| !granted && names(line, folder))
            {
                fault(
                    index + 1,
                    format!("{folder} is a folder of one machine: take a path from outside"),
                );
            }
        }
    }
    faults
}

fn in_code(file: &str, line: &str, fault: &mut dyn FnMut(String)) {
    // Its tests may run on several processors, and be told how many seeds to try.
    if file.starts_with("core/src/") {
        // A codec's library is handed its bytes by traits of that module; they lie in memory.
        let bytes = line.trim() == "use std::io::{Read, Write};";
        let named = |word: &&&str| code::has_word(line, word);
        for word in OUT_OF_CORE.iter().filter(|_| !bytes).filter(named) {
            fault(format!("{word} in core/: let it come in by argument"));
        }
    }
    if !file.starts_with("fabric/") && code::has_word(line, "unsafe") {
        fault("unsafe outside fabric/: only memory shared with others needs it".into());
    }
    for word in UNFINISHED.iter().filter(|word| line.contains(*word)) {
        fault(format!("{word}: finish it, or leave it out"));
    }
    if code::has_word(line, UNBOUNDED) {
        fault(format!("{UNBOUNDED}: use the frame API, which is bounded"));
    }
}

/// Whether a path begins with `folder`; in `https://example.org/home/` none does.
fn names(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        !line[..at]
            .chars()
            .next_back()
            .is_some_and(|last| last.is_alphanumeric() || "._-/}$".contains(last))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn found(file: &str, text: &str) -> usize {
        check(&tree(&[(file, text)])).len()
    }

    #[test]
    fn a_clock_a_thread_or_a_runtime_in_core_is_a_fault() {
        for line in [
            "use std::time::Instant;",
            "std::thread::yield_now();",
            "tokio::task::yield_now().await",
            "let now = SystemTime::now();",
        ] {
            assert_eq!(found("core/src/a.rs", line), 1, "{line}");
            assert_eq!(found("core/tests/a.rs", line), 0, "{line}");
            assert_eq!(found("src/a.rs", line), 0, "{line}");
        }
        assert_eq!(
            found("core/src/a.rs", "use std::net::SocketAddr; // no tokio"),
            0
        );
    }

    #[test]
    fn unsafe_outside_fabric_is_a_fault() {
        assert_eq!(found("src/a.rs", "unsafe { x() }"), 1);
        assert_eq!(found("fabric/src/a.rs", "unsafe { x() }"), 0);
        assert_eq!(found("src/a.rs", "#![forbid(unsafe_code)]"), 0);
    }

    #[test]
    fn what_is_left_over_is_a_fault() {
        assert_eq!(found("src/a.rs", "todo!()"), 1);
        assert_eq!(found("src/a.rs", "#[ignore = \"slow\"]"), 1);
        assert_eq!(found("src/a.rs", &format!("// {}: later", MARKS[0])), 1);
        assert_eq!(found("docs/a.md", &format!("{} later", MARKS[1])), 1);
        assert_eq!(found("src/a.rs", "// nothing todo! here, no #[ignore]"), 0);
        assert_eq!(found("src/a/mod.rs", ""), 1);
        assert_eq!(found("src/a.rs", "use lz4_flex::block::decompress;"), 1);
        assert_eq!(found("src/a.rs", "use lz4_flex::frame::FrameDecoder;"), 0);
    }

    #[test]
    fn a_folder_of_one_machine_is_a_fault() {
        for folder in FOLDERS {
            assert_eq!(found("docs/a.md", &format!("see {folder}x")), 1, "{folder}");
            assert_eq!(found("src/a.rs", &format!("\"{folder}x\"")), 1, "{folder}");
            assert_eq!(
                found("docs/a.md", &format!("https://example.org{folder}x")),
                0
            );
        }
    }
}
