//! The coordinator's disk: what was written down, and what is being written. A crash decides which of the latter is there.

use std::collections::BTreeMap;

use tombolo_core::coordinator::{
    Committed, Message, NoteError, Noted, Resumed, Weighing, overtaken,
};
use tombolo_core::event::{Event, RoundRecord};
use tombolo_core::ids::{Attempt, DomainId, Round};
use tombolo_core::staleness::Past;
use tombolo_core::tensor::Hash;
use tombolo_core::view::View;
use tombolo_core::wire::Contribution;

use crate::world::{Happening, Sum, World, initial};

/// Something to be written.
#[derive(Debug, Clone)]
pub enum Write {
    View(View),
    Fix(Box<Weighing>),
    /// With the sum itself, if there is a journal.
    Note(Contribution, Option<Sum>),
    /// How a round ended, with its model if it was committed.
    End(Box<RoundRecord>, Option<Hash>),
}

/// See the file.
pub struct Disk {
    pub committed: Committed,
    weighing: Option<Weighing>,
    noted: BTreeMap<DomainId, (Contribution, Option<Sum>)>,
    last: Option<RoundRecord>,
    /// What is still noted of the last round.
    left: BTreeMap<DomainId, Contribution>,
    pub full: bool,
    /// Being written, by the process of that number for that life.
    flying: BTreeMap<u64, (u64, u64, Write)>,
    writes: u64,
}

impl Disk {
    pub fn new() -> Self {
        Disk {
            committed: Committed {
                run: Hash::default(),
                ended: 0,
                round: 0,
                hash: initial(),
                tally: (0, 0, 0),
                accuracy: 0.0,
                loss: 0.0,
                view: None,
                past: Past::default(),
                drifts: Vec::new(),
                paces: Vec::new(),
                overtaken: Vec::new(),
                paused: None,
            },
            weighing: None,
            noted: BTreeMap::new(),
            last: None,
            left: BTreeMap::new(),
            full: false,
            flying: BTreeMap::new(),
            writes: 0,
        }
    }

    /// What a coordinator that starts finds.
    pub fn load(&self) -> (Committed, Option<Resumed>) {
        let noted = self.noted.values().map(|(contribution, sum)| Noted {
            contribution: contribution.clone(),
            kept: sum.is_some(),
        });
        let weighing = self.weighing.clone();
        let resumed = weighing.map(|weighing| Resumed {
            weighing,
            noted: noted.collect(),
        });
        let mut committed = self.committed.clone();
        if let Some(last) = &self.last {
            committed.overtaken = overtaken(last, self.left.values().cloned());
        }
        (committed, resumed)
    }

    /// Whether a contribution would survive a restart.
    pub fn is_noted(&self, round: Round, domain: &DomainId, attempt: Attempt) -> bool {
        let noted = self.noted.get(domain);
        noted.is_some_and(|(noted, _)| (noted.round, noted.attempt) == (round, attempt))
    }

    /// What is noted of a domain, for a message.
    pub fn told(&self, domain: &DomainId) -> String {
        let fixed = self.weighing.as_ref().map(|weighing| weighing.round);
        let noted = self.noted.get(domain);
        let noted = noted.map(|(noted, _)| (noted.round, noted.attempt));
        format!(
            "{noted:?} of fixed {fixed:?} behind {}",
            self.committed.ended
        )
    }

    /// The journal's copy of a contribution.
    pub fn kept(&self, contribution: &Contribution) -> Option<Sum> {
        let (noted, sum) = self.noted.get(&contribution.domain)?;
        sum.clone().filter(|_| noted == contribution)
    }
}

impl World {
    pub fn write(&mut self, write: Write) {
        let process = self.nodes[&self.plan.coordinator].process;
        // A store that is far away may take its time.
        let far = self.storm && self.chance(0.05);
        let most = match (self.storm, far) {
            (_, true) => 2_000,
            (true, false) => 200,
            (false, false) => 30,
        };
        self.disk.writes += 1;
        let number = self.disk.writes;
        let flying = (process, self.coordinator_life, write);
        self.disk.flying.insert(number, flying);
        self.after(1, most, Happening::Written(number));
    }

    /// A write has come to its end, if nothing has lost it; whoever waits for it hears so.
    pub fn written(&mut self, number: u64) {
        let Some((_, life, write)) = self.disk.flying.remove(&number) else {
            return;
        };
        let chosen = self.storm && self.chance(0.01);
        let fails = chosen && matches!(write, Write::Fix(_) | Write::Note(..));
        let result = match self.disk.full || fails {
            true => {
                // What failed may be there all the same.
                if fails && self.chance(0.5) {
                    let _ = self.apply(life, &write);
                }
                Err("no space is left".to_owned())
            }
            false => self.apply(life, &write),
        };
        let told = match write {
            Write::View(view) => Message::Viewed(view.epoch, result),
            Write::Fix(weighing) => Message::Fixed(weighing.round, result),
            Write::Note(contribution, _) => Message::Noted(
                contribution.round,
                contribution.domain,
                contribution.attempt,
                result.map_err(NoteError::Disk),
            ),
            Write::End(record, hash) => {
                let round = record.round;
                if result.is_ok() && life == self.coordinator_life {
                    let own = self.plan.coordinator.clone();
                    self.events(&own, vec![Event::Round(*record)]);
                }
                match hash {
                    Some(_) => Message::Committed(round, result),
                    None => Message::Recorded(round, result),
                }
            }
        };
        self.after(0, 3, Happening::Coordinator(life, Box::new(told)));
    }

    /// Makes a write last. Views and outcomes are created if absent, so that nobody decides what somebody else has decided.
    fn apply(&mut self, life: u64, write: &Write) -> Result<(), String> {
        let disk = &mut self.disk;
        let due = disk.committed.ended + 1;
        match write {
            Write::View(view) => {
                let last = disk.committed.view.as_ref();
                if last == Some(view) {
                    return Ok(());
                }
                if view.epoch != last.map_or(1, |last| last.epoch) + 1 {
                    return Err(format!("view {} is there already", view.epoch));
                }
                disk.committed.view = Some(view.clone());
                self.check.on_epoch(view, life == self.coordinator_life);
            }
            Write::Fix(weighing) if weighing.round == due => {
                disk.weighing = Some((**weighing).clone());
                disk.noted.clear();
                self.check.on_fixed(weighing);
            }
            Write::Note(contribution, sum) if contribution.round == due => {
                let noted = (contribution.clone(), sum.clone());
                disk.noted.insert(contribution.domain.clone(), noted);
            }
            Write::End(record, hash) => {
                if disk.last.as_ref() == Some(&**record) {
                    return Ok(());
                }
                if record.round != due {
                    return Err(format!(
                        "the end of round {} is there already",
                        record.round
                    ));
                }
                disk.last = Some((**record).clone());
                disk.committed.drifts.clone_from(&record.drifts);
                if let Some(balance) = &record.balance {
                    disk.committed.paces.clone_from(&balance.paces);
                }
                (disk.weighing, disk.committed.ended) = (None, due);
                let noted = std::mem::take(&mut disk.noted).into_iter();
                disk.left = noted.map(|(domain, (sum, _))| (domain, sum)).collect();
                if let Some(version) = &record.version {
                    disk.committed.past = version.past.clone().expect("it is written down");
                }
                let tally = &mut disk.committed.tally;
                match hash {
                    Some(hash) => {
                        (disk.committed.round, disk.committed.hash) = (due, *hash);
                        tally.0 += 1;
                    }
                    None => tally.2 += 1,
                }
                self.check
                    .on_record(self.now, record, life == self.coordinator_life);
                if let Some(hash) = hash {
                    self.check.on_commit(due, *hash);
                }
            }
            // Of a round that is over, which a life that has begun before it was may not know yet.
            Write::Fix(weighing) if life == self.coordinator_life => {
                disk.left.clear();
                self.check.on_fixed(weighing);
            }
            // As long as it is the last one that is over: what is acknowledged in vain is found by the next life.
            Write::Note(contribution, _) if contribution.round == disk.committed.ended => {
                let domain = contribution.domain.clone();
                disk.left.insert(domain, contribution.clone());
            }
            Write::Fix(_) | Write::Note(..) => {}
        }
        Ok(())
    }

    /// Whatever this process is writing is written, in order.
    pub fn flush(&mut self) {
        let process = self.nodes[&self.plan.coordinator].process;
        let flying = self.disk.flying.iter();
        let mine = flying.filter(|(_, (of, ..))| *of == process);
        let mine: Vec<u64> = mine.map(|(number, _)| *number).collect();
        mine.into_iter().for_each(|number| self.written(number));
    }

    /// The process ends while it writes. Each write is there, or torn and as good as absent; one to a store far away may land later.
    pub fn lose_writes(&mut self) {
        let numbers: Vec<u64> = self.disk.flying.keys().copied().collect();
        for number in numbers {
            let fate = self.rng.below(3);
            let far = matches!(self.disk.flying[&number].2, Write::View(_) | Write::End(..));
            if fate == 0 {
                self.written(number);
            } else if let Some(write) = self.disk.flying.remove(&number)
                && fate == 2
                && far
            {
                self.disk.writes += 1;
                let number = self.disk.writes;
                self.disk.flying.insert(number, write);
                self.after(0, 6_000, Happening::Written(number));
            }
        }
    }
}
