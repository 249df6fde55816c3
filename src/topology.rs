//! One TOML file becomes a checked [`Plan`], or a [`Diagnosis`] with every mistake in it.
//!
//! `keys` says which keys there are; `reader` takes values along those tables; `build` judges what needs several values and makes the plan;
//! `syntax` speaks where the text is not TOML; `diagnosis` tells all of it. The JSON schema for editors comes from the same tables.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tombolo_core::plan::Plan;
use toml::de::DeTable;

mod build;
mod diagnosis;
mod explicit;
mod faults;
mod hash;
mod keys;
mod reader;
mod schema;
mod syntax;
mod template;
pub(crate) mod units;
mod value;

pub use diagnosis::{Diagnosis, Told};
pub use explicit::{Explicit, explicit};
pub use faults::{load_faults, parse_faults};
pub use hash::{SharedKeys, config_hash};
pub use schema::schema;
pub use template::{NewError, template, write_new};

use crate::bounded::{self, ReadError};
use diagnosis::{Mistake, Mistakes};

/// Most nodes of a federation: every node holds state for each of its peers.
pub const NODES_MAX: usize = 1024;

/// Most domains of a federation: the coordinator holds a link to each.
pub const DOMAINS_MAX: usize = 256;

/// The largest topology file, far above what that many nodes need.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// What to do about a file that is more than a topology can be.
const TOO_MUCH: &str = "a topology of 1024 nodes needs far less: is it the right file?";

/// What the program that reads a file brings along.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Names of aggregation rules that the program registered.
    pub registered: Vec<String>,
}

/// Reads a duration as a topology writes it: a number and one of `us`, `ms`, `s`, `min`, `h`, `d`.
///
/// # Errors
///
/// What is wrong with it, in words that go behind it.
pub fn duration(text: &str) -> Result<Duration, String> {
    units::duration(text)
}

/// Reads and checks a topology file. Relative paths in it resolve against its folder.
///
/// # Errors
///
/// Every mistake of the file; or why it cannot be read, with its full path.
pub fn load(path: &Path) -> Result<Plan, Diagnosis> {
    load_with(path, &Options::default())
}

/// [`load`], with what the program brings along.
///
/// # Errors
///
/// As [`load`].
pub fn load_with(path: &Path, options: &Options) -> Result<Plan, Diagnosis> {
    let file = read(path)?;
    parse_with(&file.name, &file.text, &file.folder, options)
}

/// A topology file that was read, once: a pipe gives its text only once.
#[derive(Debug, Clone)]
pub(crate) struct TopologyFile {
    /// For messages: its full path.
    pub name: String,
    /// What it says.
    pub text: String,
    /// Relative paths in it start here: the folder of a file; for a pipe, which lies in none, the current folder.
    pub folder: PathBuf,
    /// Whether it is a pipe or the like rather than a file, so that no other process finds it under its name.
    pub is_pipe: bool,
}

/// Reads a topology file without judging it.
///
/// # Errors
///
/// Why it cannot be read, with its full path.
pub(crate) fn read(path: &Path) -> Result<TopologyFile, Diagnosis> {
    let missing = "name an existing file, or make one with `tombolo new DIR`";
    read_as(path, "topology", missing)
}

/// The same for a file of another kind; `missing` says what to do if there is none.
fn read_as(path: &Path, what: &str, missing: &str) -> Result<TopologyFile, Diagnosis> {
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = full.display().to_string();
    let refuse = |why: String, help: &str| {
        let message = format!("the {what} {name} {why}");
        Diagnosis::new(&name, "", Mistake::of_file(message).help(help))
    };
    let unread = |error: ReadError| {
        let help = match error {
            ReadError::TooLarge(_) => TOO_MUCH,
            _ => missing,
        };
        refuse(error.to_string(), help)
    };
    let opened = bounded::open(&full).and_then(|file| {
        let is_pipe = is_descriptor(&full) || !file.metadata()?.is_file();
        let folder = match full.parent() {
            Some(folder) if !is_pipe => folder.to_owned(),
            _ => std::env::current_dir()?,
        };
        Ok((file, folder, is_pipe))
    });
    let (file, folder, is_pipe) = opened.map_err(|error| unread(error.into()))?;
    let bytes = bounded::read_open(&file, FILE_BYTES_MAX).map_err(unread)?;
    if is_pipe && bytes.is_empty() {
        let why = "is a pipe, and nothing came out of it".to_owned();
        return Err(refuse(why, "look at what the command behind it says"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let why = format!("is not UTF-8 text: byte {at} is not part of a character");
        refuse(why, "save the file as UTF-8")
    })?;
    Ok(TopologyFile {
        name,
        text,
        folder,
        is_pipe,
    })
}

/// Whether a path names what this process has open already, wherever that lies.
fn is_descriptor(path: &Path) -> bool {
    ["/dev/stdin", "/dev/fd", "/proc"]
        .iter()
        .any(|folder| path.starts_with(folder))
}

/// Checks the text of a topology file. Relative paths in it resolve against `folder`; `name` is for messages.
///
/// # Errors
///
/// Every mistake of the file.
pub fn parse(name: &str, text: &str, folder: &Path) -> Result<Plan, Diagnosis> {
    parse_with(name, text, folder, &Options::default())
}

/// [`parse`], with what the program brings along.
///
/// # Errors
///
/// As [`parse`].
pub fn parse_with(
    name: &str,
    text: &str,
    folder: &Path,
    options: &Options,
) -> Result<Plan, Diagnosis> {
    let Tables {
        file,
        mistakes,
        holes,
        cut,
    } = tables(name, text, &keys::FILE, &options.registered)?;
    let required = file.find("federation").is_some() && file.find("domain").is_some();
    if !required || holes {
        return Err(Diagnosis::new(name, text, mistakes).unread(text, cut));
    }
    build::plan(&file, folder, mistakes).map_err(|mistakes| Diagnosis::new(name, text, mistakes))
}

/// A text as its key tables read it.
struct Tables {
    file: value::Section,
    mistakes: Mistakes,
    /// Whether the file may hold what the tables lack.
    holes: bool,
    /// Where reading ended, if not at the end.
    cut: Option<usize>,
}

/// Reads a text along the tables of `root`. Only what cannot be read at all is an error yet.
fn tables(
    name: &str,
    text: &str,
    root: &'static keys::Table,
    registered: &[String],
) -> Result<Tables, Diagnosis> {
    if text.len() > FILE_BYTES_MAX {
        let message = format!("the file is larger than {FILE_BYTES_MAX} bytes");
        return Err(Diagnosis::new(
            name,
            "",
            Mistake::of_file(message).help(TOO_MUCH),
        ));
    }
    let cut = syntax::cut(text).map_err(|mistake| Diagnosis::new(name, "", *mistake))?;
    let (parsed, errors) = DeTable::parse_recoverable(&text[..cut.unwrap_or(text.len())]);
    let lines = diagnosis::Lines::new(text);
    let syntax = syntax::mistakes(text, &lines, &errors);
    let mut reader = reader::Reader {
        root,
        registered,
        holes: syntax.holes,
        mistakes: Mistakes::default(),
    };
    let file = reader.file(parsed.get_ref());
    let mut mistakes = reader.mistakes;
    if syntax.holes {
        // What stands on an unreadable line was said already, and what is missing may stand there.
        let line = |mistake: &Mistake| mistake.start().map(|at| lines.line(at));
        mistakes.retain(|mistake| {
            let lost = mistake.start().is_some_and(|at| at >= syntax.lost_from);
            !lost && !line(mistake).is_some_and(|line| syntax.lines.contains(&line))
        });
    }
    mistakes.extend(syntax.mistakes);
    Ok(Tables {
        file,
        mistakes,
        holes: syntax.holes,
        cut,
    })
}
