//! The house's own commands; they need nothing but cargo.
//!
//! ```text
//! cargo xtask check    formatting, lints, tidy; never writes
//! cargo xtask fix      formats, and applies the lints' suggestions
//! cargo xtask tidy     the rules that are ours alone: see `tidy.rs`
//! cargo xtask manual   man pages, completions and exit codes, from the command line's own description, into docs/manual/
//! cargo xtask vm       what needs an RDMA device, on one of software in a small virtual machine
//! cargo xtask soak     longer proofs than a change needs, all or some by name; figures go to docs/RESULTS.md
//! ```

#![forbid(unsafe_code)]

mod soak;
mod tidy;
mod vm;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask check | fix | tidy | manual | vm | soak [--list] [WHAT...]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["check"] => check(),
        ["fix"] => fix(),
        ["tidy"] => tidy(),
        ["manual"] => cargo(&[
            "run",
            "--quiet",
            "--features",
            "manual",
            "--",
            "manual",
            "docs/manual",
        ]),
        ["vm"] => vm::run(&root()),
        ["soak", "--list"] => {
            soak::list();
            Ok(())
        }
        ["soak", ref names @ ..] => soak::run(&root(), names),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of the workspace.
fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent()
        .expect("xtask lies in the workspace's folder")
        .to_owned()
}

fn check() -> Result<()> {
    tidy()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ])
}

fn fix() -> Result<()> {
    cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--fix",
        "--allow-dirty",
        "--allow-staged",
    ])?;
    cargo(&["fmt", "--all"])
}

fn tidy() -> Result<()> {
    let faults = tidy::check(&root())?;
    for fault in &faults {
        eprintln!("{fault}");
    }
    match faults.len() {
        0 => Ok(()),
        count => bail!("{count} faults of tidiness"),
    }
}

fn cargo(arguments: &[&str]) -> Result<()> {
    eprintln!("cargo {}", arguments.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(arguments)
        .current_dir(root())
        .status()
        .context("cargo cannot be started")?;
    if !status.success() {
        bail!("cargo {} failed ({status})", arguments.join(" "));
    }
    Ok(())
}
