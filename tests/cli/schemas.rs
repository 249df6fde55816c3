//! What the program prints in JSON is what `docs/manual/schemas/` says: nothing less, and nothing that stands nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::fixture::{Output, Workspace, pinned};

/// A judge of JSON schemas that knows what ours use.
fn fits(schema: &Value, value: &Value) -> bool {
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|schema| fits(schema, value));
    }
    if let Some(word) = schema.get("const") {
        return word == value;
    }
    if let Some(words) = schema["enum"].as_array() {
        return words.contains(value);
    }
    match (schema["type"].as_str().unwrap(), value) {
        ("object", Value::Object(fields)) => {
            let required = schema["required"].as_array();
            let mut required = required.into_iter().flatten();
            required.all(|name| fields.contains_key(name.as_str().unwrap()))
                && fields.iter().all(|(name, value)| {
                    let inner = schema["properties"].get(name);
                    inner.map_or(schema["additionalProperties"] != false, |it| {
                        fits(it, value)
                    })
                })
        }
        ("array", Value::Array(items)) => items.iter().all(|item| fits(&schema["items"], item)),
        ("string", Value::String(text)) => match schema["pattern"].as_str() {
            None => true,
            Some("^[0-9a-f]{64}$") => {
                let is_digit = |digit: char| digit.is_ascii_digit() || ('a'..='f').contains(&digit);
                text.len() == 64 && text.chars().all(is_digit)
            }
            Some(other) => panic!("the judge does not know {other}"),
        },
        ("integer", value) => match schema["minimum"].as_u64() {
            Some(least) => value.as_u64().is_some_and(|number| number >= least),
            None => value.is_i64() || value.is_u64(),
        },
        ("number", value) => value.is_number(),
        ("boolean", value) => value.is_boolean(),
        ("null", value) => value.is_null(),
        _ => false,
    }
}

struct Judge {
    schemas: BTreeMap<String, Value>,
    met: BTreeSet<String>,
}

impl Judge {
    fn new() -> Judge {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/manual/schemas");
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_str(&text).unwrap())
        };
        Judge {
            schemas: folder.read_dir().unwrap().map(read).collect(),
            met: BTreeSet::new(),
        }
    }

    /// Each line fits a schema of its event. Those of other events have one in common.
    #[track_caller]
    fn look(&mut self, output: &Output) {
        assert!(!output.lines.is_empty(), "{output:#?}");
        for line in &output.lines {
            let value: Value = serde_json::from_str(line).unwrap();
            let event = &value["event"];
            let of = |(_, schema): &(&String, &Value)| {
                let told = &schema["properties"]["event"]["const"];
                match event {
                    Value::Null => schema["properties"].get("event").is_none(),
                    event => event == told,
                }
            };
            let mut known: Vec<_> = self.schemas.iter().filter(of).collect();
            if known.is_empty() {
                known = self
                    .schemas
                    .iter()
                    .filter(|(name, _)| *name == "event")
                    .collect();
            }
            let found = known.iter().find(|(_, schema)| fits(schema, &value));
            let names: Vec<_> = known.iter().map(|(name, _)| name).collect();
            let (name, _) = found.unwrap_or_else(|| panic!("{value:#} is none of {names:?}"));
            self.met.insert((*name).clone());
        }
    }
}

#[test]
fn every_line_of_json_is_as_its_schema_says() {
    let mut judge = Judge::new();
    let workspace = Workspace::new(&format!(
        "{}\n[checkpoint]\nretain_contributions = 9\n",
        pinned(3)
    ));
    let mut run = |arguments: &str, code: i32| {
        let output = workspace.run(arguments).expect(code);
        judge.look(&output);
        output
    };
    run("new made", 0);
    run("check topology.toml --partition", 0);
    run("check nowhere.toml", 2);
    run("certs init topology.toml --domain hq", 0);
    run("status topology.toml", 1);
    run("run topology.toml", 0);
    run("sim topology.toml --seed 3", 0);
    run("doctor topology.toml", 0);
    run("preflight topology.toml", 0);
    run("checkpoint list topology.toml", 0);
    run("checkpoint verify topology.toml", 0);
    run("checkpoint restore topology.toml --to model.safetensors", 0);
    run("audit show state", 0);
    run("audit verify state", 0);
    run("audit recompute state --topology topology.toml", 0);
    let proof = run("audit prove state --round 2", 0);
    workspace.write("proof.json", &proof.lines[0]);
    run(
        "audit verify --proof proof.json --checkpoint state/nodes/hq.gate/record/checkpoint",
        0,
    );
    run("explain round 2", 0);
    run("explain node hq/a", 0);
    run("explain link hq/gate plant/gate", 0);
    run("trace state", 0);
    run("report state", 0);
    run("bench codec --elements 8192 --repeat 1", 0);
    run("certs show topology.toml", 0);
    run("certs rotate topology.toml --node plant/c", 0);
    run("certs request topology.toml --node plant/c", 0);
    run("certs revoke topology.toml --node plant/c", 0);
    run("certs rollover topology.toml --domain lab --step next", 0);
    let leaves = "state/nodes/plant.gate/record/leaves-000000.jsonl";
    let text = std::fs::read_to_string(workspace.path().join(leaves)).unwrap();
    workspace.write(leaves, &text.replacen("\"clip\":", "\"clip\": ", 1));
    run("audit verify state", 1);

    let workspace = Workspace::new(&pinned(900_000));
    let mut endless = workspace.start("run topology.toml");
    endless.until_rounds(1);
    judge.look(&workspace.run("status topology.toml").expect(0));
    judge.look(&workspace.run("pause topology.toml --by ada").expect(0));
    judge.look(&workspace.run("resume topology.toml").expect(0));
    judge.look(&workspace.run("stop topology.toml").expect(0));
    endless.listen(Duration::ZERO);
    judge.look(&endless.end().expect(0));

    let unmet: Vec<&String> = judge
        .schemas
        .keys()
        .filter(|name| !judge.met.contains(*name))
        .collect();
    // Those take a failure, a second site, a page or somebody's approval to be printed.
    let rare = [
        "approved",
        "dashboard",
        "fabric",
        "left",
        "more-mistakes",
        "process-ended",
        "promoted",
        "readmitted",
        "violation",
    ];
    let unmet: Vec<&str> = unmet
        .into_iter()
        .map(String::as_str)
        .filter(|name| !rare.contains(name))
        .collect();
    assert!(unmet.is_empty(), "nothing printed {unmet:?}");
}
