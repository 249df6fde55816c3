//! The contributions of domains: where their bytes come from, the fold over sums, and the copy of them that the journal keeps.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Setup, each};
use crate::checkpoint::{self, CheckpointError};
use crate::env::{Files, OffloadPanicked, Work, work};
use crate::link::{self, FetchError, Incoming};
use crate::shell::Handle;
use crate::slab::SlabMut;
use tombolo_core::aggregate::{Needs, Weight};
use tombolo_core::compress::{self, Coding, Compressor, Kernels};
use tombolo_core::coordinator::{FoldError, NoteError};
use tombolo_core::event::{Cargo, Event, Transfer};
use tombolo_core::fold::{self, ByteFold};
use tombolo_core::ids::DomainId;
use tombolo_core::tensor::Hash;
use tombolo_core::wire::{CHUNK_ELEMENTS, Contribution, Encoding, Lack, Object};

/// How soon bytes are asked for again after a connection broke: about as long as it takes to dial anew.
const AGAIN: Duration = Duration::from_millis(100);

/// A contribution, and the link to its sender unless that is this node.
pub(super) type Domain = (Contribution, Option<Handle<link::Message>>);

/// Where a contribution's bytes come from.
pub(super) enum Source {
    /// This node's own domain: they are here.
    Here(Bytes),
    /// Another domain's gateway.
    There(Sent),
    /// The journal: a folder of chunks.
    Kept(Arc<dyn Files>, Arc<str>),
}

/// A contribution as it comes over a link. A connection that breaks costs the chunk that was on its way: the rest is asked for over the next one.
pub(super) struct Sent {
    incoming: Incoming,
    link: Handle<link::Message>,
    /// Bytes of the chunks that have come whole.
    taken: u64,
    waited: Duration,
    cuts: u32,
}

/// A contribution that could not be folded.
pub(super) enum Trouble {
    /// Its bytes did not come: they may, if asked for again.
    Missing(FoldError),
    /// They came and are not what was announced, or cannot be used.
    Wrong(FoldError),
}

/// What is wrong with the journal's copy of a domain's contribution, by domain: it is asked for again.
pub(super) type Spoilt = RefCell<BTreeMap<DomainId, String>>;

/// The mean over domains. A contribution whose copy in the journal is damaged comes from its sender once more, if that is still there.
pub(super) async fn fold(
    setup: &Setup,
    domains: &[Domain],
    weights: &[Weight],
) -> Result<SlabMut, FoldError> {
    let spoilt = Spoilt::default();
    match setup.stage.plan.aggregator.needs {
        Needs::Sum => patiently(setup, async || fold_once(setup, domains, &spoilt).await).await,
        Needs::Each | Needs::EachTwice => {
            let attempt = async || each::fold(setup, domains, weights, &spoilt).await;
            patiently(setup, attempt).await
        }
    }
}

/// How many tensors a contribution holds, chunk by chunk one beside the other.
pub(super) fn tensors(setup: &Setup, contribution: &Contribution) -> usize {
    contribution.tensors(setup.stage.plan.aggregator.needs)
}

/// Writes the bytes of one contribution into the journal.
///
/// # Errors
/// Whether they did not come, or cannot be written.
pub(super) async fn write_down(setup: &Setup, domain: &Domain) -> Result<(), NoteError> {
    let written = patiently(setup, async || write_down_once(setup, domain).await).await;
    written
        .map_err(|error| match error {
            FoldError::Domain(_, reason) | FoldError::Result(reason) => NoteError::Bytes(reason),
        })?
        .map_err(NoteError::Disk)
}

/// Tries, and if a connection breaks on the way tries again until the machine would give up: a contribution is not dropped for a link that
/// is back in a moment.
async fn patiently<T>(
    setup: &Setup,
    attempt: impl AsyncFn() -> Result<T, Trouble>,
) -> Result<T, FoldError> {
    let env = &setup.stage.env;
    let until = env.now() + patience(setup);
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
async fn fold_once(setup: &Setup, domains: &[Domain], spoilt: &Spoilt) -> Result<SlabMut, Trouble> {
    let mut sources = sources(setup, domains, spoilt).await?;
    let encodings = domains.iter().map(|(noted, _)| &noted.encoding);
    let coder = |encoding: &Encoding| match encoding.coding() {
        Coding::PLAIN => None,
        codec => Some(codec.compressor()),
    };
    let compressors: Vec<Option<Box<dyn Compressor>>> = encodings.map(coder).collect();
    let kernels = Kernels::widest();
    let mut sum = setup.pool.take(setup.layout.len());
    for (index, chunk) in sum.chunks_mut(CHUNK_ELEMENTS).enumerate() {
        for (position, ((contribution, _), source)) in domains.iter().zip(&mut sources).enumerate()
        {
            let bytes = bytes_of_chunk(contribution, index, chunk.len())?;
            let pieces = chunk_of(setup, contribution, source, index, bytes, spoilt).await?;
            let blame = |error: fold::FoldError| wrong(contribution, error.to_string());
            let power = fold::power(contribution.exponent).map_err(blame)?;
            if let Some(compressor) = &compressors[position] {
                let coder = compressor.as_ref();
                let bytes = joined(&pieces);
                compress::fold_chunk(coder, kernels, &bytes, power, position == 0, chunk)
                    .map_err(|error| wrong(contribution, error.to_string()))?;
                continue;
            }
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
    tell(setup, domains, &sources);
    let total = fold::total(domains.iter().map(|(contribution, _)| contribution.weight));
    let total = total.map_err(|error| Trouble::Wrong(FoldError::Result(error.to_string())))?;
    fold::divide(&mut sum, total);
    Ok(sum)
}

/// The bytes of a chunk of so many elements, as it was announced.
fn bytes_of_chunk(
    contribution: &Contribution,
    index: usize,
    elements: usize,
) -> Result<usize, Trouble> {
    let bytes = contribution.encoding.chunk_bytes(index, elements);
    bytes.ok_or_else(|| wrong(contribution, format!("chunk {index} has no size")))
}

/// Pieces in one: a codec reads a chunk as a whole.
fn joined(pieces: &[Bytes]) -> Cow<'_, [u8]> {
    match pieces {
        [one] => Cow::Borrowed(one),
        several => Cow::Owned(several.concat()),
    }
}

/// Where each contribution comes from.
pub(super) async fn sources(
    setup: &Setup,
    domains: &[Domain],
    spoilt: &Spoilt,
) -> Result<Vec<Source>, Trouble> {
    let mut sources = Vec::new();
    for domain in domains {
        let known = spoilt.borrow().get(&domain.0.domain).cloned();
        sources.push(source(setup, domain, known).await?);
    }
    Ok(sources)
}

/// The next chunk of a contribution; if the journal's copy of it is damaged, that is remembered.
pub(super) async fn chunk_of(
    setup: &Setup,
    contribution: &Contribution,
    source: &mut Source,
    index: usize,
    bytes: usize,
    spoilt: &Spoilt,
) -> Result<Vec<Bytes>, Trouble> {
    let pieces = source.chunk(setup, contribution, index, bytes).await;
    match (pieces, &source) {
        (Err(trouble), Source::Kept(..)) => Err(spoil(contribution, trouble, spoilt)),
        (pieces, _) => pieces,
    }
}

/// The inner error is the disk's, which asking again does not better.
async fn write_down_once(setup: &Setup, domain: &Domain) -> Result<Result<(), String>, Trouble> {
    let (contribution, _) = domain;
    // Never from the journal: what is there without a note may be of another life of the sender, of the same attempt and size.
    let mut source = sent(setup, domain, None).await?;
    let env = setup.stage.env.as_ref();
    let journal: Arc<str> = checkpoint::journal(contribution, setup.term.epoch()).into();
    let (files, cleared) = (env.store(), journal.clone());
    let cleared = work(env, Work::Bytes(0), move || {
        checkpoint::clear_journal(files.as_ref(), &cleared)
    });
    if let Err(reason) = done(cleared.await) {
        return Ok(Err(reason));
    }
    let tensors = tensors(setup, contribution);
    for index in 0..contribution.chunks.len() {
        let before = index / tensors * CHUNK_ELEMENTS;
        let elements = (setup.layout.len() - before).min(CHUNK_ELEMENTS);
        let bytes = bytes_of_chunk(contribution, index, elements)?;
        let pieces = source.chunk(setup, contribution, index, bytes).await?;
        let (files, journal) = (env.store(), journal.clone());
        let written = work(env, Work::Bytes(bytes as u64), move || {
            checkpoint::write_chunk(files.as_ref(), &journal, index, &pieces)
        });
        if let Err(reason) = done(written.await) {
            return Ok(Err(reason));
        }
    }
    tell(setup, std::slice::from_ref(domain), &[source]);
    Ok(Ok(()))
}

/// Says of each contribution that has come over a link how long it was waited for.
pub(super) fn tell(setup: &Setup, domains: &[Domain], sources: &[Source]) {
    for ((contribution, _), source) in domains.iter().zip(sources) {
        let Source::There(sent) = source else {
            continue;
        };
        let (from, to) = (contribution.domain.clone(), setup.stage.node.domain());
        let link = setup.stage.plan.link(&from, &to);
        setup.stage.report(Event::Transferred(Transfer {
            round: contribution.round,
            cargo: Cargo::Contribution,
            rate: link.and_then(|link| link.emulate.rate),
            from,
            to,
            bytes: contribution
                .encoding
                .bytes(setup.layout.len() * tensors(setup, contribution)),
            plain: (tensors(setup, contribution) * setup.layout.len() * 4) as u64,
            waited_us: u64::try_from(sent.waited.as_micros()).unwrap_or(u64::MAX),
            cuts: sent.cuts,
        }));
    }
}

/// Whether a change of the journal was made.
fn done(change: Result<Result<(), CheckpointError>, OffloadPanicked>) -> Result<(), String> {
    let change = change.map_err(|panicked| panicked.to_string())?;
    change.map_err(|error| error.to_string())
}

/// The journal's copy is of no use: it is not looked at again.
fn spoil(contribution: &Contribution, trouble: Trouble, spoilt: &Spoilt) -> Trouble {
    let (Trouble::Missing(error) | Trouble::Wrong(error)) = trouble;
    if let FoldError::Domain(domain, reason) = &error {
        tracing::warn!(%domain, reason, "the journal's copy of a contribution is damaged: its sender is asked for it again");
        let (domain, reason) = (contribution.domain.clone(), reason.clone());
        spoilt.borrow_mut().insert(domain, reason);
    }
    Trouble::Missing(error)
}

pub(super) fn wrong(contribution: &Contribution, reason: String) -> Trouble {
    Trouble::Wrong(FoldError::Domain(contribution.domain.clone(), reason))
}

fn missing(contribution: &Contribution, reason: String) -> Trouble {
    Trouble::Missing(FoldError::Domain(contribution.domain.clone(), reason))
}

/// Where a contribution comes from: the journal, unless its copy is known to be spoilt.
async fn source(setup: &Setup, domain: &Domain, spoilt: Option<String>) -> Result<Source, Trouble> {
    let (contribution, _) = domain;
    let (env, noted) = (setup.stage.env.as_ref(), contribution.clone());
    let (files, term) = (env.store(), setup.term.epoch());
    let kept = work(env, Work::Bytes(0), move || {
        checkpoint::is_kept(files.as_ref(), &noted, term)
    });
    if spoilt.is_none() && kept.await.is_ok_and(|kept| kept) {
        return Ok(Source::Kept(
            env.store(),
            checkpoint::journal(contribution, setup.term.epoch()).into(),
        ));
    }
    sent(setup, domain, spoilt).await
}

/// A contribution as its sender has it; if that fails, `spoilt` is part of the reason.
async fn sent(
    setup: &Setup,
    (contribution, link): &Domain,
    spoilt: Option<String>,
) -> Result<Source, Trouble> {
    let object = Object::Contribution(contribution.round, contribution.attempt);
    let blame = |reason: String| {
        let also = spoilt.as_ref().map(|spoilt| format!("{spoilt}; "));
        missing(contribution, also.unwrap_or_default() + &reason)
    };
    let Some(link) = link else {
        let here = setup.shelf.find(object).map(Source::Here);
        return here.ok_or_else(|| blame("its own gateway has lost it".into()));
    };
    let began = setup.stage.env.now();
    let fetch = link.ask(|reply| link::Message::Fetch(object, reply));
    let fetched = within(setup, fetch).await.map_err(blame)?;
    let incoming = fetched
        .map_err(|error| blame(error.to_string()))?
        .map_err(|error| blame(error.to_string()))?;
    let elements = setup.layout.len() * tensors(setup, contribution);
    let expected = contribution.encoding.bytes(elements);
    if incoming.len != expected {
        let reason = format!("{} bytes, expected {expected}", incoming.len);
        return Err(wrong(contribution, reason));
    }
    Ok(Source::There(Sent {
        incoming,
        link: link.clone(),
        taken: 0,
        waited: setup.stage.env.now().since(began),
        cuts: 0,
    }))
}

impl Source {
    /// The next chunk, verified, in the pieces in which it comes.
    async fn chunk(
        &mut self,
        setup: &Setup,
        contribution: &Contribution,
        index: usize,
        bytes: usize,
    ) -> Result<Vec<Bytes>, Trouble> {
        let pieces = self.pieces(setup, contribution, index, bytes).await;
        let pieces = pieces.map_err(|reason| missing(contribution, reason))?;
        let mut hasher = blake3::Hasher::new();
        pieces.iter().for_each(|piece| {
            hasher.update(piece);
        });
        if contribution.chunks.get(index) != Some(&Hash(*hasher.finalize().as_bytes())) {
            let from = match self {
                Source::Kept(..) => "in the journal ",
                Source::Here(_) | Source::There(..) => "",
            };
            let reason = format!("chunk {index} {from}is not the announced one");
            return Err(wrong(contribution, reason));
        }
        Ok(pieces)
    }

    async fn pieces(
        &mut self,
        setup: &Setup,
        contribution: &Contribution,
        index: usize,
        len: usize,
    ) -> Result<Vec<Bytes>, String> {
        match self {
            Source::Here(bytes) if bytes.len() < len => Err("it is too short".into()),
            Source::Here(bytes) => Ok(vec![bytes.split_to(len)]),
            Source::There(sent) => sent.chunk(setup, contribution, len).await,
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

impl Sent {
    /// The next chunk. While connections break, the rest is asked for again as long as a transfer may stand still.
    async fn chunk(
        &mut self,
        setup: &Setup,
        contribution: &Contribution,
        len: usize,
    ) -> Result<Vec<Bytes>, String> {
        let env = &setup.stage.env;
        let mut until = None;
        let mut read = self.read(setup, len).await;
        while let Err(reason) = read {
            // It counts from when the connection was found broken.
            if env.now() >= *until.get_or_insert_with(|| env.now() + patience(setup)) {
                return Err(reason);
            }
            tracing::debug!(node = %setup.stage.node, domain = %contribution.domain, taken = self.taken, reason, "the rest of a contribution is asked for");
            env.sleep(AGAIN).await;
            read = match self.go_on(setup, contribution).await {
                Ok(()) => self.read(setup, len).await,
                Err(Gone { reason, for_good }) if for_good => return Err(reason),
                Err(Gone { reason, .. }) => Err(reason),
            };
        }
        self.taken += len as u64;
        read
    }

    async fn read(&mut self, setup: &Setup, len: usize) -> Result<Vec<Bytes>, String> {
        let began = setup.stage.env.now();
        let read = read_exactly(setup, &mut self.incoming.stream, len).await;
        self.waited += setup.stage.env.now().since(began);
        read
    }

    /// Has what has not come yet begin to come again.
    async fn go_on(&mut self, setup: &Setup, contribution: &Contribution) -> Result<(), Gone> {
        let (round, attempt) = (contribution.round, contribution.attempt);
        let rest = Object::Rest(round, attempt, self.taken);
        let began = setup.stage.env.now();
        let fetch = self.link.ask(|reply| link::Message::Fetch(rest, reply));
        let fetched = within(setup, fetch).await;
        self.waited += setup.stage.env.now().since(began);
        let not_yet = |reason: String| Gone {
            reason,
            for_good: false,
        };
        let answer = fetched
            .map_err(not_yet)?
            .map_err(|error| not_yet(error.to_string()))?;
        let incoming = answer.map_err(|error| Gone {
            for_good: matches!(
                error,
                FetchError::Missing {
                    lack: Lack::Absent,
                    ..
                }
            ),
            reason: error.to_string(),
        })?;
        let whole = contribution
            .encoding
            .bytes(setup.layout.len() * tensors(setup, contribution));
        if incoming.len != whole - self.taken {
            let reason = format!("{} bytes, expected {}", incoming.len, whole - self.taken);
            return Err(Gone {
                reason,
                for_good: true,
            });
        }
        self.incoming = incoming;
        self.cuts += 1;
        Ok(())
    }
}

/// Why the rest of a contribution does not come.
struct Gone {
    reason: String,
    /// Asking again would be of no use.
    for_good: bool,
}

/// How long a transfer may stand still.
fn patience(setup: &Setup) -> Duration {
    setup.stage.plan.round.close_limit / 3
}

/// Reads so many bytes, in the pieces in which they came. However narrow the link, each piece is progress.
async fn read_exactly(
    setup: &Setup,
    stream: &mut link::Reader,
    mut len: usize,
) -> Result<Vec<Bytes>, String> {
    let mut pieces = Vec::new();
    while len > 0 {
        let chunk = within(setup, stream.read_chunk(len)).await?;
        let chunk = chunk.map_err(|error| error.to_string())?;
        let chunk = chunk.ok_or_else(|| format!("the stream ended {len} bytes too early"))?;
        len -= chunk.len();
        pieces.push(chunk);
    }
    Ok(pieces)
}

async fn within<T>(setup: &Setup, future: impl Future<Output = T>) -> Result<T, String> {
    let limit = patience(setup);
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = setup.stage.env.sleep(limit) => Err(format!("no progress for {limit:?}")),
    }
}

#[cfg(test)]
mod tests;
