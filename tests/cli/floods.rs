//! Files of the greatest length with nothing but mistakes: told in a few lines, within little memory.

use std::process::Command;

use crate::fixture::{Output, Process, Workspace};

/// What `check` may map, libraries and all. A flood took several times as much when each of its mistakes was kept.
const MEMORY_KIB: u32 = 500_000;

fn check(text: &str) -> Output {
    let workspace = Workspace::new(text);
    let script = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" check topology.toml --format json");
    let mut command = Command::new("bash");
    command
        .args(["-c", &script, env!("CARGO_BIN_EXE_tombolo")])
        .current_dir(workspace.path());
    Process::spawn(command).end()
}

#[test]
fn a_file_full_of_mistakes_is_told_in_a_hundred_lines_and_little_memory() {
    let million = 1 << 20;
    for (line, times, lines) in [
        // More words and signs than a topology has.
        ("=\n", 2 * million, 1),
        // Just not so many.
        ("=\n", 900_000, 101),
        ("x=y\n", 470_000, 101),
        (".", 1_900_000, 2),
        // Well formed, and wrong.
        ("[[domain]]\na=1\n", 190_000, 2),
        ("a={}\n", 380_000, 101),
    ] {
        let output = check(&line.repeat(times)).expect(2);
        assert_eq!(output.lines.len(), lines, "{line:?}: {output:#?}");
    }
}

#[test]
fn what_is_not_told_is_counted_and_what_is_not_read_is_said() {
    let nonsense = check(&"x = y\n".repeat(5000)).expect(2);
    let more = &nonsense.events("more_mistakes")[0];
    assert_eq!(
        (&more["more"], &more["unread_after_line"]),
        (&900.into(), &1000.into())
    );
    let unknown: String = (0..5000).map(|key| format!("k{key} = 1\n")).collect();
    let unknown = check(&("[federation]\nname = \"a\"\n".to_owned() + &unknown)).expect(2);
    assert_eq!(unknown.events("mistake")[99]["line"], 101, "in file order");
    // Without [[domain]] there is one more.
    let more = &unknown.events("more_mistakes")[0];
    assert_eq!(more["more"], 4901);
    assert!(more["unread_after_line"].is_null());
}
