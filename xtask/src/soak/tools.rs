//! What is written for other programs, read by these programs: the OpenMetrics parser of Prometheus' Python client, and TensorBoard's own reader.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::page::{Run, build, program};
use super::{Figures, Settings, Variables, figures, object, peers};

pub const VARIABLES: Variables = &[("TOMBOLO_ROUNDS", "8")];

const ENVIRONMENT: &str = "tools";

/// Builds ours and installs the others.
pub fn prepare(root: &Path) -> Result<()> {
    build(root)?;
    peers::prepare(root, ENVIRONMENT);
    Ok(())
}

/// One line: what they have read.
pub fn lines(root: &Path, settings: &Settings) -> Result<Vec<Figures>> {
    let python = peers::python(root, ENVIRONMENT);
    let python = python.context("without the environment there is nothing to show")?;
    let rounds = settings.number("TOMBOLO_ROUNDS")?;
    let topology = format!(
        "[federation]\nname = \"reef\"\nrounds = {rounds}\nsync_every = 5\n[model]\ntrainer = \"digits-softmax\"\npartition = {{ kind = \"iid\" }}\n\
         [[domain]]\nname = \"hq\"\nnodes = [\"gate\", \"a\"]\n[[domain]]\nname = \"plant\"\nnodes = [\"gate\", \"c\"]\n"
    );
    let run = Run::start(root, &topology, "sim")?;
    let metrics = run.folder.join("metrics.txt");
    fs::write(&metrics, scraped(&run.url)?)?;
    let trained = trained(root, &run.folder)?;
    let logs = run.folder.join("state/tensorboard");
    let output = Command::new(python)
        .arg(root.join("benches/peers/py/tools.py"))
        .args([&metrics, &logs])
        .output()
        .context("the readers do not start")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let Some(read) = said.lines().find_map(figures) else {
        bail!(
            "the readers refuse it: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    for (tag, field) in [
        ("model/loss", "loss"),
        ("model/accuracy", "accuracy"),
        ("model/weight_norm", "weight_norm"),
        ("wan/bytes", "bytes"),
    ] {
        agree(tag, &read["scalars"][tag], field, &trained)?;
    }
    let count = |name: &str| read.get(name).and_then(Value::as_u64).unwrap_or(0);
    ensure!(
        count("families") > 20 && count("samples") > 60,
        "too little was read: {said}"
    );
    let tags = read["scalars"].as_object().map_or(0, serde_json::Map::len);
    Ok(vec![object(json!({
        "openmetrics_families": count("families"),
        "openmetrics_samples": count("samples"),
        "tensorboard_tags": tags,
        "tensorboard_steps": trained.len(),
    }))])
}

/// What a run says of its rounds, after it was reported for TensorBoard.
fn trained(root: &Path, folder: &Path) -> Result<Vec<Figures>> {
    let tombolo = |arguments: &str| -> Result<String> {
        let output = Command::new(program(root))
            .args(arguments.split(' '))
            .current_dir(folder)
            .output()
            .context("tombolo does not start")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tombolo {arguments}: {errors}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let said = tombolo("run topology.toml --state state --format json")?;
    tombolo("report state --tensorboard")?;
    let lines = said.lines().filter_map(figures);
    Ok(lines.filter(|line| line["event"] == "round").collect())
}

/// Each step's value must be the round's, as far as a number of 32 bits holds it.
fn agree(tag: &str, read: &Value, field: &str, rounds: &[Figures]) -> Result<()> {
    let steps = read
        .as_array()
        .with_context(|| format!("{tag} was not read"))?;
    ensure!(
        !rounds.is_empty() && steps.len() == rounds.len(),
        "{tag}: {} steps of {} rounds",
        steps.len(),
        rounds.len()
    );
    for (step, round) in steps.iter().zip(rounds) {
        let expected = round[field].as_f64().map(|value| value as f32);
        let found = step[1].as_f64().map(|value| value as f32);
        ensure!(
            step[0] == round["round"] && found == expected,
            "{tag}: read {step}, the round is {round:?}"
        );
    }
    Ok(())
}

/// What `/metrics` of a run says.
fn scraped(url: &str) -> Result<String> {
    let (address, token) = url
        .strip_prefix("http://")
        .and_then(|url| url.split_once("/#token="))
        .with_context(|| format!("{url} is no address of a page"))?;
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    Ok(body.to_owned())
}
