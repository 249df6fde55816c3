//! Whether datagrams get through, and how large: asked of QUIC's own endpoints, which answer whoever speaks a version that they do not know with
//! the list of those that they do (RFC 9000, 6.1). So a peer needs nothing but to run, and is told nothing.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use quinn::udp::UdpSocketState;

/// A version that nobody may ever use: endpoints must answer it.
const NO_VERSION: u32 = 0x1a2a_3a4a;

/// Payloads that are tried, largest first; the last is what QUIC needs.
const PAYLOADS: [u16; 5] = [8972, 1472, 1452, 1350, 1200];

/// How long an answer may take. Twice a path around the world and back.
const WAIT: Duration = Duration::from_millis(600);

/// How often the smallest is tried: a datagram may be lost.
const TRIES: usize = 3;

/// Datagrams of others that are passed over while one is waited for.
const OTHERS_MAX: usize = 64;

/// What came back from an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// An endpoint of QUIC answered a datagram with so much payload, and none with more.
    Quic(u16),
    /// The machine is there, and nothing listens on the port.
    Absent,
    /// There is no way there from here, and why.
    Unreachable(String),
    /// Nothing.
    Silent,
}

impl Answer {
    /// The largest payload that was answered.
    pub fn payload(&self) -> Option<u16> {
        match self {
            Answer::Quic(payload) => Some(*payload),
            _ => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Quic(payload) => write!(f, "answers packets of {payload} bytes"),
            Answer::Absent => f.write_str("is there, and nothing listens on the port"),
            Answer::Unreachable(why) => write!(f, "cannot be reached from here: {why}"),
            Answer::Silent => f.write_str("does not answer"),
        }
    }
}

/// A socket that sends to that address and cuts nothing into pieces.
fn socket(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    // It sets what keeps the kernel from cutting datagrams into pieces.
    UdpSocketState::new((&socket).into())?;
    // That has made it one that does not wait.
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.connect(to)?;
    Ok(socket)
}

/// How many datagrams the kernel takes at once.
pub(super) fn segments() -> usize {
    let state = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|socket| UdpSocketState::new((&socket).into()));
    state.map_or(0, |state| state.max_gso_segments())
}

/// The first packet of a connection in a version that nobody knows, with so much payload.
fn question(payload: u16, id: [u8; 8]) -> Vec<u8> {
    let mut packet = vec![0xc0];
    packet.extend(NO_VERSION.to_be_bytes());
    packet.push(8);
    packet.extend(id);
    packet.push(8);
    packet.extend(id);
    packet.resize(usize::from(payload), 0);
    packet
}

/// Whether this is the answer to that question: a list of versions, for the connection that was asked for.
fn is_answer(packet: &[u8], id: [u8; 8]) -> bool {
    let to = [&[8], &id[..]].concat();
    packet.len() > 14 && packet[0] & 0x80 != 0 && packet[1..5] == [0; 4] && packet[5..14] == to
}

/// Asks an address. Blocks, for some seconds if nobody is there.
pub(crate) fn ask(address: SocketAddr, carries: u16) -> Answer {
    let socket = match socket(address) {
        Ok(socket) => socket,
        Err(error) => return Answer::Unreachable(error.to_string()),
    };
    let least = *PAYLOADS.last().expect("there are some");
    // Whether anybody is there, with what must get through; and then how much more does.
    let first = (0..TRIES).map(|_| exchange(&socket, least));
    let mut answer = Answer::Silent;
    for said in first {
        match said {
            Ok(true) => {
                answer = Answer::Quic(least);
                break;
            }
            Ok(false) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Answer::Absent,
            Err(error) => return Answer::Unreachable(error.to_string()),
        }
    }
    if answer == Answer::Silent {
        return answer;
    }
    let larger = PAYLOADS
        .iter()
        .filter(|payload| **payload <= carries && **payload > least);
    for payload in larger {
        if matches!(exchange(&socket, *payload), Ok(true)) {
            return Answer::Quic(*payload);
        }
    }
    answer
}

/// Sends a question and waits for its answer; false if none comes.
fn exchange(socket: &UdpSocket, payload: u16) -> io::Result<bool> {
    let mut id = [0; 8];
    aws_lc_rs::rand::fill(&mut id)
        .map_err(|_| io::Error::other("the system gives no random numbers"))?;
    match socket.send(&question(payload, id)) {
        Ok(_) => {}
        // Larger than the device carries, as it turns out.
        Err(error)
            if error.kind() == ErrorKind::ArgumentListTooLong
                || error.raw_os_error() == Some(90) =>
        {
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    let mut buffer = [0; 2048];
    // Others may send here as well: not for ever.
    for _ in 0..OTHERS_MAX {
        match socket.recv(&mut buffer) {
            Ok(bytes) if is_answer(&buffer[..bytes], id) => return Ok(true),
            Ok(_) => {}
            Err(error) if is_timeout(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Whether a datagram that is sent to an address comes to a socket which listens there.
pub(super) fn comes_back(listening: &UdpSocket, address: SocketAddr) -> io::Result<bool> {
    let mut word = [0; 16];
    aws_lc_rs::rand::fill(&mut word)
        .map_err(|_| io::Error::other("the system gives no random numbers"))?;
    listening.set_read_timeout(Some(WAIT))?;
    let sender = socket(address)?;
    for _ in 0..TRIES {
        sender.send(&word)?;
        let mut buffer = [0; 64];
        // What others have sent here comes first; not for ever.
        for _ in 0..OTHERS_MAX {
            match listening.recv_from(&mut buffer) {
                Ok((bytes, _)) if buffer[..bytes] == word => return Ok(true),
                Ok(_) => {}
                Err(error) if is_timeout(&error) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(false)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_versions_answers_only_the_question_that_was_asked() {
        let id = [7; 8];
        let packet = question(1200, id);
        assert_eq!(packet.len(), 1200);
        assert_eq!(&packet[..6], [0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8]);
        let mut answer = vec![0x80, 0, 0, 0, 0, 8];
        answer.extend(id);
        answer.extend([8, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 1]);
        assert!(is_answer(&answer, id));
        assert!(!is_answer(&answer, [8; 8]));
        assert!(!is_answer(&answer[..10], id));
        assert!(!is_answer(&packet, id));
    }

    #[test]
    fn a_port_where_nobody_is_and_one_that_says_nothing_are_told_apart() {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = silent.local_addr().unwrap();
        assert_eq!(ask(address, 1472), Answer::Silent);
        assert!(
            comes_back(&UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), address)
                .is_ok_and(|came| !came)
        );
        assert!(comes_back(&silent, address).unwrap());
        drop(silent);
        assert_eq!(ask(address, 1472), Answer::Absent);
    }
}
