//! `tombolo manual DIR`: what is made from the command line's own description. Only in builds that make the documentation.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use super::{Arguments, Common, Exit, output, outputs};

/// Arguments of `manual`.
#[derive(Debug, Args)]
pub struct Manual {
    /// Where to.
    folder: PathBuf,
}

impl Manual {
    /// Writes man pages, completions, schemas of what is printed in JSON, and the table of exit codes.
    pub fn run(&self, common: &Common) -> Exit {
        match write(&self.folder) {
            Ok(()) => Exit::Done,
            Err(error) => {
                output::fail(common, &format!("{}: {error}", self.folder.display()));
                Exit::Failed
            }
        }
    }
}

fn write(folder: &Path) -> io::Result<()> {
    let mut command = Arguments::command().mut_subcommand("manual", |own| own.hide(true));
    command.build();
    let man = folder.join("man");
    fs::create_dir_all(&man)?;
    pages(&command, "tombolo", &man)?;
    let completions = folder.join("completions");
    fs::create_dir_all(&completions)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "tombolo", &completions)?;
    }
    let schemas = folder.join("schemas");
    fs::create_dir_all(&schemas)?;
    for (name, schema) in outputs::schemas() {
        fs::write(schemas.join(name), format!("{schema:#}\n"))?;
    }
    fs::write(folder.join("exit-codes.md"), exit_codes())
}

/// A page of a command, and of each of those below it.
fn pages(command: &Command, name: &str, folder: &Path) -> io::Result<()> {
    let mut page = Vec::new();
    // No date and no version: a page is another one only if what it says is.
    let titled = command.clone().version("");
    clap_mangen::Man::new(titled)
        .date("")
        .source("tombolo")
        .render(&mut page)?;
    fs::write(folder.join(format!("{name}.1")), page)?;
    let below = command.get_subcommands();
    for command in below.filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        pages(command, &format!("{name}-{}", command.get_name()), folder)?;
    }
    Ok(())
}

fn exit_codes() -> String {
    let rows = Exit::ALL.map(|exit| format!("| {} | {} |\n", exit.code(), exit.meaning()));
    format!(
        "# What a command ends with\n\n| | |\n|---|---|\n{}",
        rows.concat()
    )
}
