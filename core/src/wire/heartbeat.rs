//! The heartbeat: one datagram per peer and period, of a fixed size. It needs no credit, and one that gets lost is not sent again.
//!
//! ```text
//!  0         1       2        3      4          12        20             28         36              44
//!  | version | flags | health | zero | sequence | count   | sent         | echo.sent | echo.received |
//! ```
//!
//! All numbers are little-endian. Two heartbeats that cross make the four stamps of an [`Exchange`], as in NTP (RFC 5905, section 8): the
//! last heartbeat left the other side at t1 and came here at t2, this one leaves at t3, and whoever gets it adds t4.

use super::DecodeError;
use crate::time::Micros;

/// The layout's version.
const VERSION: u8 = 1;
/// The flag of a heartbeat that has an echo.
const ECHO: u8 = 1;

/// The worst that a node says of its own health.
pub const HEALTH_MAX: u8 = 8;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// Which heartbeat of the sender's to this peer, counted from 1 over all connections.
    pub sequence: u64,
    /// Which heartbeat of this connection, counted from 1: where a number is missing, the network lost it.
    pub count: u64,
    /// How late the sender's own timers come: 0 is on time, [`HEALTH_MAX`] the worst.
    pub health: u8,
    /// When it was sent, by the sender's clock (t3, and t1 of the next exchange).
    pub sent: Micros,
    /// The last heartbeat that the sender got from the receiver.
    pub echo: Option<Echo>,
}

/// When the other side's last heartbeat travelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// When it was sent, by the clock of whoever sent it (t1).
    pub sent: Micros,
    /// When it arrived, by the clock of whoever got it (t2).
    pub received: Micros,
}

/// Four stamps of two clocks: what a clock filter works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Our heartbeat left, by our clock.
    pub t1: Micros,
    /// It arrived, by the peer's clock.
    pub t2: Micros,
    /// The peer's heartbeat left, by the peer's clock.
    pub t3: Micros,
    /// It arrived, by our clock.
    pub t4: Micros,
}

impl Exchange {
    /// The time that both heartbeats spent on their way.
    pub fn round_trip(self) -> std::time::Duration {
        self.t4
            .since(self.t1)
            .saturating_sub(self.t3.since(self.t2))
    }
}

impl Heartbeat {
    /// Its size on the wire.
    pub const BYTES: usize = 44;

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let echo = self.echo.unwrap_or(Echo {
            sent: Micros(0),
            received: Micros(0),
        });
        let numbers = [
            self.sequence,
            self.count,
            self.sent.0,
            echo.sent.0,
            echo.received.0,
        ];
        let mut bytes = [0; Self::BYTES];
        bytes[0] = VERSION;
        bytes[1] = if self.echo.is_some() { ECHO } else { 0 };
        bytes[2] = self.health;
        for (place, number) in bytes[4..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads and checks a datagram.
    ///
    /// # Errors
    /// Another size or version, or numbers that contradict each other. Never panics.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = |what: String| Err(DecodeError::Malformed(what));
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(bytes) else {
            return malformed(format!(
                "a heartbeat of {} bytes, expected {}",
                bytes.len(),
                Self::BYTES
            ));
        };
        let [version, flags, health, zero, ..] = *bytes;
        if version != VERSION {
            return malformed(format!(
                "a heartbeat of version {version}, expected {VERSION}"
            ));
        }
        if flags & !ECHO != 0 || zero != 0 || health > HEALTH_MAX {
            return malformed(format!(
                "a heartbeat with flags {flags:#04x}, health {health} and {zero:#04x} instead of zero"
            ));
        }
        let number = |index: usize| {
            let at = 4 + 8 * index;
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        };
        let (sequence, count, sent) = (number(0), number(1), Micros(number(2)));
        if count == 0 || count > sequence {
            return malformed(format!("a heartbeat numbered {count} of {sequence}"));
        }
        let echo = Echo {
            sent: Micros(number(3)),
            received: Micros(number(4)),
        };
        let has_echo = flags & ECHO != 0;
        if !has_echo && (echo.sent, echo.received) != (Micros(0), Micros(0)) || echo.received > sent
        {
            return malformed(format!(
                "a heartbeat of {sent:?} whose echo arrived at {:?}",
                echo.received
            ));
        }
        Ok(Heartbeat {
            sequence,
            count,
            health,
            sent,
            echo: has_echo.then_some(echo),
        })
    }

    /// The exchange that this heartbeat completes by arriving at `now`; none without an echo, or with one from our future.
    pub fn exchange(self, now: Micros) -> Option<Exchange> {
        let echo = self.echo.filter(|echo| echo.sent <= now)?;
        Some(Exchange {
            t1: echo.sent,
            t2: echo.received,
            t3: self.sent,
            t4: now,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn heartbeat() -> Heartbeat {
        Heartbeat {
            sequence: 9,
            count: 4,
            health: 2,
            sent: Micros(5_000),
            echo: Some(Echo {
                sent: Micros(100),
                received: Micros(4_000),
            }),
        }
    }

    #[test]
    fn two_heartbeats_make_an_exchange() {
        let exchange = heartbeat().exchange(Micros(2_300)).unwrap();
        // 2.2 ms on our clock, of which the peer held it for 1 ms.
        assert_eq!(exchange.round_trip(), Duration::from_micros(1_200));
        assert_eq!(
            heartbeat().exchange(Micros(99)),
            None,
            "it echoes what was not sent yet"
        );
        let first = Heartbeat {
            echo: None,
            ..heartbeat()
        };
        assert_eq!(first.exchange(Micros(2_300)), None);
    }

    #[test]
    fn what_contradicts_itself_is_refused_in_words() {
        let refusal = |change: &dyn Fn(&mut [u8; Heartbeat::BYTES])| {
            let mut bytes = heartbeat().to_bytes();
            change(&mut bytes);
            Heartbeat::from_bytes(&bytes).unwrap_err().to_string()
        };
        for (said, change) in [
            (
                "version 2",
                &(|bytes: &mut [u8; 44]| bytes[0] = 2) as &dyn Fn(&mut [u8; 44]),
            ),
            ("flags 0x03", &|bytes| bytes[1] = 3),
            ("health 9", &|bytes| bytes[2] = HEALTH_MAX + 1),
            ("0x01 instead of zero", &|bytes| bytes[3] = 1),
            ("numbered 0 of 9", &|bytes| bytes[12] = 0),
            ("numbered 10 of 9", &|bytes| bytes[12] = 10),
            ("echo arrived at", &|bytes| bytes[43] = 1),
            ("echo arrived at", &|bytes| bytes[1] = 0),
        ] {
            assert!(
                refusal(change).contains(said),
                "{said}: {}",
                refusal(change)
            );
        }
        let bytes = heartbeat().to_bytes();
        for len in 0..bytes.len() {
            assert!(Heartbeat::from_bytes(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(Heartbeat::from_bytes(&[bytes.as_slice(), &[0]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            numbers in any::<[u64; 4]>(),
            health in 0..=HEALTH_MAX,
            echo in any::<bool>(),
        ) {
            let [a, b, sent, received] = numbers;
            let (sequence, count) = (a.max(b).max(1), a.min(b).max(1));
            let (sent, received) = (Micros(sent.max(received)), Micros(sent.min(received)));
            let echo = echo.then_some(Echo { sent: Micros(a), received });
            let heartbeat = Heartbeat { sequence, count, health, sent, echo };
            prop_assert_eq!(Heartbeat::from_bytes(&heartbeat.to_bytes()), Ok(heartbeat));
        }

        #[test]
        fn any_bytes_are_decoded_without_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..2 * Heartbeat::BYTES),
            likely in any::<bool>(),
        ) {
            if likely {
                bytes.resize(Heartbeat::BYTES, 0);
                bytes[..4].copy_from_slice(&[VERSION, ECHO, 3, 0]);
            }
            if let Ok(heartbeat) = Heartbeat::from_bytes(&bytes) {
                prop_assert_eq!(&heartbeat.to_bytes()[..], &bytes[..], "one heartbeat, one encoding");
            }
        }
    }
}
