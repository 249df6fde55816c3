//! What a right file means.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tombolo::topology::{
    DOMAINS_MAX, FILE_BYTES_MAX, NODES_MAX, Options, config_hash, explicit, load, parse,
    parse_with, template, write_new,
};
use tombolo_core::plan::{
    BaseWeights, Clip, Cooldown, Deadline, Fabric, HeartbeatPlan, Init, Order, OuterKind,
    OuterPlan, Partition, Plan, Quorum, SyncEvery, TrainerKind,
};
use tombolo_core::shaping::Cap;

/// The smallest file: everything else is a default.
pub const SMALL: &str = r#"
[federation]
name = "harbour"

[[domain]]
name = "hq"
nodes = ["gate", "a", "b"]

[[domain]]
name = "plant"
nodes = ["gate", "c", "d"]
"#;

pub fn read(text: &str) -> Plan {
    parse("test.toml", text, Path::new("/base")).unwrap()
}

fn mistakes(text: &str) -> Vec<String> {
    let diagnosis = parse("test.toml", text, Path::new("/base")).unwrap_err();
    diagnosis
        .mistakes()
        .map(|told| told.message.clone())
        .collect()
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(name)
}

#[test]
fn the_contract_page_is_read_whole() {
    let plan = read(include_str!("contract.toml"));
    let [hq, plant] = ["hq", "plant"].map(|name| name.parse().unwrap());
    for (from, to) in [(&hq, &plant), (&plant, &hq)] {
        assert_eq!(plan.cap(from, to), Some(&Cap::of(200_000_000)));
    }
}

#[test]
fn defaults_are_those_of_the_contract_page() {
    let contract = include_str!("contract.toml").replace("\ncap = ", "\n# cap = ");
    let mut contract = read(&contract);
    assert_eq!(
        contract.domains[0].gateways.len(),
        2,
        "its example names two"
    );
    contract.domains[0].gateways.truncate(1);
    assert_eq!(contract.links.len(), 1);
    contract.links.clear();
    assert_eq!(read(SMALL), contract);
}

#[test]
fn defaults_are_these() {
    let plan = read(SMALL);
    assert_eq!((plan.rounds, plan.seed), (20, 7));
    assert_eq!(plan.sync_every, SyncEvery::Steps(50));
    assert_eq!(plan.coordinator.as_str(), "hq/gate");
    assert_eq!(
        plan.round.quorum,
        Quorum::AtLeast {
            nodes: 4,
            domains: 2
        }
    );
    assert_eq!(plan.round.deadline, Deadline::Adaptive);
    assert_eq!(plan.round.grace, Duration::from_secs(2));
    assert_eq!(plan.round.close_limit, Duration::from_secs(30));
    assert_eq!(plan.round.failed_limit, 3);
    assert!(plan.round.absent.is_empty());
    assert_eq!(plan.model.trainer, TrainerKind::DigitsMlp);
    assert_eq!((plan.model.hidden, plan.model.batch), (64, 32));
    assert_eq!(plan.model.learning_rate, 0.1);
    assert_eq!(
        (plan.model.init, plan.model.order),
        (Init::Seed(7), Order::Shuffled)
    );
    assert_eq!(plan.model.partition, Partition::Dirichlet { alpha: 0.5 });
    assert_eq!(plan.aggregator.kind, "dynamic-weighted");
    assert_eq!(plan.aggregator.weights, BaseWeights::Samples);
    assert_eq!(plan.aggregator.clip, Clip::Median);
    assert_eq!(
        (plan.aggregator.loss_limit, plan.aggregator.norm_limit),
        (2.0, 5.0)
    );
    assert_eq!(
        (plan.aggregator.penalty, plan.aggregator.relative),
        (0.3, false)
    );
    assert_eq!(plan.outer.optimizer, OuterKind::Sgd);
    assert_eq!((plan.outer.learning_rate, plan.outer.momentum), (1.0, 0.9));
    assert_eq!(plan.heartbeat.every, Duration::from_millis(500));
    assert_eq!(plan.heartbeat.retry, [1, 2, 4].map(Duration::from_secs));
    assert_eq!(plan.heartbeat.phi, 8.0);
    assert_eq!(plan.heartbeat.restore_limit, Duration::from_secs(60));
    assert!(!plan.security.post_quantum_required);
    assert_eq!(plan.checkpoint.folder, Path::new("/base/state"));
    assert_eq!(plan.checkpoint.every, 1);
    let plant = &plan.domains[1];
    assert_eq!((plant.fabric, &plant.root_sha256), (Fabric::Auto, &vec![]));
    assert_eq!(plant.root, Path::new("/base/certs/plant.pem"));
    assert_eq!(plant.gateway().as_str(), "plant/gate");
    assert!(
        plan.nodes()
            .all(|node| node.listen.is_none() && node.advertise.is_none())
    );
}

#[test]
fn every_key_that_is_built_reaches_the_plan() {
    let plan = read(
        r#"
        federation = { name = "all", rounds = 3, sync_every = "2 epochs", seed = 1, coordinator = "b/y" }
        run.kernels = "portable"
        [round]
        quorum = { nodes = 1, domains = 1 }
        deadline = "30 min"
        grace = "500ms"
        failed_limit = 5
        close_limit = "1min"
        absent = [{ round = 2, nodes = ["a/x"] }, { round = 2, nodes = ["a/w"] }]
        [model]
        trainer = "digits-softmax"
        learning_rate = 1
        batch = 0x10
        init = "zeros"
        order = "sequential"
        partition = { kind = "shards" }
        [aggregator]
        kind = "dynamic-weighted"
        weights = "equal"
        clip = 3
        thresholds = "relative"
        loss_limit = 1.5
        norm_limit = 2
        penalty = 0
        [outer]
        optimizer = "nesterov"
        learning_rate = 0.7
        momentum = 0.8
        [heartbeat]
        every = "1s"
        phi = 12
        retry = ["1s"]
        restore_limit = "5min"
        cooldown = { first = "1min", cap = "1h" }
        [security]
        post_quantum = "require"
        [checkpoint]
        store = "file:///var/run/all"
        every = 5
        [[domain]]
        name = "a"
        fabric = "shm"
        collective = "direct"
        gateways = ["x", "w"]
        root = "../ca.pem"
        root_sha256 = "00000000000000000000000000000000000000000000000000000000000000FF"
        [[domain.node]]
        name = "w"
        listen = "10.0.0.2:7000"
        [[domain.node]]
        name = "x"
        listen = "0.0.0.0:7000"
        advertise = "a.example.org:7001"
        [[domain]]
        name = "b"
        [[domain.node]]
        name = "y"
        listen = "[2001:db8::2]:7000"
        [[link]]
        between = ["b", "a"]
        codec = "none"
        emulate = { delay = "40ms", jitter = "2ms", loss = "0.1%", rate = "200 Mbit/s" }
        "#,
    );
    assert_eq!(
        (plan.rounds, plan.seed, plan.sync_every),
        (3, 1, SyncEvery::Epochs(2))
    );
    assert_eq!(plan.coordinator.as_str(), "b/y");
    assert_eq!(
        plan.round.quorum,
        Quorum::AtLeast {
            nodes: 1,
            domains: 1
        }
    );
    assert_eq!(
        plan.round.deadline,
        Deadline::Fixed(Duration::from_secs(1800))
    );
    assert_eq!(plan.round.grace, Duration::from_millis(500));
    assert_eq!(
        (plan.round.failed_limit, plan.round.close_limit.as_secs()),
        (5, 60)
    );
    assert_eq!(
        plan.round.absent[&2]
            .iter()
            .map(|node| node.as_str())
            .collect::<Vec<_>>(),
        ["a/w", "a/x"]
    );
    assert_eq!(plan.model.trainer, TrainerKind::DigitsSoftmax);
    assert_eq!((plan.model.learning_rate, plan.model.batch), (1.0, 16));
    assert_eq!(
        (plan.model.init, plan.model.order),
        (Init::Zeros, Order::Sequential)
    );
    assert_eq!(plan.model.partition, Partition::Shards);
    assert_eq!(plan.aggregator.weights, BaseWeights::Equal);
    assert_eq!(plan.aggregator.clip, Clip::Norm(3.0));
    assert_eq!(
        (plan.aggregator.penalty, plan.aggregator.relative),
        (0.0, true)
    );
    assert_eq!(plan.outer.optimizer, OuterKind::Nesterov);
    assert_eq!((plan.outer.learning_rate, plan.outer.momentum), (0.7, 0.8));
    assert_eq!(
        plan.heartbeat,
        HeartbeatPlan {
            every: Duration::from_secs(1),
            phi: 12.0,
            retry: vec![Duration::from_secs(1)],
            restore_limit: Duration::from_secs(300),
            cooldown: Cooldown {
                first: Duration::from_secs(60),
                cap: Duration::from_secs(3600),
            },
        }
    );
    assert!(plan.security.post_quantum_required);
    assert_eq!(plan.checkpoint.folder, Path::new("/var/run/all"));
    assert_eq!(plan.checkpoint.every, 5);
    let a = &plan.domains[0];
    assert_eq!((a.fabric, a.gateway().as_str()), (Fabric::Shm, "a/x"));
    assert_eq!(a.root_sha256[0][31], 255);
    assert_eq!(a.root, Path::new("/base/../ca.pem"));
    assert_eq!(a.nodes[1].listen.unwrap().port(), 7000);
    assert_eq!(a.nodes[1].advertise.as_deref(), Some("a.example.org:7001"));
    let link = &plan.links[0];
    assert_eq!(
        (link.between.0.as_str(), link.between.1.as_str()),
        ("b", "a")
    );
    assert_eq!(link.emulate.delay, Duration::from_millis(40));
    assert_eq!(link.emulate.jitter, Duration::from_millis(2));
    assert_eq!(
        (link.emulate.loss, link.emulate.rate),
        (0.001, Some(200_000_000))
    );
}

pub fn link_of(text: &str) -> tombolo_core::plan::LinkPlan {
    let link = "\n[[link]]\nbetween = [\"hq\", \"plant\"]\n";
    read(&format!("{SMALL}{link}{text}\n")).links.remove(0)
}

#[test]
fn a_codec_may_have_a_lossless_stage_and_models_another() {
    for (codec, found) in [
        ("topk+fp16+zstd", "topk+fp16+zstd"),
        ("none+lz4", "none+lz4"),
        ("snappy", "none+snappy"),
        ("bf16", "bf16"),
    ] {
        let link = link_of(&format!("codec = \"{codec}\"\nlossless_down = \"lz4\""));
        assert_eq!(link.codec.to_string(), found);
        assert_eq!(link.lossless_down.unwrap().to_string(), "lz4");
    }
    let plan = read(&format!("{SMALL}\n[round]\ncodec_down = \"zstd\"\n"));
    let [hq, plant] = ["hq", "plant"].map(|name| name.parse().unwrap());
    assert_eq!(plan.lossless_down(&hq, &plant).to_string(), "zstd");
    assert_eq!(plan.lossless_down(&hq, &hq).to_string(), "none");
    assert_ne!(config_hash(&plan), config_hash(&read(SMALL)));
}

/// A thin link is worth the work that a fat one is not, and what goes up is chosen apart from what goes down.
#[test]
fn auto_chooses_by_the_rate_and_the_accuracy_budget() {
    let chosen = |rate: &str, budget: &str| {
        let auto = "codec = \"auto\"\nlossless_down = \"auto\"";
        let link = link_of(&format!(
            "{auto}\naccuracy_budget = \"{budget}\"\nemulate = {{ rate = \"{rate}\" }}"
        ));
        (
            link.codec.to_string(),
            link.lossless_down.unwrap().to_string(),
        )
    };
    let told = |up: &str, down: &str| (up.to_owned(), down.to_owned());
    assert_eq!(chosen("10 Mbit/s", "1%"), told("int8+zstd", "zstd"));
    assert_eq!(chosen("200 Mbit/s", "0.1%"), told("fp16", "none"));
    assert_eq!(chosen("10 Mbit/s", "100%"), told("topk+fp16", "zstd"));
}

#[test]
fn the_examples_are_right() {
    let harbour = load(&example("harbour.toml")).unwrap();
    assert_eq!((harbour.domains.len(), harbour.nodes().count()), (3, 9));
    let pinned =
        load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pinned.toml")).unwrap();
    assert_eq!(pinned.round.quorum, Quorum::All);
    assert_eq!(
        pinned.round.deadline,
        Deadline::Fixed(Duration::from_secs(600))
    );
    assert_eq!(pinned.model.trainer, TrainerKind::DigitsSoftmax);
    assert!(harbour.checkpoint.folder.is_absolute());
}

#[test]
fn rows_are_read_from_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = SMALL.replace(
        "[[domain]]\nname = \"plant\"\nnodes = [\"gate\", \"c\", \"d\"]\n",
        "",
    ) + "[model]\npartition = { kind = \"rows\", file = \"rows.json\" }\n";
    std::fs::write(
        folder.path().join("rows.json"),
        r#"{"hq/a": [1796, 0], "hq/gate": [1], "hq/b": [8, 7]}"#,
    )
    .unwrap();
    let plan = parse("test.toml", &text, folder.path()).unwrap();
    let Partition::Rows(rows) = plan.model.partition else {
        panic!("{:?}", plan.model.partition);
    };
    assert_eq!(rows[&"hq/a".parse().unwrap()], [1796, 0]);
    assert_eq!(rows.len(), 3);
}

#[test]
fn a_registered_rule_is_a_kind_and_an_unregistered_one_is_not() {
    let text = format!("{SMALL}\n[aggregator]\nkind = \"clipped-mean\"\n");
    let options = Options {
        registered: vec!["clipped-mean".into()],
    };
    let plan = parse_with("test.toml", &text, Path::new("/base"), &options).unwrap();
    assert_eq!(plan.aggregator.kind, "clipped-mean");
    assert_eq!(
        mistakes(&text),
        ["there is no aggregation rule \"clipped-mean\""]
    );
}

#[test]
fn the_hash_does_not_see_formatting_addresses_patience_and_state() {
    let base = config_hash(&read(SMALL));
    let rewritten = "federation.name = 'harbour'\nround.grace='2000ms' # two seconds\nrun.kernels = \"portable\"\n\
        domain = [{ nodes = [\"gate\", \"a\", \"b\"], name = \"hq\" }, { name = \"plant\", nodes = [\"gate\", \"c\", \"d\"] }]\n\
        [checkpoint]\nstore = \"file:elsewhere\"\nevery = 2\n[security]\npost_quantum = \"require\"\n\
        [heartbeat]\nevery = \"1s\"\nrestore_limit = \"2min\"\n";
    assert_eq!(config_hash(&read(rewritten)), base);
    let nodes = "[[domain.node]]\nname = \"gate\"\nlisten = \"127.0.0.1:7000\"\n\
        [[domain.node]]\nname = \"c\"\n[[domain.node]]\nname = \"d\"\n";
    let addressed = SMALL.replace("nodes = [\"gate\", \"c\", \"d\"]\n", nodes);
    assert_ne!(addressed, SMALL);
    assert_eq!(config_hash(&read(&addressed)), base);
}

#[test]
fn the_hash_sees_whatever_decides_the_outcome() {
    let mut hashes = vec![config_hash(&read(SMALL))];
    for change in [
        "[round]\ngrace = \"3s\"",
        "[round]\nquorum = \"all\"",
        "[round]\nabsent = [{ round = 1, nodes = [\"hq/a\"] }]",
        "[model]\nlearning_rate = 0.2",
        "[model]\npartition = { kind = \"iid\" }",
        "[model]\naccumulate = 2",
        "[model]\nprecision = \"bf16\"",
        "[model]\nproximal = 0.01",
        "[model]\noptimizer = \"adamw\"",
        "[model]\noptimizer = \"adamw\"\nbeta1 = 0.8",
        "[model]\noptimizer = \"adamw\"\nbeta2 = 0.8",
        "[model]\noptimizer = \"adamw\"\nepsilon = 0.8",
        "[model]\noptimizer = \"adamw\"\nweight_decay = 0.8",
        "[aggregator]\nkind = \"fedavg\"",
        "[aggregator]\nclip = 1.0",
        "[aggregator]\nkind = \"trimmed-mean\"",
        "[aggregator]\nkind = \"trimmed-mean\"\nfaulty = 0",
        "[aggregator]\nkind = \"centred-clipping\"\niterations = 5",
        "[aggregator]\nfeedback = { memory = 0.5 }",
        "[aggregator]\nfeedback = { limit = 3.0 }",
        "[aggregator]\nfeedback = { floor = 0.5 }",
        "[outer]\noptimizer = \"momentum\"\nmomentum = 0.8",
        "[outer]\noptimizer = \"adam\"\nbeta1 = 0.8",
        "[outer]\noptimizer = \"adam\"\nbeta2 = 0.8",
        "[outer]\noptimizer = \"adam\"\nepsilon = 0.8",
        "[[link]]\nbetween = [\"hq\", \"plant\"]\nemulate = { delay = \"1ms\" }",
        "[[link]]\nbetween = [\"hq\", \"plant\"]\ncongestion = \"bbr\"",
        "[[link]]\nbetween = [\"hq\", \"plant\"]\ncongestion = \"delay-gradient\"",
        "[[link]]\nbetween = [\"hq\", \"plant\"]\ncongestion = \"delay-gradient\"\nfactor = 0.5",
        "[[link]]\nbetween = [\"hq\", \"plant\"]\ncongestion = \"delay-gradient\"\nadditive = 0.1",
    ] {
        hashes.push(config_hash(&read(&format!("{SMALL}\n{change}\n"))));
    }
    for (from, to) in [
        ("\"harbour\"", "\"port\""),
        ("name = \"harbour\"", "name = \"harbour\"\nrounds = 21"),
        ("name = \"harbour\"", "name = \"harbour\"\nseed = 8"),
        (
            "name = \"harbour\"",
            "name = \"harbour\"\nstandby = [\"plant/gate\"]",
        ),
        (
            "name = \"harbour\"",
            "name = \"harbour\"\nsync_every = \"1 epoch\"",
        ),
        (
            "name = \"harbour\"",
            "name = \"harbour\"\ncoordinator = \"plant/gate\"",
        ),
        ("\"c\", \"d\"", "\"d\", \"c\""),
        (
            "\"c\", \"d\"]",
            "\"c\", \"d\"]\ngateways = [\"gate\", \"c\"]",
        ),
        ("\"a\", \"b\"", "\"a\", \"b\", \"e\""),
    ] {
        hashes.push(config_hash(&read(&SMALL.replace(from, to))));
    }
    let count = hashes.len();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), count);
}

#[test]
fn sizes_are_bounded() {
    let file = |domains: usize, nodes: usize| {
        let names: Vec<String> = (0..nodes).map(|n| format!("\"n{n}\"")).collect();
        let mut text = "[federation]\nname = \"large\"\n".to_owned();
        for domain in 0..domains {
            text += &format!(
                "[[domain]]\nname = \"d{domain}\"\nnodes = [{}]\n",
                names.join(", ")
            );
        }
        text
    };
    assert_eq!(read(&file(DOMAINS_MAX, 4)).nodes().count(), NODES_MAX);
    assert_eq!(
        mistakes(&file(DOMAINS_MAX + 1, 1)),
        ["`domain` holds 257 entries, expected at most 256"]
    );
    assert_eq!(
        mistakes(&file(205, 5)),
        ["1025 nodes in all, at most 1024 work in one federation"]
    );
    assert_eq!(
        mistakes(&file(1, 1025)),
        ["`nodes` holds 1025 entries, expected from 1 to 1024"]
    );
    let shards = format!(
        "{}[model]\npartition = {{ kind = \"shards\" }}\n",
        file(256, 4)
    );
    assert_eq!(
        mistakes(&shards),
        ["two shards for each of 1024 nodes need 2048 training rows, the data has 1438"]
    );
    let comment = "#".repeat(FILE_BYTES_MAX);
    assert_eq!(
        mistakes(&(comment.clone() + "#")),
        ["the file is larger than 4194304 bytes"]
    );
    assert_eq!(mistakes(&comment).len(), 2, "of that size it is read");
}

#[test]
fn a_new_folder_holds_a_file_that_runs_and_nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("made/here");
    let path = write_new(&target).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), template());
    let plan = load(&path).unwrap();
    assert_eq!((plan.domains.len(), plan.nodes().count()), (2, 4));
    let ignored = std::fs::read_to_string(target.join(".gitignore")).unwrap();
    assert!(ignored.contains("/state/") && ignored.contains("*.key"));

    std::fs::write(&path, "mine").unwrap();
    let refused = write_new(&target).unwrap_err().to_string();
    assert!(refused.contains(&path.display().to_string()), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");

    std::fs::write(&path, "").unwrap();
    std::fs::write(target.join(".gitignore"), "mine").unwrap();
    assert!(write_new(&target).is_err());
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "",
        "nothing is written by halves"
    );
}

#[test]
fn the_plan_is_spelled_out() {
    let mut plan = load(&example("harbour.toml")).unwrap();
    plan.checkpoint.folder = PathBuf::from("state");
    plan.round.absent.insert(3, vec!["lab/e".parse().unwrap()]);
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("explicit-harbour", explicit(&plan).to_string());
    });
    assert_eq!(
        explicit(&plan).to_json()["domains"][2]["gateways"],
        "gate e"
    );
}

#[test]
fn what_works_but_perhaps_not_as_meant_is_a_warning() {
    let warned = |text: &str| explicit(&read(text)).warnings;
    assert_eq!(warned(SMALL).len(), 2, "one gateway in each of two domains");
    for (change, said) in [
        ("[round]\nquorum = \"all\"\n", "one slow node"),
        ("[round]\nquorum = { nodes = 3 }\n", "less than a majority"),
        (
            "[round]\ndeadline = \"1s\"\n",
            "cut off by the deadline of 1s",
        ),
        (
            "[[domain]]\nname = \"lab\"\nnodes = [\"x\"]\n[[link]]\nbetween = [\"plant\", \"lab\"]\n",
            "plant - lab carries nothing",
        ),
        (
            "[aggregator]\nkind = \"median\"\n[model]\npartition = { kind = \"dirichlet\", alpha = 0.1 }\n",
            "loses 11 to 16 points of accuracy",
        ),
        (
            "[aggregator]\nkind = \"trimmed-mean\"\n[model]\npartition = { kind = \"shards\" }\n",
            "loses 11 to 16 points of accuracy",
        ),
        (
            "[aggregator]\nkind = \"median\"\n",
            "3 a round cross the WAN to hq, where a rule for sums sends 1",
        ),
        (
            "[aggregator]\nkind = \"krum\"\n",
            "a round may close with 4 updates, and krum needs 5",
        ),
        (
            "[aggregator]\nkind = \"trimmed-mean\"\nfaulty = 0\n",
            "trims nothing",
        ),
        ("[model]\nproximal = 20\n", "beyond the model"),
        ("[outer]\noptimizer = \"adam\"\n", "0.01 to 0.1 is usual"),
        ("[model]\noptimizer = \"adamw\"\n", "0.001 to 0.01 is usual"),
    ] {
        let warnings = warned(&format!("{SMALL}\n{change}"));
        assert!(
            warnings.iter().any(|warning| warning.contains(said)),
            "{warnings:?}"
        );
    }
}

#[test]
fn robust_rules_and_adaptive_optimizers_are_read_with_what_they_need() {
    use tombolo_core::aggregate::Needs;
    for (kind, needs) in [
        ("dynamic-weighted", Needs::Sum),
        ("median", Needs::Each),
        ("trimmed-mean", Needs::Each),
        ("krum", Needs::EachTwice),
        ("centred-clipping", Needs::EachTwice),
    ] {
        let plan = read(&format!("{SMALL}\n[aggregator]\nkind = {kind:?}\n"));
        assert_eq!(plan.aggregator.needs, needs, "{kind}");
        assert_eq!((plan.aggregator.faulty, plan.aggregator.iterations), (1, 3));
    }
    let text = format!(
        "{SMALL}\n[aggregator]\nkind = \"centred-clipping\"\niterations = 7\n[outer]\noptimizer = \"yogi\"\nlearning_rate = 0.05\nbeta1 = 0.5\nbeta2 = 0.6\nepsilon = 1e-4\n"
    );
    let plan = read(&text);
    assert_eq!(plan.aggregator.iterations, 7);
    assert_eq!(plan.outer.optimizer, OuterKind::Yogi);
    let OuterPlan {
        beta1,
        beta2,
        epsilon,
        ..
    } = plan.outer;
    assert_eq!((beta1, beta2, epsilon), (0.5, 0.6, 1e-4));
    assert_eq!(
        explicit(&plan).warnings.len(),
        3,
        "two gateways, and what it costs"
    );
}

#[test]
fn standbys_and_stores_reach_the_plan() {
    let standby = SMALL.replace(
        "name = \"harbour\"",
        "name = \"harbour\"\nstandby = [\"plant/gate\"]",
    );
    let plan = read(&standby);
    assert_eq!(plan.standby, ["plant/gate".parse().unwrap()]);
    assert_eq!(plan.checkpoint.store, None);
    let text = format!("{SMALL}\n[checkpoint]\nstore = \"s3://bucket/some/prefix/\"\n");
    let read = parse("clouds", &text, Path::new("/base"));
    match cfg!(feature = "object-store-cloud") {
        true => {
            let checkpoint = read.unwrap().checkpoint;
            assert_eq!(checkpoint.store.as_deref(), Some("s3://bucket/some/prefix"));
            assert_eq!(checkpoint.folder, Path::new("/base/state"));
        }
        false => {
            let said = read.unwrap_err().to_plain_text();
            assert!(said.contains("--features object-store-cloud"), "{said}");
        }
    }
}

#[test]
fn congestion_laws_reach_the_plan_and_the_default_changes_no_hash() {
    use tombolo_core::congestion::{Law, delay_gradient::Settings};
    let link = |keys: &str| {
        read(&format!(
            "{SMALL}\n[[link]]\nbetween = [\"hq\", \"plant\"]\n{keys}\n"
        ))
    };
    let law = |plan: &tombolo_core::plan::Plan| plan.links[0].congestion;
    let shown = |plan: &tombolo_core::plan::Plan| explicit(plan).to_string();
    let (plain, cubic) = (link(""), link("congestion = \"cubic\""));
    assert_eq!((law(&plain), law(&cubic)), (Law::Cubic, Law::Cubic));
    assert_eq!(config_hash(&plain), config_hash(&cubic));
    assert_eq!(law(&link("congestion = \"bbr\"")), Law::Bbr);
    let usual = link("congestion = \"delay-gradient\"");
    assert_eq!(law(&usual), Law::DelayGradient(Settings::default()));
    let plan = link("congestion = \"delay-gradient\"\nfactor = 0.5\nadditive = 0.1");
    let settings = Settings {
        factor: 0.5,
        additive: 0.1,
    };
    assert_eq!(law(&plan), Law::DelayGradient(settings));
    let said = "hq - plant delay-gradient (factor 0.5, additive 0.1)";
    assert!(shown(&plan).contains(said), "{}", shown(&plan));
    assert!(!shown(&plain).contains("cubic"));
}
