//! `docs/RESULTS.md`: a section for each proof, written by it alone, so that no figure is typed by hand. What another proof wrote stays.

use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Figures, spoken};

const FILE: &str = "docs/RESULTS.md";

const HEAD: &str = "# Results\n\n\
    What the long proofs found. `cargo xtask soak [WHAT...]` runs them and writes this page; `cargo xtask soak --list` says what there is. Nothing here is\n\
    typed by hand: each section is what the last run of that proof printed.\n";

/// Rows of a table; what is more is summed up in a sentence.
const ROWS_MAX: usize = 60;

/// What one proof found.
pub struct Section {
    pub name: String,
    pub shows: &'static str,
    pub command: String,
    pub commit: String,
    pub elapsed: Duration,
    pub lines: Vec<Figures>,
}

/// The commit that is checked out, and whether anything has changed since.
pub fn commit(root: &Path) -> Result<String> {
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(
        root,
        &["status", "--porcelain", "--", ".", ":!docs/RESULTS.md"],
    )?;
    let changed = if changed.is_empty() {
        ""
    } else {
        " and changes that are not committed"
    };
    Ok(format!("{commit}{changed}"))
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root)
        .output();
    let output = output.context("git does not start")?;
    if !output.status.success() {
        bail!(
            "git {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Puts a section in the place of the one before, in the order of the names.
pub fn write(root: &Path, section: &Section, order: &[&str]) -> Result<()> {
    let path = root.join(FILE);
    let before = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.with_context(|| FILE)?,
    };
    let after = replaced(&before, &section.name, &section.text(&today()), order);
    // In one step: who stops it in the middle loses nothing.
    let partial = path.with_extension("md.partial");
    fs::write(&partial, after)
        .and_then(|()| fs::rename(&partial, &path))
        .context(FILE)
}

fn replaced(page: &str, name: &str, text: &str, order: &[&str]) -> String {
    let mut sections: Vec<(&str, &str)> = page
        .split("\n## ")
        .skip(1)
        .map(|section| section.split_once('\n').unwrap_or((section, "")))
        .filter(|(other, _)| *other != name)
        .collect();
    sections.push((name, text));
    // A part of a proof stands with its whole.
    let place = |name: &str| {
        let whole = name.split(", ").next();
        let found = order.iter().position(|other| Some(*other) == whole);
        found.unwrap_or(usize::MAX)
    };
    sections.sort_by_key(|(name, _)| (place(name), *name));
    let mut page = HEAD.to_owned();
    for (name, text) in sections {
        let _ = write!(page, "\n## {name}\n\n{}\n", text.trim());
    }
    page
}

impl Section {
    fn text(&self, date: &str) -> String {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut text = format!(
            "{}\n\n`{}`, commit {}, {date}, {} on {cores} cores.\n\n",
            self.shows,
            self.command,
            self.commit,
            spoken(self.elapsed)
        );
        // Lines of one form are rows of one table.
        let mut rest = &self.lines[..];
        while let Some(first) = rest.first() {
            let alike = |line: &&Figures| line.keys().eq(first.keys());
            let (table, more) = rest.split_at(rest.iter().take_while(alike).count());
            text.push_str(&tabulated(table));
            text.push('\n');
            rest = more;
        }
        text
    }
}

fn tabulated(lines: &[Figures]) -> String {
    let mut text = String::new();
    let mut row = |cells: &mut dyn Iterator<Item = String>| {
        let cells: Vec<String> = cells.collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    if let [line] = lines {
        row(&mut ["".into(), "".into()].into_iter());
        row(&mut ["---".into(), "---".into()].into_iter());
        for (name, value) in line {
            row(&mut [spaced(name), cell(value)].into_iter());
        }
        return text;
    }
    row(&mut lines[0].keys().map(|name| spaced(name)));
    row(&mut lines[0].keys().map(|_| "---".to_owned()));
    for line in lines.iter().take(ROWS_MAX) {
        row(&mut line.values().map(cell));
    }
    if let more @ 1.. = lines.len().saturating_sub(ROWS_MAX) {
        let _ = writeln!(text, "\nand {more} more.");
    }
    text
}

fn spaced(name: &str) -> String {
    name.replace('_', " ")
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.replace('|', "\\|"),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => grouped(whole),
            None => number.to_string(),
        },
        other => other.to_string().replace('|', "\\|"),
    }
}

/// 20000 as 20,000.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn today() -> String {
    time::OffsetDateTime::now_utc().date().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(name: &'static str, lines: &[&str]) -> Section {
        Section {
            name: name.to_owned(),
            shows: "That it holds.",
            command: format!("cargo xtask soak {name}"),
            commit: "0123abc".into(),
            elapsed: Duration::from_secs(600),
            lines: lines
                .iter()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect(),
        }
    }

    #[test]
    fn a_section_takes_the_place_of_the_one_before_and_leaves_the_others() {
        let order = ["core", "actors", "kills"];
        let text = |name, line| section(name, &[line]).text("2026-01-02");
        let page = replaced("", "kills", &text("kills", r#"{"kills":50}"#), &order);
        let page = replaced(&page, "core", &text("core", r#"{"seeds":20000}"#), &order);
        let again = replaced(&page, "core", &text("core", r#"{"seeds":7}"#), &order);
        assert!(page.contains("| seeds | 20,000 |"), "{page}");
        assert!(
            again.contains("| seeds | 7 |") && !again.contains("20,000"),
            "{again}"
        );
        assert!(again.find("## core") < again.find("## kills") && again.contains("| kills | 50 |"));
        let part = text("core", r#"{"seeds":"7..9"}"#);
        let parts = replaced(&again, "core, seeds 7..9", &part, &order);
        let (whole, part) = (parts.find("## core\n"), parts.find("## core, seeds 7..9\n"));
        assert!(whole.is_some() && whole < part && part < parts.find("## kills"));
        let same = replaced(&again, "kills", &text("kills", r#"{"kills":50}"#), &order);
        assert_eq!(same, again);
    }

    #[test]
    fn lines_of_one_form_are_rows_of_one_table() {
        let lines = [
            r#"{"ladder":"off","failed":0.12}"#,
            r#"{"ladder":"on","failed":0}"#,
            r#"{"seeds":3}"#,
        ];
        let text = section("sends", &lines).text("2026-01-02");
        assert!(
            text.contains("10 min") && text.contains("2026-01-02"),
            "{text}"
        );
        let table = "| ladder | failed |\n| --- | --- |\n| off | 0.12 |\n| on | 0 |\n";
        assert!(text.contains(table), "{text}");
        assert!(text.contains("| seeds | 3 |"), "{text}");
    }
}
