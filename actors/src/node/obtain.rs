//! How a gateway obtains the domain's next model: as one stream from the coordinator that has just committed it, or in chunks from whoever holds it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::Setup;
use super::as_gateway::Shop;
use super::heal::{Unhealed, heal};
use crate::collective::{region_ref, write_header};
use crate::link::{self, Held, Incoming, Unpacking};
use crate::shell::ASKS_MAX;
use crate::verbs;
use tombolo_core::compress::Lossless;
use tombolo_core::event::{Cargo, Event, Transfer};
use tombolo_core::fold::ByteFold;
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::outline::{self, CHUNK_BYTES, Outline, Outliner};
use tombolo_core::tensor::{Hash, bytes_of};
use tombolo_core::wire::{ModelRef, Object, REGION_HEADER_BYTES, RegionHeader};
use tombolo_fabric::Region;

/// A transfer without progress for this many heartbeat periods is given up.
const STALL_PERIODS: u32 = 20;

/// The model that the domain may READ.
pub(super) struct Shown {
    pub(super) outline: Arc<Outline>,
    pub(super) region: Region,
}

/// The next model, as far as it is here.
pub(super) struct Draft {
    pub(super) region: Region,
    /// The values of the chunks that lie in the region, as far as they are known: what is right already is not fetched again.
    pub(super) values: Vec<Option<Hash>>,
    /// Who has sent something wrong of which model.
    pub(super) liars: Option<(Hash, BTreeSet<NodeId>)>,
    /// The model that was asked for as a whole last: what has come of it is gone on from in chunks.
    pub(super) whole_tried: Option<Hash>,
}

impl Draft {
    fn of(shown: Shown) -> Self {
        Draft {
            values: shown.outline.values().iter().copied().map(Some).collect(),
            region: shown.region,
            liars: None,
            whole_tried: None,
        }
    }

    /// Puts a chunk of that value into its place.
    pub(super) fn put<'a>(
        &mut self,
        index: usize,
        value: Hash,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) {
        let mut at = REGION_HEADER_BYTES + index * CHUNK_BYTES;
        let mut target = self.region.bytes_mut();
        for piece in pieces {
            target[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        self.values[index] = Some(value);
    }
}

/// What a transfer hears of while it is under way.
pub(super) struct Watch {
    /// The model that is wanted now.
    pub(super) wanted: watch::Receiver<Option<Hash>>,
    /// The peers to which links carry frames.
    pub(super) reach: watch::Receiver<BTreeSet<NodeId>>,
}

/// Puts the model of `round` into the gateway's next region and shows it to the domain.
pub(super) async fn obtain(
    setup: &Setup,
    shop: &mut Shop,
    watch: &mut Watch,
    round: Round,
    base: Option<Hash>,
    hash: Hash,
) -> Result<ModelRef, String> {
    let mut draft = match shop.next.take() {
        Some(draft) => draft,
        None => blank(setup).await?,
    };
    let shown = shop.shown.as_ref();
    // Who holds the model before is not behind: the coordinator is about to send the next one.
    let is_base = |shown: &&Shown| Some(shown.outline.hash()) == base;
    let result = match shown.filter(is_base) {
        Some(_) => whole(setup, &mut draft, round, hash).await,
        None => match setup.shelf.model(hash) {
            Some(held) if copy_held(setup, &mut draft, &held).await => Ok(held.outline),
            _ => match heal(setup, &mut draft, shown, watch, (round, hash)).await {
                Ok(outline) => Ok(outline),
                Err(Unhealed::OnlyLast) => whole(setup, &mut draft, round, hash).await,
                Err(Unhealed::Reason(reason)) => Err(reason),
            },
        },
    };
    let outline = match result {
        Ok(outline) => outline,
        Err(reason) => {
            shop.next = Some(draft);
            return Err(reason);
        }
    };
    let header = RegionHeader {
        epoch: 0,
        round,
        attempt: 0,
        token: 0,
    };
    let mut region = draft.region;
    write_header(&mut region, header);
    let reference = region_ref(&setup.stage.node, &region);
    let before = shop.shown.replace(Shown { outline, region });
    shop.next = before.map(Draft::of);
    Ok(ModelRef {
        round,
        hash,
        region: reference,
    })
}

/// A region in which there is nothing yet.
async fn blank(setup: &Setup) -> Result<Draft, String> {
    let elements = setup.layout.len();
    let bytes = REGION_HEADER_BYTES + elements * 4;
    let question = |reply| verbs::Message::Allocate(bytes, reply);
    let region = setup.verbs.ask_again(ASKS_MAX, question).await;
    let region = region.map_err(|error| format!("the Verbs actor: {error}"))??;
    Ok(Draft {
        region,
        values: vec![None; outline::chunks(elements)],
        liars: None,
        whole_tried: None,
    })
}

/// Copies a model that this node holds elsewhere; false if that is not what it should be.
async fn copy_held(setup: &Setup, draft: &mut Draft, held: &Held) -> bool {
    let elements = setup.layout.len();
    let values = held.outline.values();
    for ((index, value), chunk) in values
        .iter()
        .enumerate()
        .zip(held.bytes.chunks(CHUNK_BYTES))
    {
        let mut found = outline::ChunkValue::new(elements, index);
        found.push(chunk);
        if found.finish() != *value {
            tracing::error!(node = %setup.stage.node, chunk = index, "the model held here is damaged in memory");
            return false;
        }
        draft.put(index, *value, [chunk]);
        tokio::task::yield_now().await;
    }
    true
}

/// Writes the model that has just been committed into the draft and verifies its hash, which is computed while the bytes lie in a core's cache.
/// What was complete when it failed need not come again.
async fn whole(
    setup: &Setup,
    draft: &mut Draft,
    round: Round,
    hash: Hash,
) -> Result<Arc<Outline>, String> {
    let mut outliner = Outliner::new(setup.layout.len());
    draft.values.fill(None);
    draft.whole_tried = Some(hash);
    let filled = fill(setup, draft, round, &mut outliner).await;
    for (value, complete) in draft.values.iter_mut().zip(outliner.values()) {
        *value = Some(*complete);
    }
    filled?;
    let outline = outliner.finish();
    let found = outline.hash();
    if found != hash {
        return Err(format!(
            "the model of round {round} has hash {found:?}, expected {hash:?}"
        ));
    }
    Ok(Arc::new(outline))
}

async fn fill(
    setup: &Setup,
    draft: &mut Draft,
    round: Round,
    outliner: &mut Outliner,
) -> Result<(), String> {
    let (object, elements) = (Object::Model(round), setup.layout.len());
    let began = setup.stage.env.now();
    let incoming = fetch(setup, object).await?;
    let mut waited = setup.stage.env.now().since(began);
    if incoming.len() != elements as u64 * 4 {
        return Err(format!(
            "{object:?} has {} bytes, expected {}",
            incoming.len(),
            elements * 4
        ));
    }
    let is_far = matches!(incoming, Stream::There(_));
    let mut incoming = incoming.unpacked(setup);
    let mut target = draft.region.f32s_mut();
    let target = &mut target[REGION_HEADER_BYTES / 4..];
    for target in target.chunks_mut(crate::verbs::READ_BYTES / 4) {
        let mut model = ByteFold::first(1.0);
        let mut left = target.len() * 4;
        while left > 0 {
            let began = setup.stage.env.now();
            let piece = incoming.next(setup, left).await?;
            waited += setup.stage.env.now().since(began);
            left -= piece.len();
            model
                .push(target, &piece)
                .map_err(|error| error.to_string())?;
        }
        model.finish(target).map_err(|error| error.to_string())?;
        outliner.push(bytes_of(target));
        tokio::task::yield_now().await;
    }
    if is_far {
        tell(setup, round, incoming.travelled(elements), elements, waited);
    }
    Ok(())
}

/// Says that a model has come over a link, and how long it was waited for.
fn tell(setup: &Setup, round: Round, bytes: u64, elements: usize, waited: Duration) {
    let (from, to) = (setup.coordinator().domain(), setup.stage.node.domain());
    if from == to {
        return;
    }
    let link = setup.stage.plan.link(&from, &to);
    setup.stage.report(Event::Transferred(Transfer {
        round,
        cargo: Cargo::Model,
        rate: link.and_then(|link| link.emulate.rate),
        from,
        to,
        bytes,
        plain: elements as u64 * 4,
        waited_us: u64::try_from(waited.as_micros()).unwrap_or(u64::MAX),
        cuts: 0,
    }));
}

/// An object from the coordinator, which may be this node.
enum Stream {
    Here(Bytes),
    There(Incoming),
    /// A model over a link with a lossless stage, and what is left of the piece that came last.
    Packed(Unpacking, Bytes),
}

impl Stream {
    fn len(&self) -> u64 {
        match self {
            Stream::Here(bytes) => bytes.len() as u64,
            Stream::There(incoming) => incoming.len,
            Stream::Packed(_, rest) => rest.len() as u64,
        }
    }

    /// How many bytes a whole model of so many elements was on its way.
    fn travelled(&self, elements: usize) -> u64 {
        match self {
            Stream::Packed(unpacking, _) => unpacking.read_bytes(),
            Stream::Here(_) | Stream::There(_) => elements as u64 * 4,
        }
    }

    /// The same model taken apart, if it comes packed.
    fn unpacked(self, setup: &Setup) -> Self {
        let (ours, from) = (setup.stage.node.domain(), setup.coordinator().domain());
        let lossless = setup.stage.plan.lossless_down(&ours, &from);
        match (self, lossless) {
            (Stream::There(incoming), lossless) if lossless != Lossless::None => {
                let bytes = setup.layout.len() * 4;
                let unpacking = Unpacking::new(incoming, lossless, bytes);
                Stream::Packed(unpacking, Bytes::new())
            }
            (stream, _) => stream,
        }
    }

    /// The next piece, at most `most` bytes.
    async fn next(&mut self, setup: &Setup, most: usize) -> Result<Bytes, String> {
        match self {
            Stream::Here(bytes) => Ok(bytes.split_to(most.min(bytes.len()))),
            Stream::Packed(unpacking, rest) => {
                if rest.is_empty() {
                    let env = setup.stage.env.as_ref();
                    *rest = unpacking.next(env, stall(setup)).await?;
                }
                Ok(rest.split_to(most.min(rest.len())))
            }
            Stream::There(incoming) => {
                let stall = stall(setup);
                tokio::select! {
                    biased;
                    chunk = incoming.stream.read_chunk(most) => {
                        let chunk = chunk.map_err(|error| error.to_string())?;
                        chunk.ok_or_else(|| "the stream ended too early".to_owned())
                    }
                    () = setup.stage.env.sleep(stall) => Err(format!("no progress for {stall:?}")),
                }
            }
        }
    }
}

/// How long a transfer may stand still.
pub(super) fn stall(setup: &Setup) -> Duration {
    setup.stage.plan.heartbeat.every * STALL_PERIODS
}

async fn fetch(setup: &Setup, object: Object) -> Result<Stream, String> {
    let coordinator = setup.coordinator();
    if coordinator == setup.stage.node {
        let found = setup.shelf.find(object);
        return found
            .map(Stream::Here)
            .ok_or_else(|| format!("{object:?} is not on this node's shelf"));
    }
    let link = setup.company.get();
    let link = link.and_then(|company| company.links.get(&coordinator));
    let link = link.ok_or_else(|| format!("there is no link to {coordinator}"))?;
    let stall = stall(setup);
    let incoming = tokio::select! {
        biased;
        incoming = link.ask(|reply| link::Message::Fetch(object, reply)) => {
            incoming.map_err(|error| error.to_string())?
        }
        () = setup.stage.env.sleep(stall) => {
            return Err(format!("{object:?} did not begin to come within {stall:?}"));
        }
    };
    incoming
        .map(Stream::There)
        .map_err(|error| error.to_string())
}
