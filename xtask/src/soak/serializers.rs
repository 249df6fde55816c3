//! What it costs to put a gradient into bytes and to take it out again: the usual serializers, from Python, and ours.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Figures, Settings, Variables, object, peers};

pub const VARIABLES: Variables = &[("TOMBOLO_ELEMENTS", "25600000"), ("TOMBOLO_REPEAT", "5")];

const ENVIRONMENT: &str = "serializers";

/// What `tombolo bench codec` calls the two halves of a chunk as it crosses: into a frame, and out of it into the sum.
const OURS: [&str; 2] = ["none encode", "none decode and fold"];

/// Builds ours and installs the others.
pub fn prepare(root: &Path) -> Result<()> {
    peers::build(root)?;
    peers::prepare(root, ENVIRONMENT);
    Ok(())
}

/// A row for each, ours last.
pub fn lines(root: &Path, settings: &Settings) -> Result<Vec<Figures>> {
    let elements = settings.number("TOMBOLO_ELEMENTS")?;
    let repeat = settings.number("TOMBOLO_REPEAT")?;
    let mut rows = Vec::new();
    if let Some(python) = peers::python(root, ENVIRONMENT) {
        let arguments = format!("{elements} {repeat}");
        for line in peers::script(root, &python, "serial.py", &arguments)? {
            rows.push(theirs(&line)?);
        }
    }
    let command = format!("bench codec --elements {elements} --repeat {repeat}");
    let ours = peers::tombolo(root, &command).with_context(|| format!("tombolo {command}"))?;
    rows.push(both_halves(&ours)?);
    Ok(rows)
}

fn theirs(line: &Figures) -> Result<Figures> {
    if line.get("ok") != Some(&Value::Bool(true)) {
        bail!("what comes out is not what went in: {line:?}");
    }
    let fields = [
        "peer",
        "bytes",
        "size",
        "encode_s",
        "decode_s",
        "cpu_s_per_op",
    ];
    let field = |name: &str| {
        let value = line.get(name).cloned();
        let value = value.with_context(|| format!("no {name:?} in {line:?}"))?;
        Ok((name.to_owned(), value))
    };
    fields.into_iter().map(field).collect()
}

/// The two rows of ours in one.
fn both_halves(lines: &[Figures]) -> Result<Figures> {
    let half = |case: &str| {
        let of = |line: &&Figures| line.get("case").is_some_and(|found| found == case);
        let line = lines.iter().find(of);
        line.with_context(|| format!("no case {case:?} in what `tombolo bench codec` says"))
    };
    let [encode, decode] = [half(OURS[0])?, half(OURS[1])?];
    let cpu = |line: &Figures| line.get("cpu_s_per_op").and_then(Value::as_f64);
    theirs(&object(json!({
        "peer": "tombolo, folded into a sum",
        "bytes": encode.get("bytes"),
        "size": encode.get("encoded_bytes"),
        "encode_s": encode.get("median_s"),
        "decode_s": decode.get("median_s"),
        "cpu_s_per_op": cpu(encode).zip(cpu(decode)).map(|(encode, decode)| encode + decode),
        "ok": encode.get("ok") == decode.get("ok") && encode.get("ok") == Some(&Value::Bool(true)),
    })))
}

#[cfg(test)]
mod tests {
    use super::super::figures;
    use super::*;

    const ENCODE: &str = r#"{"peer":"tombolo","case":"none encode","bytes":8,"median_s":0.25,"cpu_s_per_op":0.5,"ok":true,"encoded_bytes":12}"#;
    const DECODE: &str = r#"{"peer":"tombolo","case":"none decode and fold","bytes":8,"median_s":0.75,"cpu_s_per_op":1.5,"ok":true}"#;

    #[test]
    fn both_halves_of_ours_make_a_row_like_the_others() {
        let lines = [DECODE, ENCODE].map(|line| figures(line).unwrap());
        let ours = both_halves(&lines).unwrap();
        assert_eq!(
            (&ours["size"], &ours["cpu_s_per_op"]),
            (&json!(12), &json!(2.0))
        );
        assert_eq!(
            (&ours["encode_s"], &ours["decode_s"]),
            (&json!(0.25), &json!(0.75))
        );
        let other = r#"{"group":"serial","peer":"json","n":1,"bytes":8,"size":20,"encode_s":3,"decode_s":4,"cpu_s_per_op":7,"ok":true}"#;
        let other = theirs(&figures(other).unwrap()).unwrap();
        assert!(ours.keys().eq(other.keys()), "{ours:?} {other:?}");
    }

    #[test]
    fn a_wrong_result_or_a_missing_half_is_an_error() {
        let wrong = DECODE.replace("true", "false");
        let lines = [ENCODE, &wrong].map(|line| figures(line).unwrap());
        assert!(both_halves(&lines).is_err());
        assert!(both_halves(&lines[..1]).is_err());
        assert!(theirs(&figures(&wrong).unwrap()).is_err());
    }
}
