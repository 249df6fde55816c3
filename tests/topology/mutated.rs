//! Whatever the bytes, the answer is a plan or a report that can be printed; never a panic.

use std::path::Path;

use proptest::prelude::*;
use tombolo::topology::{config_hash, explicit, parse};

const HARBOUR: &str = include_str!("../../examples/harbour.toml");

/// Pieces that a topology is made of, and some that it is not.
const PIECES: &[&str] = &[
    "\n",
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "=",
    ",",
    "\"",
    "'",
    "\"\"\"",
    "#",
    ".",
    "\\",
    "\0",
    "\r",
    "é",
    "\u{feff}",
    "[federation]\n",
    "[[domain]]\n",
    "[[domain.node]]\n",
    "[round]\n",
    "[domain]\n",
    "[[link]]\n",
    "name",
    "nodes",
    "node = [{}]\n",
    "between = [\"hq\", \"hq\"]\n",
    "absent = [{}]\n",
    "absent = [{ round = 1, nodes = [] }]\n",
    "quorum = \"all\"\n",
    "quorum = {}\n",
    "partition = {}\n",
    "partition = { kind = \"rows\", file = \"x\" }\n",
    "listen = \"0.0.0.0:0\"\n",
    "0",
    "-1",
    "1e999",
    "nan",
    "99999999999999999999999",
    "0x",
    "true",
    "1979-05-27",
    "federation.round.x = 1\n",
    "domain.name = 1\n",
    "a = [[[[[[[[",
    "\"hq\"",
    "\"hq/gate\"",
    "[]",
    "{}",
];

fn check(text: &str) -> Result<(), TestCaseError> {
    match parse("harbour.toml", text, Path::new("/base")) {
        Ok(plan) => {
            prop_assert!(!explicit(&plan).to_string().is_empty());
            prop_assert!(plan.nodes().any(|node| node.id == plan.coordinator));
            prop_assert_eq!(config_hash(&plan), config_hash(&plan.clone()));
        }
        Err(diagnosis) => {
            let report = diagnosis.to_plain_text();
            prop_assert!(diagnosis.mistakes().count() > 0);
            prop_assert!(!report.contains("Failed to read contents"), "{}", report);
            for line in diagnosis.to_json_lines().lines() {
                prop_assert!(serde_json::from_str::<serde_json::Value>(line).is_ok());
            }
        }
    }
    Ok(())
}

/// One edit: cut a part out, and put a piece or another part of the file there.
fn edited(text: &str, (at, cut, piece): (usize, usize, usize)) -> String {
    let at = text.floor_char_boundary(at % (text.len() + 1));
    let end = text.floor_char_boundary((at + cut).min(text.len()));
    let (head, tail) = (&text[..at], &text[end.max(at)..]);
    match PIECES.get(piece) {
        Some(piece) => format!("{head}{piece}{tail}"),
        None => format!("{head}{}{tail}", &text[at..end.max(at)].repeat(piece % 3)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        check(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn arbitrary_pieces_never_panic(pieces in proptest::collection::vec(0..PIECES.len(), 0..40)) {
        let text: String = pieces.iter().map(|&piece| PIECES[piece]).collect();
        check(&text)?;
    }

    #[test]
    fn a_mutated_topology_never_panics(
        edits in proptest::collection::vec((any::<usize>(), 0usize..60, 0..PIECES.len() + 20), 1..6),
    ) {
        let text = edits.iter().fold(HARBOUR.to_owned(), |text, &edit| edited(&text, edit));
        check(&text)?;
    }
}
