//! What a file says of asynchronous rounds.

use std::path::Path;

use tombolo::topology::{config_hash, explicit, parse};
use tombolo_core::aggregate::{self, Needs};
use tombolo_core::plan::Quorum;
use tombolo_core::staleness::{AsyncPlan, Discount, Staleness};

use crate::good::{SMALL, read};

#[test]
fn asynchronous_rounds_have_defaults_of_their_own() {
    let round = |keys: &str| read(&format!("{SMALL}\n[round]\nmode = \"async\"\n{keys}")).round;
    let plain = round("");
    let half = Discount::Polynomial { exponent: 0.5 };
    let usual = Staleness {
        weight: half,
        limit: 10,
    };
    let four = AsyncPlan {
        buffer: 4,
        staleness: usual,
    };
    assert_eq!(plain.asynchronous, Some(four), "a majority of six");
    let quorum = |nodes, domains| Quorum::AtLeast { nodes, domains };
    assert_eq!(plain.quorum, quorum(3, 1));
    let given = round(
        "buffer = 2\nquorum = { domains = 2 }\nstaleness = { weight = \"constant\", limit = 0 }",
    );
    assert_eq!(given.quorum, quorum(2, 2));
    let given = given.asynchronous.unwrap();
    assert_eq!((given.buffer, given.staleness.limit), (2, 0));
    assert_eq!(given.staleness.weight, Discount::Constant);
    let steep = round("staleness = { exponent = 1 }").asynchronous.unwrap();
    let weight = Discount::Polynomial { exponent: 1.0 };
    assert_eq!(steep.staleness, Staleness { weight, ..usual });
}

#[test]
fn the_mode_and_what_it_means_are_spelled_out_and_part_of_the_agreement() {
    let with = |keys: &str| read(&format!("{SMALL}\n[round]\nmode = \"async\"\n{keys}"));
    let plan = with("buffer = 6");
    let text = explicit(&plan).to_string();
    assert!(
        text.contains("asynchronous: 6 updates make a version"),
        "{text}"
    );
    assert!(text.contains("waits for the slowest of them"), "{text}");
    assert!(
        !explicit(&with(""))
            .to_string()
            .contains("waits for the slowest")
    );
    let hashes = [
        config_hash(&read(SMALL)),
        config_hash(&plan),
        config_hash(&with("buffer = 5")),
        config_hash(&with("buffer = 5\nstaleness = { limit = 3 }")),
    ];
    for (index, hash) in hashes.iter().enumerate() {
        assert!(!hashes[..index].contains(hash), "{index}");
    }
}

#[test]
fn of_the_built_in_rules_those_that_must_see_each_update_are_refused_by_name() {
    let mut refused = Vec::new();
    for (kind, _) in aggregate::BUILT_IN {
        let text =
            |mode| format!("{SMALL}\n[round]\nmode = \"{mode}\"\n[aggregator]\nkind = \"{kind}\"");
        let needs = read(&text("sync")).aggregator.needs;
        let Err(diagnosis) = parse("test.toml", &text("async"), Path::new("/base")) else {
            assert_eq!(needs, Needs::Sum, "{kind}");
            continue;
        };
        assert_ne!(needs, Needs::Sum, "{kind}");
        let told: Vec<_> = diagnosis.mistakes().collect();
        assert_eq!(told.len(), 1, "{kind}: {diagnosis:?}");
        let why = format!("{kind} counts every update alike, so asynchronous rounds");
        assert!(told[0].message.starts_with(&why), "{}", told[0].message);
        assert!(told[0].help.contains("mode = \"sync\""), "{}", told[0].help);
        refused.push(*kind);
    }
    let each = [
        "centred-clipping",
        "krum",
        "median",
        "multi-krum",
        "trimmed-mean",
    ];
    assert_eq!(refused, each);
}
