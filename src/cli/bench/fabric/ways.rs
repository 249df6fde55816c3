//! What carries from process to process, and what is done with it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{LIMIT, Taken};
use tombolo_fabric::group::{Buffer, Call, Group};
use tombolo_fabric::{Device, QueuePair, Region, RemoteRegion};

/// Bytes of a small message: a stamp.
pub const MESSAGE: usize = 8;

/// How long the sender leaves the other one alone, so that it waits when the message comes: looking, or asleep.
const PAUSE_POLLED: Duration = Duration::from_micros(20);
const PAUSE_ASLEEP: Duration = Duration::from_micros(200);

/// Bytes of one write or read.
const PIECE: usize = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Sends,
    Takes,
}

/// What carries a small message, and may carry a large one.
pub trait Way {
    /// How the one who takes waits from now on.
    fn wait(&mut self, side: Side, polled: bool) -> io::Result<()>;

    /// Sends a message, and waits until it has been taken: none waits behind another.
    fn send(&mut self, stamp: u64) -> io::Result<()>;

    /// Takes a message: what it says, and when it was there.
    fn take(&mut self) -> io::Result<(u64, u64)>;

    /// Sends many bytes.
    fn send_all(&mut self, bytes: &Arc<[u8]>) -> io::Result<()>;

    /// Takes as many.
    fn take_all(&mut self, bytes: &mut Vec<u8>) -> io::Result<()>;
}

/// The machine's monotonic clock, in nanoseconds: the same in both processes.
pub fn stamp() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Works until then: who sleeps is woken late, and that is not what is measured.
fn pause(span: Duration) {
    let until = stamp() + span.as_nanos() as u64;
    while stamp() < until {
        std::hint::spin_loop();
    }
}

fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 * 1e-9
}

/// So many small messages, after some that are not counted.
pub fn messages(way: &mut dyn Way, side: Side, polled: bool, count: usize) -> io::Result<Taken> {
    way.wait(side, polled)?;
    let span = if polled { PAUSE_POLLED } else { PAUSE_ASLEEP };
    let (mut taken, before) = (Taken::nothing(), count / 10 + 1);
    for turn in 0..before + count {
        match side {
            Side::Sends => {
                pause(span);
                way.send(stamp())?;
            }
            Side::Takes => {
                let (sent, came) = way.take()?;
                taken.right &= sent > 0 && sent <= came;
                if turn >= before {
                    taken.seconds.push(seconds(sent, came));
                }
            }
        }
    }
    Ok(taken)
}

/// A buffer so often, copied from process to process; once more before that.
pub fn buffers(way: &mut dyn Way, side: Side, bytes: usize, repeat: usize) -> io::Result<Taken> {
    way.wait(side, false)?;
    let mut taken = Taken::nothing();
    let sent: Arc<[u8]> = match side {
        Side::Sends => vec![7; bytes].into(),
        Side::Takes => Arc::new([]),
    };
    let mut came = match side {
        Side::Sends => Vec::new(),
        Side::Takes => vec![1; bytes],
    };
    for turn in 0..=repeat {
        match side {
            Side::Sends => {
                // Nobody sends before the other one has let go of the last one.
                way.take()?;
                way.send(stamp())?;
                way.send_all(&sent)?;
            }
            Side::Takes => {
                way.send(stamp())?;
                let (began, _) = way.take()?;
                way.take_all(&mut came)?;
                let ended = stamp();
                taken.right &= came.first() == Some(&7) && came.last() == Some(&7);
                if turn > 0 {
                    taken.seconds.push(seconds(began, ended));
                }
                // So that what is there next time is what came then.
                if let [first, .., last] = &mut came[..] {
                    (*first, *last) = (1, 1);
                }
            }
        }
    }
    // Who sends does not leave before the last one has come.
    match side {
        Side::Sends => way.take().map(|_| ())?,
        Side::Takes => way.send(stamp())?,
    }
    Ok(taken)
}

impl Taken {
    pub fn nothing() -> Taken {
        Taken {
            seconds: Vec::new(),
            cpu_s: 0.0,
            right: true,
            read_s: Vec::new(),
        }
    }
}

/// Two ranks of step mode, which meet at a gate in shared memory; what the first one says travels with the meeting.
pub struct Meeting {
    group: Group,
    buffer: Buffer,
}

const CALL: Call = Call { what: 1, count: 1 };

impl Meeting {
    pub fn new(mut group: Group) -> io::Result<Meeting> {
        let buffer = group.allocate(MESSAGE).map_err(io::Error::other)?;
        Ok(Meeting { group, buffer })
    }

    fn meet(&mut self, word: u64) -> io::Result<(u64, u64)> {
        let operation = self.group.begin(&mut self.buffer, CALL, word);
        let operation = operation.map_err(io::Error::other)?;
        let came = stamp();
        let said = operation.contribution(0);
        operation.finish().map_err(io::Error::other)?;
        Ok((said, came))
    }
}

impl Way for Meeting {
    fn wait(&mut self, _: Side, polled: bool) -> io::Result<()> {
        if !polled {
            self.group.rest_while_waiting();
        }
        Ok(())
    }

    fn send(&mut self, stamp: u64) -> io::Result<()> {
        self.meet(stamp).map(|_| ())
    }

    fn take(&mut self) -> io::Result<(u64, u64)> {
        self.meet(0)
    }

    fn send_all(&mut self, _: &Arc<[u8]>) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn take_all(&mut self, _: &mut Vec<u8>) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

/// A connected socket.
pub struct Socket<S> {
    stream: S,
    polled: bool,
}

impl<S> Socket<S> {
    pub fn new(stream: S) -> Socket<S> {
        Socket {
            stream,
            polled: false,
        }
    }
}

/// A stream that may not block.
pub trait Stream: Read + Write {
    fn prepare(&self, polled: bool) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn prepare(&self, polled: bool) -> io::Result<()> {
        self.set_read_timeout(Some(LIMIT))?;
        self.set_write_timeout(Some(LIMIT))?;
        self.set_nonblocking(polled)
    }
}

impl Stream for UnixStream {
    fn prepare(&self, polled: bool) -> io::Result<()> {
        self.set_read_timeout(Some(LIMIT))?;
        self.set_write_timeout(Some(LIMIT))?;
        self.set_nonblocking(polled)
    }
}

impl<S: Stream> Socket<S> {
    fn exactly(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        if !self.polled {
            return self.stream.read_exact(bytes);
        }
        let until = stamp() + LIMIT.as_nanos() as u64;
        let mut done = 0;
        while done < bytes.len() {
            match self.stream.read(&mut bytes[done..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock && stamp() < until => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<S: Stream> Way for Socket<S> {
    fn wait(&mut self, side: Side, polled: bool) -> io::Result<()> {
        // Who sends waits for room, whatever the other one does.
        self.polled = polled && side == Side::Takes;
        self.stream.prepare(self.polled)
    }

    fn send(&mut self, stamp: u64) -> io::Result<()> {
        self.stream.write_all(&stamp.to_le_bytes())?;
        self.exactly(&mut [0; MESSAGE])
    }

    fn take(&mut self) -> io::Result<(u64, u64)> {
        let mut bytes = [0; MESSAGE];
        self.exactly(&mut bytes)?;
        let came = stamp();
        self.stream.write_all(&bytes)?;
        Ok((u64::from_le_bytes(bytes), came))
    }

    fn send_all(&mut self, bytes: &Arc<[u8]>) -> io::Result<()> {
        bytes
            .chunks(PIECE)
            .try_for_each(|piece| self.stream.write_all(piece))
    }

    fn take_all(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        self.exactly(bytes)
    }
}

/// Regions of the one who sends.
pub enum Regions {
    Own(Arc<dyn Device>),
    Foreign(Arc<dyn Device>, Box<dyn QueuePair>),
}

/// What is handed over.
#[derive(Debug, Clone, Copy)]
pub struct Handing {
    pub bytes: usize,
    pub repeat: usize,
    /// The same region in every turn, as rounds have it; else each time another one.
    pub kept: bool,
}

impl Regions {
    /// A region so often, told of over a socket; once more before that.
    pub fn go(
        &mut self,
        side: Side,
        socket: &mut Socket<UnixStream>,
        handing: Handing,
    ) -> io::Result<Taken> {
        socket.wait(side, false)?;
        let mut taken = Taken::nothing();
        let mut held = None;
        for turn in 0..=handing.repeat as u64 {
            match (&mut *self, side) {
                (Regions::Own(device), Side::Sends) => {
                    let region = match held.take().filter(|_| handing.kept) {
                        Some(region) => region,
                        None => device.allocate(handing.bytes).map_err(io::Error::other)?,
                    };
                    held = Some(hand_over(region, socket, turn)?);
                }
                (Regions::Foreign(device, reader), Side::Takes) => {
                    let (whole, read, right) = read(&**device, &mut **reader, socket, turn)?;
                    taken.right &= right;
                    if turn > 0 {
                        taken.seconds.push(whole);
                        taken.read_s.push(read);
                    }
                }
                _ => return Err(ErrorKind::Unsupported.into()),
            }
        }
        Ok(taken)
    }
}

/// Fills a region, tells of it, and keeps it until it has been read.
fn hand_over(mut region: Region, socket: &mut Socket<UnixStream>, turn: u64) -> io::Result<Region> {
    region.bytes_mut().fill(word(turn));
    let RemoteRegion { key, len } = region.remote();
    let mut told = Vec::new();
    for number in [key, len, stamp()] {
        told.extend(number.to_le_bytes());
    }
    socket.stream.write_all(&told)?;
    socket.take()?;
    Ok(region)
}

/// Learns of a region and READs its last bytes: the seconds since it was told of, those of the READ, and whether it is what it should be.
fn read(
    device: &dyn Device,
    reader: &mut dyn QueuePair,
    socket: &mut Socket<UnixStream>,
    turn: u64,
) -> io::Result<(f64, f64, bool)> {
    let mut scratch = device.allocate(MESSAGE).map_err(io::Error::other)?;
    let mut told = [[0; 8]; 3];
    socket.exactly(told.as_flattened_mut())?;
    let [key, len, told] = told.map(u64::from_le_bytes);
    let remote = RemoteRegion { key, len };
    let began = stamp();
    let count = MESSAGE.min(len as usize);
    let at = len - count as u64;
    let read = tombolo_fabric::read(reader, &mut scratch, 0, &remote, at, count, LIMIT);
    let ended = stamp();
    read.map_err(io::Error::other)?;
    let bytes = &scratch.bytes()[..count];
    let right = bytes.iter().all(|byte| *byte == word(turn));
    socket.send(stamp())?;
    Ok((seconds(told, ended), seconds(began, ended), right))
}

/// What a region is filled with.
fn word(turn: u64) -> u8 {
    (turn % 251) as u8 + 1
}
