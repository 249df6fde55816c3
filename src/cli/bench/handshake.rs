//! `tombolo bench handshake`: how long two nodes take to know each other, what processors and networks pay for it, beside TCP with TLS 1.3.
//!
//! The certificates are those that `tombolo run` makes, read from disk, and both ends look at them as nodes do. A handshake ends when the first
//! byte of who was dialled has arrived, who answers once it knows who dials. Nodes never resume and always offer X25519MLKEM768 first; the other
//! cases have settings of this measurement alone, and are here to tell what that costs.

mod quic;
mod settings;
mod tcp;

use std::io;

use clap::Args;
use serde_json::{Map, json};

use super::child::folder;
use super::measure::{self, Measurement, own_cpu_seconds, show, within};
use crate::cli::{Common, Exit};
use settings::{Group, Sides, Site};

/// Each leaves a port of TCP behind that waits for a minute.
const REPEAT_MAX: u64 = 5000;

/// Arguments of `bench handshake`.
#[derive(Debug, Args)]
pub struct Handshake {
    /// How often each handshake is measured; once before that it is not.
    #[arg(long, default_value_t = 100)]
    repeat: usize,
}

/// One handshake.
struct Shaken {
    seconds: f64,
    /// Payload of UDP or TCP, both ways.
    bytes: u64,
    /// Whether both ends know who the other one is, and came to it in the way that was asked for.
    ok: bool,
}

/// Many of them.
struct Shakes {
    each: Vec<Shaken>,
    cpu_s: f64,
}

impl Shakes {
    /// Shakes hands so often, after once that is not counted: it may find nothing to resume.
    fn take(
        repeat: usize,
        mut shake: impl FnMut(bool) -> io::Result<Shaken>,
    ) -> io::Result<Shakes> {
        shake(true)?;
        let before = own_cpu_seconds();
        let each = (0..repeat).map(|_| shake(false));
        let each = each.collect::<io::Result<Vec<Shaken>>>()?;
        Ok(Shakes {
            each,
            cpu_s: own_cpu_seconds() - before,
        })
    }

    fn measured(self, peer: &'static str, case: &str) -> Measurement {
        let mut bytes: Vec<u64> = self.each.iter().map(|shaken| shaken.bytes).collect();
        bytes.sort_unstable();
        let mut more = Map::new();
        more.insert("bytes_max".into(), json!(bytes.last()));
        Measurement {
            group: "handshake",
            peer,
            case: case.to_owned(),
            n: 2,
            bytes: bytes[bytes.len() / 2],
            seconds: self.each.iter().map(|shaken| shaken.seconds).collect(),
            cpu_s_per_op: self.cpu_s / self.each.len() as f64,
            ok: self.each.iter().all(|shaken| shaken.ok),
            more,
        }
    }
}

impl Handshake {
    /// Measures.
    pub fn run(&self, common: &Common) -> Exit {
        let checked = within("repeat", self.repeat as u64, REPEAT_MAX);
        measure::run(common, checked, || {
            let folder = folder(common)?;
            let site = Site::new(folder.path())?;
            let mut measured = vec![
                tcp::plain(self.repeat)?.measured("limit-tcp", "no TLS"),
                quic::shakes(&site, None, self.repeat)?.measured("tombolo", "full, X25519MLKEM768"),
            ];
            for (group, resumes) in [
                (Group::Hybrid, false),
                (Group::Classic, false),
                (Group::Hybrid, true),
                (Group::Classic, true),
            ] {
                let how = if resumes { "resumed" } else { "full" };
                let case = format!("{how}, {}", group.name());
                let sides = Sides::new(&site, group, resumes)?;
                let shakes = tcp::shakes(&site, &sides, self.repeat)?;
                measured.push(shakes.measured("tcp-rustls", &case));
                // The first of them is what nodes do.
                if resumes || group == Group::Classic {
                    let sides = Sides::new(&site, group, resumes)?;
                    let shakes = quic::shakes(&site, Some(&sides), self.repeat)?;
                    measured.push(shakes.measured("quinn", &format!("{case}, not done by nodes")));
                }
            }
            Ok(show(common, &measured))
        })
    }
}
