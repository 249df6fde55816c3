//! Programs of others, to be run beside ours: each in an environment of its own under `target/peers/`, which `cargo clean` removes.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{Figures, cargo, figures};

/// Their scripts, and what each environment is to hold.
const SCRIPTS: &str = "benches/peers";

const ENVIRONMENTS: &str = "target/peers";

/// Builds what is measured: the product itself, without what is planted for tests.
///
/// # Errors
/// It does not compile, or nothing can have a network of its own here.
pub fn build(root: &Path) -> Result<()> {
    measured(root, &["true".into()])
        .context("a network of its own: run it as root, with iproute2")?;
    let mut command = Command::new(cargo());
    command.args(["build", "--release", "--package", "tombolo", "--bin"]);
    finish(command.arg("tombolo").current_dir(root))
}

/// Makes an environment of Python as `benches/peers/requirements/NAME.txt` asks, unless it stands. Without one, `python` has nothing to give, and
/// the reason is on standard error.
pub fn prepare(root: &Path, name: &str) {
    if let Err(error) = environment(root, name) {
        eprintln!(
            "{name}: left out, no environment: {error:#}; it takes python3 with venv, and pip must reach a registry of packages"
        );
    }
}

fn environment(root: &Path, name: &str) -> Result<()> {
    let requirements = root.join(format!("{SCRIPTS}/requirements/{name}.txt"));
    let asked = fs::read_to_string(&requirements)
        .with_context(|| format!("{SCRIPTS}/requirements/{name}.txt"))?;
    let folder = root.join(ENVIRONMENTS).join(name);
    if fs::read_to_string(made(root, name)).is_ok_and(|made| made == asked) {
        return Ok(());
    }
    eprintln!("{name}: makes {ENVIRONMENTS}/{name}");
    finish(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&folder),
    )?;
    // A registry that does not answer is given up after minutes, not hours.
    let pip = "-m pip install --quiet --disable-pip-version-check --retries 2 --timeout 30 -r";
    finish(
        Command::new(folder.join("bin/python"))
            .args(pip.split(' '))
            .arg(&requirements),
    )?;
    fs::write(made(root, name), asked).context("it cannot be noted that it is complete")
}

/// What an environment was made from; written last, so that one that was begun and not ended does not count.
fn made(root: &Path, name: &str) -> PathBuf {
    let folder = root.join(ENVIRONMENTS).join(name);
    folder.join("requirements.txt")
}

/// The interpreter of an environment, if it stands.
pub fn python(root: &Path, name: &str) -> Option<PathBuf> {
    let folder = root.join(ENVIRONMENTS).join(name);
    made(root, name).exists().then(|| folder.join("bin/python"))
}

/// What a script says, run by an environment's interpreter.
///
/// # Errors
/// As `measured`.
pub fn script(root: &Path, python: &Path, file: &str, arguments: &str) -> Result<Vec<Figures>> {
    let mut command: Vec<OsString> = vec![python.into()];
    command.push(format!("{SCRIPTS}/py/{file}").into());
    command.extend(arguments.split_whitespace().map(OsString::from));
    measured(root, &command)
}

/// What `tombolo` says in JSON.
///
/// # Errors
/// As `measured`.
pub fn tombolo(root: &Path, arguments: &str) -> Result<Vec<Figures>> {
    let run = "run --release --quiet --package tombolo --bin tombolo --";
    let mut command = vec![cargo()];
    let words = run.split_whitespace().chain(arguments.split_whitespace());
    command.extend(words.chain(["--format", "json"]).map(OsString::from));
    measured(root, &command)
}

/// Where the scripts are.
pub fn scripts(root: &Path) -> PathBuf {
    root.join(SCRIPTS)
}

/// Compiles a program of `c/` for this very processor.
///
/// # Errors
/// There is no such compiler, or it does not like the program.
pub fn compile(root: &Path, compiler: &str, source: &str, program: &str) -> Result<()> {
    let path = compiled(root, program);
    fs::create_dir_all(path.parent().context("it has no folder")?)?;
    let mut command = Command::new(compiler);
    command.args(["-O3", "-march=native", "-o"]).arg(path);
    finish(command.arg(scripts(root).join("c").join(source)))
}

/// Where a compiled program is, if it was compiled.
pub fn compiled(root: &Path, program: &str) -> PathBuf {
    root.join(ENVIRONMENTS).join("c").join(program)
}

/// Whether the system's python3 has a module.
pub fn has_module(name: &str) -> bool {
    let mut command = Command::new("python3");
    command.args(["-c", &format!("import {name}")]);
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Runs a command at the highest ordinary priority, with a network of its own; gives the lines of JSON that it prints.
///
/// # Errors
/// It fails; what it said of that is on standard error.
fn measured(root: &Path, command: &[OsString]) -> Result<Vec<Figures>> {
    let raised = [scripts(root).join("pri.sh"), scripts(root).join("ns.sh")];
    let mut whole: Vec<OsString> = raised.map(OsString::from).into();
    whole.extend_from_slice(command);
    program(root, &whole, &[])
}

/// Runs a command as it is; gives the lines of JSON that it prints.
///
/// # Errors
/// It fails; what it said of that is on standard error.
pub fn program(
    root: &Path,
    command: &[OsString],
    environment: &[(&str, String)],
) -> Result<Vec<Figures>> {
    let (first, rest) = command.split_first().context("there is no command")?;
    let output = Command::new(first)
        .args(rest)
        .envs(environment.iter().map(|(name, value)| (*name, value)))
        .current_dir(root)
        // Who starts a process a round would compile its modules each time.
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{first:?} does not start"))?;
    if !output.status.success() {
        bail!("it ended with {}: its last words are above", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(figures).collect())
}

fn finish(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| name.clone())?;
    match status.success() {
        true => Ok(()),
        false => bail!("{name} ended with {status}"),
    }
}
