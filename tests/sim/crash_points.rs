//! Every change of the disk that a coordinator's state makes, gone wrong in every way, one at a time: each write, synchronization, name given
//! and name taken. Whatever happened, the next life finds the newest acknowledged state, whole.
//!
//! STORE-1, STORE-2, VIEW-1: pytorch-lightning#688, lean-ctx#954, dddd_trainer#36, CellBender#253, safetensors#414.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use tombolo::sim::{Failure, Loss, MemoryDisk, SimWorld};
use tombolo_actors::checkpoint::{CheckpointError, CommitRecord, State, Store};
use tombolo_actors::env::Files;
use tombolo_actors::slab::Pool;
use tombolo_core::aggregate::{Report, Weight};
use tombolo_core::coordinator::{Resumed, Weighing};
use tombolo_core::event::{RoundRecord, RoundState};
use tombolo_core::ids::{Epoch, NodeId, Round};
use tombolo_core::outer;
use tombolo_core::plan::{OuterKind, OuterPlan};
use tombolo_core::rng::Rng;
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::view::{Out, View};
use tombolo_core::wire::Contribution;

const ROUNDS: Round = 7;
/// Rounds whose states are kept beside the newest two.
const EVERY: u64 = 3;
/// Rounds that end without a commit.
const ABORTED: [Round; 2] = [3, 6];
/// Rounds before which the membership changes: the view before each is one less.
const CHANGES: [Round; 3] = [2, 5, 6];
/// After this one the coordinator is restarted, whatever else happens.
const RESTART: Round = 4;
/// The run.
const RUN: Hash = Hash([5; 32]);

pub const FAILURES: [Failure; 8] = [
    Failure::Crash(Loss::Nothing),
    Failure::Crash(Loss::Everything),
    Failure::Crash(Loss::Contents),
    Failure::Crash(Loss::Some { seed: 1 }),
    Failure::Crash(Loss::Some { seed: 2 }),
    Failure::Error(ErrorKind::StorageFull),
    Failure::Error(ErrorKind::Other),
    Failure::Break(ErrorKind::ReadOnlyFilesystem),
];

#[test]
fn at_every_change_and_in_every_way_the_newest_acknowledged_state_survives() {
    let cases = cases();
    assert!(
        cases.len() > 2000,
        "only {} cases: nothing was tested",
        cases.len()
    );
    cases.iter().for_each(Case::check);
}

/// One change of the disk that goes wrong.
pub struct Case {
    failure: Failure,
    change: u64,
    /// In which way the life ends, unless the failure has ended it.
    end: Loss,
    /// Whether a power cut follows before anything more is written.
    cut_again: bool,
}

/// Every change, in every way.
pub fn cases() -> Vec<Case> {
    let run = Run::new();
    run.to_the_end().unwrap();
    let changes = run.disk.changes();
    let mut cases = Vec::new();
    for failure in FAILURES {
        let ends: &[(Loss, bool)] = match failure {
            Failure::Crash(Loss::Nothing) => &[(Loss::Nothing, true), (Loss::Nothing, false)],
            Failure::Crash(_) => &[(Loss::Nothing, true)],
            Failure::Error(_) | Failure::Break(_) => {
                &[(Loss::Nothing, false), (Loss::Everything, true)]
            }
        };
        for &(end, cut_again) in ends {
            let every = (0..changes).map(|change| Case {
                failure,
                change,
                end,
                cut_again,
            });
            cases.extend(every);
        }
    }
    cases
}

impl Case {
    /// Whether the process alone is killed, and the power cut comes later.
    pub fn kills(&self) -> bool {
        self.failure == Failure::Crash(Loss::Nothing) && self.cut_again
    }

    /// Whatever went wrong, nothing acknowledged is lost, and the run can be ended.
    pub fn check(&self) {
        let Case {
            failure,
            change,
            end,
            cut_again,
        } = *self;
        let run = Run::new();
        let replay = format!("{failure:?} at change {change}, {end:?}, {cut_again}");
        run.disk.fail_at(change, failure);
        let ended = run.to_the_end();
        run.disk.set_broken(None);
        run.restart(end);
        run.check(&format!("{replay}, after {ended:?}"));
        if cut_again {
            // What was found once must not be lost.
            run.restart(Loss::Everything);
            run.check(&format!("{replay}, a power cut later"));
        }
        run.to_the_end()
            .unwrap_or_else(|error| panic!("{replay}: {error}"));
        run.restart(Loss::Everything);
        assert_eq!(run.check(&replay), ROUNDS, "{replay}");
    }
}

/// safetensors#414: one bit of any file of the newest state is not what it was. Nobody goes on from that.
#[test]
fn a_bit_that_rots_anywhere_in_the_newest_state_is_refused_by_name() {
    (0..200).for_each(rot);
}

/// Lets a bit rot that a seed chooses.
pub fn rot(seed: u64) {
    let run = Run::new();
    run.to_the_end().unwrap();
    let mut rng = Rng::derive(seed, &[b"rot"]);
    let files = run.files();
    let states = files.list("states").unwrap();
    let newest = states.last().unwrap();
    let parts = files.list(&format!("states/{newest}")).unwrap();
    let part = &parts[rng.below(parts.len() as u64) as usize];
    let path = format!("states/{newest}/{part}");
    let mut bytes = files.read(&path).unwrap();
    let place = rng.below(bytes.len() as u64) as usize;
    bytes[place] ^= 1 << rng.below(8);
    files.replace(&path, &[&bytes]).unwrap();
    let replay = format!("byte {place} of {path}");
    match run.store().load(&layout()) {
        // It says the same, if in other letters.
        Ok(_) => assert_eq!(run.check(&replay), ROUNDS, "{replay}"),
        Err(error) => {
            let is_newest = matches!(error, CheckpointError::Newest { .. });
            assert!(
                is_newest && error.to_string().contains(newest),
                "{replay}: {error}"
            );
        }
    }
}

/// A disk that fills up anywhere, and is emptied again.
#[test]
fn a_disk_of_any_size_that_fills_up_loses_nothing_acknowledged() {
    let size = {
        let run = Run::new();
        run.to_the_end().unwrap();
        run.disk.size()
    };
    for capacity in (0..size).step_by(50) {
        let run = Run::new();
        run.disk.set_capacity(Some(capacity));
        let error = run.to_the_end().expect_err("it does not fit");
        let said = error.to_string();
        assert!(said.contains("no storage space"), "{capacity}: {said}");
        run.restart(Loss::Everything);
        run.check(&format!("capacity {capacity}"));
        run.disk.set_capacity(None);
        run.to_the_end().unwrap();
        run.restart(Loss::Everything);
        assert_eq!(run.check("with room"), ROUNDS, "{capacity}");
    }
}

/// The coordinator's disk through several lives, and what it was promised.
struct Run {
    world: SimWorld,
    node: NodeId,
    disk: Arc<MemoryDisk>,
    promised: Mutex<Promised>,
}

#[derive(Default)]
struct Promised {
    /// The last round whose end was acknowledged, or found by a life that loaded it.
    ended: Round,
    /// The weights of the round after it are written down.
    is_fixed: bool,
    /// Its acknowledged contributions.
    noted: Vec<Contribution>,
    /// The last view that was acknowledged, or found by a life that loaded it: whoever heard of it goes by it.
    epoch: Epoch,
    /// The store is known to be this run's.
    is_claimed: bool,
}

impl Promised {
    fn ended(&mut self, round: Round) {
        *self = Promised {
            ended: round,
            epoch: self.epoch,
            is_claimed: self.is_claimed,
            ..Promised::default()
        };
    }

    fn note(&mut self, contribution: Contribution) {
        self.noted
            .retain(|noted| noted.domain != contribution.domain);
        self.noted.push(contribution);
    }
}

impl Run {
    fn new() -> Self {
        let (world, node) = (SimWorld::new(1), "hq/a".parse().unwrap());
        Run {
            disk: world.disk(&node),
            promised: Mutex::default(),
            world,
            node,
        }
    }

    fn restart(&self, loss: Loss) {
        self.world.crash_with(&self.node, loss);
        self.world.restart(&self.node);
    }

    fn files(&self) -> Arc<dyn Files> {
        self.world.env(&self.node).files()
    }

    fn store(&self) -> Store {
        Store::new(self.files(), Hash([7; 32]), EVERY, Pool::default())
    }

    /// Loads; gives the last round that ended, and the one after it if its weights are fixed.
    fn load(&self) -> Result<(Round, Option<Resumed>), CheckpointError> {
        let found = self.store().load(&layout())?;
        let ended = found.committed.map_or(0, |loaded| loaded.last.record.round);
        let mut promised = self.promised.lock().unwrap();
        if ended > promised.ended {
            promised.ended(ended);
        }
        let epoch = found.view.map_or(0, |view| view.epoch);
        promised.epoch = promised.epoch.max(epoch);
        Ok((ended, found.open))
    }

    /// Runs the rounds that are left, as a coordinator would.
    fn to_the_end(&self) -> Result<(), CheckpointError> {
        self.store().claim(RUN)?;
        self.promised.lock().unwrap().is_claimed = true;
        let (ended, mut open) = self.load()?;
        for round in ended + 1..=ROUNDS {
            self.change_membership(round)?;
            // A round that was interrupted goes on with the weights that it has.
            if open.take().is_none() {
                self.store().fix(weighing(round))?;
                self.promised.lock().unwrap().is_fixed = true;
            }
            for (domain, attempt) in [("hq", 0), ("plant", 0), ("hq", 1)] {
                let contribution = contribution(round, domain, attempt);
                match self.store().note(&contribution) {
                    Ok(()) => self.promised.lock().unwrap().note(contribution),
                    // It is refused, and the round may end without it.
                    Err(error) if self.disk.has_ended() => return Err(error),
                    Err(_) => {}
                }
            }
            if ABORTED.contains(&round) {
                self.store()
                    .end(record(round), tally(round), None, Vec::new())?;
            } else {
                self.store().commit(&layout(), &state(round))?;
            }
            self.promised.lock().unwrap().ended(round);
            self.store().retain(round);
            if round == RESTART {
                self.leave_something_behind()?;
                if !self.disk.has_ended() {
                    self.restart(Loss::Everything);
                }
                self.load()?;
            }
        }
        Ok(())
    }

    /// Writes the view down that is due before a round, once more if it is not known whether it was.
    fn change_membership(&self, round: Round) -> Result<(), CheckpointError> {
        let due = CHANGES.iter().position(|before| *before == round);
        let Some(epoch) = due.map(|nth| nth as Epoch + 2) else {
            return Ok(());
        };
        let mut written = self.store().write_view(&view(epoch));
        if written.is_err() && !self.disk.has_ended() {
            // The machine asks again.
            written = self.store().write_view(&view(epoch));
        }
        written?;
        let mut promised = self.promised.lock().unwrap();
        promised.epoch = promised.epoch.max(epoch);
        Ok(())
    }

    /// As a crash before the record of the next round would.
    fn leave_something_behind(&self) -> Result<(), CheckpointError> {
        let path = format!("states/{:06}-0123456789abcdef/manifest.json", RESTART + 1);
        let result = self.files().replace(&path, &[b"half"]);
        result.map_err(|error| CheckpointError::Files {
            path,
            reason: error.to_string(),
        })
    }

    /// Loads, and compares everything with what was promised; gives the last round that ended.
    fn check(&self, replay: &str) -> Round {
        let (before, epoch, is_claimed) = {
            let promised = self.promised.lock().unwrap();
            (promised.ended, promised.epoch, promised.is_claimed)
        };
        let found = self.store().load(&layout());
        let found = found.unwrap_or_else(|error| panic!("{replay}: {error}"));
        // VIEW-1: no number is given twice.
        let last = found.view.as_ref().map_or(0, |view| view.epoch);
        assert!(
            last >= epoch,
            "{replay}: epoch {epoch} was acknowledged, epoch {last} is found"
        );
        let expected = (last > 0).then(|| view(last));
        assert_eq!(found.view, expected, "{replay}");
        let run = self.store().probe().unwrap().map(|probe| probe.run);
        assert!(run == Some(RUN) || run.is_none() && !is_claimed, "{replay}");
        let loaded = found.committed;
        let ended = loaded.as_ref().map_or(0, |found| found.last.record.round);
        assert!(
            ended == before || ended == before + 1,
            "{replay}: round {before} was acknowledged, round {ended} is found"
        );
        let committed: Vec<Round> = (1..=ended)
            .filter(|round| !ABORTED.contains(round))
            .collect();
        let newest = committed.last().copied();
        assert_eq!(
            loaded.as_ref().map_or(0, |found| found.round),
            newest.unwrap_or(0),
            "{replay}"
        );
        if let Some((found, round)) = loaded.as_ref().zip(newest) {
            let expected = state(round);
            let model = found.model.as_ref().expect("a round was committed");
            assert_eq!(model[..], expected.model[..], "{replay}");
            let velocity = vec![round as f32; layout().len()];
            assert_eq!(
                found.outer,
                [("velocity".to_owned(), velocity)],
                "{replay}: a mix"
            );
            assert_eq!(found.last.tally, tally(ended), "{replay}");
        }
        if ended == before {
            self.open_round_is_there(found.open, replay);
        } else {
            assert_eq!(
                found.open, None,
                "{replay}: notes of a round that has ended"
            );
        }
        self.is_tidy(&committed, ended, replay);
        self.load().unwrap().0
    }

    /// ROUND-3: what was acknowledged is known to the next life.
    fn open_round_is_there(&self, found: Option<Resumed>, replay: &str) {
        let promised = self.promised.lock().unwrap();
        let Some(found) = found else {
            assert!(!promised.is_fixed && promised.noted.is_empty(), "{replay}");
            return;
        };
        assert_eq!(found.weighing, weighing(promised.ended + 1), "{replay}");
        for expected in &promised.noted {
            let noted = found.noted.iter().map(|noted| &noted.contribution);
            let noted = noted.filter(|noted| noted.domain == expected.domain);
            let noted: Vec<&Contribution> = noted.collect();
            let [noted] = noted[..] else {
                panic!("{replay}: {noted:?}")
            };
            let newer = noted.attempt > expected.attempt;
            assert!(noted == expected || newer, "{replay}: {noted:?}");
        }
    }

    /// What is there is what is needed, no more.
    fn is_tidy(&self, committed: &[Round], ended: Round, replay: &str) {
        let files = self.files();
        let kept: Vec<Round> = committed
            .iter()
            .copied()
            .filter(|round| {
                round % EVERY == 0 || committed.iter().rev().take(2).any(|r| r == round)
            })
            .collect();
        let states = files.list("states").unwrap();
        let found: Vec<Round> = states
            .iter()
            .map(|name| name.split('-').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(found, kept, "{replay}");
        for name in files.list("commits").unwrap() {
            let bytes = files.read(&format!("commits/{name}")).unwrap();
            let record: CommitRecord = serde_json::from_slice(&bytes).unwrap();
            let kept = record.state.filter(|state| states.contains(state));
            assert_eq!(
                kept.is_some(),
                found.contains(&record.record.round),
                "{replay}"
            );
        }
        for name in files.list("notes").unwrap() {
            let round: Round = name.parse().unwrap();
            assert!(round > ended, "{replay}: notes of round {round} are left");
        }
        let visible = size(files.as_ref(), "");
        assert_eq!(self.disk.size(), visible, "{replay}: parts are left");
    }
}

fn size(files: &dyn Files, path: &str) -> u64 {
    let Ok(names) = files.list(path) else {
        return files.read(path).unwrap().len() as u64;
    };
    let below = |name: &String| match path {
        "" => name.clone(),
        path => format!("{path}/{name}"),
    };
    names.iter().map(|name| size(files, &below(name))).sum()
}

pub fn layout() -> Layout {
    Layout::new([("bias", vec![3]), ("weight", vec![2, 2])]).unwrap()
}

fn tally(round: Round) -> (u64, u64, u64) {
    let aborted = ABORTED.iter().filter(|aborted| **aborted <= round).count() as u64;
    (round - aborted, 0, aborted)
}

fn model(round: Round) -> Vec<f32> {
    (0..layout().len())
        .map(|index| round as f32 + index as f32 / 8.0)
        .collect()
}

fn record(round: Round) -> RoundRecord {
    let aborted = ABORTED.contains(&round);
    // Whoever is in an acknowledged sum.
    let members = ["hq/a", "plant/a"].map(|name| name.parse().unwrap());
    let (state, base, counted, late) = match aborted {
        true => (RoundState::Aborted, round - 1, Vec::new(), members.into()),
        false => (RoundState::Committed, round, members.into(), Vec::new()),
    };
    RoundRecord {
        round,
        epoch: 1,
        state,
        reason: String::new(),
        counted,
        late,
        denied: Vec::new(),
        refused: Vec::new(),
        accuracy: 0.5,
        loss: 1.0,
        weight_norm: 1.0,
        bytes: 0,
        bytes_down: 0,
        bytes_up: 0,
        model_hash: Hash::of(&model(base)),
        elapsed_s: 0.1,
        version: None,
        drifts: Vec::new(),
        balance: None,
    }
}

fn state(round: Round) -> State {
    let mut slab = Pool::default().take(layout().len());
    slab.copy_from_slice(&model(round));
    let plan = OuterPlan {
        optimizer: OuterKind::Momentum,
        learning_rate: 1.0,
        momentum: 0.9,
        ..OuterPlan::default()
    };
    let mut outer = outer::build(&plan, layout().len());
    let velocity = vec![round as f32; layout().len()];
    outer.restore(&[("velocity", &velocity)]).unwrap();
    State {
        record: record(round),
        tally: tally(round),
        leaves: Vec::new(),
        model: slab.freeze(),
        outer: Arc::new(Mutex::new(outer)),
    }
}

fn view(epoch: Epoch) -> View {
    let gate = |domain: &str| {
        (
            domain.parse().unwrap(),
            format!("{domain}/a").parse().unwrap(),
        )
    };
    let out = ("plant/b".parse().unwrap(), Out::Evicted(epoch as u32));
    View {
        epoch,
        coordinator: "hq/a".parse().unwrap(),
        gateways: ["hq", "plant"].map(gate).into(),
        out: [out].into(),
    }
}

fn weighing(round: Round) -> Weighing {
    let nodes: Vec<NodeId> = ["hq/a", "plant/a"]
        .iter()
        .map(|node| node.parse().unwrap())
        .collect();
    let report = |node: &NodeId| Report {
        node: node.clone(),
        samples: 10,
        loss: 1.0 / 3.0,
        steps: 1,
        learning_rate: 0.1,
        norm: f64::from(round as f32 / 7.0),
        finite: true,
    };
    let weight = |node: &NodeId| Weight {
        node: node.clone(),
        weight: 0.1 + 0.2,
        clip: 1.0 / 3.0,
        reason: String::new(),
    };
    Weighing {
        round,
        epoch: 1,
        base: Hash::of(&model(round - 1)),
        reports: nodes.iter().map(report).collect(),
        refused: Vec::new(),
        weights: nodes.iter().map(weight).collect(),
        cohort: nodes,
        trained_for: Vec::new(),
        steps: Vec::new(),
        efforts: Vec::new(),
    }
}

fn contribution(round: Round, domain: &str, attempt: u32) -> Contribution {
    Contribution {
        round,
        epoch: 1,
        attempt,
        domain: domain.parse().unwrap(),
        members: vec![format!("{domain}/a").parse().unwrap()],
        weight: 10.0,
        exponent: 3,
        chunks: vec![Hash([attempt as u8; 32])],
        encoding: Default::default(),
    }
}
