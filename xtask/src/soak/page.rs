//! The page in a real browser: a federation trains, a node is killed, and the page says so. Debian's `chromium` and `chromium-driver`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::webdriver::Browser;
use super::{Figures, Settings, Variables, cargo, now, object};

pub const VARIABLES: Variables = &[("TOMBOLO_NODES", "200")];

/// Where the pictures go.
const IMAGES: &str = "docs/images";

/// How long the page may take to show that a node is gone and that a round has closed without it.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

/// Only failures wait so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at the page.
const MOMENT: Duration = Duration::from_millis(20);

/// The one that is killed.
const VICTIM: &str = "plant/c";

/// Three sites of three nodes; rounds of a few tenths of a second, which do without two nodes.
const COAST: &str = r#"
[federation]
name = "coast"
rounds = 100000
sync_every = "1 epoch"
[round]
quorum = { nodes = 7, domains = 3 }
deadline = "30s"
grace = "300ms"
[heartbeat]
every = "100ms"
[model]
trainer = "digits-mlp"
hidden = 64
partition = { kind = "iid" }
[[domain]]
name = "hq"
nodes = ["gate", "a", "b"]
[[domain]]
name = "plant"
nodes = ["gate", "c", "d"]
[[domain]]
name = "lab"
nodes = ["gate", "e", "f"]
[[link]]
between = ["hq", "plant"]
codec = "int8"
emulate = { delay = "4ms" }
[[link]]
between = ["hq", "lab"]
codec = "topk"
emulate = { delay = "20ms", jitter = "2ms" }
"#;

/// Builds ours, and looks whether there is a browser.
pub fn prepare(root: &Path) -> Result<()> {
    drop(Browser::start(800, 600)?);
    build(root)
}

/// Builds the product itself, without what is planted for tests.
pub fn build(root: &Path) -> Result<()> {
    let mut command = Command::new(cargo());
    command.args([
        "build",
        "--release",
        "--package",
        "tombolo",
        "--bin",
        "tombolo",
    ]);
    let status = command.current_dir(root).status();
    ensure!(
        status.context("cargo does not start")?.success(),
        "it does not compile"
    );
    Ok(())
}

/// One line: how soon the page shows what.
pub fn lines(root: &Path, settings: &Settings) -> Result<Vec<Figures>> {
    let mut found = trained(root)?;
    found.append(&mut crowd(root, settings.number("TOMBOLO_NODES")?)?);
    Ok(vec![found])
}

/// Where it was built.
pub fn program(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), PathBuf::from);
    target.join("release/tombolo")
}

/// A run of ours, killed with all its processes when dropped, and its folder, which goes with it.
pub struct Run {
    child: Child,
    pub url: String,
    pub folder: PathBuf,
}

impl Run {
    /// Starts a command that serves a page.
    pub fn start(root: &Path, topology: &str, command: &str) -> Result<Self> {
        let folder = root
            .join("target/page")
            .join(command.replace([' ', '-'], ""));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("topology.toml"), topology)?;
        let mut child = Command::new(program(root))
            .args(command.split(' '))
            .args([
                "topology.toml",
                "--dashboard",
                "127.0.0.1:0",
                "--format",
                "json",
            ])
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .spawn()
            .context("tombolo does not start")?;
        let output = child.stdout.take().context("its output was asked for")?;
        let mut run = Run {
            child,
            url: String::new(),
            folder,
        };
        let mut lines = BufReader::new(output).lines();
        for line in &mut lines {
            let line: Value = serde_json::from_str(&line?).unwrap_or_default();
            if line["event"] == "dashboard" {
                run.url = line["url"].as_str().unwrap_or_default().to_owned();
                break;
            }
        }
        ensure!(
            !run.url.is_empty(),
            "tombolo {command} says no address of its page"
        );
        // Nobody else reads what it says, and it must not wait for that.
        #[expect(
            clippy::disallowed_methods,
            reason = "a reader of another program, on real time"
        )]
        std::thread::spawn(move || lines.for_each(drop));
        Ok(run)
    }

    /// The process of a node, which is a child of the run's.
    fn process_of(&self, node: &str) -> Result<u32> {
        let id = self.child.id();
        for task in fs::read_dir(format!("/proc/{id}/task"))? {
            let children = fs::read_to_string(task?.path().join("children"))?;
            for child in children.split_whitespace() {
                let line = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
                if line
                    .split(|byte| *byte == 0)
                    .any(|word| word == node.as_bytes())
                {
                    return Ok(child.parse()?);
                }
            }
        }
        bail!("no process of {node} below {id}")
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Its children end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Looks at the page until it shows what is waited for, and says for how long that was.
fn until(browser: &Browser, what: &str, script: &str) -> Result<Duration> {
    let began = now();
    let mut seen = Value::Null;
    while since(began) < PATIENCE {
        seen = browser.script(script)?;
        if seen == Value::Bool(true) {
            return Ok(since(began));
        }
        pause(MOMENT);
    }
    let shown = browser.script("return document.body.innerText.slice(0, 2000)")?;
    bail!("the page does not show {what} within {PATIENCE:?} (last {seen}); it shows: {shown}")
}

/// The federation trains, a node is killed, and all forms of the page are looked at.
fn trained(root: &Path) -> Result<Figures> {
    let run = Run::start(root, COAST, "run --processes")?;
    let browser = Browser::start(1180, 1000)?;
    browser.open(&run.url)?;
    until(&browser, "nine nodes and their sites", &drawn(9))?;
    let paint = painted(&browser)?;
    until(
        &browser,
        "rounds that have ended",
        "return document.querySelectorAll('#accuracy polyline').length > 0 && / [1-9]\\d* committed/.test(document.getElementById('summary').textContent)",
    )?;
    until(
        &browser,
        "what codecs save, queues of links, a clock with its bound, memory, certificates and who has cosigned the record",
        KNOWN,
    )?;
    let process = run.process_of(VICTIM)?;
    let killed = Command::new("kill")
        .args(["-KILL", &process.to_string()])
        .status()?;
    ensure!(killed.success(), "{VICTIM} cannot be killed");
    let began = now();
    until(
        &browser,
        "the state of the node that was killed, and why",
        STATE,
    )?;
    let state = since(began);
    until(&browser, "a round that closed without it", CLOSED)?;
    let closed = since(began);
    ensure!(
        closed < SHOWN_WITHIN,
        "the page showed the dead node after {state:?} and the round without it after {closed:?}, later than {SHOWN_WITHIN:?}"
    );
    looks(root, &browser)?;
    Ok(object(json!({
        "first_paint_ms": paint.round(),
        "killed_to_state_ms": state.as_millis() as u64,
        "killed_to_round_ms": closed.as_millis() as u64,
    })))
}

/// What nodes and links have told: each of these is a line of what is missing until it is there.
const KNOWN: &str = r"
    const cells = (table) => [...document.querySelectorAll(`#${table} tbody tr`)].map((row) => [...row.cells].map((cell) => cell.textContent));
    const [links, nodes] = [cells('links'), cells('nodes')];
    const missing = {
        codec: links.some((row) => !/^[2-9][.\d]* times$|^\d\d[.\d]* times$/.test([row[7], row[8]].find((cell) => cell !== '–'))),
        queue: links.some((row) => !/ %$/.test(row[9]) && !/ %$/.test(row[10])),
        clock: !/± \d/.test(nodes.find((row) => row[0] === 'plant/gate')[11]),
        memory: nodes.some((row) => !/ MiB$/.test(row[12])),
        certificate: nodes.some((row) => !/ (d|h)$/.test(row[14])),
        record: !/cosigned by .*plant\/gate/.test(document.getElementById('record').textContent),
    };
    return Object.values(missing).every((lacks) => !lacks) || [missing, links, nodes];
";

/// The row of the node that was killed: another state than before, and a reason.
const STATE: &str = r"
    const row = [...document.querySelectorAll('#nodes tbody tr')].find((row) => row.cells[0].textContent === 'plant/c');
    if (!row) return 'no row';
    const cells = [...row.cells].map((cell) => cell.textContent);
    const dot = document.querySelector('circle[data-node=\'plant/c\']');
    return cells[1] !== 'active' && cells[cells.length - 1] !== '' && !dot.classList.contains('good') || cells;
";

/// What happened tells of a round that closed without it, and that round, looked at, of the node.
const CLOSED: &str = r"
    const told = [...document.querySelectorAll('#notices li')].map((line) => line.textContent);
    if (!told.some((line) => /round \d+ degraded: 8 of 9.*without plant\/c/.test(line))) return told.slice(0, 3);
    document.getElementById('earlier').click();
    const outcome = document.getElementById('outcome').textContent;
    document.getElementById('newest').click();
    return /round \d+ degraded.*8 of 9 counted.*late: plant\/c/.test(outcome) || outcome;
";

/// Whether so many nodes are drawn.
fn drawn(nodes: u64) -> String {
    format!("return document.querySelectorAll('#map circle.node').length === {nodes}")
}

/// Milliseconds until the browser has painted the first of what the page holds.
fn painted(browser: &Browser) -> Result<f64> {
    let entry = "performance.getEntriesByName('first-contentful-paint')";
    let is_there = format!("return {entry}.length === 1");
    until(browser, "its first paint", &is_there)?;
    let paint = browser.script(&format!("return {entry}[0].startTime"))?;
    paint.as_f64().context("nothing was painted")
}

/// By keyboard, in the dark, on a narrow screen; and the pictures for the documents.
fn looks(root: &Path, browser: &Browser) -> Result<()> {
    const TAB: &str = "\u{E004}";
    const ENTER: &str = "\u{E007}";
    let chosen = "return document.activeElement.classList.contains('node')";
    browser.script("document.activeElement.blur(); window.scrollTo(0, 0)")?;
    for presses in 0.. {
        ensure!(presses < 50, "no node is reached with the tabulator");
        browser.press(&[TAB])?;
        if browser.script(chosen)? == Value::Bool(true) {
            break;
        }
    }
    browser.press(&[ENTER])?;
    until(
        browser,
        "the details of the node that was chosen with the keyboard",
        "return document.getElementById('node').textContent.includes('holds model')",
    )?;
    save(root, "page.png", &browser.window()?)?;
    let background = "return getComputedStyle(document.body).backgroundColor";
    let light = browser.script(background)?;
    let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
    browser.chromium("Emulation.setEmulatedMedia", &dark)?;
    ensure!(
        browser.script(background)? != light,
        "the page is as bright in the dark"
    );
    save(root, "page-dark.png", &browser.window()?)?;
    let narrow = json!({ "width": 390, "height": 1000, "deviceScaleFactor": 1, "mobile": true });
    browser.chromium("Emulation.setDeviceMetricsOverride", &narrow)?;
    let overflow =
        browser.script("return document.documentElement.scrollWidth - window.innerWidth")?;
    ensure!(
        overflow.as_i64() <= Some(0),
        "on a narrow screen the page is {overflow} px too wide"
    );
    until(browser, "its nodes on a narrow screen", &drawn(9))?;
    save(root, "page-narrow.png", &browser.window()?)
}

fn save(root: &Path, name: &str, picture: &[u8]) -> Result<()> {
    let path = root.join(IMAGES).join(name);
    fs::write(&path, picture).with_context(|| path.display().to_string())
}

/// A simulated federation of many nodes.
fn crowd(root: &Path, nodes: u64) -> Result<Figures> {
    let names: Vec<String> = (0..10).map(|node| format!("\"n{node}\"")).collect();
    let mut topology = "[federation]\nname = \"ocean\"\nrounds = 5\nsync_every = 5\n[round]\nquorum = \"all\"\ndeadline = \"1min\"\n[model]\ntrainer = \"digits-softmax\"\npartition = { kind = \"iid\" }\n".to_owned();
    for domain in 0..nodes.div_ceil(10) {
        topology += &format!(
            "[[domain]]\nname = \"d{domain}\"\nnodes = [{}]\n",
            names.join(", ")
        );
    }
    let run = Run::start(root, &topology, "sim")?;
    let browser = Browser::start(1280, 1500)?;
    browser.open(&run.url)?;
    let all = until(&browser, "every node", &drawn(nodes.div_ceil(10) * 10))?;
    let drawing = browser.script(
        "const began = performance.now(); document.getElementById('newest').dispatchEvent(new Event('change')); return performance.now() - began",
    )?;
    Ok(object(json!({
        "nodes": nodes.div_ceil(10) * 10,
        "first_paint_of_all_ms": painted(&browser)?.round(),
        "all_drawn_ms": all.as_millis() as u64,
        "round_redrawn_ms": drawing.as_f64().map(f64::round),
    })))
}

fn since(began: Instant) -> Duration {
    now().saturating_duration_since(began)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a browser is waited for on real time"
)]
fn pause(span: Duration) {
    std::thread::sleep(span);
}
