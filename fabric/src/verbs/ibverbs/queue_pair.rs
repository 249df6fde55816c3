//! The reader's queue pair: the hard semantics of the seam over what a device does.
//!
//! A device says of a failed READ little more than that it failed, and nothing at all of a peer that has no traffic. So a connection stays
//! beside the queue pair. Over it the reader asks once per key where the region is, hears at once that its grant or its peer has ended, and
//! asks why when the device gives a READ back with an error. READs themselves never pass there.

use std::collections::{BTreeMap, VecDeque};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;

use super::message::{self, Frame, REPLY_LENGTH, Received, Reply, Request, Window};
use super::objects::{DRAIN_WAIT, Reader, Source};
use super::table::Shared;
use crate::error::{CompletionError, FabricError};
use crate::verbs::in_order::check_bounds;
use crate::verbs::{Completion, Limits, QueuePair, REGIONS_MAX, Read, Refused, State};

/// How long to look for a completion before sleeping: about what a small READ takes on a NIC, and less than a sleep and a wake-up.
const SPIN: Duration = Duration::from_micros(20);

/// See the module.
pub(super) struct ReaderPair {
    /// Of this side's device.
    shared: Arc<Shared>,
    peer: String,
    limits: Limits,
    state: State,
    reader: Reader,
    control: Control,
    /// Where the peer's regions are, by key.
    known: BTreeMap<u64, Window>,
    /// Reads that the device does not have yet, behind those that it has.
    waiting: VecDeque<Read>,
    /// How the first of `waiting` ends when the device has no read left before it.
    verdict: Option<Result<usize, CompletionError>>,
    /// A read that the device gave back as failed, while we ask why.
    failed: Option<Failed>,
    /// In the error state: what the first read to come back says.
    reason: Option<CompletionError>,
    /// In the error state: until when the device may keep what it has.
    drained_by: Option<Instant>,
    spins: bool,
}

struct Failed {
    read: Read,
    /// What the device's word means if the owner says nothing else.
    guess: CompletionError,
    /// Answers due to questions of before, which cannot explain it.
    answers_before: u32,
    until: Instant,
}

impl ReaderPair {
    /// A queue pair to a peer that has accepted us, and the connection beside it.
    pub(super) fn connected(
        shared: Arc<Shared>,
        peer: &str,
        limits: Limits,
        reader: Reader,
        stream: TcpStream,
    ) -> ReaderPair {
        // With one processor, who spins keeps the other side from its work.
        let spins = thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        ReaderPair {
            shared,
            peer: peer.to_owned(),
            limits,
            state: State::ReadyToSend,
            reader,
            control: Control {
                stream,
                reply: Frame::new(),
                asked: 0,
                has_news: false,
            },
            known: BTreeMap::new(),
            waiting: VecDeque::new(),
            verdict: None,
            failed: None,
            reason: None,
            drained_by: None,
            spins,
        }
    }

    /// Moves to the error state; the first read to come back says `reason`.
    fn break_off(&mut self, reason: Option<CompletionError>) {
        if self.state == State::Error {
            return;
        }
        debug_assert!(self.state.may_become(State::Error));
        self.state = State::Error;
        self.reason = reason;
        self.verdict = None;
        self.drained_by = Some(Instant::now() + DRAIN_WAIT);
        self.reader.pair().fail();
    }

    /// Hands the device what it can have.
    fn advance(&mut self) {
        while self.state == State::ReadyToSend && self.failed.is_none() && self.verdict.is_none() {
            let Some(read) = self.waiting.front() else {
                return;
            };
            let source = match self.locate(read) {
                Ok(Some(source)) => source,
                Ok(None) => {
                    let key = read.remote.key;
                    if self.control.ask(key).is_err() {
                        self.break_off(Some(CompletionError::PeerGone));
                    }
                    return;
                }
                Err(error) => {
                    self.verdict = Some(Err(error));
                    return;
                }
            };
            let read = self.waiting.pop_front().expect("looked at above");
            if let Err((read, _)) = self.reader.post(read, source) {
                self.waiting.push_front(read);
                let error = CompletionError::Device("it takes no more requests");
                self.verdict = Some(Err(error));
            }
        }
    }

    /// Checks a read's ranges and finds its source; `None` if the owner must be asked.
    fn locate(&self, read: &Read) -> Result<Option<Source>, CompletionError> {
        if read.scratch.device() != self.shared.id {
            return Err(CompletionError::LocalKey);
        }
        let region = read.scratch.len();
        let end = read.scratch_offset.checked_add(read.len);
        if end.is_none_or(|end| end > region) {
            return Err(CompletionError::LocalBounds {
                offset: read.scratch_offset as u64,
                len: read.len as u64,
                region: region as u64,
            });
        }
        // A device does not look at the key of a read of nothing, so its owner does.
        let Some(window) = self.known.get(&read.remote.key).filter(|_| read.len > 0) else {
            return Ok(None);
        };
        let offset = check_bounds(&read.remote, window.len, read.offset, read.len)?;
        Ok(Some(Source {
            // A window whose end overflows is its owner's lie; the device will not find it.
            address: window.source.address.wrapping_add(offset as u64),
            key: window.source.key,
        }))
    }

    /// Listens to the owner.
    fn hear(&mut self) {
        while self.state == State::ReadyToSend
            && let Some(word) = self.control.hear()
        {
            match word {
                Word::Region(key, window) => self.on_region(key, Some(window)),
                Word::NoRegion(key) => self.on_region(key, None),
                Word::Revoked => self.break_off(Some(CompletionError::Revoked)),
                Word::Gone => self.break_off(Some(CompletionError::PeerGone)),
                Word::Malformed => self.break_off(Some(CompletionError::PeerMisbehaved(
                    "it did not answer our request as agreed",
                ))),
            }
        }
    }

    fn on_region(&mut self, key: u64, window: Option<Window>) {
        let no_region = CompletionError::RemoteKey { key };
        if let Some(failed) = &mut self.failed {
            if failed.answers_before > 0 {
                failed.answers_before -= 1;
                return;
            }
            let guess = failed.guess;
            let reason = match (window, guess) {
                (None, _) => no_region,
                (Some(window), CompletionError::RemoteKey { .. }) => {
                    let read = &failed.read;
                    match check_bounds(&read.remote, window.len, read.offset, read.len) {
                        Err(outside) => outside,
                        Ok(_) => CompletionError::Device("the peer's device refused the access"),
                    }
                }
                // The owner lives, so it is not gone: its device, or the way there, is.
                (Some(_), CompletionError::PeerGone) => CompletionError::Device(
                    "the peer's device does not answer; compare link, MTU and address (GID) of both sides",
                ),
                (Some(_), guess) => guess,
            };
            self.break_off(Some(reason));
            return;
        }
        let Some(read) = self.waiting.front().filter(|read| read.remote.key == key) else {
            return;
        };
        match window {
            None => self.verdict = Some(Err(no_region)),
            Some(window) if read.len == 0 => {
                let fits = check_bounds(&read.remote, window.len, read.offset, 0);
                self.verdict = Some(fits.map(|_| 0));
            }
            Some(window) => {
                if self.known.len() >= REGIONS_MAX {
                    // Most are of regions that are gone; the others are asked for again.
                    self.known.clear();
                }
                self.known.insert(key, window);
            }
        }
    }

    /// The device's word on a read whose turn it is.
    fn on_outcome(&mut self, read: Read, outcome: Result<(), u32>) -> Option<Completion> {
        match outcome {
            _ if self.state == State::Error => Some(self.flushed(read)),
            Ok(()) => {
                let len = read.len;
                Some(completion(read, Ok(len)))
            }
            Err(status) => {
                self.known.remove(&read.remote.key);
                let guess = meaning(status, read.remote.key);
                let answers_before = self.control.asked;
                let asked = self.control.ask_again(read.remote.key);
                self.failed = Some(Failed {
                    read,
                    guess,
                    answers_before,
                    until: Instant::now() + self.shared.patience,
                });
                if asked.is_err() {
                    self.break_off(Some(CompletionError::PeerGone));
                }
                self.take_failed()
            }
        }
    }

    /// The failed read, once it is known why.
    fn take_failed(&mut self) -> Option<Completion> {
        let failed = self.failed.as_ref()?;
        if self.state != State::Error && Instant::now() >= failed.until {
            self.break_off(Some(failed.guess));
        }
        if self.state != State::Error {
            return None;
        }
        let read = self.failed.take()?.read;
        Some(self.flushed(read))
    }

    /// In the error state.
    fn flushed(&mut self, read: Read) -> Completion {
        let error = self.reason.take().unwrap_or(CompletionError::Flushed);
        completion(read, Err(error))
    }

    /// What the device keeps too long, it keeps.
    fn take_lost(&mut self) -> Option<Completion> {
        if self.drained_by.is_none_or(|until| Instant::now() < until) {
            return None;
        }
        let read = self.reader.lose()?;
        Some(self.flushed(read))
    }
}

fn completion(read: Read, result: Result<usize, CompletionError>) -> Completion {
    Completion {
        id: read.id,
        scratch: read.scratch,
        result,
    }
}

impl QueuePair for ReaderPair {
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
        self.reader.flying() + self.waiting.len() + usize::from(self.failed.is_some())
    }

    fn post_read(&mut self, read: Read) -> Result<(), Box<Refused>> {
        let error = if read.len > self.limits.read_length_max {
            FabricError::ReadTooLong {
                len: read.len,
                max: self.limits.read_length_max,
            }
        } else if self.pending() >= self.limits.queue_depth {
            FabricError::QueueFull {
                peer: self.peer.clone(),
                depth: self.limits.queue_depth,
            }
        } else {
            self.waiting.push_back(read);
            if !self.shared.is_closed() {
                self.advance();
            }
            return Ok(());
        };
        Err(Box::new(Refused { read, error }))
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.shared.is_closed() {
            self.break_off(Some(CompletionError::DeviceClosed));
        }
        self.hear();
        self.advance();
        if self.failed.is_some() {
            return self.take_failed();
        }
        if let Some((read, outcome)) = self.reader.poll() {
            return self.on_outcome(read, outcome);
        }
        if self.reader.flying() > 0 {
            return self.take_lost();
        }
        if self.state == State::Error {
            let read = self.waiting.pop_front()?;
            return Some(self.flushed(read));
        }
        let verdict = self.verdict.take()?;
        let read = self.waiting.pop_front()?;
        match verdict {
            Ok(len) => Some(completion(read, Ok(len))),
            Err(error) => {
                self.break_off(Some(error));
                Some(self.flushed(read))
            }
        }
    }

    fn wait(&mut self, span: Duration) {
        if self.pending() == 0 {
            return;
        }
        if let Some(failed) = &self.failed {
            // What the device flushes meanwhile must not wake us: the owner's word comes first.
            let span = span.min(failed.until.saturating_duration_since(Instant::now()));
            self.control.wait(span);
            return;
        }
        let began = Instant::now();
        loop {
            if self.reader.is_ready() {
                return;
            }
            if !self.spins || self.reader.flying() == 0 || began.elapsed() >= SPIN.min(span) {
                break;
            }
            std::hint::spin_loop();
        }
        let mut left = span.saturating_sub(began.elapsed());
        if self.state == State::Error {
            // Nobody is heard any more, and what the device keeps too long is given up.
            if self.reader.flying() > 0 {
                if let Some(until) = self.drained_by {
                    left = left.min(until.saturating_duration_since(Instant::now()));
                }
                self.reader.sleep(None, left);
            }
            return;
        }
        let stream = self.control.stream.as_fd();
        if self.reader.sleep(Some(stream), left) {
            self.control.has_news = true;
        }
    }

    fn fail(&mut self) {
        self.break_off(None);
    }
}

impl Drop for ReaderPair {
    fn drop(&mut self) {
        self.shared.queue_pairs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a device's status says of a READ, as far as it says anything: devices differ in the code that they choose.
fn meaning(status: u32, key: u64) -> CompletionError {
    match status {
        // IBV_WC_LOC_LEN_ERR, LOC_QP_OP_ERR, LOC_PROT_ERR
        1 | 2 | 4 => CompletionError::Device("it refused the request"),
        // IBV_WC_WR_FLUSH_ERR
        5 => CompletionError::Device("its queue pair failed by itself"),
        // IBV_WC_REM_INV_REQ_ERR, REM_ACCESS_ERR, REM_OP_ERR
        9..=11 => CompletionError::RemoteKey { key },
        // IBV_WC_RETRY_EXC_ERR, RNR_RETRY_EXC_ERR
        12 | 13 => CompletionError::PeerGone,
        // IBV_WC_FATAL_ERR
        20 => CompletionError::Device("it failed for good"),
        _ => CompletionError::Device("the request failed"),
    }
}

/// The connection beside a queue pair.
struct Control {
    stream: TcpStream,
    reply: Frame<REPLY_LENGTH>,
    /// Answers that are due; they come in order.
    asked: u32,
    /// A wait has seen that there is something to read.
    has_news: bool,
}

/// What the owner says.
enum Word {
    Region(u64, Window),
    NoRegion(u64),
    Revoked,
    Gone,
    Malformed,
}

impl Control {
    /// Asks where a region is, unless an answer is due.
    fn ask(&mut self, key: u64) -> std::io::Result<()> {
        if self.asked > 0 {
            return Ok(());
        }
        self.ask_again(key)
    }

    fn ask_again(&mut self, key: u64) -> std::io::Result<()> {
        message::send(&mut self.stream, &Request::Locate { key }.to_bytes())?;
        self.asked += 1;
        Ok(())
    }

    /// The next word, if one is expected or was seen to come: a queue pair whose reads succeed makes no call here.
    fn hear(&mut self) -> Option<Word> {
        if self.asked == 0 && !self.has_news {
            return None;
        }
        let bytes = match self.reply.receive(&mut self.stream) {
            Received::Whole(bytes) => bytes,
            Received::Part => {
                self.has_news = false;
                return None;
            }
            Received::Gone => return Some(Word::Gone),
        };
        let answered = |control: &mut Control, word| {
            control.asked = control.asked.saturating_sub(1);
            Some(word)
        };
        match Reply::from_bytes(&bytes) {
            Some(Reply::Region { key, window }) => answered(self, Word::Region(key, window)),
            Some(Reply::NoRegion { key }) => answered(self, Word::NoRegion(key)),
            Some(Reply::Revoked) => Some(Word::Revoked),
            _ => Some(Word::Malformed),
        }
    }

    fn wait(&mut self, span: Duration) {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let mut file = [PollFd::new(&self.stream, PollFlags::IN)];
        if let Ok(span) = Timespec::try_from(span) {
            // Whatever ends the wait, the next poll finds out.
            let _ = rustix::event::poll(&mut file, Some(&span));
        }
        self.has_news = true;
    }
}
