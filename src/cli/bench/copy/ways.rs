//! The ways of a file, and of memory, to who takes it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::sendfile;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use rustix::time::{ClockId, clock_gettime};

use super::super::link::{is_right, tcp};
use tombolo_fabric::shm::Shm;
use tombolo_fabric::{Device, QueuePair, Region, VerbsProvider};

/// Bytes of one call, and of a pipe where that may be.
const PIECE: usize = 256 << 10;
const PIPE: usize = 1 << 20;

/// How long a READ may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A way, and how often it copies.
pub struct Way {
    pub peer: &'static str,
    pub case: &'static str,
    pub copies: u32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    ReadWrite,
    Mapped,
    SendFile,
    Splice,
    Fabric,
}

const fn way(peer: &'static str, case: &'static str, copies: u32, kind: Kind) -> Way {
    Way {
        peer,
        case,
        copies,
        kind,
    }
}

/// Out of the system's cache into a buffer, into the socket, and out of it; each of them is one.
pub const ALL: [Way; 5] = [
    way("read-write", "file to socket", 3, Kind::ReadWrite),
    way("mmap", "mapped memory to socket", 2, Kind::Mapped),
    way("sendfile", "file to socket", 1, Kind::SendFile),
    way("splice", "file to socket", 1, Kind::Splice),
    way("tombolo", "READ of shared memory", 1, Kind::Fabric),
];

/// What one pass was.
pub struct Once {
    pub right: bool,
    /// Processor seconds of the thread that sends; of all that is done where nobody sends.
    pub sender_s: f64,
    pub switches: u64,
}

/// Both ends of everything.
pub struct Ways {
    file: File,
    bytes: usize,
    sender: TcpStream,
    receiver: TcpStream,
    pipe: (OwnedFd, OwnedFd),
    /// Memory that its owner maps, and others may READ.
    region: Region,
    reader: Box<dyn QueuePair>,
    scratch: Region,
    _devices: [Arc<dyn Device>; 2],
    buffer: Vec<u8>,
    taken: Vec<u8>,
}

impl Ways {
    pub fn new(folder: &Path, object: &Bytes) -> io::Result<Ways> {
        let path = folder.join("file");
        std::fs::write(&path, object)?;
        let (sender, receiver) = tcp::connected()?;
        for end in [&sender, &receiver] {
            end.set_read_timeout(Some(LIMIT))?;
            end.set_write_timeout(Some(LIMIT))?;
        }
        let pipe = pipe_with(PipeFlags::CLOEXEC)?;
        // A small one is slower, no more.
        let _ = fcntl_setpipe_size(&pipe.1, PIPE);
        let (pipe_out, pipe_in) = pipe;
        let shm = Shm::new(folder.join("regions"));
        let open = |name: &str| shm.open(name).map_err(io::Error::other);
        let (owner, other) = (open("bench/a")?, open("bench/b")?);
        let mut region = owner.allocate(object.len()).map_err(io::Error::other)?;
        region.bytes_mut().copy_from_slice(object);
        let endpoint = owner.grant("bench/b").map_err(io::Error::other)?;
        let reader = other.connect("bench/a", &endpoint);
        let scratch = other.allocate(PIECE).map_err(io::Error::other)?;
        Ok(Ways {
            file: File::open(&path)?,
            bytes: object.len(),
            sender,
            receiver,
            pipe: (pipe_out, pipe_in),
            region,
            reader: reader.map_err(io::Error::other)?,
            scratch,
            _devices: [owner, other],
            buffer: vec![0; PIECE],
            taken: vec![0; PIECE],
        })
    }

    pub fn pass(&mut self, way: &Way, is_first: bool) -> io::Result<Once> {
        match way.kind {
            Kind::Fabric => {
                let before = (own_seconds(), own_switches()?);
                let right = self.read(is_first)?;
                Ok(Once {
                    right,
                    sender_s: own_seconds() - before.0,
                    switches: own_switches()? - before.1,
                })
            }
            kind => self.through_socket(kind, is_first),
        }
    }

    /// READs it as a member reads a model: piece by piece into memory that stays in cache.
    fn read(&mut self, is_first: bool) -> io::Result<bool> {
        let (remote, mut at, mut right) = (self.region.remote(), 0, true);
        while at < self.bytes {
            let count = PIECE.min(self.bytes - at);
            let (reader, scratch) = (&mut *self.reader, &mut self.scratch);
            tombolo_fabric::read(reader, scratch, 0, &remote, at as u64, count, LIMIT)
                .map_err(io::Error::other)?;
            right &= is_right(&self.scratch.bytes()[..count], at, is_first);
            at += count;
        }
        Ok(right)
    }

    fn through_socket(&mut self, kind: Kind, is_first: bool) -> io::Result<Once> {
        let Ways {
            file,
            bytes,
            sender,
            receiver,
            pipe,
            region,
            buffer,
            taken,
            ..
        } = self;
        std::thread::scope(|scope| {
            let received = scope.spawn(|| {
                // The thread is new, so all of them are of this pass.
                let right = tcp::receive(receiver, taken, *bytes, is_first)?;
                io::Result::Ok((right, own_switches()?))
            });
            let before = (own_seconds(), own_switches()?);
            let sent = match kind {
                Kind::ReadWrite => read_write(file, sender, buffer),
                Kind::Mapped => region
                    .bytes()
                    .chunks(PIECE)
                    .try_for_each(|piece| sender.write_all(piece)),
                Kind::SendFile => send_file(file, sender, *bytes),
                Kind::Splice => spliced(file, sender, pipe, *bytes),
                Kind::Fabric => Err(io::ErrorKind::Unsupported.into()),
            };
            let used = (own_seconds() - before.0, own_switches()? - before.1);
            if sent.is_err() {
                // Whoever waits for the rest finds out.
                sender.shutdown(std::net::Shutdown::Both)?;
            }
            let panicked = |_| Err(io::Error::other("the receiver ended"));
            let received = received.join().unwrap_or_else(panicked);
            sent?;
            let (right, switches) = received?;
            Ok(Once {
                right,
                sender_s: used.0,
                switches: used.1 + switches,
            })
        })
    }
}

fn read_write(file: &mut File, socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    file.rewind()?;
    loop {
        match file.read(buffer)? {
            0 => return Ok(()),
            count => socket.write_all(&buffer[..count])?,
        }
    }
}

fn send_file(file: &File, socket: &TcpStream, bytes: usize) -> io::Result<()> {
    let mut at = 0;
    while (at as usize) < bytes {
        let left = bytes - at as usize;
        if sendfile(socket, file, Some(&mut at), left)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Pages of the file into a pipe, and out of it into the socket.
fn spliced(
    file: &File,
    socket: &TcpStream,
    (pipe_out, pipe_in): &(OwnedFd, OwnedFd),
    bytes: usize,
) -> io::Result<()> {
    let mut at = 0;
    while (at as usize) < bytes {
        let left = (bytes - at as usize).min(PIPE);
        let mut held = splice(file, Some(&mut at), pipe_in, None, left, SpliceFlags::MOVE)?;
        if held == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while held > 0 {
            let flags = match (at as usize) < bytes {
                true => SpliceFlags::MOVE | SpliceFlags::MORE,
                false => SpliceFlags::MOVE,
            };
            held -= splice(pipe_out, None, socket, None, held, flags)?;
        }
    }
    Ok(())
}

/// Processor seconds of this thread.
fn own_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// How often this thread gave its processor away, or lost it.
fn own_switches() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let counts = status
        .lines()
        .filter(|line| line.contains("ctxt_switches"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Ok(counts.sum())
}
