//! `tombolo bench pool`: fresh memory for tensors beside memory that was used before, first touch included; and how much fresh memory rounds
//! need once they are in a steady state.
//!
//! `faults` is how often an operation had to have a page from the system. The rounds are those of a whole federation in this process, with QUIC
//! and TLS between two sites and a trainer that only adds; every model is looked at.

use std::hint::black_box;
use std::io;

use clap::Args;
use serde_json::{Map, json};
use tokio::sync::broadcast::error::RecvError;

use super::child::folder;
use super::measure::{self, Measurement, now, own_cpu_seconds, repeated, show, within};
use super::round::trainer::Addition;
use crate::cli::output::refuse;
use crate::cli::{Common, Exit, runtime};
use tombolo::actors::slab::{self, Given};
use tombolo::{Federation, FederationError};
use tombolo_core::event::{Event, RoundState};
use tombolo_core::wire::CHUNK_ELEMENTS;
use tombolo_fabric::VerbsProvider;
use tombolo_fabric::shm::Shm;

/// Four tensors of so many elements make 8 GB.
const ELEMENTS_MAX: u64 = 1 << 29;
const REPEAT_MAX: u64 = 10_000;
const ROUNDS_MAX: u64 = 1000;

/// Elements of a page.
const PAGE: usize = 4096 / size_of::<f32>();

/// The first rounds make what the later ones use again.
const WARM_UP: u64 = 4;

/// Arguments of `bench pool`.
#[derive(Debug, Args)]
pub struct Pool {
    /// Numbers of the largest tensor, and of the model.
    #[arg(long, default_value_t = 25_600_000)]
    elements: u64,
    /// How often each is measured; once before that it is not.
    #[arg(long, default_value_t = 15)]
    repeat: usize,
    /// Rounds in a steady state.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
}

/// What is done with memory.
#[derive(Debug, Clone, Copy)]
enum Touch {
    /// One number a page: nothing but what the system does for it.
    Pages,
    /// Every number.
    All,
}

impl Touch {
    fn name(self) -> &'static str {
        match self {
            Touch::Pages => "a write a page",
            Touch::All => "filled",
        }
    }

    /// Writes a number; whether it can be read again.
    fn write(self, elements: &mut [f32], number: f32) -> bool {
        match self {
            Touch::Pages => elements
                .iter_mut()
                .step_by(PAGE)
                .for_each(|element| *element = number),
            Touch::All => elements.fill(number),
        }
        let elements = black_box(elements);
        let last = (elements.len() - 1) / PAGE * PAGE;
        elements[0] == number && elements[last] == number
    }
}

impl Pool {
    /// Measures.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || {
            let mut measured = self.slabs()?;
            measured.extend(self.regions(common)?);
            match self.steady(common)? {
                Ok(rounds) => measured.push(rounds),
                Err(error) => return Ok(refuse(common, error)),
            }
            Ok(show(common, &measured))
        })
    }

    fn check(&self) -> Result<(), String> {
        within("elements", self.elements, ELEMENTS_MAX)?;
        within("repeat", self.repeat as u64, REPEAT_MAX)?;
        within("rounds", self.rounds, ROUNDS_MAX)
    }

    /// Slabs of a chunk, of sixteen, and of a model.
    fn slabs(&self) -> io::Result<Vec<Measurement>> {
        let mut measured = Vec::new();
        for elements in [CHUNK_ELEMENTS, 16 * CHUNK_ELEMENTS, self.elements as usize] {
            for touch in [Touch::Pages, Touch::All] {
                let case = format!("slab, {}", touch.name());
                let fresh = |number| touch.write(&mut vec![0.0; elements], number);
                measured.push(self.measure("fresh", &case, elements, fresh)?);
                let pool = slab::Pool::default();
                let pooled = |number| touch.write(&mut pool.take(elements), number);
                measured.push(self.measure("tombolo", &case, elements, pooled)?);
            }
        }
        Ok(measured)
    }

    /// Memory that others may READ, reserved when it is made.
    fn regions(&self, common: &Common) -> io::Result<Vec<Measurement>> {
        let folder = folder(common)?;
        let device = Shm::new(folder.path().join("regions")).open("bench/a");
        let device = device.map_err(io::Error::other)?;
        let elements = self.elements as usize;
        let case = format!("region, {}", Touch::All.name());
        let make = || device.allocate(elements * size_of::<f32>());
        let fresh = |number| {
            let made = make();
            made.is_ok_and(|mut region| Touch::All.write(&mut region.f32s_mut(), number))
        };
        let fresh = self.measure("fresh", &case, elements, fresh)?;
        let mut region = make().map_err(io::Error::other)?;
        let kept = |number| Touch::All.write(&mut region.f32s_mut(), number);
        let kept = self.measure("tombolo", &case, elements, kept)?;
        Ok(vec![fresh, kept])
    }

    fn measure(
        &self,
        peer: &'static str,
        case: &str,
        elements: usize,
        mut write: impl FnMut(f32) -> bool,
    ) -> io::Result<Measurement> {
        let (mut ok, mut number) = (true, 0.0);
        let before = faults()?;
        let (seconds, cpu_s_per_op) = repeated(self.repeat, || {
            number += 1.0;
            ok &= write(number);
        })?;
        let found = faults()? - before;
        let mut more = Map::new();
        // With the one that is not measured.
        more.insert("faults".into(), json!(found / (self.repeat as u64 + 1)));
        Ok(Measurement {
            group: "pool",
            peer,
            case: case.to_owned(),
            n: 1,
            bytes: (elements * size_of::<f32>()) as u64,
            seconds,
            cpu_s_per_op,
            ok,
            more,
        })
    }

    /// Slabs that rounds of a federation take, and those of them that had to be made.
    fn steady(&self, common: &Common) -> io::Result<Result<Measurement, FederationError>> {
        let folder = folder(common)?;
        let rounds = WARM_UP + self.rounds;
        let text = format!(
            "[federation]\nname = \"bench\"\nrounds = {rounds}\nsync_every = 1\n\
             [round]\nquorum = \"all\"\ndeadline = \"10min\"\n\
             [aggregator]\nkind = \"fedavg\"\nweights = \"equal\"\nclip = \"none\"\n\
             [[domain]]\nname = \"hq\"\nnodes = [\"gate\", \"a\"]\n\
             [[domain]]\nname = \"plant\"\nnodes = [\"gate\"]\n"
        );
        let elements = self.elements as usize;
        let federation = match Federation::from_toml(&text, folder.path()) {
            Ok(federation) => federation
                .state(folder.path().join("state"))
                .trainer(move |_| Addition::new(elements, rounds)),
            Err(error) => return Ok(Err(error)),
        };
        Ok(runtime()?.block_on(self.watch(federation)))
    }

    async fn watch(&self, federation: Federation) -> Result<Measurement, FederationError> {
        let running = federation.spawn().await?;
        let mut events = running.events();
        // At the end of each round.
        let mut ends = Vec::new();
        let mut note = |event| {
            if let Event::Round(_) = event {
                ends.push((now(), slab::given(), own_cpu_seconds()));
            }
        };
        let mut run = std::pin::pin!(running.run());
        let report = loop {
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    Ok(event) => note(event),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => break run.as_mut().await?,
                },
                report = &mut run => break report?,
            }
        };
        while let Ok(event) = events.try_recv() {
            note(event);
        }
        let right = |record: &tombolo::Round| {
            record.state == RoundState::Committed && record.accuracy == 1.0
        };
        let all = report.rounds.iter().all(right);
        let steady = ends.get(WARM_UP as usize - 1..).unwrap_or_default();
        let seconds = steady
            .windows(2)
            .map(|pair| (pair[1].0 - pair[0].0).as_secs_f64());
        let seconds: Vec<f64> = seconds.collect();
        let (first, last) = match (steady.first(), steady.last()) {
            (Some(first), Some(last)) => (first.1, last.1),
            _ => (slab::given(), slab::given()),
        };
        let since = Given {
            taken: last.taken - first.taken,
            made: last.made - first.made,
        };
        let used = steady.first().zip(steady.last());
        let used = used.map_or(0.0, |(first, last)| last.2 - first.2);
        let mut more = Map::new();
        more.insert("slabs_taken".into(), json!(since.taken));
        more.insert("slabs_made".into(), json!(since.made));
        Ok(Measurement {
            group: "pool",
            peer: "tombolo",
            case: "rounds in a steady state".to_owned(),
            n: 3,
            bytes: self.elements * 4,
            cpu_s_per_op: used / seconds.len().max(1) as f64,
            ok: all && since.taken > 0 && seconds.len() as u64 == self.rounds,
            seconds,
            more,
        })
    }
}

/// Pages that this process has had from the system, without waiting for a disk.
fn faults() -> io::Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name, in brackets, may hold anything; the fields behind it are numbers but for the first.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let found = fields.split_whitespace().nth(7);
    let found = found.and_then(|field| field.parse().ok());
    found.ok_or_else(|| io::Error::other("the system does not say how many pages it has given"))
}
