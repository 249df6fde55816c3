//! The journal's copy of a sum rots while the coordinator is down: its sender is asked for it again; if that is gone, too, it is named.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::chaos::{archipelago, commits, ended};
use crate::fleet::Fleet;

/// Rounds in which the coordinator may be killed too late.
const ATTEMPTS: u64 = 40;

/// A model whose outer step and evaluation take a while. A sender that does not answer is waited for a third of `close_limit`.
fn topology(close_limit: &str) -> String {
    let journal = format!(
        "grace = \"1s\"\n    close_limit = \"{close_limit}\"\n    durability = \"journal\""
    );
    let text = archipelago(900_000, 3).replace("grace = \"1s\"", &journal);
    let large = "trainer = \"digits-mlp\"\n    hidden = 4096";
    text.replace("trainer = \"digits-softmax\"", large)
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

/// The journal's copies of one domain's sum in the round that is open.
fn copies(notes: &Path, domain: &str) -> Vec<PathBuf> {
    let folders = list(notes).into_iter().flat_map(|round| list(&round));
    let of_domain = folders.filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        path.is_dir() && name.starts_with(&format!("contribution-{domain}."))
    });
    let chunks = of_domain.flat_map(|folder| list(&folder));
    chunks
        .filter(|path| path.extension().is_some_and(|ext| ext == "f32"))
        .collect()
}

/// Kills the coordinator between a domain's acknowledgement and the commit, spoils the journal's copy of its sum, and gives the round.
fn spoil(fleet: &mut Fleet, domain: &str) -> u64 {
    let coordinator = fleet.coordinator();
    let notes = commits(fleet).with_file_name("notes");
    for _ in 0..ATTEMPTS {
        let is_noted = || {
            let noted = list(&notes).into_iter();
            noted
                .map(|round| round.join(format!("contribution-{domain}.json")))
                .any(|note| note.exists())
        };
        while !is_noted() {
            let alive = !fleet
                .process(&coordinator)
                .ended_within(Duration::from_millis(1));
            assert!(alive, "{:#?}", fleet.end(&coordinator));
        }
        fleet.signal(&coordinator, Signal::KILL);
        fleet.end(&coordinator);
        let open = ended(fleet) + 1;
        let noted = notes.join(format!("{open:06}/contribution-{domain}.json"));
        let copies = copies(&notes, domain);
        if noted.exists() && !copies.is_empty() {
            for path in copies {
                let mut bytes = std::fs::read(&path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                std::fs::write(&path, bytes).unwrap();
            }
            return open;
        }
        fleet.begin(&coordinator);
    }
    panic!("the coordinator always came to the commit first");
}

/// The record of a round, once it has ended, and all that the coordinator said until then.
fn record(fleet: &mut Fleet, round: u64) -> (Value, String) {
    let coordinator = fleet.coordinator();
    fleet.until_true("the round", |fleet| ended(fleet) >= round);
    let path = commits(fleet).join(format!("{round:06}.json"));
    let commit: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let said = fleet.process(&coordinator).listen(Duration::ZERO).errors();
    (commit["record"].clone(), said)
}

const DAMAGED: &str = "the journal's copy of a contribution is damaged";

#[test]
fn a_damaged_copy_is_asked_for_again() {
    // It answers, however much else this machine has to do.
    let mut fleet = Fleet::start(&topology("180s"));
    let coordinator = fleet.coordinator();
    fleet.until_state("plant/d", "active");
    let round = spoil(&mut fleet, "plant");
    fleet.begin(&coordinator);
    let (record, said) = record(&mut fleet, round);
    assert!(
        said.contains(DAMAGED) && said.contains("domain=plant"),
        "{said}"
    );
    let counted = record["counted"].as_array().unwrap();
    assert!(counted.contains(&"plant/gate".into()), "{record:#}\n{said}");
    fleet.stop();
}

#[test]
fn a_damaged_copy_whose_sender_is_gone_is_named_and_left_out() {
    let mut fleet = Fleet::start(&topology("15s"));
    let coordinator = fleet.coordinator();
    fleet.until_state("plant/d", "active");
    let round = spoil(&mut fleet, "plant");
    for node in ["plant/gate", "plant/c", "plant/d"] {
        fleet.signal(node, Signal::KILL);
        fleet.end(node);
    }
    fleet.begin(&coordinator);
    let (record, said) = record(&mut fleet, round);
    let named = said.lines().find(|line| line.contains("DomainDropped"));
    let named = named.unwrap_or_else(|| panic!("{record:#}\n{said}"));
    assert!(
        named.contains("chunk 0 in the journal is not the announced one"),
        "{named}"
    );
    assert_eq!(record["state"], "degraded", "{record:#}");
    let counted = record["counted"].as_array().unwrap();
    assert!(!counted.contains(&"plant/gate".into()), "{record:#}");
    fleet.stop();
}
