//! A link's memory: which control messages the peer has not acknowledged yet, and which of the peer's have been delivered.
//!
//! QUIC delivers a stream in order while a connection lives; this carries the promise across reconnections and across a restart of the
//! actor that owns the connection. Every message gets a sequence number and stays here until the peer acknowledges it; after a reconnect
//! what is left is sent again, and the receiver drops what it has seen. A peer that was restarted (another incarnation) knows nothing of
//! the past: the memory of it is cleared, and both sides tell each other anew where they stand.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::mutants;
use crate::wire::{FrameHeader, Hello};

/// Messages that may wait for an acknowledgement. A round needs a few per member; a peer that falls this far behind is cut off and told
/// everything anew.
pub const OUTBOX_MESSAGES_MAX: usize = 4096;

/// Bytes that may wait for an acknowledgement.
pub const OUTBOX_BYTES_MAX: usize = 64 << 20;

/// The peer does not keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer has not acknowledged {messages} messages ({bytes} bytes)")]
pub struct OutboxFull {
    /// Waiting.
    pub messages: usize,
    /// Waiting.
    pub bytes: usize,
}

/// What a handshake found out about the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The same process as before: nothing was lost.
    Same,
    /// Met for the first time, or restarted.
    Fresh,
}

#[derive(Debug)]
struct Waiting {
    sequence: u64,
    message: Bytes,
    outlives: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Memory {
    peer: u64,
    next: u64,
    sent: usize,
    waiting: VecDeque<Waiting>,
    bytes: usize,
    received: u64,
}

impl Memory {
    /// The peer's incarnation as last known (0: never met) and the last sequence number received from it: what goes into our [`Hello`].
    pub fn known(&self) -> (u64, u64) {
        (self.peer, self.received)
    }

    /// Takes the peer's [`Hello`] on a new connection. `ours` is our own incarnation; `said` is which incarnation of the peer our own hello named
    /// on this connection, if it came first. Afterwards [`Memory::next_frame`] yields everything that the peer has not received.
    ///
    /// A peer that was named as it was before has begun anew when it heard that, even if it was met on another connection meanwhile.
    pub fn on_hello(&mut self, ours: u64, hello: &Hello, said: Option<u64>) -> Peer {
        self.sent = 0;
        let named = said.is_none_or(|said| said == hello.incarnation);
        if named && hello.incarnation == self.peer && hello.known == ours {
            self.acknowledge(hello.received);
            // Without the ladder what a broken connection carried is lost.
            let retried = !mutants::is("sent-once");
            self.waiting.retain(|waiting| waiting.outlives && retried);
            self.bytes = self
                .waiting
                .iter()
                .map(|waiting| waiting.message.len())
                .sum();
            return Peer::Same;
        }
        // The peer has forgotten us or is another process: what waited was meant for a conversation that is over.
        *self = Memory {
            peer: hello.incarnation,
            ..Memory::default()
        };
        Peer::Fresh
    }

    /// Takes a message for the peer.
    ///
    /// # Errors
    /// Too much waits already; the link should be cut.
    pub fn push(&mut self, message: Bytes) -> Result<(), OutboxFull> {
        self.keep(message, true)
    }

    /// As [`Memory::push`], for a message that means nothing on another connection than the current one.
    ///
    /// # Errors
    /// Too much waits already; the link should be cut.
    pub fn push_once(&mut self, message: Bytes) -> Result<(), OutboxFull> {
        self.keep(message, false)
    }

    fn keep(&mut self, message: Bytes, outlives: bool) -> Result<(), OutboxFull> {
        if self.waiting.len() >= OUTBOX_MESSAGES_MAX
            || self.bytes + message.len() > OUTBOX_BYTES_MAX
        {
            return Err(OutboxFull {
                messages: self.waiting.len(),
                bytes: self.bytes,
            });
        }
        self.next += 1;
        self.bytes += message.len();
        self.waiting.push_back(Waiting {
            sequence: self.next,
            message,
            outlives,
        });
        Ok(())
    }

    /// The next frame to write on the current connection.
    pub fn next_frame(&mut self) -> Option<(FrameHeader, Bytes)> {
        let Waiting {
            sequence, message, ..
        } = self.waiting.get(self.sent)?;
        self.sent += 1;
        let len = u32::try_from(message.len()).expect("the codec bounds a message far below 4 GiB");
        Some((
            FrameHeader {
                len,
                sequence: *sequence,
                acknowledged: self.received,
            },
            message.clone(),
        ))
    }

    /// A frame without a message, to acknowledge what was received.
    pub fn acknowledgement(&self) -> FrameHeader {
        FrameHeader {
            len: 0,
            sequence: 0,
            acknowledged: self.received,
        }
    }

    /// Takes a frame's header. True: the message behind it is new and must be delivered.
    pub fn on_frame(&mut self, header: FrameHeader) -> bool {
        self.acknowledge(header.acknowledged);
        if header.sequence <= self.received {
            return false;
        }
        self.received = header.sequence;
        true
    }

    /// Messages that wait for an acknowledgement.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Their bytes.
    pub fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    fn acknowledge(&mut self, sequence: u64) {
        while self
            .waiting
            .front()
            .is_some_and(|first| first.sequence <= sequence)
        {
            let first = self.waiting.pop_front().expect("the front was just seen");
            self.bytes -= first.message.len();
            self.sent = self.sent.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Hash;

    fn hello(incarnation: u64, known: u64, received: u64) -> Hello {
        Hello {
            version: 1,
            fingerprint: 0,
            topology: Hash::default(),
            incarnation,
            known,
            received,
            heartbeat_ms: 500,
            at_work: true,
        }
    }

    fn drain(from: &mut Memory, to: &mut Memory) -> Vec<Bytes> {
        let mut delivered = Vec::new();
        while let Some((header, message)) = from.next_frame() {
            if to.on_frame(header) {
                delivered.push(message);
            }
        }
        delivered
    }

    fn met() -> (Memory, Memory) {
        let (mut a, mut b) = (Memory::default(), Memory::default());
        assert_eq!(a.on_hello(1, &hello(2, 0, 0), None), Peer::Fresh);
        assert_eq!(b.on_hello(2, &hello(1, 0, 0), None), Peer::Fresh);
        (a, b)
    }

    #[test]
    fn a_hello_that_was_said_before_another_connection_was_agreed_on_begins_anew_on_both_sides() {
        let (mut dialler, mut peer) = (Memory::default(), Memory::default());
        // It dials twice, and says on both that it knows nobody; the first one is answered, and carries.
        let said = dialler.known().0;
        assert_eq!(peer.on_hello(2, &hello(1, said, 0), None), Peer::Fresh);
        let fresh = dialler.on_hello(1, &hello(2, 0, 0), Some(said));
        assert_eq!(fresh, Peer::Fresh);
        peer.push(Bytes::from_static(b"one")).unwrap();
        assert_eq!(drain(&mut peer, &mut dialler).len(), 1);
        // Then its peer hears the second one, which knows nothing of the first.
        let (known, received) = peer.known();
        assert_eq!(peer.on_hello(2, &hello(1, said, 0), None), Peer::Fresh);
        let answer = hello(2, known, received);
        assert_eq!(dialler.on_hello(1, &answer, Some(said)), Peer::Fresh);
        peer.push(Bytes::from_static(b"two")).unwrap();
        assert_eq!(drain(&mut peer, &mut dialler).len(), 1);
    }

    #[test]
    fn what_was_lost_with_a_connection_is_sent_again_and_delivered_once() {
        let (mut a, mut b) = met();
        a.push(Bytes::from_static(b"one")).unwrap();
        assert_eq!(drain(&mut a, &mut b).len(), 1);
        a.push(Bytes::from_static(b"two")).unwrap();
        a.next_frame()
            .expect("written to a connection that then breaks");
        // Both sides say what they know; nothing was acknowledged yet, so "one" travels twice and counts once.
        let (incarnation, received) = b.known();
        assert_eq!(
            a.on_hello(1, &hello(2, incarnation, received), None),
            Peer::Same
        );
        assert_eq!(drain(&mut a, &mut b), [Bytes::from_static(b"two")]);
        let acknowledgement = b.acknowledgement();
        assert!(!a.on_frame(acknowledgement));
        assert!(a.waiting.is_empty());
    }

    #[test]
    fn what_means_nothing_on_another_connection_is_not_sent_on_it() {
        let (mut a, mut b) = met();
        a.push_once(Bytes::from_static(b"offer")).unwrap();
        a.push(Bytes::from_static(b"commit")).unwrap();
        a.next_frame()
            .expect("written to a connection that then breaks");
        let (incarnation, received) = b.known();
        assert_eq!(
            a.on_hello(1, &hello(2, incarnation, received), None),
            Peer::Same
        );
        assert_eq!(drain(&mut a, &mut b), [Bytes::from_static(b"commit")]);
    }

    #[test]
    fn a_restarted_peer_gets_nothing_of_the_old_conversation() {
        let (mut a, _) = met();
        a.push(Bytes::from_static(b"old")).unwrap();
        assert_eq!(a.on_hello(1, &hello(3, 0, 0), None), Peer::Fresh);
        assert!(a.next_frame().is_none());
    }

    #[test]
    fn a_peer_that_never_acknowledges_is_bounded() {
        let (mut a, _) = met();
        for _ in 0..OUTBOX_MESSAGES_MAX {
            a.push(Bytes::from_static(b"x")).unwrap();
        }
        assert!(a.push(Bytes::from_static(b"x")).is_err());
    }
}
