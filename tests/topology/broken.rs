//! Every file in `broken/` is wrong. Its whole report is a snapshot, so that no word of it changes unseen.

use std::path::PathBuf;

use tombolo::topology::{Diagnosis, parse};

/// Words of the deserializers below us. They speak of Rust types and parser states, and never reach a user.
const RAW: &[&str] = &[
    "invalid type",
    "invalid value",
    "invalid length",
    "unknown field",
    "unknown variant",
    "missing field",
    "duplicate field",
    "duplicate key",
    "expected one of",
    "TOML parse error",
    "at line",
    "expected struct",
    "expected value",
    "expected a map",
    "expected a sequence",
    "trailing comma",
    "trailing characters",
    "EOF while",
    "data did not match",
    "string values must be quoted",
    "unclosed",
    "unexpected content",
    "unquoted key",
    "Failed to read contents",
];

/// Relative, as tests run in the package's folder, so that reports do not name this checkout.
fn folder() -> PathBuf {
    PathBuf::from("tests/topology/broken")
}

/// The broken files by name, each with its report.
fn reports() -> Vec<(String, Diagnosis)> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".toml"))
        .collect();
    names.sort();
    names
        .into_iter()
        .map(|name| {
            let text = std::fs::read_to_string(folder().join(&name)).unwrap();
            let diagnosis = parse(&name, &text, &folder()).expect_err(&name);
            (name, diagnosis)
        })
        .collect()
}

/// The report as people see it.
fn rendered(diagnosis: &Diagnosis) -> String {
    diagnosis
        .to_plain_text()
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

#[test]
fn every_broken_file_has_its_report() {
    let reports = reports();
    assert!(reports.len() >= 60, "{}", reports.len());
    insta::with_settings!({
        snapshot_path => "snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        for (name, diagnosis) in &reports {
            insta::assert_snapshot!(name.trim_end_matches(".toml"), rendered(diagnosis));
        }
    });
}

#[test]
fn no_report_speaks_the_parsers_language() {
    for (name, diagnosis) in reports() {
        let said = format!("{diagnosis:#}\n{}", diagnosis.to_json_lines());
        for raw in RAW {
            assert!(!said.contains(raw), "{name}: {raw:?} in\n{said}");
        }
    }
}

#[test]
fn every_mistake_has_a_place_in_the_file_and_something_to_do() {
    for (name, diagnosis) in reports() {
        let text = std::fs::read_to_string(folder().join(&name)).unwrap();
        for told in diagnosis.mistakes() {
            let lines = text.lines().count();
            assert!(told.line <= lines, "{name}: {told:?}");
            assert!(
                told.line > 0 || told.message.starts_with("there is no ["),
                "{name}: {told:?}"
            );
            assert!(!told.message.ends_with('.'), "{name}: {told:?}");
        }
    }
}

#[test]
fn each_mistake_is_told_once() {
    for (name, diagnosis) in reports() {
        let mut told: Vec<_> = diagnosis
            .mistakes()
            .map(|told| (told.line, told.column, &told.message))
            .collect();
        told.sort();
        let count = told.len();
        told.dedup();
        assert_eq!(told.len(), count, "{name}");
    }
}
