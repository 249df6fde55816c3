//! What a node keeps through a crash: a finished update is not made again, an interrupted training goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tombolo::Round;
use tombolo::learn::DigitsTrainer;
use tombolo::simulation::{Simulation, SimulationReport, crash, forget, millis, restart, secs};
use tombolo::topology;
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Layout;
use tombolo_core::time::Micros;
use tombolo_core::trainer::{Evaluation, Snapshot, Snapshots, Task, TrainError, Trained, Trainer};

use crate::dropout::COAST;

const ROUND: u64 = 5;
const NODE: &str = "plant/c";

fn coast() -> Simulation {
    Simulation::from_toml(&text()).unwrap().limit(secs(600))
}

/// Nobody may be missing, so that the same bits must come out; and every step may be a snapshot.
fn text() -> String {
    let text = COAST.replace("quorum = { nodes = 4, domains = 2 }", "quorum = \"all\"");
    text + "\n[checkpoint]\nsnapshot = \"0s\"\n"
}

fn count(report: &SimulationReport, what: impl Fn(&Event) -> bool) -> usize {
    report
        .events
        .iter()
        .filter(|(_, event)| what(event))
        .count()
}

fn is_of(node: &NodeId, round: u64) -> bool {
    node.as_str() == NODE && round == ROUND
}

fn trainings(report: &SimulationReport) -> usize {
    count(
        report,
        |event| matches!(event, Event::TrainingStarted { node, round } if is_of(node, *round)),
    )
}

fn well(report: &SimulationReport, undisturbed: &SimulationReport) {
    assert_eq!(report.violations, Vec::<String>::new());
    assert_eq!(report.finished.reason, "");
    assert!(report.rounds().iter().all(Round::is_committed));
    assert_eq!(report.finished.model_hash, undisturbed.finished.model_hash);
}

/// Killed after training: whenever that is, its update is sent without training again, unless the disk is gone, too.
#[test]
fn an_update_is_not_made_twice() {
    let undisturbed = coast().run().unwrap();
    let exported = undisturbed.events.iter().find(|(_, event)| {
        matches!(event, Event::UpdateExported { node, round, .. } if is_of(node, *round))
    });
    let exported = exported.unwrap().0.since(Micros::default());
    for (later, with_disk) in [(1, true), (2000, true), (10_000, true), (1, false)] {
        let moment = exported + Duration::from_micros(later);
        let mut simulation = coast().at(moment, crash(NODE));
        if !with_disk {
            simulation = simulation.at(moment + millis(100), forget(NODE));
        }
        let report = simulation
            .at(moment + millis(400), restart(NODE))
            .run()
            .unwrap();
        well(&report, &undisturbed);
        assert_eq!(
            trainings(&report),
            if with_disk { 1 } else { 2 },
            "{later} us"
        );
        let restored = count(
            &report,
            |event| matches!(event, Event::UpdateRestored { node, round } if is_of(node, *round)),
        );
        assert_eq!(restored, usize::from(with_disk));
    }
}

/// A trainer whose process is as good as dead after three snapshots, once.
struct Fragile {
    inner: DigitsTrainer,
    breaks: Arc<AtomicBool>,
}

struct Fuse<'a>(&'a mut dyn Snapshots, u32);

impl Snapshots for Fuse<'_> {
    fn are_due(&self) -> bool {
        self.0.are_due()
    }

    fn take(&mut self, snapshot: Snapshot<'_>) {
        self.0.take(snapshot);
        self.1 -= 1;
        assert_ne!(self.1, 0, "the training is interrupted");
    }
}

impl Trainer for Fragile {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        self.inner.initialize(seed, parameters)
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        self.inner.train(task, parameters)
    }

    fn train_from(
        &mut self,
        task: &Task,
        from: Option<Snapshot<'_>>,
        parameters: &mut [f32],
        snapshots: &mut dyn Snapshots,
    ) -> Result<Trained, TrainError> {
        let breaks = is_of(&task.node, task.round) && self.breaks.swap(false, Ordering::Relaxed);
        let mut fuse = Fuse(snapshots, if breaks { 3 } else { u32::MAX });
        self.inner.train_from(task, from, parameters, &mut fuse)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.inner.evaluate(parameters)
    }
}

fn fragile(breaks: bool) -> SimulationReport {
    let plan = topology::parse("test", &text(), std::path::Path::new(".")).unwrap();
    let breaks = Arc::new(AtomicBool::new(breaks));
    let simulation = coast().trainer(move |node| Fragile {
        inner: DigitsTrainer::new(&plan, node).unwrap(),
        breaks: breaks.clone(),
    });
    simulation.run().unwrap()
}

/// Killed in training: it repeats the steps since its snapshot, no more, and the bits are those of an undisturbed run.
#[test]
fn an_interrupted_training_goes_on_from_its_last_snapshot() {
    let undisturbed = fragile(false);
    let report = fragile(true);
    well(&report, &undisturbed);
    let resumed = count(
        &report,
        |event| matches!(event, Event::TrainingResumed { node, round, steps: 3 } if is_of(node, *round)),
    );
    assert_eq!(resumed, 1);
}
