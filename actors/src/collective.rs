//! This rank's part of the domain's work on tensors: measure, fold, gather.
//!
//! Everything is pulled: slices are READ out of the others' regions and folded into memory of this rank's own. The work itself is blocking
//! and runs off the arbiters, one piece after another; a piece that fails names whose memory is to blame.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::env::{Work, work};
use crate::residual::Residual;
use crate::shell::{Actor, Cx, Reply, Stage, pause};
use crate::slab::{Pool, SlabMut};
use crate::verbs::{Fabric, READ_BYTES, Readers};
use tombolo_core::compress::{Encoded, Kernels, feedback};
use tombolo_core::event::Event;
use tombolo_core::fold;
use tombolo_core::gateway::{Collect, Gather, Parcel};
use tombolo_core::ids::{Epoch, NodeId, Round};
use tombolo_core::outline::{Outline, Outliner};
use tombolo_core::tensor::Hash;
use tombolo_core::text::Text;
use tombolo_core::wire::{
    CHUNK_ELEMENTS, Encoding, Fold, Folded, Measure, Measured, ModelRef, REGION_HEADER_BYTES,
    RegionHeader, RegionRef, SliceMeasure, Term,
};
use tombolo_fabric::Region;

/// A domain's contribution and what it is announced by, or whose memory could not be read and why.
pub type Gathered = Result<(Bytes, Parcel), (NodeId, String)>;

/// What it takes.
pub enum Message {
    /// Measure slices of an update.
    Measure(Measure, Reply<Measured>),
    /// Fold slices over all terms.
    Fold(Fold, Reply<Folded>),
    /// READ the folded slices together.
    Gather(Gather, Reply<Gathered>),
    /// READ the updates one beside the other.
    Collect(Collect, Reply<Gathered>),
}

/// See the module.
pub struct Collective {
    stage: Stage,
    elements: usize,
    ranks: usize,
    fabric: Fabric,
    pool: Pool,
    residual: Arc<Residual>,
    bench: Option<Bench>,
}

/// What the blocking work uses; lent to it.
struct Bench {
    node: NodeId,
    fabric: Fabric,
    readers: Readers,
    slices: Vec<Range<usize>>,
    output: Option<Region>,
    pool: Pool,
}

impl Collective {
    /// A rank of a domain of `ranks` nodes, for models of `elements`.
    pub fn new(
        stage: Stage,
        elements: usize,
        ranks: usize,
        fabric: Fabric,
        pool: Pool,
        residual: Arc<Residual>,
    ) -> Self {
        Collective {
            stage,
            elements,
            ranks,
            fabric,
            pool,
            residual,
            bench: None,
        }
    }

    /// Runs `job` off the arbiter; meanwhile this actor takes nothing else.
    fn run<R: Send + 'static>(
        &mut self,
        cx: &mut Cx<Self>,
        bytes: usize,
        reply: Reply<R>,
        job: impl FnOnce(&mut Bench) -> R + Send + 'static,
    ) {
        let mut bench = self.bench.take().unwrap_or_else(|| Bench {
            node: self.stage.node.clone(),
            fabric: self.fabric.clone(),
            readers: self.fabric.readers(),
            slices: fold::slices(self.elements, self.ranks),
            output: None,
            pool: self.pool.clone(),
        });
        let (env, bytes) = (self.stage.env.as_ref(), Work::Bytes(bytes as u64));
        let done = work(env, bytes, move || {
            let result = job(&mut bench);
            (bench, result)
        });
        // If the work panicked the reply is dropped, which tells the asker, and the next job gets a new bench.
        pause(cx, done, |collective, done, _| {
            if let Ok((bench, result)) = done {
                collective.bench = Some(bench);
                reply.send(result);
            }
        });
    }

    fn bytes_of_slices(&self, slices: &[u32]) -> usize {
        let ranges = fold::slices(self.elements, self.ranks);
        slices
            .iter()
            .filter_map(|slice| ranges.get(*slice as usize))
            .map(|range| range.len() * 4)
            .sum()
    }
}

impl Actor for Collective {
    type Message = Message;
    const NAME: &'static str = "Collective";

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            Message::Measure(measure, reply) => {
                let bytes = self.bytes_of_slices(&measure.slices);
                self.run(cx, bytes, reply, move |bench| bench.measure(measure));
            }
            Message::Fold(fold, reply) => {
                let bytes = self.bytes_of_slices(&fold.slices) * fold.terms.len();
                self.run(cx, bytes, reply, move |bench| bench.fold(fold));
            }
            Message::Gather(gather, reply) => {
                let bytes = self.elements * 4;
                let residual = self.residual.clone();
                let owes = !gather.codec.is_lossless();
                if owes && gather.round > 1 && residual.kept().is_none() {
                    self.stage.report(Event::ResidualLost {
                        node: self.stage.node.clone(),
                        round: gather.round,
                    });
                }
                self.run(cx, bytes, reply, move |bench| {
                    bench.gather(&gather, &residual)
                });
            }
            Message::Collect(collect, reply) => {
                let bytes = self.elements * 4 * collect.terms.len();
                self.run(cx, bytes, reply, move |bench| bench.collect(&collect));
            }
        }
    }
}

impl Bench {
    fn range(&self, slice: u32) -> Result<Range<usize>, String> {
        let range = self.slices.get(slice as usize).cloned();
        range.ok_or_else(|| format!("slice {slice} of {}", self.slices.len()))
    }

    fn measure(&mut self, measure: Measure) -> Measured {
        let result = self.measures(&measure);
        Measured {
            token: measure.token,
            round: measure.round,
            node: measure.node,
            result: result.map_err(Text::from),
        }
    }

    fn measures(&mut self, measure: &Measure) -> Result<Vec<SliceMeasure>, String> {
        let header = exported(measure.epoch, measure.round);
        self.readers.expect(&measure.region, header)?;
        let mut measures = Vec::with_capacity(measure.slices.len());
        for &slice in &measure.slices {
            let range = self.range(slice)?;
            let mut hasher = blake3::Hasher::new();
            let mut squares = fold::Squares::default();
            for piece in pieces(range) {
                let bytes = self
                    .readers
                    .read(&measure.region, piece.start * 4, piece.len() * 4)?;
                hasher.update(bytes);
                squares.add(bytes);
            }
            measures.push(SliceMeasure {
                slice,
                squares: squares.sum(),
                checksum: Hash(*hasher.finalize().as_bytes()),
            });
        }
        Ok(measures)
    }

    fn fold(&mut self, fold: Fold) -> Folded {
        let result = self.folds(&fold);
        Folded {
            token: fold.token,
            round: fold.round,
            attempt: fold.attempt,
            slices: fold.slices,
            result: result.map_err(|(node, reason)| (node, reason.into())),
        }
    }

    fn folds(&mut self, fold: &Fold) -> Result<RegionRef, (NodeId, String)> {
        let own = self.node.clone();
        self.expect_all(&fold.terms)?;
        let elements = self.slices.last().map_or(0, |last| last.end);
        let mut output = match self.output.take() {
            Some(output) => output,
            None => self
                .fabric
                .allocate(REGION_HEADER_BYTES + elements * 4)
                .map_err(|reason| (own.clone(), reason))?,
        };
        let result = self.fold_into(&mut output, fold);
        let region = region_ref(&own, &output);
        self.output = Some(output);
        result.map(|()| region)
    }

    fn fold_into(&mut self, output: &mut Region, fold: &Fold) -> Result<(), (NodeId, String)> {
        let own = self.node.clone();
        write_header(
            output,
            RegionHeader {
                epoch: fold.epoch,
                round: fold.round,
                attempt: fold.attempt,
                token: fold.token,
            },
        );
        let mut elements = output.f32s_mut();
        let elements = &mut elements[REGION_HEADER_BYTES / 4..];
        for (position, &slice) in fold.slices.iter().enumerate() {
            let range = self.range(slice).map_err(|reason| (own.clone(), reason))?;
            let mut hashers: Vec<blake3::Hasher> =
                fold.terms.iter().map(|_| blake3::Hasher::new()).collect();
            for piece in pieces(range) {
                for (index, (term, hasher)) in fold.terms.iter().zip(&mut hashers).enumerate() {
                    let blame = |reason| (term.node.clone(), reason);
                    let bytes = self
                        .readers
                        .read(&term.region, piece.start * 4, piece.len() * 4)
                        .map_err(blame)?;
                    hasher.update(bytes);
                    let target = &mut elements[piece.clone()];
                    let update = bytemuck::cast_slice(bytes);
                    match index {
                        0 => fold::scale_into(target, term.factor, update),
                        _ => fold::add_scaled(target, term.factor, update),
                    }
                }
            }
            for (term, hasher) in fold.terms.iter().zip(hashers) {
                let found = Hash(*hasher.finalize().as_bytes());
                if term.checksums.get(position) != Some(&found) {
                    let reason = format!("slice {slice} of its update is not what was measured");
                    return Err((term.node.clone(), reason));
                }
            }
        }
        Ok(())
    }

    fn gather(&mut self, gather: &Gather, residual: &Residual) -> Gathered {
        let elements = self.slices.last().map_or(0, |last| last.end);
        let own = self.node.clone();
        let factor = fold::power(-gather.exponent).map_err(|error| (own, error.to_string()))?;
        let mut sum = self.pool.take(elements);
        let header = RegionHeader {
            epoch: gather.epoch,
            round: gather.round,
            attempt: gather.attempt,
            token: gather.token,
        };
        for (slice, region) in &gather.parts {
            let blame = |reason| (region.owner.clone(), reason);
            self.readers.expect(region, header).map_err(blame)?;
            for piece in pieces(self.range(*slice).map_err(blame)?) {
                let bytes = self
                    .readers
                    .read(region, piece.start * 4, piece.len() * 4)
                    .map_err(blame)?;
                fold::scale_into(&mut sum[piece], factor, bytemuck::cast_slice(bytes));
            }
        }
        if !gather.codec.is_plain() {
            let own = self.node.clone();
            let encoded = self.encode(gather, sum, residual);
            return encoded.map_err(|error| (own, error.to_string()));
        }
        let hashes: Vec<Hash> = sum.chunks(CHUNK_ELEMENTS).map(Hash::of).collect();
        Ok((sum.freeze().bytes(), hashes.into()))
    }

    /// The sum with what its codec has lost before, encoded; what is lost now is left pending.
    fn encode(
        &self,
        gather: &Gather,
        mut sum: SlabMut,
        residual: &Residual,
    ) -> Result<(Bytes, Parcel), fold::FoldError> {
        let (kernels, compressor) = (Kernels::widest(), gather.codec.compressor());
        if let Some(kept) = residual.kept() {
            feedback::apply(kernels, &mut sum, &kept, gather.exponent)?;
        }
        let mut encoded = Encoded::default();
        compressor.encode(kernels, &sum, &mut encoded);
        if !gather.codec.is_lossless() {
            let mut lost = self.pool.take(sum.len());
            let coder = compressor.as_ref();
            feedback::remember(kernels, coder, &sum, &encoded, gather.exponent, &mut lost)?;
            residual.put(gather.round, gather.attempt, lost.freeze());
        }
        let parcel = Parcel {
            chunks: encoded.chunks().map(Hash::of_bytes).collect(),
            // A chunk's bytes fit: it has no more than 2^18 elements.
            encoding: Encoding::new(
                gather.codec,
                encoded.chunks().map(|chunk| chunk.len() as u32).collect(),
            ),
        };
        Ok((Bytes::from(encoded.take()), parcel))
    }

    /// Refuses a term whose region holds anything else than what was trained for its round.
    fn expect_all(&mut self, terms: &[Term]) -> Result<(), (NodeId, String)> {
        terms.iter().try_for_each(|term| {
            let header = exported(term.epoch, term.round);
            let expected = self.readers.expect(&term.region, header);
            expected.map_err(|reason| (term.node.clone(), reason))
        })
    }

    /// Every update, clipped: the first chunk of each in turn, then the second of each. Verified slice by slice, as it is for a fold.
    fn collect(&mut self, collect: &Collect) -> Gathered {
        let elements = self.slices.last().map_or(0, |last| last.end);
        self.expect_all(&collect.terms)?;
        let mut updates = self.pool.take(elements * collect.terms.len());
        let mut hashers = vec![blake3::Hasher::new(); collect.terms.len()];
        let (mut left, mut hashes) = (&mut updates[..], Vec::new());
        for start in (0..elements).step_by(CHUNK_ELEMENTS) {
            let chunk = start..(start + CHUNK_ELEMENTS).min(elements);
            for (term, hasher) in collect.terms.iter().zip(&mut hashers) {
                let (target, rest) = left.split_at_mut(chunk.len());
                left = rest;
                self.collect_chunk(term, &chunk, target, hasher)
                    .map_err(|reason| (term.node.clone(), reason))?;
                hashes.push(Hash::of(target));
            }
        }
        Ok((updates.freeze().bytes(), hashes.into()))
    }

    /// One chunk of one update; the hasher has seen the part of its first slice that lies before it.
    fn collect_chunk(
        &mut self,
        term: &Term,
        chunk: &Range<usize>,
        target: &mut [f32],
        hasher: &mut blake3::Hasher,
    ) -> Result<(), String> {
        for (index, slice) in self.slices.iter().enumerate() {
            let part = shared(slice, chunk);
            if part.is_empty() {
                continue;
            }
            for piece in pieces(part.clone()) {
                let bytes = self
                    .readers
                    .read(&term.region, piece.start * 4, piece.len() * 4)?;
                hasher.update(bytes);
                let target = &mut target[piece.start - chunk.start..piece.end - chunk.start];
                fold::scale_into(target, term.factor, bytemuck::cast_slice(bytes));
            }
            if part.end < slice.end {
                continue;
            }
            let found = Hash(*hasher.finalize().as_bytes());
            if term.checksums.get(index) != Some(&found) {
                return Err(format!(
                    "slice {index} of its update is not what was measured"
                ));
            }
            hasher.reset();
        }
        Ok(())
    }
}

/// What of a slice lies in a chunk.
fn shared(slice: &Range<usize>, chunk: &Range<usize>) -> Range<usize> {
    slice.start.max(chunk.start)..slice.end.min(chunk.end)
}

/// What stands in front of an update that was exported for a round.
fn exported(epoch: Epoch, round: Round) -> RegionHeader {
    RegionHeader {
        epoch,
        round,
        attempt: 0,
        token: 0,
    }
}

/// A range in pieces of one READ.
fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let step = READ_BYTES / 4;
    range
        .clone()
        .step_by(step)
        .map(move |start| start..(start + step).min(range.end))
}

/// Writes what the region holds in front of it.
pub fn write_header(region: &mut Region, header: RegionHeader) {
    region.bytes_mut()[..REGION_HEADER_BYTES].copy_from_slice(&header.to_bytes());
}

/// What peers need to READ a region.
pub fn region_ref(owner: &NodeId, region: &Region) -> RegionRef {
    let remote = region.remote();
    RegionRef {
        owner: owner.clone(),
        key: remote.key,
        len: remote.len,
    }
}

/// READs a model of `elements` straight into a region and verifies its hash; answers with its outline. Blocks.
///
/// # Errors
/// In words; `into` then holds no model, and may be empty.
pub fn read_model(
    readers: &mut Readers,
    model: &ModelRef,
    into: &mut Region,
    elements: usize,
) -> Result<Outline, String> {
    let expected = (REGION_HEADER_BYTES + elements * 4) as u64;
    if model.region.len != expected {
        return Err(format!(
            "the model of {} has {} bytes, expected {expected}",
            model.region.owner, model.region.len
        ));
    }
    readers.expect(
        &model.region,
        RegionHeader {
            epoch: 0,
            round: model.round,
            attempt: 0,
            token: 0,
        },
    )?;
    let mut outliner = Outliner::new(elements);
    for piece in pieces(0..elements) {
        let bytes = piece.start * 4..piece.end * 4;
        readers.read_into(into, &model.region, bytes.start, bytes.len())?;
        // While it lies in a core's cache.
        outliner.push(&into.bytes()[bytes]);
    }
    let outline = outliner.finish();
    let found = outline.hash();
    if found != model.hash {
        return Err(format!(
            "the model of round {} at {} has hash {found:?}, expected {:?}",
            model.round, model.region.owner, model.hash
        ));
    }
    Ok(outline)
}
