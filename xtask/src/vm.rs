//! `cargo xtask vm`: what needs an RDMA device, on a device of software in a small virtual machine.
//!
//! Everything is built here; `tests/vm/vm-run` boots a guest that sees this machine's files, and `tests/vm/rdma.sh` runs there. Where no
//! guest can be had (no apt, no emulator, another processor) it says so and is content: the same tests run by themselves on a machine that has
//! a device.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What runs on the device: tests that ask for one, and the program, which is built as the tests of its command line need it. All of it is
/// what `cargo test` over the workspace builds anyway.
const BUILD: &[&str] = &[
    "test",
    "--no-run",
    "--workspace",
    "--exclude",
    "tombolo-candle",
    "--test",
    "conformance",
    "--test",
    "ibverbs",
    "--test",
    "reduce",
    "--test",
    "leaks",
    "--test",
    "cli",
];
const PROGRAMS: &[&str] = &["conformance", "ibverbs", "reduce", "leaks", "tombolo"];

/// Seconds for all of it: a minute where nothing else runs, but an emulated machine gets what others leave.
const PATIENCE_S: &str = "1800";

/// What `vm-run` ends with when it could not run the command.
const NO_GUEST: i32 = 125;

/// Builds, boots and judges.
///
/// # Errors
/// Something does not build, or fails on the device.
pub fn run(root: &Path) -> Result<()> {
    let runner = root.join("tests/vm/vm-run");
    let prepared = Command::new("bash")
        .arg(&runner)
        .arg("--prepare")
        .output()
        .context("bash cannot be started")?;
    if !prepared.status.success() {
        let said = String::from_utf8_lossy(&prepared.stderr);
        println!("skipped: no virtual machine here ({})", said.trim());
        return Ok(());
    }
    let programs = build(root)?;
    eprintln!(
        "bash tests/vm/vm-run -- bash tests/vm/rdma.sh {}",
        programs.join(" ")
    );
    let status = Command::new("bash")
        .arg(&runner)
        .args(["--", "bash", "tests/vm/rdma.sh"])
        .env("VM_RUN_TIMEOUT", PATIENCE_S)
        .args(&programs)
        .current_dir(root)
        .status()
        .context("bash cannot be started")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(NO_GUEST) => {
            println!("skipped: the virtual machine did not come up, see above");
            Ok(())
        }
        _ => bail!("on the RDMA device something failed ({status}), see above"),
    }
}

/// Name and path of each of [`PROGRAMS`].
fn build(root: &Path) -> Result<Vec<String>> {
    eprintln!("cargo {}", BUILD.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(BUILD)
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cargo cannot be started")?;
    if !output.status.success() {
        bail!("cargo {} failed ({})", BUILD.join(" "), output.status);
    }
    programs(&String::from_utf8_lossy(&output.stdout))
}

/// From what cargo says in JSON.
fn programs(said: &str) -> Result<Vec<String>> {
    let mut programs = Vec::new();
    for name in PROGRAMS {
        let executable = said.lines().find_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            let is_wanted = message["target"]["name"] == *name;
            let executable = message["executable"].as_str().filter(|_| is_wanted)?;
            Some(executable.to_owned())
        });
        let executable = executable.with_context(|| format!("cargo made no program {name}"))?;
        programs.extend([(*name).to_owned(), executable]);
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_what_cargo_says_and_a_missing_one_is_named() {
        let artifact = |name: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"name":"{name}"}},"executable":"target/{name}-1"}}"#
            )
        };
        let library = r#"{"target":{"name":"tombolo"},"executable":null}"#;
        let mut said: Vec<String> = PROGRAMS.iter().map(|name| artifact(name)).collect();
        said.insert(0, library.to_owned());
        said.push("not JSON".to_owned());
        let found = programs(&said.join("\n")).unwrap();
        assert_eq!(found[..2], ["conformance", "target/conformance-1"]);
        assert_eq!(found[8..], ["tombolo", "target/tombolo-1"]);
        said.retain(|line| !line.contains("target/tombolo-1"));
        let error = programs(&said.join("\n")).unwrap_err();
        assert_eq!(error.to_string(), "cargo made no program tombolo");
    }
}
