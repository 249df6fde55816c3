//! The contributions of domains: where their bytes come from, the fold over sums, and the copy of them that the journal keeps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Setup, each};
use crate::checkpoint;
use crate::env::{Files, Work, work};
use crate::link::{self, Incoming};
use crate::shell::Handle;
use crate::slab::SlabMut;
use tombolo_core::aggregate::{Needs, Weight};
use tombolo_core::coordinator::FoldError;
use tombolo_core::fold::{self, ByteFold};
use tombolo_core::tensor::Hash;
use tombolo_core::wire::{CHUNK_ELEMENTS, Contribution, Object};

/// How soon bytes are asked for again after a connection broke: about as long as it takes to dial anew.
const AGAIN: Duration = Duration::from_millis(100);

/// A contribution, and the link to its sender unless that is this node.
pub(super) type Domain = (Contribution, Option<Handle<link::Message>>);

/// Where a contribution's bytes come from.
pub(super) enum Source {
    /// This node's own domain: they are here.
    Here(Bytes),
    /// Another domain's gateway.
    There(Incoming),
    /// The journal: a folder of chunks.
    Kept(Arc<dyn Files>, Arc<str>),
}

/// A contribution that could not be folded.
pub(super) enum Trouble {
    /// Its bytes did not come: they may, if asked for again.
    Missing(FoldError),
    /// They came and are not what was announced, or cannot be used.
    Wrong(FoldError),
}

/// The mean over domains.
pub(super) async fn fold(
    setup: &Setup,
    domains: &[Domain],
    weights: &[Weight],
) -> Result<SlabMut, FoldError> {
    match setup.stage.plan.aggregator.needs {
        Needs::Sum => patiently(setup, async || fold_once(setup, domains).await).await,
        Needs::Each | Needs::EachTwice => {
            patiently(setup, async || each::fold(setup, domains, weights).await).await
        }
    }
}

/// How many tensors a contribution holds, chunk by chunk one beside the other.
pub(super) fn tensors(setup: &Setup, contribution: &Contribution) -> usize {
    contribution.tensors(setup.stage.plan.aggregator.needs)
}

/// Writes the bytes of one contribution into the journal.
pub(super) async fn write_down(setup: &Setup, domain: &Domain) -> Result<(), String> {
    let written = patiently(setup, async || write_down_once(setup, domain).await).await;
    written.map_err(|error| match error {
        FoldError::Domain(_, reason) | FoldError::Result(reason) => reason,
    })
}

/// Tries, and if a connection breaks on the way tries again until the machine would give up: a contribution is not dropped for a link that
/// is back in a moment.
async fn patiently<T>(
    setup: &Setup,
    attempt: impl AsyncFn() -> Result<T, Trouble>,
) -> Result<T, FoldError> {
    let env = &setup.stage.env;
    let until = env.now() + setup.stage.plan.round.close_limit / 3;
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(Trouble::Wrong(error)) => return Err(error),
            Err(Trouble::Missing(error)) if env.now() >= until => return Err(error),
            Err(Trouble::Missing(error)) => {
                tracing::debug!(node = %setup.stage.node, ?error, "the bytes are asked for again");
                env.sleep(AGAIN).await;
            }
        }
    }
}

/// The left fold over domains by name, chunk by chunk, each chunk verified before it is folded.
async fn fold_once(setup: &Setup, domains: &[Domain]) -> Result<SlabMut, Trouble> {
    let mut sources = Vec::new();
    for domain in domains {
        sources.push(source(setup, domain).await?);
    }
    let mut sum = setup.pool.take(setup.layout.len());
    for (index, chunk) in sum.chunks_mut(CHUNK_ELEMENTS).enumerate() {
        for (position, ((contribution, _), source)) in domains.iter().zip(&mut sources).enumerate()
        {
            let pieces = source
                .chunk(setup, contribution, index, chunk.len())
                .await?;
            let blame = |error: fold::FoldError| wrong(contribution, error.to_string());
            let power = fold::power(contribution.exponent).map_err(blame)?;
            let mut term = if position == 0 {
                ByteFold::first(power)
            } else {
                ByteFold::next(power)
            };
            for piece in &pieces {
                term.push(chunk, piece).map_err(blame)?;
            }
            term.finish(chunk).map_err(blame)?;
        }
        tokio::task::yield_now().await;
    }
    let total = fold::total(domains.iter().map(|(contribution, _)| contribution.weight));
    let total = total.map_err(|error| Trouble::Wrong(FoldError::Result(error.to_string())))?;
    fold::divide(&mut sum, total);
    Ok(sum)
}

async fn write_down_once(setup: &Setup, domain: &Domain) -> Result<(), Trouble> {
    let (contribution, _) = domain;
    let mut source = source(setup, domain).await?;
    if matches!(source, Source::Kept(..)) {
        return Ok(());
    }
    let env = setup.stage.env.as_ref();
    let journal: Arc<str> = checkpoint::journal(contribution, setup.term.epoch()).into();
    let tensors = tensors(setup, contribution);
    for index in 0..contribution.chunks.len() {
        let before = index / tensors * CHUNK_ELEMENTS;
        let elements = (setup.layout.len() - before).min(CHUNK_ELEMENTS);
        let pieces = source.chunk(setup, contribution, index, elements).await?;
        let (files, journal) = (env.store(), journal.clone());
        let written = work(env, Work::Bytes(elements as u64 * 4), move || {
            checkpoint::write_chunk(files.as_ref(), &journal, index, &pieces)
        });
        let written = written.await.map_err(|panicked| panicked.to_string());
        written
            .and_then(|written| written.map_err(|error| error.to_string()))
            .map_err(|reason| wrong(contribution, reason))?;
    }
    Ok(())
}

pub(super) fn wrong(contribution: &Contribution, reason: String) -> Trouble {
    Trouble::Wrong(FoldError::Domain(contribution.domain.clone(), reason))
}

fn missing(contribution: &Contribution, reason: String) -> Trouble {
    Trouble::Missing(FoldError::Domain(contribution.domain.clone(), reason))
}

pub(super) async fn source(
    setup: &Setup,
    (contribution, link): &Domain,
) -> Result<Source, Trouble> {
    let (env, noted) = (setup.stage.env.as_ref(), contribution.clone());
    let (files, term) = (env.store(), setup.term.epoch());
    let kept = work(env, Work::Bytes(0), move || {
        checkpoint::is_kept(files.as_ref(), &noted, term)
    });
    if kept.await.is_ok_and(|kept| kept) {
        return Ok(Source::Kept(
            env.store(),
            checkpoint::journal(contribution, setup.term.epoch()).into(),
        ));
    }
    let object = Object::Contribution(contribution.round, contribution.attempt);
    let blame = |reason: String| missing(contribution, reason);
    let Some(link) = link else {
        let here = setup.shelf.find(object).map(Source::Here);
        return here.ok_or_else(|| blame("its own gateway has lost it".into()));
    };
    let fetch = link.ask(|reply| link::Message::Fetch(object, reply));
    let fetched = within(setup, fetch).await.map_err(blame)?;
    let incoming = fetched
        .map_err(|error| blame(error.to_string()))?
        .map_err(|error| blame(error.to_string()))?;
    let expected = (setup.layout.len() * tensors(setup, contribution)) as u64 * 4;
    if incoming.len != expected {
        let reason = format!("{} bytes, expected {expected}", incoming.len);
        return Err(wrong(contribution, reason));
    }
    Ok(Source::There(incoming))
}

impl Source {
    /// The next chunk, verified, in the pieces in which it comes.
    pub(super) async fn chunk(
        &mut self,
        setup: &Setup,
        contribution: &Contribution,
        index: usize,
        elements: usize,
    ) -> Result<Vec<Bytes>, Trouble> {
        let pieces = self.pieces(setup, index, elements * 4).await;
        let pieces = pieces.map_err(|reason| missing(contribution, reason))?;
        let mut hasher = blake3::Hasher::new();
        pieces.iter().for_each(|piece| {
            hasher.update(piece);
        });
        if contribution.chunks.get(index) != Some(&Hash(*hasher.finalize().as_bytes())) {
            let from = match self {
                Source::Kept(..) => "in the journal ",
                Source::Here(_) | Source::There(_) => "",
            };
            let reason = format!("chunk {index} {from}is not the announced one");
            return Err(wrong(contribution, reason));
        }
        Ok(pieces)
    }

    async fn pieces(
        &mut self,
        setup: &Setup,
        index: usize,
        len: usize,
    ) -> Result<Vec<Bytes>, String> {
        match self {
            Source::Here(bytes) if bytes.len() < len => Err("it is too short".into()),
            Source::Here(bytes) => Ok(vec![bytes.split_to(len)]),
            Source::There(incoming) => {
                within(setup, read_exactly(&mut incoming.stream, len)).await?
            }
            Source::Kept(files, journal) => {
                let (files, journal) = (files.clone(), journal.clone());
                let read = work(
                    setup.stage.env.as_ref(),
                    Work::Bytes(len as u64),
                    move || checkpoint::read_chunk(files.as_ref(), &journal, index),
                );
                let read = read.await.map_err(|panicked| panicked.to_string())?;
                read.map(|bytes| vec![bytes])
                    .map_err(|error| error.to_string())
            }
        }
    }
}

/// Reads so many bytes, in the pieces in which they came.
async fn read_exactly(
    stream: &mut quinn::RecvStream,
    mut len: usize,
) -> Result<Vec<Bytes>, String> {
    let mut pieces = Vec::new();
    while len > 0 {
        let chunk = stream
            .read_chunk(len, true)
            .await
            .map_err(|error| error.to_string())?;
        let chunk = chunk.ok_or_else(|| format!("the stream ended {len} bytes too early"))?;
        len -= chunk.bytes.len();
        pieces.push(chunk.bytes);
    }
    Ok(pieces)
}

async fn within<T>(setup: &Setup, future: impl Future<Output = T>) -> Result<T, String> {
    let limit = setup.stage.plan.round.close_limit / 3;
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = setup.stage.env.sleep(limit) => Err(format!("no progress for {limit:?}")),
    }
}
