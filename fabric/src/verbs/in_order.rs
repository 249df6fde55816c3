//! The hard semantics of a queue pair, for providers whose reads are done by the reader itself.
//!
//! A provider brings a [`Wire`], which fetches bytes or says "not yet". The bounded queue, the order, the checks of the local side and
//! the flush after an error are here, once for all. Bytes move in `poll`, on the caller's thread.

use std::collections::VecDeque;
use std::task::Poll;
use std::time::Duration;

use super::{Completion, Limits, QueuePair, Read, Refused, State};
use crate::error::{CompletionError, FabricError};
use crate::region::{DeviceId, RemoteRegion};

/// Fetches bytes out of the memory of one peer.
pub(super) trait Wire: Send {
    /// Fills `target` from `offset` of the region, after checking grant, key and bounds. Asked again with the same read until ready.
    fn fetch(
        &mut self,
        remote: &RemoteRegion,
        offset: u64,
        target: &mut [u8],
    ) -> Poll<Result<(), CompletionError>>;

    /// Waits until `fetch` may say more than it did, at most `span`.
    fn wait(&mut self, span: Duration);
}

/// A queue pair over a [`Wire`].
pub(super) struct InOrder<W> {
    peer: String,
    device: DeviceId,
    limits: Limits,
    state: State,
    posted: VecDeque<Read>,
    wire: W,
}

impl<W: Wire> InOrder<W> {
    /// A queue pair to a peer that has accepted us.
    pub(super) fn connected(
        peer: &str,
        device: DeviceId,
        limits: Limits,
        wire: W,
    ) -> Box<InOrder<W>> {
        let mut queue_pair = Box::new(InOrder {
            peer: peer.to_owned(),
            device,
            limits,
            state: State::Reset,
            posted: VecDeque::new(),
            wire,
        });
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            queue_pair.become_state(state);
        }
        queue_pair
    }

    fn become_state(&mut self, next: State) {
        debug_assert!(self.state.may_become(next), "{:?} -> {next:?}", self.state);
        self.state = next;
    }

    fn execute(&mut self) -> Poll<Result<usize, CompletionError>> {
        let Some(read) = self.posted.front_mut() else {
            return Poll::Pending;
        };
        if self.state != State::ReadyToSend {
            return Poll::Ready(Err(CompletionError::Flushed));
        }
        if read.scratch.device() != self.device {
            return Poll::Ready(Err(CompletionError::LocalKey));
        }
        let region = read.scratch.len();
        let mut scratch = read.scratch.bytes_mut();
        let target = read
            .scratch_offset
            .checked_add(read.len)
            .and_then(|end| scratch.get_mut(read.scratch_offset..end));
        let Some(target) = target else {
            return Poll::Ready(Err(CompletionError::LocalBounds {
                offset: read.scratch_offset as u64,
                len: read.len as u64,
                region: region as u64,
            }));
        };
        self.wire
            .fetch(&read.remote, read.offset, target)
            .map_ok(|()| read.len)
    }
}

impl<W: Wire> QueuePair for InOrder<W> {
    fn peer(&self) -> &str {
        &self.peer
    }

    fn state(&self) -> State {
        self.state
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn pending(&self) -> usize {
        self.posted.len()
    }

    fn post_read(&mut self, read: Read) -> Result<(), Box<Refused>> {
        let error = if read.len > self.limits.read_length_max {
            FabricError::ReadTooLong {
                len: read.len,
                max: self.limits.read_length_max,
            }
        } else if self.posted.len() >= self.limits.queue_depth {
            FabricError::QueueFull {
                peer: self.peer.clone(),
                depth: self.limits.queue_depth,
            }
        } else {
            self.posted.push_back(read);
            return Ok(());
        };
        Err(Box::new(Refused { read, error }))
    }

    fn poll(&mut self) -> Option<Completion> {
        let Poll::Ready(result) = self.execute() else {
            return None;
        };
        if result.is_err() {
            self.become_state(State::Error);
        }
        let read = self.posted.pop_front()?;
        Some(Completion {
            id: read.id,
            scratch: read.scratch,
            result,
        })
    }

    fn wait(&mut self, span: Duration) {
        self.wire.wait(span);
    }

    fn fail(&mut self) {
        self.become_state(State::Error);
    }
}

/// Checks that `len` bytes at `offset` are inside what the peer offered and inside what it really has; both may lie.
pub(super) fn check_bounds(
    remote: &RemoteRegion,
    region: u64,
    offset: u64,
    len: usize,
) -> Result<usize, CompletionError> {
    let fits = offset
        .checked_add(len as u64)
        .is_some_and(|end| end <= remote.len && end <= region);
    match usize::try_from(offset) {
        Ok(offset) if fits => Ok(offset),
        _ => Err(CompletionError::RemoteBounds {
            offset,
            len: len as u64,
            region: region.min(remote.len),
        }),
    }
}
