//! `tombolo bench allreduce`: collectives of step mode among real processes, beside plain loops of as many threads over one memory.
//!
//! This process is the first rank and starts the others. Each rank has a processor of its own where there are enough, as `mpirun` does it. Before
//! anything is measured an all-reduce of known numbers is done and every element of every rank is looked at.

mod limit;
pub mod place;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use clap::Args;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::child::{child, folder};
use super::measure::{self, Measurement, now, own_cpu_seconds, show, within};
use crate::cli::output::print_line;
use crate::cli::{Common, Exit};
use tombolo_actors::step::{Reduction, Shared, Step};
use tombolo_core::collective::{DType, Element, RANKS_MAX, Shape};
use tombolo_fabric::Endpoint;
use tombolo_fabric::group::{Founding, Group};

/// As many as one tensor of a large model has.
const ELEMENTS_MAX: usize = 1 << 30;

/// More operations or batches tell nothing new.
const PER_MAX: usize = 1_000_000;
const BATCHES_MAX: usize = 1000;

/// How long a rank may keep the others waiting.
const WAIT: Duration = Duration::from_secs(60);

/// Arguments of `bench allreduce`.
#[derive(Debug, Args)]
pub struct AllReduce {
    /// Processes that take part.
    #[arg(long, default_value_t = 2)]
    nodes: usize,
    /// Numbers that each has.
    #[arg(long, default_value_t = 25_600_000)]
    elements: usize,
    /// Their type: f32, f16, bf16, f64, i32 or i64.
    #[arg(long, default_value_t = DType::F32)]
    dtype: DType,
    /// Operations in a batch, whose time is divided by as many.
    #[arg(long, default_value_t = 1)]
    per: usize,
    /// Batches that are measured.
    #[arg(long, default_value_t = 9)]
    batches: usize,
    /// How it goes: direct, ring, tree, halving or mesh; without it, the one that suits.
    #[arg(long)]
    shape: Option<Shape>,
    /// Numbers in memory of each process alone, instead of memory that all of them reach.
    #[arg(long, conflicts_with = "shape")]
    private: bool,
    /// Set by the first rank: who this one is. Its invitation comes on standard input.
    #[arg(long, hide = true, requires = "child_of")]
    rank: Option<usize>,
    /// Set by the first rank, whom this one does not outlive: the group fails then.
    #[arg(long, hide = true, value_name = "PID")]
    child_of: Option<u32>,
}

/// What a rank says at its end.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    cpu_s: f64,
    right: bool,
}

impl AllReduce {
    /// Measures, or is a part of what is measured.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || match (self.rank, &common.state) {
            (Some(rank), Some(folder)) => {
                print_line(&self.take_part(folder, rank)?);
                Ok(Exit::Done)
            }
            _ => {
                let folder = folder(common)?;
                let mut measurements = vec![self.measure(folder.path())?];
                if self.dtype == DType::F32 {
                    measurements.push(self.limit()?);
                }
                Ok(show(common, &measurements))
            }
        })
    }

    fn check(&self) -> Result<(), String> {
        within("nodes", self.nodes as u64, RANKS_MAX as u64)?;
        within("elements", self.elements as u64, ELEMENTS_MAX as u64)?;
        within("per", self.per as u64, PER_MAX as u64)?;
        within("batches", self.batches as u64, BATCHES_MAX as u64)
    }

    fn measure(&self, folder: &Path) -> io::Result<Measurement> {
        let names: Vec<String> = (0..self.nodes).map(name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let sockets = folder.join("fabric");
        let founding = Founding::new(&sockets, &names).map_err(io::Error::other)?;
        let others = (1..self.nodes).map(|rank| self.start(folder, rank, &founding));
        let mut others = others.collect::<io::Result<Vec<Other>>>()?;
        // On a thread of its own, so that its place is not that of what comes later.
        let run = || {
            let group = founding.found(WAIT).map_err(io::Error::other)?;
            self.operate(Step::new(group))
        };
        let first = std::thread::scope(|scope| {
            let first = scope.spawn(run);
            first.join().expect("it says what is wrong as an error")
        });
        let (seconds, mut all) = first?;
        for other in &mut others {
            let part = other.part()?;
            all.cpu_s += part.cpu_s;
            all.right &= part.right;
        }
        let memory = if self.private { "private" } else { "in place" };
        let shape = self.shape.unwrap_or(Shape::auto(self.nodes, self.nodes));
        Ok(Measurement {
            group: "allreduce",
            peer: "tombolo",
            case: format!("{memory}, {shape}, {}", self.dtype),
            n: self.nodes,
            bytes: self.bytes(),
            cpu_s_per_op: all.cpu_s / (self.per * self.batches) as f64,
            seconds,
            ok: all.right,
            more: Map::new(),
        })
    }

    fn limit(&self) -> io::Result<Measurement> {
        let asked = limit::Asked {
            threads: self.nodes,
            elements: self.elements,
            per: self.per,
            batches: self.batches,
        };
        let found = limit::measure(asked);
        Ok(Measurement {
            group: "allreduce",
            peer: "limit-threads",
            case: format!("in place, plain loops, {}", self.dtype),
            n: self.nodes,
            bytes: self.bytes(),
            cpu_s_per_op: found.cpu_s / (self.per * self.batches) as f64,
            seconds: found.seconds,
            ok: found.right,
            more: Map::new(),
        })
    }

    fn bytes(&self) -> u64 {
        (self.elements * self.dtype.size()) as u64
    }

    fn start(&self, folder: &Path, rank: usize, founding: &Founding) -> io::Result<Other> {
        let mut command = child("allreduce", folder)?.into_std();
        for (name, number) in [
            ("--nodes", self.nodes),
            ("--elements", self.elements),
            ("--per", self.per),
            ("--batches", self.batches),
            ("--rank", rank),
        ] {
            command.args([name, &number.to_string()]);
        }
        command.args(["--dtype", self.dtype.name()]);
        if let Some(shape) = self.shape {
            command.args(["--shape", shape.name()]);
        }
        if self.private {
            command.arg("--private");
        }
        let mut other = Other(command.stdin(Stdio::piped()).spawn()?);
        let input = other.0.stdin.take();
        let mut input = input.ok_or_else(|| io::Error::other("a rank has no input"))?;
        // A secret does not belong among the arguments, which everybody sees.
        input.write_all(&founding.invitation(rank).to_bytes())?;
        Ok(other)
    }

    /// Is one of the other ranks.
    fn take_part(&self, folder: &Path, rank: usize) -> io::Result<Part> {
        let mut invitation = Vec::new();
        let limit = Endpoint::LENGTH_MAX as u64;
        io::stdin().take(limit).read_to_end(&mut invitation)?;
        let invitation = Endpoint::from_bytes(&invitation).map_err(io::Error::other)?;
        let group = Group::join(&folder.join("fabric"), &name(rank), &invitation, WAIT);
        let group = group.map_err(io::Error::other)?;
        Ok(self.operate(Step::new(group))?.1)
    }

    /// Seconds of an operation in each batch, and this rank's part.
    fn operate(&self, step: Step) -> io::Result<(Vec<f64>, Part)> {
        place::take(step.group().rank(), self.nodes);
        match self.dtype {
            DType::F32 => self.operate_on::<f32>(step, |it| it as f32),
            DType::F16 => self.operate_on(step, |it| f16::from_f32(it as f32)),
            DType::Bf16 => self.operate_on(step, |it| bf16::from_f32(it as f32)),
            DType::F64 => self.operate_on(step, |it| it as f64),
            DType::I32 => self.operate_on(step, |it| it as i32),
            DType::I64 => self.operate_on(step, |it| it as i64),
        }
    }

    fn operate_on<T: Element + PartialEq>(
        &self,
        mut step: Step,
        of: impl Fn(usize) -> T,
    ) -> io::Result<(Vec<f64>, Part)> {
        if let Some(shape) = self.shape {
            step.set_shape(shape);
        }
        let mut memory = match self.private {
            true => Memory::Own(vec![T::zeroed(); self.elements]),
            false => Memory::Shared(step.allocate(self.elements).map_err(io::Error::other)?),
        };
        let (rank, nodes) = (step.group().rank(), self.nodes);
        for (at, it) in memory.values()?.iter_mut().enumerate() {
            *it = of(number(rank, at));
        }
        memory.reduce(&mut step)?;
        let sum = |at: usize| of(total(nodes, at));
        let mut found = memory.values()?.iter().enumerate();
        let right = found.all(|(at, it)| *it == sum(at));
        // What is measured must not overflow.
        memory.values()?.fill(T::zeroed());
        memory.reduce(&mut step)?;
        let used = own_cpu_seconds();
        let mut seconds = Vec::new();
        for _ in 0..self.batches {
            let began = now();
            for _ in 0..self.per {
                memory.reduce(&mut step)?;
            }
            seconds.push((now() - began).as_secs_f64() / self.per as f64);
        }
        let part = Part {
            cpu_s: own_cpu_seconds() - used,
            right,
        };
        // Nobody leaves while another still works.
        step.barrier().map_err(io::Error::other)?;
        Ok((seconds, part))
    }
}

/// A rank's numbers.
enum Memory<T> {
    Own(Vec<T>),
    Shared(Shared<T>),
}

impl<T: Element> Memory<T> {
    fn values(&mut self) -> io::Result<&mut [T]> {
        match self {
            Memory::Own(values) => Ok(values),
            Memory::Shared(shared) => shared.values_mut().map_err(io::Error::other),
        }
    }

    fn reduce(&mut self, step: &mut Step) -> io::Result<()> {
        match self {
            Memory::Own(values) => step.all_reduce_own(values, Reduction::SUM),
            Memory::Shared(shared) => step.all_reduce(shared, Reduction::SUM),
        }
        .map_err(io::Error::other)
    }
}

/// Another rank's process, which ends with this value.
struct Other(Child);

impl Other {
    fn part(&mut self) -> io::Result<Part> {
        let output = self.0.stdout.take();
        let output = output.ok_or_else(|| io::Error::other("a rank has no output"))?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(io::Error::other)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It has ended, or it is not wanted any more.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A rank's number before the operation that is looked at. Sums of as many as there may be are exact in every type.
fn number(rank: usize, at: usize) -> usize {
    (rank + at) % 4
}

/// What every rank must have after it.
fn total(ranks: usize, at: usize) -> usize {
    (0..ranks).map(|rank| number(rank, at)).sum()
}

fn name(rank: usize) -> String {
    format!("bench/{rank}")
}
