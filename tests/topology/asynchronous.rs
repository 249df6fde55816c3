//! What a file says of asynchronous rounds.

use tombolo::topology::{config_hash, explicit};
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
