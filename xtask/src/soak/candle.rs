//! Models of the candle library: the tests of `candle/` at full length, and the checkpoint that one of them leaves, opened without candle.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Figures, Profiles, Proof, Settings, Variables, figures, object, peers};

pub const VARIABLES: Variables = &[
    ("TOMBOLO_CANDLE", "whole"),
    // Products as small as these are slower on several threads than on one.
    ("RAYON_NUM_THREADS", "1"),
    ("RUST_TEST_THREADS", "1"),
];

const TESTS: Proof = Proof {
    name: "candle",
    shows: "",
    target: &["--package", "tombolo-candle", "--test", "federated"],
    test: "learn",
    variables: VARIABLES,
    profiles: Profiles::Release,
};

const ENVIRONMENT: &str = "checkpoint";

/// Of the transformer that was trained without a codec, where its test leaves it.
const CHECKPOINT: &str = "target/tmp/sonnets.safetensors";

/// What two ways to compute a loss may be apart, in bits; the tests round to half of that.
const APART_MAX: f64 = 1e-3;

/// Builds the tests, and makes an environment of Python.
pub fn prepare(root: &Path) -> Result<()> {
    TESTS.build(root, true)?;
    peers::prepare(root, ENVIRONMENT);
    Ok(())
}

/// What the tests found, and a row for the checkpoint.
pub fn lines(root: &Path, _: &Settings) -> Result<Vec<Figures>> {
    let mut lines = TESTS.lines(root, true)?;
    if lines.is_empty() {
        bail!(
            "it found nothing: is there still a test that {:?}s?",
            TESTS.test
        );
    }
    if let Some(python) = peers::python(root, ENVIRONMENT) {
        let output = Command::new(python)
            .arg("candle/tests/checkpoint.py")
            .args([CHECKPOINT, "candle/data/sonnets.txt"])
            .current_dir(root)
            .stderr(Stdio::inherit())
            .output()
            .context("Python does not start")?;
        if !output.status.success() {
            bail!("checkpoint.py ended with {}", output.status);
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let opened = figures(&said).with_context(|| format!("checkpoint.py says {said:?}"))?;
        lines.push(beside(&lines, &opened)?);
    }
    Ok(lines)
}

/// The row of the checkpoint that was opened from Python.
///
/// # Errors
/// Its loss is not what the run had.
fn beside(lines: &[Figures], opened: &Figures) -> Result<Figures> {
    let bits = |row: &Figures| row.get("bits_a_character").and_then(Value::as_f64);
    let plain = |row: &&Figures| row.get("codec").is_some_and(|codec| codec == "none");
    let ours = lines.iter().find(plain).and_then(bits);
    let ours = ours.context("no run without a codec among the rows")?;
    let theirs = bits(opened).with_context(|| format!("no loss in {opened:?}"))?;
    if (ours - theirs).abs() > APART_MAX {
        bail!("the checkpoint gives {theirs} bits a character in NumPy, the run had {ours}");
    }
    Ok(object(json!({
        "model": "transformer, sonnets",
        "opened_with": "safetensors and NumPy",
        "tensors": opened.get("tensors"),
        "bits_a_character": (theirs * 1000.0).round() / 1000.0,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_gives_another_loss_is_an_error() {
        let row = |bits: f64| object(json!({"codec": "none", "bits_a_character": bits}));
        let opened = object(json!({"tensors": 3, "bits_a_character": 2.4996}));
        let found = beside(&[row(2.5)], &opened).unwrap();
        assert_eq!(
            (&found["tensors"], &found["bits_a_character"]),
            (&json!(3), &json!(2.5))
        );
        assert!(beside(&[row(2.502)], &opened).is_err());
        assert!(beside(&[], &opened).is_err());
        assert!(beside(&[row(2.5)], &row(f64::NAN)).is_err());
    }
}
