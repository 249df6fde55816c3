//! One slow link, one slow node, one whose update is not a number and one whose certificate has expired: each is named as a cause in plain words.

use tombolo::explain::{self, Fate, Past};
use tombolo::simulation::{
    Simulation, SimulationReport, Stale, millis, panic, rate_limit, secs, slow, stale_certificate,
};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::rng::Rng;
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

const TROUBLED: &str = r#"
[federation]
name = "troubled"
rounds = 8
sync_every = 5
[round]
quorum = { nodes = 3, domains = 2 }
deadline = "60s"
grace = "1s"
[heartbeat]
restore_limit = "20s"
[model]
trainer = "digits-softmax"
[aggregator]
kind = "fedavg"
clip = "none"
[[domain]]
name = "hq"
nodes = ["gate", "nan"]
[[domain]]
name = "plant"
nodes = ["gate", "c"]
[[domain]]
name = "lab"
nodes = ["gate", "old", "slow"]
"#;

fn n(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// A model of a megabyte, of which one node makes what is no number.
struct Model {
    layout: Layout,
    is_broken: bool,
}

impl Model {
    fn new(node: &NodeId) -> Self {
        Model {
            layout: Layout::new([("weight", vec![500, 500])]).unwrap(),
            is_broken: node.as_str() == "hq/nan",
        }
    }
}

impl Trainer for Model {
    fn layout(&self) -> Layout {
        self.layout.clone()
    }

    fn initialize(&mut self, _: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        parameters.fill(0.5);
        Ok(())
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        let mut rng = Rng::derive(task.seed, &[task.node.as_str().as_bytes()]);
        parameters.fill_with(|| rng.next_f64() as f32 - 0.5);
        if self.is_broken {
            parameters[7] = f32::NAN;
        }
        Ok(Trained {
            samples: 10,
            loss: 1.0,
            steps: 5,
            learning_rate: 0.1,
        })
    }

    fn evaluate(&mut self, _: &[f32]) -> Result<Evaluation, TrainError> {
        Ok(Evaluation {
            accuracy: 0.5,
            loss: 1.0,
        })
    }
}

fn run() -> SimulationReport {
    let from = |at| (millis(at), secs(600));
    let (begin, end) = from(3000);
    let upwards = rate_limit(["plant"], ["hq"], 1_000_000).one_way();
    let report = Simulation::from_toml(TROUBLED)
        .unwrap()
        .trainer(Model::new)
        .training(secs(1))
        .limit(secs(3600))
        .between(begin, end, upwards)
        .between(begin, end, slow("lab/slow", 100.0))
        .between(begin, end, stale_certificate("lab/old", Stale::Expired))
        // A connection that stands is not asked again, so it is broken.
        .at(millis(3100), panic("lab/old", "Link"))
        .observed()
        .run()
        .unwrap();
    report.sound().unwrap_or_else(|failure| panic!("{failure}"))
}

/// What one process would have recorded that hosts all of them.
fn pasts(report: &SimulationReport) -> impl Iterator<Item = Past> {
    report.events.iter().map(|(at, event)| Past {
        at: at.0 as f64 / 1e6,
        life: 0,
        event: event.clone(),
    })
}

/// With `#` for each number: how long it took is not what this is about.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for letter in text.chars() {
        match letter {
            '0'..='9' if masked.ends_with('#') => {}
            '0'..='9' => masked.push('#'),
            letter => masked.push(letter),
        }
    }
    masked.replace("#.#", "#")
}

#[test]
fn explain_names_a_slow_link_a_slow_node_a_nan_and_an_expired_certificate() {
    let report = run();
    let mut told = Vec::new();
    for round in [3, 7] {
        let story = explain::round(pasts(&report), round).unwrap();
        told.push(masked(&story.limited));
        told.push(masked(story.limit.as_ref().unwrap().advice()));
        for node in story.nodes.iter().filter(|node| node.fate != Fate::Counted) {
            told.push(masked(&format!(
                "{}: {:?}, {}",
                node.node, node.fate, node.why
            )));
        }
        for (node, why) in &story.out {
            told.push(masked(&format!("{node}: not asked, {why}")));
        }
    }
    let link = explain::link(pasts(&report), &n("hq/gate"), &n("plant/gate")).unwrap();
    let limit = &link.limits[0];
    told.push(masked(&format!("{}: {}", limit.cause.words(), limit.last)));
    let slow_link = (
        "# % of round # was plant -> hq upload, link-limited: # MB in # s, # Mbit/s".to_owned(),
        "a codec on that link sends fewer bytes: codec = \"int#\", or \"topk+fp#\" for fewer still"
            .to_owned(),
    );
    let expired = "lab/slow does not talk to it: the certificate of \"spiffe://lab.troubled/node/old\" has expired: \
        valid until #-#-#T#:#:#Z, now #-#-#T#:#:#Z; renew it with `tombolo certs rotate`";
    let expected = [
        slow_link.0.clone(),
        slow_link.1.clone(),
        "hq/nan: Refused, the update has an element that is not finite".to_owned(),
        format!("lab/old: Late, {expired}; lab/gate: lost: every retry failed, out of the round"),
        "lab/slow: Late, its word came # s after its end; it was still training, which took the others # s".to_owned(),
        slow_link.0,
        slow_link.1,
        "hq/nan: Refused, the update has an element that is not finite".to_owned(),
        "lab/slow: Late, it was still training for round #, which it had begun # s before this one was opened".to_owned(),
        format!("lab/old: not asked, {expired}; evicted in epoch #"),
        "link-limited: # MB in # s, # Mbit/s".to_owned(),
    ];
    // Each of its domain refuses it, and any of them says so.
    let told: Vec<String> = told
        .iter()
        .map(|told| told.replace("lab/gate does", "lab/slow does"))
        .collect();
    assert_eq!(told, expected);
    // A refusal is said once, not whenever somebody tries again.
    let refusals = report
        .events
        .iter()
        .filter(|(_, event)| matches!(event, Event::LinkRefused { .. }));
    assert!(refusals.count() < 12);
}
