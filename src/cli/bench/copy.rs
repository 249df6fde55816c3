//! `tombolo bench copy`: a file of a checkpoint's size into a socket, by every way that the system has for it; memory that another process may
//! READ; and queues from thread to thread.
//!
//! The file is in the system's cache. `copies` is how often processors copy its bytes on their way out of it and into the memory of who takes
//! them, `switches` how often a thread at either end gave its processor away, or lost it, while one file passed. Every byte is looked at in
//! the first pass, which is not measured. io_uring is not among the ways: it has no safe binding that is a dependency already.

mod queues;
mod ways;

use std::io;

use clap::Args;
use serde_json::{Map, json};

use super::child::folder;
use super::link::object;
use super::measure::{self, Measurement, now, own_cpu_seconds, show, within};
use crate::cli::{Common, Exit};
use ways::{Once, Ways};

const BYTES_MAX: u64 = 4 << 30;
const REPEAT_MAX: u64 = 1000;
const ITEMS_MAX: u64 = 100_000_000;

/// Arguments of `bench copy`.
#[derive(Debug, Args)]
pub struct Copy {
    /// Bytes of the file.
    #[arg(long, default_value_t = 102_400_000)]
    bytes: u64,
    /// Numbers that pass through a queue.
    #[arg(long, default_value_t = 1_000_000)]
    items: u64,
    /// How often each is measured; once before that it is not.
    #[arg(long, default_value_t = 7)]
    repeat: usize,
}

impl Copy {
    /// Measures.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || {
            let folder = folder(common)?;
            let object = object(self.bytes as usize);
            let mut ways = Ways::new(folder.path(), &object)?;
            let mut measured = Vec::new();
            for way in ways::ALL {
                measured.push(self.measure(&way, |is_first| ways.pass(&way, is_first))?);
            }
            measured.extend(queues::measure(self.items, self.repeat)?);
            Ok(show(common, &measured))
        })
    }

    fn check(&self) -> Result<(), String> {
        within("bytes", self.bytes, BYTES_MAX)?;
        within("items", self.items, ITEMS_MAX)?;
        within("repeat", self.repeat as u64, REPEAT_MAX)
    }

    fn measure(
        &self,
        way: &ways::Way,
        mut pass: impl FnMut(bool) -> io::Result<Once>,
    ) -> io::Result<Measurement> {
        let mut ok = pass(true)?.right;
        let (mut seconds, mut sender_s, mut switches) = (Vec::new(), 0.0, 0);
        let before = own_cpu_seconds();
        for _ in 0..self.repeat {
            let began = now();
            let once = pass(false)?;
            seconds.push((now() - began).as_secs_f64());
            ok &= once.right;
            sender_s += once.sender_s;
            switches += once.switches;
        }
        let cpu_s = (own_cpu_seconds() - before) / self.repeat as f64;
        let gigabytes = self.bytes as f64 / 1e9;
        let mut more = Map::new();
        more.insert("copies".into(), json!(way.copies));
        more.insert("switches".into(), json!(switches / self.repeat as u64));
        more.insert("cpu_s_per_gb".into(), json!(cpu_s / gigabytes));
        let sender_s = sender_s / self.repeat as f64;
        more.insert("sender_s_per_gb".into(), json!(sender_s / gigabytes));
        Ok(Measurement {
            group: "copy",
            peer: way.peer,
            case: way.case.to_owned(),
            n: 2,
            bytes: self.bytes,
            seconds,
            cpu_s_per_op: cpu_s,
            ok,
            more,
        })
    }
}
