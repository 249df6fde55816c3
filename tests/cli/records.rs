//! Records that anybody may have written, changed or cut: whoever reads them is told what could be read.

use std::process::Command;

use serde_json::{Value, json};

use crate::fixture::{Output, Process, Workspace};

/// A name that a browser or a terminal would obey, if it were let.
const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\u{1b}[2J\u{202e}";

const READERS: [&str; 10] = [
    "explain round 1 --state state",
    "explain round 999999 --state state",
    "explain node hq/a --state state",
    "explain node nobody/here --state state",
    "explain link hq/a plant/c --state state",
    "explain link hq/a nobody/here --state state",
    "report state",
    "report state --tensorboard",
    "trace state",
    "top state --once",
];

fn record(workspace: &Workspace, name: &str, bytes: &[u8]) {
    std::fs::create_dir_all(workspace.path().join("state")).unwrap();
    std::fs::write(workspace.path().join("state").join(name), bytes).unwrap();
}

fn lines(events: &[Value]) -> Vec<u8> {
    let lines = events.iter().map(|event| format!("{event}\n"));
    lines.collect::<String>().into_bytes()
}

/// One round, of which nearly all is lies.
fn lies() -> Vec<Value> {
    let most = u64::MAX;
    vec![
        json!({"at": 0, "event": "node_started", "node": "hq/a", "address": HOSTILE, "life": most}),
        json!({"at": 1, "event": "round_opened", "round": 1, "epoch": most, "cohort": ["hq/a", "plant/c", "hq/a"], "deadline_ms": most}),
        json!({"at": 1, "event": "link_up", "node": "hq/a", "peer": "plant/c"}),
        json!({"at": 1, "event": "link_measured", "node": "hq/a", "peer": "plant/c", "round_trip_ms": -1e308, "heartbeat_loss": 1e308, "sent": most, "received": most}),
        json!({"at": 1, "event": "clock_measured", "node": "hq/a", "peer": "plant/c", "life": most, "offset_us": i64::MIN, "bound_us": most}),
        json!({"at": 2, "event": "transferred", "round": most, "cargo": "model", "from": "hq", "to": "plant", "bytes": most, "waited_us": most}),
        json!({"at": 2, "event": "transferred", "round": 1, "cargo": "contribution", "from": "plant", "to": "hq", "bytes": most, "plain": most, "waited_us": most, "rate": 0}),
        json!({"at": 2, "event": "model_obtained", "domain": "plant", "round": most}),
        json!({"at": 2, "event": "training_failed", "node": "plant/c", "round": 1, "reason": HOSTILE}),
        json!({"at": 2, "event": "link_refused", "node": "hq/a", "peer": "plant/c", "reason": HOSTILE}),
        json!({"at": 2, "event": "late_answered", "round": 1, "from": HOSTILE}),
        json!({"at": 2, "event": "weighed", "round": 1, "nodes": [], "reasons": [["hq/a", HOSTILE]]}),
        json!({"at": 2, "event": "actor_given_up", "actor": HOSTILE, "key": HOSTILE, "reason": HOSTILE, "restarts": 1}),
        json!({"at": 3, "event": "round", "round": 1, "epoch": 0, "state": "degraded", "reason": HOSTILE, "counted": ["hq/a", "hq/a", "sea/x"],
            "late": ["plant/c", "hq/a"], "refused": [["plant/c", HOSTILE]], "accuracy": 1e308, "loss": -1e308, "weight_norm": 0, "bytes": most,
            "bytes_down": most, "bytes_up": most, "model_hash": "00".repeat(32), "elapsed_s": 1e308}),
        // The same once more: what is summed up must not go over.
        json!({"at": 4, "event": "round", "round": 2, "epoch": 0, "state": "committed", "counted": [], "late": [], "accuracy": 0, "loss": 0,
            "weight_norm": 0, "bytes": most, "bytes_down": most, "bytes_up": most, "model_hash": "00".repeat(32), "elapsed_s": -1e308}),
        json!({"at": 0.5, "event": "clock_jumped", "node": "hq/a", "peer": "plant/c"}),
        json!({"at": 1.5, "event": "round_opened", "round": most, "epoch": 1, "cohort": ["hq/a"], "deadline_ms": 0}),
    ]
}

/// Every reader ends, without a panic, and says what it could not read.
fn read(workspace: &Workspace) -> Vec<Output> {
    let read = |command: &&str| {
        let output = workspace.text(command);
        let said = output.errors() + &output.lines.join("\n");
        assert!((0..=2).contains(&output.code()), "{command}: {output:#?}");
        assert!(!said.contains("panicked"), "{command}: {said}");
        let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t') || c == '\u{202e}';
        assert!(!said.contains(obeyed), "{command}: {said:?}");
        output
    };
    READERS.iter().map(read).collect()
}

#[test]
fn lies_are_told_as_they_are_and_nothing_obeys_them() {
    let workspace = Workspace::new("");
    record(&workspace, "events.jsonl", &lines(&lies()));
    let outputs = read(&workspace);
    let codes: Vec<i32> = outputs.iter().map(Output::code).collect();
    assert_eq!(codes, [0, 2, 0, 2, 0, 2, 0, 0, 0, 0], "{outputs:#?}");
    let unknown = outputs[1].errors();
    assert!(
        unknown.contains("round 999999 is not in the record; it tells of rounds 1 to"),
        "{unknown}"
    );
    let html = std::fs::read_to_string(workspace.path().join("state/report.html")).unwrap();
    assert!(!html.contains("<img") && html.matches("<script").count() == 2);
    // Two records that contradict each other, on one line of time.
    record(&workspace, "events.plant.c.jsonl", &lines(&lies()));
    read(&workspace);
    let trace = std::fs::read_to_string(workspace.path().join("state/trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    for event in trace["traceEvents"].as_array().unwrap() {
        let is_placed = event["ph"] == "M" || event["ts"].is_number();
        assert!(
            is_placed && event["dur"].is_null() != (event["ph"] == "X"),
            "{event}"
        );
    }
}

#[test]
fn what_is_no_record_is_said_and_the_rest_is_told() {
    let whole = lines(&lies());
    let mut noise = b"\0\xff\xfe{\"at\":1,\"event\":\n".to_vec();
    noise.extend(b"[".repeat(100_000));
    noise.extend(b"\n{\"at\":1e999,\"event\":\"quorum_reached\",\"round\":1}\n");
    noise.extend(b"{\"at\":-1,\"event\":\"quorum_reached\",\"round\":1}\n");
    noise.extend(b"{\"at\":1,\"event\":\"of_a_later_version\",\"round\":1}\n\n");
    noise.extend(&whole);
    // As a kill leaves it.
    noise.extend(&whole[..whole.len() / 3]);
    let workspace = Workspace::new("");
    record(&workspace, "events.jsonl", &noise);
    let outputs = read(&workspace);
    let codes: Vec<i32> = outputs.iter().map(Output::code).collect();
    assert_eq!(codes, [0, 2, 0, 2, 0, 2, 0, 0, 0, 0], "{outputs:#?}");
    let said = outputs[6].errors();
    assert!(
        said.contains("lines of the record are no events of this version"),
        "{said}"
    );
    // A part that is no part, a record that is nothing at all, and one that ends in the middle of a letter.
    record(&workspace, "events.jsonl.1.sz", b"this is no snappy");
    record(&workspace, "events.plant.c.jsonl", b"");
    record(&workspace, "events.lab.e.jsonl", "{\"at\":1,\"é".as_bytes());
    let said = read(&workspace)[6].errors();
    assert!(said.contains("a part of the record is left out"), "{said}");
    for text in ["", "\n\n\n", "null\n", "[]\n{}\n"] {
        let workspace = Workspace::new("");
        record(&workspace, "events.jsonl", text.as_bytes());
        read(&workspace);
    }
}

/// A site may have more nodes than a process may have files open to begin with.
#[test]
fn more_records_than_files_may_be_open_at_first_are_all_read() {
    const NODES: u64 = 60;
    let workspace = Workspace::new("");
    let names: Vec<String> = (0..NODES).map(|node| format!("plant/n{node}")).collect();
    let mut run = vec![
        json!({"at": 0, "event": "node_started", "node": "hq/a", "address": "", "life": NODES}),
        json!({"at": 0, "event": "round_opened", "round": 1, "epoch": 1, "cohort": names, "deadline_ms": 1}),
    ];
    for (life, node) in (0..NODES).zip(&names) {
        let peer = json!({"at": 1, "event": "clock_measured", "node": "hq/a", "peer": node, "life": life, "offset_us": 0, "bound_us": 9});
        run.push(peer);
        let own = [
            json!({"at": 0, "event": "node_started", "node": node, "address": "", "life": life}),
            json!({"at": 1, "event": "training_started", "node": node, "round": 1}),
            json!({"at": 2, "event": "update_exported", "node": node, "round": 1, "samples": 1, "loss": 1}),
        ];
        let name = format!("events.{}.jsonl", node.replace('/', "."));
        record(&workspace, &name, &lines(&own));
    }
    record(&workspace, "events.jsonl", &lines(&run));
    let mut command = Command::new("bash");
    command
        .args(["-c", "ulimit -Sn 40; exec \"$0\" trace state"])
        .arg(env!("CARGO_BIN_EXE_tombolo"))
        .current_dir(workspace.path());
    let output = Process::spawn(command).end().expect(0);
    assert_eq!(output.errors(), "", "{output:#?}");
    let trace = std::fs::read_to_string(workspace.path().join("state/trace.json")).unwrap();
    let trained = trace.matches("\"name\":\"train\"").count();
    assert_eq!(trained as u64, NODES);
    let unknown = workspace
        .text("explain node no/body --state state")
        .expect(2);
    let said = unknown.errors();
    assert!(
        said.contains("plant/n0, ") && said.contains(" and 40 more"),
        "{said}"
    );
}
