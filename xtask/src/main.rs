//! The house's own commands; they need nothing but cargo.
//!
//! ```text
//! cargo xtask check    formatting, lints, tidy; never writes
//! cargo xtask fix      formats, and applies the lints' suggestions
//! cargo xtask tidy     the rules that are ours alone: see `tidy.rs`
//! cargo xtask soak     longer proofs than a change needs; figures go to docs/RESULTS.md
//! ```

#![forbid(unsafe_code)]

mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask check | fix | tidy | soak";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["check"] => check(),
        ["fix"] => fix(),
        ["tidy"] => tidy(),
        ["soak"] => soak(),
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

/// Simulations by the thousand, each of the first kind twice, in release.
fn soak() -> Result<()> {
    for (name, seeds, test) in [
        ("TOMBOLO_SEEDS", "1000..3000", "seeds"),
        ("TOMBOLO_STORMS", "1000..1400", "storm"),
    ] {
        let status = Command::new(env!("CARGO"))
            .args(["test", "--release", "--test", "sim", test])
            .env(name, seeds)
            .current_dir(root())
            .status()
            .context("cargo does not start")?;
        if !status.success() {
            bail!("{test} failed: its message names the seed");
        }
        println!("{test}: {seeds}: all ended well");
    }
    Ok(())
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
