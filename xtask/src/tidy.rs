//! The rules of the house that no linter knows: who may import whom, what stays out of `core/`, where `unsafe` may stand, what no file may
//! hold, how long a file may grow, and which versions of a dependency are too old.
//!
//! A rule looks at a [`Tree`], which a test may make up, and leaves [`Fault`]s.

mod arrows;
mod code;
mod floors;
mod mutants;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};

/// Folders that hold what was built or written by a run.
const FOLDERS_SKIPPED: &[&str] = &["target", "state", "node_modules", "__pycache__"];

/// Endings of files that are looked at.
const ENDINGS: &[&str] = &[
    "rs", "toml", "lock", "md", "py", "sh", "svg", "html", "js", "run",
];

/// The larger a file, the more a reader must hold in mind.
const LINES_MAX: usize = 700;

/// Files that were longer when the rule came, and how long each may be. This list only shrinks: split a file rather than raise its number.
const LINES_GRANTED: &[(&str, usize)] = &[
    ("core/src/coordinator/tests.rs", 1200),
    ("core/src/gateway/tests.rs", 1000),
];

/// Something untidy.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, from the workspace's folder.
    pub file: String,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// What, and what to do.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}

/// The text files of a workspace by path.
pub type Tree = BTreeMap<String, String>;

/// Looks at the workspace in `root`.
///
/// # Errors
/// Its files cannot be read.
pub fn check(root: &Path) -> Result<Vec<Fault>> {
    let mut tree = Tree::new();
    read(root, "", &mut tree)?;
    let mut faults = faults(&tree);
    faults.extend(committed_secrets(root)?);
    Ok(faults)
}

/// Keys and certificates that git keeps. They would be nobody's secret any more; and a clone with certificates but without their keys cannot run.
/// An unpacked archive without a `.git` holds what it holds.
fn committed_secrets(root: &Path) -> Result<Vec<Fault>> {
    if !root.join(".git").exists() {
        return Ok(Vec::new());
    }
    let output = std::process::Command::new("git")
        .args(["ls-files", "-z", "--", "*.pem", "*.key"])
        .current_dir(root)
        .output()
        .context("git cannot be started")?;
    anyhow::ensure!(output.status.success(), "git ls-files failed");
    let names = String::from_utf8_lossy(&output.stdout);
    let fault = |name: &str| Fault {
        file: name.to_owned(),
        line: 0,
        message: "keys and certificates stay out: git rm --cached".into(),
    };
    Ok(names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(fault)
        .collect())
}

/// Every fault of a tree.
fn faults(tree: &Tree) -> Vec<Fault> {
    let mut faults = arrows::check(tree);
    faults.extend(words::check(tree));
    faults.extend(lengths(tree, LINES_GRANTED));
    faults.extend(links(tree));
    faults.extend(floors::check(tree));
    faults.extend(mutants::check(tree));
    faults
}

fn read(folder: &Path, prefix: &str, tree: &mut Tree) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let (path, kind) = (format!("{prefix}{name}"), entry.file_type()?);
        if kind.is_dir() {
            let hidden = name.starts_with('.') && name != ".ci";
            if !hidden && !FOLDERS_SKIPPED.contains(&name.as_str()) {
                read(&entry.path(), &format!("{path}/"), tree)?;
            }
        } else if kind.is_file() && ENDINGS.contains(&name.rsplit('.').next().unwrap_or("")) {
            let text = std::fs::read_to_string(entry.path())
                .with_context(|| format!("cannot read {path}"))?;
            tree.insert(path, text);
        } else if kind.is_file() {
            // Its contents are nobody's business, but a document may point to it.
            tree.insert(path, String::new());
        }
    }
    Ok(())
}

fn lengths(tree: &Tree, granted: &[(&str, usize)]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (file, text) in tree.iter().filter(|(file, _)| file.ends_with(".rs")) {
        let lines = text.lines().count();
        let grant = granted.iter().find(|(name, _)| name == file);
        let message = match grant {
            None if lines > LINES_MAX => {
                format!("{lines} lines, at most {LINES_MAX}: split it by what a reader looks for")
            }
            Some((_, most)) if lines > *most => {
                format!("{lines} lines, at most {most} are granted to it: split it")
            }
            Some(_) if lines + 50 < LINES_MAX => {
                format!("{lines} lines: take it off the list in xtask/src/tidy.rs")
            }
            _ => continue,
        };
        faults.push(Fault {
            file: file.clone(),
            line: 0,
            message,
        });
    }
    faults
}

/// Relative links of documents must lead somewhere.
fn links(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (file, text) in tree.iter().filter(|(file, _)| file.ends_with(".md")) {
        for (index, line) in text.lines().enumerate() {
            for target in line
                .split("](")
                .skip(1)
                .filter_map(|rest| rest.split(')').next())
            {
                let target = target.split('#').next().unwrap_or("");
                let elsewhere = target.is_empty() || target.contains(':') || target.contains(' ');
                if !elsewhere && !leads_somewhere(tree, file, target) {
                    let message = format!("the link to {target} leads nowhere");
                    faults.push(Fault {
                        file: file.clone(),
                        line: index + 1,
                        message,
                    });
                }
            }
        }
    }
    faults
}

fn leads_somewhere(tree: &Tree, from: &str, target: &str) -> bool {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/').filter(|part| !part.is_empty()) {
        match part {
            "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return false;
                }
            }
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    let folder = format!("{path}/");
    tree.contains_key(&path) || tree.keys().any(|file| file.starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn tree(files: &[(&str, &str)]) -> Tree {
        files
            .iter()
            .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn this_workspace_is_tidy() {
        let faults = check(&crate::root()).unwrap();
        let faults: Vec<String> = faults.iter().map(Fault::to_string).collect();
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    }

    #[test]
    fn the_walk_sees_what_the_rules_are_about() {
        let mut seen = Tree::new();
        read(&crate::root(), "", &mut seen).unwrap();
        for file in [
            "Cargo.lock",
            "deny.toml",
            "README.md",
            ".ci/run",
            "core/src/lib.rs",
            "fabric/src/pages.rs",
            "actors/Cargo.toml",
        ] {
            assert!(
                seen.get(file).is_some_and(|text| !text.is_empty()),
                "{file}"
            );
        }
        assert!(!seen.keys().any(|file| file.starts_with("target/")));
    }

    #[test]
    fn a_file_that_grows_past_the_bound_is_a_fault_and_so_is_a_needless_grant() {
        let long = "x\n".repeat(LINES_MAX + 1);
        let files = tree(&[
            ("src/a.rs", &long),
            ("src/b.rs", "x\n"),
            ("src/c.rs", &long),
        ]);
        let granted = [("src/b.rs", 800), ("src/c.rs", LINES_MAX + 1)];
        let found: Vec<String> = lengths(&files, &granted)
            .into_iter()
            .map(|fault| fault.file)
            .collect();
        assert_eq!(found, ["src/a.rs", "src/b.rs"]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_a_fault() {
        let text = "[a](../src/a.rs#x) [b](b.md) [c](https://example.org/x) [d](#here) [e](../src)\n\n[f](gone.md)";
        let files = tree(&[("docs/a.md", text), ("docs/b.md", ""), ("src/a.rs", "")]);
        let found = links(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].line, found[0].message.contains("gone.md")),
            (3, true)
        );
    }
}
