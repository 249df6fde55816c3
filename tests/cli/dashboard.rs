//! `--dashboard` and `report`: a real run, its page over real HTTP, and who is refused.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Process, Workspace, pinned};

/// Only failures wait so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calm enough that no peer is suspected on a machine that does much else.
const CALM: &str = "\n[heartbeat]\nevery = \"5s\"\n";

/// A run and where its page is.
struct Shown {
    run: Process,
    address: SocketAddr,
    token: String,
}

/// What was answered.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Shown {
    fn start(workspace: &Workspace, command: &str) -> Self {
        let mut run = workspace.start(&format!("{command} --dashboard 127.0.0.1:0"));
        let told = |line: &String| line.contains("\"dashboard\"");
        run.until("its page", |seen| seen.lines.iter().any(told));
        let seen = run.listen(Duration::ZERO);
        let line = seen.lines.iter().find(|line| told(line)).unwrap();
        let line: Value = serde_json::from_str(line).unwrap();
        let url = line["url"].as_str().unwrap().to_owned();
        let (address, token) = url.split_once("/#token=").unwrap();
        Shown {
            run,
            address: address.strip_prefix("http://").unwrap().parse().unwrap(),
            token: token.to_owned(),
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A request with these headers besides the host's.
    fn request(&self, path: &str, headers: &str) -> TcpStream {
        let mut stream = self.connect();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n",
            self.address
        );
        // Whoever is refused early may not be able to say all.
        let _ = stream.write_all(head.as_bytes());
        stream
    }

    fn get(&self, path: &str) -> Answer {
        answer(self.request(path, &self.bearer()))
    }

    fn bearer(&self) -> String {
        format!("authorization: Bearer {}\r\n", self.token)
    }

    fn state(&self) -> Value {
        serde_json::from_str(&self.get("/state.json").body).unwrap()
    }
}

fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // An end by reset is one, too.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {text:?}"));
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

#[test]
fn a_run_shows_its_page_its_metrics_and_its_events_and_then_a_report() {
    let workspace = Workspace::new(&(pinned(999_999) + CALM));
    let mut shown = Shown::start(&workspace, "run topology.toml");
    let page = answer(shown.request("/", ""));
    assert_eq!(page.status, 200);
    assert!(
        page.head
            .contains("content-security-policy: default-src 'none'"),
        "{}",
        page.head
    );
    for part in ["page.css", "page.js"] {
        assert!(page.body.contains(part), "{part}");
        assert_eq!(answer(shown.request(&format!("/{part}"), "")).status, 200);
    }
    // Read as it comes: who does not is dropped.
    let mut events = shown.request("/events", &shown.bearer());
    let read = move || {
        let mut heard = String::new();
        events.read_to_string(&mut heard).map(|_| heard)
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "a client of a page, on real time"
    )]
    let reader = std::thread::spawn(read);
    shown.run.until_rounds(2);

    let state = shown.state();
    assert_eq!(state["federation"], "pinned");
    let nodes = state["nodes"].as_object().unwrap();
    assert_eq!(nodes.len(), 9);
    assert!(
        nodes
            .values()
            .all(|node| node["state"] == "active" && node["counted"].as_u64() >= Some(1))
    );
    assert!(state["totals"]["committed"].as_u64().unwrap() >= 1);
    assert!(state["rounds"][0]["spans"]["hq/a"]["trained"].is_number());

    // Links are measured now and then.
    let measured = |state: &Value| {
        let links = state["links"].as_array().unwrap();
        assert!(links.len() >= 2, "{links:?}");
        links
            .iter()
            .all(|link| link["state"] == "up" && link["a_to_b"] != 0 && link["b_to_a"] != 0)
    };
    let found = (0..100).any(|_| {
        shown.run.listen(Duration::from_millis(100));
        measured(&shown.state())
    });
    assert!(found, "{:?}", shown.state()["links"]);

    let metrics = shown.get("/metrics");
    assert!(
        metrics.head.contains("application/openmetrics-text"),
        "{}",
        metrics.head
    );
    assert!(metrics.body.ends_with("# EOF\n"));
    for series in [
        "tombolo_rounds_total{state=\"committed\"} ",
        "tombolo_node_up{node=\"plant/c\"} 1",
    ] {
        assert!(metrics.body.contains(series), "{series}: {}", metrics.body);
    }

    shown.run.signal(Signal::INT);
    let heard = reader.join().unwrap().unwrap();
    shown.run.end().expect(130);
    assert!(heard.contains("text/event-stream"));
    let told = heard
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"));
    let told: Vec<Value> = told
        .map(|line| serde_json::from_str(&format!("{{{line}")).unwrap())
        .collect();
    for event in ["round_opened", "reported", "round", "finished"] {
        assert!(told.iter().any(|past| past["event"] == event), "{event}");
    }
    assert!(told.iter().all(|past| past["at"].is_number()));
    assert!(
        heard.contains("event: end"),
        "it is told that the run is over"
    );

    let output = workspace.run("report state").expect(0);
    let report = &output.events("report")[0];
    assert!(report["rounds"].as_u64().unwrap() >= 2);
    let html = std::fs::read_to_string(report["file"].as_str().unwrap()).unwrap();
    assert!(
        html.contains("\"federation\":\"pinned\","),
        "its name is in the folder"
    );
    assert!(html.starts_with("<!doctype html>") && html.contains("id=\"picture\""));
    let nothing = workspace.run("report elsewhere").expect(1);
    assert!(
        nothing.errors().contains("no events are recorded in"),
        "{}",
        nothing.errors()
    );
}

/// How many rounds a trace shows; each node of each trained in it.
fn traced(workspace: &Workspace, name: &str) -> usize {
    let text = std::fs::read_to_string(workspace.path().join(name)).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |start: &str| {
        let whole = events.iter().filter(|event| event["ph"] == "X");
        let named = whole.filter(|event| event["name"].as_str().unwrap().starts_with(start));
        named.count()
    };
    assert_eq!(named("train"), 9 * named("round "));
    named("round ")
}

#[test]
fn a_page_is_served_on_this_machine_only() {
    let workspace = Workspace::new(&pinned(1));
    let refused = workspace
        .run("run topology.toml --dashboard 0.0.0.0:0")
        .expect(2);
    assert!(
        refused.errors().contains("on loopback only"),
        "{}",
        refused.errors()
    );
    assert!(
        !workspace.path().join("state").exists(),
        "nothing has begun"
    );
    workspace
        .run("run topology.toml --trace trace.json")
        .expect(0);
    assert_eq!(traced(&workspace, "trace.json"), 1);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let refused = workspace
        .run(&format!("run topology.toml --resume --dashboard {address}"))
        .expect(1);
    assert!(
        refused.errors().contains("cannot serve the page on"),
        "{}",
        refused.errors()
    );
}

/// Virtual time is over before anybody could look, so it is shown until it is interrupted; processes tell their parent.
#[test]
fn simulations_and_processes_show_theirs_too() {
    let workspace = Workspace::new(&(pinned(3) + CALM));
    let shown = Shown::start(&workspace, "sim topology.toml --seed 7 --trace sim.json");
    let state = shown.state();
    assert_eq!(state["totals"]["committed"], 3);
    assert!(state["finished"].is_object());
    shown.run.signal(Signal::INT);
    shown.run.end().expect(0);
    assert_eq!(traced(&workspace, "sim.json"), 3);

    let workspace = Workspace::new(&(pinned(999_999) + CALM));
    let mut shown = Shown::start(&workspace, "run --processes topology.toml");
    shown.run.until_rounds(1);
    assert!((0..100).any(|_| {
        shown.run.listen(Duration::from_millis(50));
        shown.state()["totals"]["committed"].as_u64().unwrap() >= 1
    }));
    shown.run.signal(Signal::INT);
    shown.run.end().expect(130);
}
