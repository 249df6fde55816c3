//! `--dashboard` and `report`: a real run, its page over real HTTP, and who is refused.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Process, Workspace, kill, pinned, process_of};

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
        links.iter().all(|link| {
            let (there, back) = (&link["a_to_b"], &link["b_to_a"]);
            let sums = [&there["sums"]["plain"], &back["sums"]["plain"]];
            link["state"] == "up"
                && [there, back]
                    .iter()
                    .all(|way| way["bytes"] != 0 && way["unacknowledged"].is_number())
                && sums.iter().any(|plain| plain.as_u64() > Some(0))
        })
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
    let named = |is: &dyn Fn(&str) -> bool| {
        let whole = events.iter().filter(|event| event["ph"] == "X");
        let named = whole.filter(|event| is(event["name"].as_str().unwrap()));
        named.count()
    };
    let rounds = named(&|name| name.starts_with("round "));
    assert_eq!(named(&|name| name == "train"), 9 * rounds);
    rounds
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

/// What the processes of a run have written down, as far as it is in files of lines.
fn records(workspace: &Workspace) -> impl Iterator<Item = String> {
    let files = std::fs::read_dir(workspace.path().join("state")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let lines = paths.filter(|path| path.extension().is_some_and(|end| end == "jsonl"));
    lines.map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned())
}

/// Three sites of three, each node a process. One is killed: what the stream of events tells first, the picture shows by the time that anybody
/// can ask for it, and within two seconds of the run's own clock the round has closed without it or goes on without it.
#[test]
fn a_killed_node_is_shown_with_its_reason_and_the_round_that_closed_without_it() {
    let quick = "\n[heartbeat]\nevery = \"100ms\"\nretry = [\"50ms\", \"50ms\", \"50ms\"]\n";
    let topology = pinned(999_999).replace("quorum = \"all\"", "grace = \"100ms\"") + quick;
    let workspace = Workspace::new(&topology);
    let mut shown = Shown::start(&workspace, "run --processes topology.toml");
    shown.run.until_rounds(1);
    // A clock that nobody has looked at cannot be told of: the trace below is on one clock.
    let looked = (0..600).any(|_| {
        shown.run.listen(Duration::from_millis(50));
        records(&workspace).any(|record| {
            let mut lines = record.lines();
            lines.any(|line| line.contains("clock_measured") && line.contains("plant/d"))
        })
    });
    assert!(looked, "nobody looks at the clock of plant/d");
    let mut events = BufReader::new(shown.request("/events", &shown.bearer()));
    kill(process_of(&workspace, "plant/d"), Signal::KILL);
    let mut next = |wanted: &dyn Fn(&Value) -> bool| {
        loop {
            let mut line = String::new();
            assert!(events.read_line(&mut line).unwrap() > 0, "the stream ended");
            let Some(data) = line.strip_prefix("data: ") else {
                continue;
            };
            let past: Value = serde_json::from_str(data).unwrap();
            if wanted(&past) {
                return past;
            }
        }
    };
    // The coordinator's process is not the one that sees it: it is told.
    let heard = next(&|past| {
        past["event"] == "standing_changed"
            && past["node"] == "plant/d"
            && past["state"] != "active"
    });
    let state = shown.state();
    let node = &state["nodes"]["plant/d"];
    assert_ne!(node["state"], "active", "{heard} {node}");
    let reason = node["reason"].as_str().unwrap();
    assert!(
        reason.contains("no sign of life") || reason.contains("evicted"),
        "{node}"
    );
    let since = node["since"].as_f64().unwrap() - heard["at"].as_f64().unwrap();
    assert!(since.abs() < 2.0, "{heard} {node}");
    let without = |past: &Value| {
        let names = |list: &str| {
            past[list]
                .as_array()
                .unwrap()
                .iter()
                .any(|node| node == "plant/d")
        };
        past["event"] == "round" && names("late") && !names("counted")
    };
    let closed = next(&without);
    let state = shown.state();
    let rounds = state["rounds"].as_array().unwrap();
    let round = rounds
        .iter()
        .find(|round| round["round"] == closed["round"]);
    let late = round.unwrap()["late"].as_array().unwrap();
    assert!(late.iter().any(|node| node == "plant/d"), "{late:?}");
    assert!(
        round.unwrap()["limit"]
            .as_str()
            .unwrap()
            .contains("% of round"),
        "{round:?}"
    );
    shown.run.signal(Signal::INT);
    shown.run.end().expect(130);

    // Each process has kept a record by its own clock, the killed one, too.
    let output = workspace.run("trace state --out all.json").expect(0);
    let bound = output.events("trace")[0]["clock_bound_ms"]
        .as_f64()
        .unwrap();
    assert!(bound > 0.0, "{bound}");
    let text = std::fs::read_to_string(workspace.path().join("all.json")).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let bounds = trace["otherData"]["clock_bounds_ms"].as_object().unwrap();
    assert_eq!(bounds.len(), 9, "{bounds:?}");
    let events = trace["traceEvents"].as_array().unwrap();
    let trained: BTreeSet<(u64, u64)> = events
        .iter()
        .filter(|event| event["name"] == "train")
        .map(|event| {
            (
                event["pid"].as_u64().unwrap(),
                event["tid"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(trained.len(), 9, "every node's own word of when it trained");
    let story = workspace.run("explain round 1 --state state").expect(0);
    let story = &story.events("explanation")[0];
    assert!(
        story["limited"]
            .as_str()
            .unwrap()
            .contains("% of round 1 was"),
        "{story}"
    );
    assert!(
        story["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["began_s"].is_number()),
        "{story}"
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
    // The coordinator's record has what each of the other processes has told it.
    let record = workspace.path().join("state/events.jsonl");
    let measured = || {
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let told = lines.filter(|past: &Value| past["event"] == "node_measured");
        let sound = told.filter(|past| past["certificate_s"].as_u64() > Some(0));
        let sound = sound.filter(|past| past["memory"].as_u64() > Some(0));
        let names = sound.map(|past| past["node"].as_str().unwrap().to_owned());
        names.collect::<BTreeSet<String>>()
    };
    let told = (0..600).any(|_| {
        shown.run.listen(Duration::from_millis(50));
        measured().len() == 9
    });
    assert!(told, "{:?}", measured());
    shown.run.signal(Signal::INT);
    shown.run.end().expect(130);
}
