//! Faults seen in the field that a topology file must not repeat. Each test names where the opposite was seen.

use std::path::Path;

use tombolo::topology::{Diagnosis, load, parse};

const FEDERATION: &str = "[federation]\nname = \"harbour\"\n";
const DOMAINS: &str = "[[domain]]\nname = \"hq\"\nnodes = [\"gate\", \"a\"]\n[[domain]]\nname = \"plant\"\nnodes = [\"gate\", \"c\"]\n";

fn refused(text: &str) -> Diagnosis {
    parse("harbour.toml", text, Path::new("/base")).unwrap_err()
}

/// The report of a file in one line a mistake.
fn said(text: &str) -> String {
    format!("{:#}", refused(text))
}

fn node(name: &str, address: &str) -> String {
    format!("[[domain]]\nname = \"{name}\"\n[[domain.node]]\nname = \"gate\"\n{address}\n")
}

/// telemt#760: an unknown key was ignored.
#[test]
fn telemt_760_an_unknown_key_is_named_with_file_line_and_nearest_key() {
    let text = format!("{FEDERATION}rouns = 3\n{DOMAINS}");
    assert_eq!(
        said(&text),
        "harbour.toml:3:1: [federation] has no key `rouns` (did you mean `rounds`?)"
    );
}

/// moraine#34: a key in the wrong table was ignored.
#[test]
fn moraine_34_a_misplaced_key_is_sent_home() {
    let text = format!("{FEDERATION}{DOMAINS}quorum = \"all\"\n");
    assert_eq!(
        said(&text),
        "harbour.toml:9:1: [[domain]] has no key `quorum` (this key belongs to [round])"
    );
}

/// amppackager#130: of two equal keys one won in silence.
#[test]
fn amppackager_130_a_repeated_key_is_refused() {
    let text = format!("{FEDERATION}rounds = 3\nrounds = 4\n{DOMAINS}");
    assert_eq!(
        said(&text),
        "harbour.toml:4:1: `rounds` is given twice (remove one of the two)"
    );
}

/// flower#815, FLIP#992: a minimum above the declared nodes made the run wait for ever.
#[test]
fn flip_992_a_quorum_above_the_declared_nodes_is_refused() {
    let with = |quorum: &str| format!("{FEDERATION}[round]\nquorum = {quorum}\n{DOMAINS}");
    assert!(
        said(&with("{ nodes = 5 }"))
            .contains("a quorum of 5 nodes can never be met: the file declares 4")
    );
    assert!(said(&with("{ domains = 3 }")).contains("a quorum of 3 domains can never be met"));
    assert!(
        parse(
            "harbour.toml",
            &with("{ nodes = 4, domains = 2 }"),
            Path::new("/base")
        )
        .is_ok()
    );
}

/// flower#815: a selection that left nobody panicked.
#[test]
fn flower_815_a_round_without_anybody_is_refused() {
    let text = format!(
        "{FEDERATION}[round]\nquorum = \"all\"\n\
         absent = [{{ round = 1, nodes = [\"hq/gate\", \"hq/a\", \"plant/gate\", \"plant/c\"] }}]\n{DOMAINS}"
    );
    assert!(said(&text).contains("nobody is left in round 1: its cohort is empty"));
    let default_quorum = format!(
        "{FEDERATION}[round]\nabsent = [{{ round = 1, nodes = [\"hq/gate\", \"hq/a\"] }}]\n{DOMAINS}"
    );
    assert!(said(&default_quorum).contains("round 1 can never meet its quorum"));
}

/// netmaker#1764, opcua#133, input-leap#976: names with odd characters broke one layer or another.
#[test]
fn netmaker_1764_odd_names_are_refused_with_the_rule() {
    for name in [
        "a b",
        "a/b",
        "..",
        "a.b",
        "é",
        "A",
        "-a",
        "",
        &"x".repeat(33),
    ] {
        let text = format!("{FEDERATION}[[domain]]\nname = \"hq\"\nnodes = [{name:?}]\n");
        let said = said(&text);
        assert!(said.contains("is not a name"), "{name}: {said}");
        assert!(
            said.contains("1 to 32 characters of a-z, 0-9 and -"),
            "{name}: {said}"
        );
    }
}

/// NVFlare#3018: two names became one after normalising.
#[test]
fn nvflare_3018_names_equal_after_normalising_are_refused() {
    for (one, two) in [("gate", "Gate"), ("a-b", "a_b"), ("a", "a.")] {
        let text = format!("{FEDERATION}[[domain]]\nname = \"hq\"\nnodes = [{one:?}, {two:?}]\n");
        assert!(
            said(&text).contains("differ only in how they are written"),
            "{one} {two}"
        );
    }
}

/// caikit#87, NVFlare#2952, CorfuDB#1860: a missing file was not named, or by a path that meant nothing.
#[test]
fn corfudb_1860_a_missing_file_is_named_with_its_full_path() {
    let relative = Path::new("tests/topology/nowhere.toml");
    let full = std::path::absolute(relative).unwrap();
    let said = format!("{:#}", load(relative).unwrap_err());
    assert!(said.contains(&full.display().to_string()), "{said}");
    assert!(said.contains("cannot be read"), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let said = format!("{:#}", load(folder.path()).unwrap_err());
    assert!(
        said.contains("cannot be read"),
        "a folder is no file: {said}"
    );
    let text = folder.path().join("latin.toml");
    std::fs::write(&text, b"# \xe9\n").unwrap();
    let said = format!("{:#}", load(&text).unwrap_err());
    assert!(said.contains("is not UTF-8 text: byte 2"), "{said}");
}

/// siphon-sip#177: relative paths resolved against the working folder.
#[test]
fn siphon_sip_177_relative_paths_resolve_against_the_files_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("harbour.toml");
    let all = "{\"hq/gate\": [0], \"hq/a\": [1], \"plant/gate\": [2], \"plant/c\": [3]}";
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::write(folder.path().join("data/rows.json"), all).unwrap();
    let text = format!(
        "{FEDERATION}[model]\npartition = {{ kind = \"rows\", file = \"data/rows.json\" }}\n\
         [checkpoint]\nstore = \"file:./run\"\n{DOMAINS}root = \"trust/plant.pem\"\n"
    );
    std::fs::write(&path, text).unwrap();
    let plan = load(&path).unwrap();
    assert_eq!(plan.checkpoint.folder, folder.path().join("run"));
    assert_eq!(plan.domains[0].root, folder.path().join("certs/hq.pem"));
    assert_eq!(plan.domains[1].root, folder.path().join("trust/plant.pem"));
}

/// ray#37461, nccl#913, torchft#329: a loopback address was told to another host.
#[test]
fn ray_37461_a_loopback_address_is_never_told_to_another_host() {
    let far = node("plant", "listen = \"10.0.0.9:7000\"");
    for address in [
        "",
        "listen = \"127.0.0.1:7000\"",
        "listen = \"[::1]:7000\"",
        "listen = \"[::ffff:127.0.0.1]:7000\"",
        "listen = \"10.0.0.1:7000\"\nadvertise = \"localhost:7000\"",
    ] {
        let said = said(&format!("{FEDERATION}{}{far}", node("hq", address)));
        assert!(
            said.contains(
                "hq/gate would tell its peers a loopback address, but plant/gate is on another host"
            ),
            "{address}: {said}"
        );
    }
    let near = node("plant", "listen = \"127.0.0.1:7001\"");
    let text = format!(
        "{FEDERATION}{}{near}",
        node("hq", "listen = \"127.0.0.1:7000\"")
    );
    assert!(
        parse("harbour.toml", &text, Path::new("/base")).is_ok(),
        "one machine may use loopback"
    );
}

/// nccl#913: the unspecified address was told to peers.
#[test]
fn nccl_913_an_unspecified_address_needs_an_advertised_one() {
    let alone = format!("{FEDERATION}{}", node("hq", "listen = \"0.0.0.0:7000\""));
    assert!(said(&alone).contains("stands for any interface"));
    let explicit = format!(
        "{FEDERATION}{}",
        node(
            "hq",
            "listen = \"[::]:7000\"\nadvertise = \"[2001:db8::1]:7000\""
        )
    );
    let plan = parse("harbour.toml", &explicit, Path::new("/base")).unwrap();
    assert_eq!(
        plan.domains[0].nodes[0].advertise.as_deref(),
        Some("[2001:db8::1]:7000")
    );
}

/// NVFlare#2952: a port taken twice was found at run time.
#[test]
fn nvflare_2952_a_port_given_twice_is_refused() {
    let text = format!(
        "{FEDERATION}{}{}",
        node("hq", "listen = \"10.0.0.1:7000\""),
        node("plant", "listen = \"10.0.0.1:7000\"")
    );
    assert!(said(&text).contains("plant/gate and hq/gate share the address 10.0.0.1:7000"));
    let free = text.replace(":7000", ":0");
    assert!(
        parse("harbour.toml", &free, Path::new("/base")).is_ok(),
        "port 0 is a free one each"
    );
}

/// hyper#1316: one concrete IPv6 address could not be bound.
#[test]
fn hyper_1316_a_concrete_ipv6_address_is_an_address() {
    let text = format!(
        "{FEDERATION}{}",
        node("hq", "listen = \"[2001:db8::1]:7000\"")
    );
    let plan = parse("harbour.toml", &text, Path::new("/base")).unwrap();
    assert!(plan.domains[0].nodes[0].listen.unwrap().is_ipv6());
}

/// flower#775, flower#2515, flower#4300: heartbeat settings were not checked and cut healthy nodes off.
#[test]
fn flower_2515_heartbeat_settings_are_checked() {
    for bad in [
        "every = \"0s\"",
        "every = \"1h\"",
        "every = 500",
        "retry = []",
        "retry = [\"0s\"]",
    ] {
        let text = format!("{FEDERATION}[heartbeat]\n{bad}\n{DOMAINS}");
        assert_eq!(refused(&text).mistakes().count(), 1, "{bad}");
    }
}

/// flower#7645, MediSwarm#566: numbers that are none reached the aggregation.
#[test]
fn flower_7645_numbers_that_are_none_are_refused() {
    for key in ["loss_limit", "norm_limit", "penalty", "clip"] {
        for bad in ["nan", "inf", "-1.0"] {
            let text = format!("{FEDERATION}[aggregator]\n{key} = {bad}\n{DOMAINS}");
            assert!(said(&text).contains("out of its range"), "{key} = {bad}");
        }
    }
}
