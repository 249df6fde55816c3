//! One TOML file becomes a checked [`Plan`], or a [`Diagnosis`] with every mistake in it.
//!
//! `keys` says which keys there are; `reader` takes values along those tables; `build` judges what needs several values and makes the plan;
//! `syntax` speaks where the text is not TOML; `diagnosis` tells all of it. The JSON schema for editors comes from the same tables.

use std::io::Read;
use std::path::Path;

use tombolo_core::plan::Plan;
use toml::de::DeTable;

mod build;
mod diagnosis;
mod explicit;
mod hash;
mod keys;
mod reader;
mod schema;
mod syntax;
mod template;
mod units;
mod value;

pub use diagnosis::{Diagnosis, Told};
pub use explicit::{Explicit, explicit};
pub use hash::config_hash;
pub use schema::schema;
pub use template::{NewError, template, write_new};

use diagnosis::Mistake;

/// Most nodes of a federation: every node holds state for each of its peers.
pub const NODES_MAX: usize = 1024;

/// Most domains of a federation: the coordinator holds a link to each.
pub const DOMAINS_MAX: usize = 256;

/// The largest topology file, far above what that many nodes need.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// What the program that reads a file brings along.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Names of aggregation rules that the program registered.
    pub registered: Vec<String>,
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
    let name = path.display().to_string();
    let refuse =
        |why: String, help: &str| Diagnosis::new(&name, "", vec![Mistake::of_file(why).help(help)]);
    let full = std::path::absolute(path).map_err(|error| {
        refuse(
            format!("the path cannot be resolved: {error}"),
            "name a file",
        )
    })?;
    let shown = full.display();
    let mut bytes = Vec::new();
    std::fs::File::open(&full)
        .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| {
            refuse(
                format!("the topology {shown} cannot be read: {error}"),
                "name an existing file, or make one with `tombolo new DIR`",
            )
        })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        refuse(
            format!("the topology {shown} is not UTF-8 text: byte {at} is not part of a character"),
            "save the file as UTF-8",
        )
    })?;
    let folder = full.parent().unwrap_or(Path::new("/"));
    parse_with(&name, &text, folder, options)
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
    if text.len() > FILE_BYTES_MAX {
        let message = format!("the file is larger than {FILE_BYTES_MAX} bytes");
        let help = "a topology of 1024 nodes needs far less: is it the right file?";
        return Err(Diagnosis::new(
            name,
            "",
            vec![Mistake::of_file(message).help(help)],
        ));
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    let lines = diagnosis::Lines::new(text);
    let syntax = syntax::mistakes(text, &lines, &errors);
    let mut reader = reader::Reader {
        registered: &options.registered,
        holes: syntax.holes,
        mistakes: Vec::new(),
    };
    let file = reader.file(root.get_ref());
    let mut mistakes = reader.mistakes;
    if syntax.holes {
        // What stands on an unreadable line was said already, and what is missing may stand there.
        let line = |mistake: &Mistake| mistake.start().map(|at| lines.line(at));
        let broken: std::collections::BTreeSet<_> = syntax.mistakes.iter().map(line).collect();
        mistakes.retain(|mistake| {
            let lost = mistake.start().is_some_and(|at| at >= syntax.lost_from);
            !lost && !broken.contains(&line(mistake))
        });
    }
    let required = file.find("federation").is_some() && file.find("domain").is_some();
    mistakes.extend(syntax.mistakes);
    if !required || syntax.holes {
        return Err(Diagnosis::new(name, text, mistakes));
    }
    build::plan(&file, folder, mistakes).map_err(|mistakes| Diagnosis::new(name, text, mistakes))
}
