//! `tombolo bench link`: one large object over loopback, by QUIC as nodes use it, beside TCP with TLS 1.3 and plain TCP.
//!
//! Both ends live in this process, each with a thread of its own for its packets, as two nodes' processes would have. What arrives is looked
//! at byte by byte in the first transfer, which is not measured; in those that are, only whether all of it came.

pub mod quic;
pub mod tcp;

use std::io;

use clap::Args;
use serde_json::{Map, json};

use super::child::folder;
use super::measure::{self, Measurement, cpu_seconds, now, show, within};
use crate::cli::{Common, Exit};

/// Two buffers of so many bytes are 8 GB.
const BYTES_MAX: u64 = 4 << 30;

/// More repetitions tell nothing new.
const REPEAT_MAX: usize = 1000;

/// The largest UDP payload of ordinary Ethernet with IPv6.
const ETHERNET: u16 = 1452;

/// Arguments of `bench link`.
#[derive(Debug, Args)]
pub struct Link {
    /// Bytes of the object.
    #[arg(long, default_value_t = 102_400_000)]
    bytes: u64,
    /// How often each transfer is measured; once before that it is not.
    #[arg(long, default_value_t = 7)]
    repeat: usize,
}

/// What the receiver does with what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// As it comes: pieces in any order, each dropped after a look.
    InPieces,
    /// Into one buffer that was there before, in order.
    AsOneTensor,
}

/// One way to move the object, both ends connected.
pub trait Path {
    /// Moves it once; `is_first` asks for a look at every byte. Whether all of it came, and came right.
    fn pass(&mut self, is_first: bool) -> io::Result<bool>;

    /// Fields of this way alone.
    fn more(&self) -> Map<String, serde_json::Value> {
        Map::new()
    }
}

impl Link {
    /// Measures.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || {
            let folder = folder(common)?;
            let object = object(self.bytes as usize);
            let mut measurements = Vec::new();
            for taken in [Taken::InPieces, Taken::AsOneTensor] {
                let mut plain = tcp::Plain::open(&object, taken)?;
                measurements.push(self.measure("tcp", taken.name(), &mut plain)?);
                let mut secured = tcp::Secured::open(&object, taken)?;
                measurements.push(self.measure("tcp-rustls", taken.name(), &mut secured)?);
                let mut quic = quic::Quic::open(folder.path(), &object, taken, u16::MAX)?;
                measurements.push(self.measure("tombolo", taken.name(), &mut quic)?);
            }
            let mut quic = quic::Quic::open(folder.path(), &object, Taken::InPieces, ETHERNET)?;
            let case = format!("{}, packets of {ETHERNET}", Taken::InPieces.name());
            measurements.push(self.measure("tombolo", &case, &mut quic)?);
            Ok(show(common, &measurements))
        })
    }

    fn check(&self) -> Result<(), String> {
        within("bytes", self.bytes, BYTES_MAX)?;
        within("repeat", self.repeat as u64, REPEAT_MAX as u64)
    }

    fn measure(
        &self,
        peer: &'static str,
        case: &str,
        path: &mut dyn Path,
    ) -> io::Result<Measurement> {
        let mut measurement = passes(peer, path, self.bytes, self.repeat)?;
        measurement.case = case.to_owned();
        let total: f64 = measurement.seconds.iter().sum();
        let rate = self.bytes as f64 * measurement.seconds.len() as f64 / total / 1e9;
        measurement.more.insert("GBps".to_owned(), json!(rate));
        Ok(measurement)
    }
}

impl Taken {
    fn name(self) -> &'static str {
        match self {
            Taken::InPieces => "in pieces",
            Taken::AsOneTensor => "as one tensor",
        }
    }
}

/// Moves the object once, then `repeat` times with the clock on.
pub fn passes(
    peer: &'static str,
    path: &mut dyn Path,
    bytes: u64,
    repeat: usize,
) -> io::Result<Measurement> {
    let mut ok = path.pass(true)?;
    let before = cpu_seconds(std::process::id())?;
    let mut seconds = Vec::new();
    for _ in 0..repeat {
        let began = now();
        ok &= path.pass(false)?;
        seconds.push((now() - began).as_secs_f64());
    }
    let used = cpu_seconds(std::process::id())? - before;
    Ok(Measurement {
        group: "link",
        peer,
        case: String::new(),
        n: 2,
        bytes,
        seconds,
        cpu_s_per_op: used / repeat as f64,
        ok,
        more: path.more(),
    })
}

/// A byte that tells where it stands: a shift or a lost piece shows.
fn byte(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

/// What is moved.
pub fn object(bytes: usize) -> bytes::Bytes {
    (0..bytes).map(byte).collect::<Vec<u8>>().into()
}

/// Whether a piece is what stands there.
pub fn is_right(piece: &[u8], at: usize, is_first: bool) -> bool {
    match is_first {
        true => piece
            .iter()
            .enumerate()
            .all(|(index, found)| *found == byte(at + index)),
        false => piece.first().is_none_or(|found| *found == byte(at)),
    }
}
