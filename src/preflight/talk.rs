//! What two preflights say to each other: words on one stream that the dialling side opens, and datagrams that are sent back as they come.
//!
//! The dialling side leads: it says what is measured next, the other does it and answers. Whatever a peer asks for is bounded here, so that a preflight
//! cannot be made to send more than one would expect of it.

use std::net::SocketAddr;
use std::time::Duration;

use quinn::{Connection, RecvStream, SendStream};
use serde::{Deserialize, Serialize};
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::wire::codec;

/// The longest word, encoded: results have a few hundred bytes.
const WORD_BYTES_MAX: usize = 4096;

/// The most that a flow carries, whatever is asked for.
pub const FLOW_BYTES_MAX: u64 = 64 << 20;

/// The longest that a flow lasts, whatever is asked for.
pub const FLOW_LIMIT: Duration = Duration::from_secs(3);

/// Probes that are sent back on one connection; more are not answered.
pub const PROBES_MAX: u32 = 2000;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// The first, of either side.
    Hello(Hello),
    /// Of either side: all links that come before this one are measured.
    Ready,
    /// Of the leader: no more probes come.
    Probed,
    /// How many probes came, and two clocks of the same moment.
    Echoed(Echoed),
    /// Of the leader: send a flow.
    Send,
    /// Of the leader: a flow comes.
    Take,
    /// What came of a flow.
    Took(Flow),
    /// Of the leader: how does your side of the path look?
    Look,
    /// So.
    Side(Side),
    /// Of the leader: all that was measured.
    Measured(Box<Link>),
    /// The other side has it.
    Noted,
}

/// Who speaks, and what must be the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The hash of the shared keys of the topology.
    pub topology: Hash,
    /// Bytes of a socket's buffers as granted: to receive, to send.
    pub buffers: (u64, u64),
}

/// What the other side has seen of the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echoed {
    /// How many came.
    pub came: u32,
    /// Its monotonic clock.
    pub now: Micros,
    /// Its wall clock at that moment, microseconds since 1970.
    pub unix_us: u64,
}

/// A flow as its receiver has seen it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Bytes that came.
    pub bytes: u64,
    /// From the first to the last, in microseconds.
    pub micros: u64,
    /// The pace in the later half of that time, bits a second; zero if nothing can be said.
    pub bits_per_s: u64,
}

/// One end of a connection as QUIC has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The largest payload of a packet that is known to arrive at the other end.
    pub packet_bytes: u16,
    /// How often large packets vanished and smaller ones had to do.
    pub black_holes: u64,
}

/// One direction of a link, as measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Probes sent.
    pub probes: u32,
    /// Of those, how many came.
    pub came: u32,
    /// What came of a flow.
    pub flow: Flow,
    /// The sender's view of the path.
    pub side: Side,
    /// Bytes of the sender's socket buffer to send, and of the receiver's to receive, as granted.
    pub buffers: (u64, u64),
}

/// A link, as measured by the side that dials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Who dialled and measured.
    pub from: NodeId,
    /// The other.
    pub to: NodeId,
    /// The address at which that one was reached.
    pub address: SocketAddr,
    /// Microseconds: the median round trip, and the one that 99 of 100 do not exceed.
    pub round_trip_us: (u64, u64),
    /// The wall clock of `to` less that of `from`, in microseconds.
    pub offset_us: i64,
    /// That is off by no more.
    pub bound_us: u64,
    /// From `from` to `to`.
    pub there: Way,
    /// From `to` to `from`.
    pub back: Way,
}

/// A datagram that is sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Its number, from zero.
    pub number: u32,
    /// It left, by the leader's clock.
    pub t1: Micros,
}

/// The datagram that comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    /// The probe's number.
    pub number: u32,
    /// As the probe has it.
    pub t1: Micros,
    /// It arrived, by the other side's clock.
    pub t2: Micros,
    /// The echo left, by the other side's clock.
    pub t3: Micros,
}

/// The stream on which words go.
pub struct Talk {
    send: SendStream,
    receive: RecvStream,
}

impl Talk {
    /// Opens it, on the side that has dialled.
    pub async fn open(connection: &Connection) -> Result<Talk, String> {
        let opened = connection.open_bi().await;
        let (send, receive) = opened.map_err(|error| error.to_string())?;
        Ok(Talk { send, receive })
    }

    /// Takes it, on the side that was dialled.
    pub async fn accept(connection: &Connection) -> Result<Talk, String> {
        let accepted = connection.accept_bi().await;
        let (send, receive) = accepted.map_err(|error| error.to_string())?;
        Ok(Talk { send, receive })
    }

    /// Says a word.
    pub async fn say(&mut self, word: &Word) -> Result<(), String> {
        let bytes = codec::encode(word).map_err(|error| error.to_string())?;
        let length = u32::try_from(bytes.len()).map_err(|error| error.to_string())?;
        let framed = [&length.to_le_bytes()[..], &bytes].concat();
        let written = self.send.write_all(&framed).await;
        written.map_err(|error| error.to_string())
    }

    /// Hears a word. Whoever stops in the middle must not go on hearing.
    pub async fn hear(&mut self) -> Result<Word, String> {
        let failed = |error: quinn::ReadExactError| error.to_string();
        let mut length = [0; 4];
        self.receive.read_exact(&mut length).await.map_err(failed)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > WORD_BYTES_MAX {
            return Err(format!(
                "the peer says a word of {length} bytes, at most {WORD_BYTES_MAX} are expected"
            ));
        }
        let mut bytes = vec![0; length];
        self.receive.read_exact(&mut bytes).await.map_err(failed)?;
        codec::decode(&bytes)
            .map_err(|error| format!("the peer says no word that is known: {error}"))
    }
}

/// What the later half of a flow's time says of its pace, from moments and how many bytes had come until then, in order. The first half is where a
/// congestion law still looks for it.
pub fn flow(came: &[(Micros, u64)]) -> Flow {
    let (Some((first, _)), Some((last, bytes))) = (came.first(), came.last()) else {
        return Flow::default();
    };
    let micros = last.0.saturating_sub(first.0);
    let half = first.0 + micros / 2;
    let before = came.iter().take_while(|(at, _)| at.0 <= half).last();
    let (at, had) = before.map_or((first.0, 0), |(at, had)| (at.0, *had));
    let (span, more) = (last.0.saturating_sub(at), bytes.saturating_sub(had));
    let bits = u128::from(more) * 8 * 1_000_000;
    let bits_per_s = bits.checked_div(u128::from(span)).unwrap_or(0);
    Flow {
        bytes: *bytes,
        micros,
        bits_per_s: u64::try_from(bits_per_s).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_of_a_flow_is_that_of_the_later_half_of_its_time() {
        let at = |micros, bytes| (Micros(micros), bytes);
        assert_eq!(flow(&[]), Flow::default());
        assert_eq!(flow(&[at(5, 1000)]).bits_per_s, 0);
        // A second at 1 MB/s behind one at a tenth of that.
        let slow = (0..=10).map(|tenth| at(tenth * 100_000, tenth * 10_000));
        let fast = (1..=10).map(|tenth| at(1_000_000 + tenth * 100_000, 100_000 + tenth * 100_000));
        let came: Vec<_> = slow.chain(fast).collect();
        let found = flow(&came);
        assert_eq!((found.bytes, found.micros), (1_100_000, 2_000_000));
        assert_eq!(found.bits_per_s, 8_000_000);
        // A clock that stands still, or runs back, is no reason to fail.
        assert_eq!(flow(&[at(9, 1), at(9, 2)]).bits_per_s, 0);
        assert_eq!(flow(&[at(9, 1), at(3, u64::MAX)]).micros, 0);
    }

    #[test]
    fn every_word_fits_its_bound_and_what_is_none_is_refused() {
        let name = |letter: &str| format!("{0}/{0}", letter.repeat(32));
        let way = Way {
            probes: u32::MAX,
            ..Way::default()
        };
        let link = Link {
            from: name("a").parse().unwrap(),
            to: name("b").parse().unwrap(),
            address: "[2001:db8::1]:4600".parse().unwrap(),
            round_trip_us: (u64::MAX, u64::MAX),
            offset_us: i64::MIN,
            bound_us: u64::MAX,
            there: way,
            back: way,
        };
        let word = Word::Measured(Box::new(link));
        let bytes = codec::encode(&word).unwrap();
        assert!(bytes.len() <= WORD_BYTES_MAX, "{}", bytes.len());
        assert_eq!(codec::decode::<Word>(&bytes).unwrap(), word);
        for cut in 0..bytes.len() {
            assert!(codec::decode::<Word>(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(codec::decode::<Word>(&[0xff; 32]).is_err());
    }
}
