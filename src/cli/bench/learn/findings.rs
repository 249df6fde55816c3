//! What a study finds: rows of tables, every single run, claims that hold or do not, and plots.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

/// Fields by name, in order.
pub type Row = Map<String, Value>;

/// All of it.
#[derive(Debug, Default)]
pub struct Findings {
    /// Rows, those of one table after another.
    pub rows: Vec<Row>,
    /// Every run by itself.
    pub runs: Vec<Row>,
    /// Plots by file name, and what each shows.
    pub plots: Vec<Plot>,
}

/// One plot.
#[derive(Debug)]
pub struct Plot {
    /// Its file's name.
    pub file: &'static str,
    /// What it shows.
    pub shows: String,
    /// The SVG.
    pub svg: String,
}

/// An object's fields.
pub fn row(value: Value) -> Row {
    match value {
        Value::Object(row) => row,
        other => Row::from_iter([("value".to_owned(), other)]),
    }
}

impl Findings {
    /// Notes whether a claim holds.
    pub fn claim(&mut self, claim: &str, found: String, holds: bool) {
        self.rows
            .push(row(json!({ "claim": claim, "found": found, "ok": holds })));
    }

    /// The claims that do not hold.
    pub fn refuted(&self) -> impl Iterator<Item = &Row> {
        self.rows
            .iter()
            .filter(|row| row.get("ok") == Some(&false.into()))
    }

    /// Writes the tables, the runs and the plots into a folder.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, folder: &Path, command: &str) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        for plot in &self.plots {
            std::fs::write(folder.join(plot.file), &plot.svg)?;
        }
        let lines: String = self
            .runs
            .iter()
            .map(|run| format!("{}\n", json!(run)))
            .collect();
        std::fs::write(folder.join("runs.jsonl"), lines)?;
        std::fs::write(folder.join("README.md"), self.page(command))
    }

    fn page(&self, command: &str) -> String {
        let mut page = format!(
            "# The learning study\n\nWritten by `{command}`; each run is a line of [runs.jsonl](runs.jsonl). Accuracies are in percent of the test rows: the mean\n\
             over seeds, and the standard deviation where there is more than one.\n"
        );
        for table in self.tables() {
            page.push_str(&markdown(table));
        }
        for Plot { file, shows, .. } in &self.plots {
            let _ = write!(page, "\n![{shows}]({file})\n\n{shows}.\n");
        }
        page
    }

    /// Rows of one form are one table.
    pub fn tables(&self) -> impl Iterator<Item = &[Row]> {
        self.rows.chunk_by(|one, two| one.keys().eq(two.keys()))
    }
}

fn markdown(table: &[Row]) -> String {
    let mut text = String::from("\n");
    let mut line = |cells: Vec<String>| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    let Some(first) = table.first() else {
        return text;
    };
    line(first.keys().map(|name| name.replace('_', " ")).collect());
    line(first.keys().map(|_| "---".into()).collect());
    for row in table {
        line(row.values().map(cell).collect());
    }
    text
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The mean.
pub fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len().max(1) as f64
}

/// The standard deviation of a sample; none of one number.
pub fn spread(numbers: &[f64]) -> Option<f64> {
    let mean = mean(numbers);
    let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
    (numbers.len() > 1).then(|| (squares / (numbers.len() - 1) as f64).sqrt())
}

/// Shares as percent: `93.1 ± 0.4`.
pub fn percent(shares: &[f64]) -> String {
    let percents: Vec<f64> = shares.iter().map(|share| share * 100.0).collect();
    match spread(&percents) {
        Some(spread) => format!("{:.1} ± {spread:.1}", mean(&percents)),
        None => format!("{:.1}", mean(&percents)),
    }
}

/// How much smaller the mean of `than` is, in percentage points.
pub fn points_lost(than: &[f64], from: &[f64]) -> f64 {
    (mean(from) - mean(than)) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_their_spread_where_there_is_one() {
        assert_eq!(percent(&[0.931]), "93.1");
        assert_eq!(percent(&[0.90, 0.92, 0.94]), "92.0 ± 2.0");
        assert_eq!(spread(&[]), None);
        assert!((points_lost(&[0.90], &[0.92, 0.94]) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn rows_of_one_form_are_a_table_and_what_does_not_hold_is_found() {
        let mut findings = Findings::default();
        findings
            .rows
            .push(row(json!({ "rule": "a", "clean": "93.1" })));
        findings
            .rows
            .push(row(json!({ "rule": "b", "clean": "90.0" })));
        findings.claim("x", "1".into(), true);
        findings.claim("y", "2".into(), false);
        let sizes: Vec<usize> = findings.tables().map(<[Row]>::len).collect();
        assert_eq!(sizes, [2, 2]);
        let refuted: Vec<_> = findings.refuted().map(|row| &row["claim"]).collect();
        assert_eq!(refuted, ["y"]);
        let page = findings.page("tombolo bench learn");
        assert!(page.contains("| rule | clean |\n| --- | --- |\n| a | 93.1 |\n| b | 90.0 |\n"));
    }
}
