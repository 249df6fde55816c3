//! Who may shake hands: few of those whose address is not known to be theirs, and no more at once than a node can afford.
//!
//! An attempt costs its sender one packet with any address on it, and this node a signature and two key exchanges. So while more than a few of
//! such attempts are open, the sender has to show first that it receives what is sent to its address (a Retry, RFC 9000, 8.1.2), which costs
//! this node next to nothing and keeps no memory; and what comes faster than that is worth doing is not answered. An honest peer is one round
//! trip later, or sends its packet again.
//!
//! Who shows an address and then says no more takes a place until the deadline of handshakes. When all places are taken the oldest goes: an
//! honest handshake takes a few round trips.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;
use tombolo_core::time::Micros;

/// Connections in the middle of a handshake. Each peer dials one at a time, so as many as the largest federation has domains.
pub(super) const HANDSHAKES_MAX: usize = 256;

/// Those of them whose address has not been shown to be theirs. A federation of that many domains starts without a detour.
const UNPROVEN_MAX: usize = 64;

/// Retries in a [`SPAN`]: at some 20 us each they take less than a tenth of a processor.
const RETRIES_MAX: u32 = 400;

/// What [`RETRIES_MAX`] counts in: short, so that whoever is not answered in one is in the next.
const SPAN: Duration = Duration::from_millis(100);

/// What an attempt to connect gets.
pub(super) enum Answer {
    /// A place under that number; when the receiver hears something, or its sender is gone, another has it.
    Shake(u64, oneshot::Receiver<()>),
    /// It must show its address first.
    Retry,
    /// Nothing.
    Ignore,
}

struct Place {
    is_proven: bool,
    /// Dropped, it tells the handshake to end.
    _push_out: oneshot::Sender<()>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Door {
    /// The oldest first.
    places: BTreeMap<u64, Place>,
    next: u64,
    unproven: usize,
    span: u64,
    retries: u32,
}

impl Door {
    /// Somebody wants to connect, from an address that it has shown to be its own or not.
    pub fn knock(&mut self, now: Micros, is_proven: bool) -> Answer {
        if !is_proven && self.unproven >= UNPROVEN_MAX {
            return self.retry(now);
        }
        if self.places.len() >= HANDSHAKES_MAX
            && let Some((_, oldest)) = self.places.pop_first()
        {
            self.unproven -= usize::from(!oldest.is_proven);
        }
        let (push_out, pushed_out) = oneshot::channel();
        self.next += 1;
        self.unproven += usize::from(!is_proven);
        let place = Place {
            is_proven,
            _push_out: push_out,
        };
        self.places.insert(self.next, place);
        Answer::Shake(self.next, pushed_out)
    }

    fn retry(&mut self, now: Micros) -> Answer {
        let span = now.0 / u64::try_from(SPAN.as_micros()).expect("a short span");
        if span != self.span {
            (self.span, self.retries) = (span, 0);
        }
        if self.retries >= RETRIES_MAX {
            return Answer::Ignore;
        }
        self.retries += 1;
        Answer::Retry
    }

    /// That handshake is over, one way or the other.
    pub fn shaken(&mut self, number: u64) {
        if let Some(place) = self.places.remove(&number) {
            self.unproven -= usize::from(!place.is_proven);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oneshot::error::TryRecvError;

    const NOW: Micros = Micros(5_000_000);

    fn shake(door: &mut Door, is_proven: bool) -> (u64, oneshot::Receiver<()>) {
        match door.knock(NOW, is_proven) {
            Answer::Shake(number, pushed_out) => (number, pushed_out),
            Answer::Retry => panic!("it is to retry"),
            Answer::Ignore => panic!("it is ignored"),
        }
    }

    #[test]
    fn strangers_beyond_a_few_must_show_their_address_and_beyond_many_get_no_answer() {
        let mut door = Door::default();
        let held: Vec<_> = (0..UNPROVEN_MAX).map(|_| shake(&mut door, false)).collect();
        for _ in 0..RETRIES_MAX {
            assert!(matches!(door.knock(NOW, false), Answer::Retry));
        }
        assert!(matches!(door.knock(NOW, false), Answer::Ignore));
        // Who has shown it gets a place, whatever the others do.
        let proven = shake(&mut door, true);
        let later = Micros(NOW.0 + 100_000);
        assert!(matches!(door.knock(later, false), Answer::Retry));
        door.shaken(held[0].0);
        shake(&mut door, false);
        assert!(matches!(door.knock(later, false), Answer::Retry));
        door.shaken(proven.0);
        assert!(matches!(door.knock(later, false), Answer::Retry));
    }

    #[test]
    fn when_all_places_are_taken_the_oldest_handshake_goes() {
        let mut door = Door::default();
        let (first, mut pushed_out) = shake(&mut door, false);
        let mut held: Vec<_> = (1..HANDSHAKES_MAX)
            .map(|_| shake(&mut door, true))
            .collect();
        assert_eq!(pushed_out.try_recv(), Err(TryRecvError::Empty));
        for _ in 0..3 {
            held.push(shake(&mut door, true));
        }
        assert_eq!(pushed_out.try_recv(), Err(TryRecvError::Closed));
        let places: Vec<bool> = held
            .iter_mut()
            .map(|(_, pushed_out)| pushed_out.try_recv() == Err(TryRecvError::Empty))
            .collect();
        assert_eq!(places.iter().filter(|held| !**held).count(), 2);
        assert_eq!(places[..2], [false, false]);
        assert_eq!(door.places.len(), HANDSHAKES_MAX);
        assert_eq!(door.unproven, 0);
        // It is over already.
        door.shaken(first);
        assert_eq!(door.places.len(), HANDSHAKES_MAX);
    }
}
