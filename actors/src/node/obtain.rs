//! How a gateway obtains the domain's next model: from the coordinator's stream into a region, and verified.

use std::time::Duration;

use super::Setup;
use super::as_gateway::Shop;
use crate::collective::{region_ref, write_header};
use crate::link::{self, Incoming};
use crate::shell::ASKS_MAX;
use crate::verbs;
use tombolo_core::fold::ByteFold;
use tombolo_core::ids::Round;
use tombolo_core::tensor::{Hash, bytes_of};
use tombolo_core::wire::{ModelRef, Object, REGION_HEADER_BYTES, RegionHeader};
use tombolo_fabric::Region;

/// A transfer of a model without progress for this many heartbeat periods is given up.
const STALL_PERIODS: u32 = 20;

/// Puts the model of `round` into the gateway's next region and shows it to the domain.
pub(super) async fn obtain(
    setup: &Setup,
    shop: &mut Shop,
    round: Round,
    hash: Hash,
) -> Result<ModelRef, String> {
    let elements = setup.layout.len();
    let mut next = match shop.next.take() {
        Some(region) => region,
        None => {
            let bytes = REGION_HEADER_BYTES + elements * 4;
            let question = |reply| verbs::Message::Allocate(bytes, reply);
            let region = setup.verbs.ask_again(ASKS_MAX, question).await;
            region.map_err(|error| format!("the Verbs actor: {error}"))??
        }
    };
    let result = fill(setup, &mut next, round, hash).await;
    if let Err(reason) = result {
        shop.next = Some(next);
        return Err(reason);
    }
    let region = region_ref(&setup.stage.node, &next);
    shop.next = shop.shown.replace((hash, next)).map(|(_, region)| region);
    Ok(ModelRef {
        round,
        hash,
        region,
    })
}

/// Writes the model into a region and verifies its hash, which is computed while the bytes lie in a core's cache.
async fn fill(setup: &Setup, next: &mut Region, round: Round, hash: Hash) -> Result<(), String> {
    let elements = setup.layout.len();
    let object = Object::Model(round);
    let mut incoming = fetch(setup, object).await?;
    if incoming.len() != elements as u64 * 4 {
        return Err(format!(
            "{object:?} has {} bytes, expected {}",
            incoming.len(),
            elements * 4
        ));
    }
    let mut hasher = blake3::Hasher::new();
    {
        let mut target = next.f32s_mut();
        let target = &mut target[REGION_HEADER_BYTES / 4..];
        let block = crate::verbs::READ_BYTES / 4;
        for target in target.chunks_mut(block) {
            let mut model = ByteFold::first(1.0);
            let mut left = target.len() * 4;
            while left > 0 {
                let piece = incoming.next(setup, left).await?;
                left -= piece.len();
                model
                    .push(target, &piece)
                    .map_err(|error| error.to_string())?;
            }
            model.finish(target).map_err(|error| error.to_string())?;
            hasher.update(bytes_of(target));
            tokio::task::yield_now().await;
        }
    }
    let found = Hash(*hasher.finalize().as_bytes());
    if found != hash {
        return Err(format!(
            "the model of round {round} has hash {found:?}, expected {hash:?}"
        ));
    }
    write_header(
        next,
        RegionHeader {
            epoch: 0,
            round,
            attempt: 0,
            token: 0,
        },
    );
    Ok(())
}

/// An object from the coordinator, which may be this node.
enum Stream {
    Here(bytes::Bytes),
    There(Incoming),
}

impl Stream {
    fn len(&self) -> u64 {
        match self {
            Stream::Here(bytes) => bytes.len() as u64,
            Stream::There(incoming) => incoming.len,
        }
    }

    /// The next piece, at most `most` bytes.
    async fn next(&mut self, setup: &Setup, most: usize) -> Result<bytes::Bytes, String> {
        match self {
            Stream::Here(bytes) => Ok(bytes.split_to(most.min(bytes.len()))),
            Stream::There(incoming) => {
                let stall: Duration = setup.stage.plan.heartbeat.every * STALL_PERIODS;
                tokio::select! {
                    biased;
                    chunk = incoming.stream.read_chunk(most, true) => {
                        let chunk = chunk.map_err(|error| error.to_string())?;
                        chunk.map(|chunk| chunk.bytes).ok_or_else(|| "the stream ended too early".to_owned())
                    }
                    () = setup.stage.env.sleep(stall) => Err(format!("no progress for {stall:?}")),
                }
            }
        }
    }
}

async fn fetch(setup: &Setup, object: Object) -> Result<Stream, String> {
    let coordinator = setup.coordinator();
    if coordinator == setup.stage.node {
        let found = setup.shelf.find(object);
        return found
            .map(Stream::Here)
            .ok_or_else(|| format!("{object:?} is not on this node's shelf"));
    }
    let link = setup
        .company
        .get()
        .and_then(|company| company.links.get(&coordinator));
    let link = link.ok_or_else(|| format!("there is no link to {coordinator}"))?;
    let stall = setup.stage.plan.heartbeat.every * STALL_PERIODS;
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
