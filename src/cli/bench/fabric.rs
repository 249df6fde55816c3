//! `tombolo bench fabric`: how one process hands another a message and a buffer: over shared memory, sockets and QUIC of this machine.
//!
//! Both processes have the machine's monotonic clock, so the way of a message is measured one way: the sender's stamp travels in it. The one who
//! takes it waits already, either looking again and again (polled) or asleep. A buffer is handed over when the other process has its last bytes:
//! by the fabric, when it has READ them, out of memory that it has never seen or of which it knows already; by a socket, when all of it is in memory of its own.
//! Processor time is that of the process that takes.

mod quic;
mod ways;

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use super::allreduce::place;
use super::child::{child, folder};
use super::measure::{self, Measurement, own_cpu_seconds, show, within};
use crate::cli::output::print_line;
use crate::cli::{Common, Exit};
use tombolo_fabric::group::{Founding, Group};
use tombolo_fabric::shm::Shm;
use tombolo_fabric::{Endpoint, VerbsProvider};
use ways::{Handing, Meeting, Regions, Side, Socket, Way};

/// Two regions of so many bytes, and buffers as large, are 8 GB.
const BYTES_MAX: u64 = 2 << 30;
const MESSAGES_MAX: u64 = 1_000_000;
const REPEAT_MAX: u64 = 1000;

/// How long either process may keep the other waiting.
const LIMIT: Duration = Duration::from_secs(60);

/// The ranks.
const NAMES: [&str; 2] = ["bench/0", "bench/1"];

/// Arguments of `bench fabric`.
#[derive(Debug, Args)]
pub struct Fabric {
    /// Bytes of the buffer.
    #[arg(long, default_value_t = 102_400_000)]
    bytes: u64,
    /// Small messages of each kind.
    #[arg(long, default_value_t = 2000)]
    messages: usize,
    /// How often a buffer is handed over.
    #[arg(long, default_value_t = 7)]
    repeat: usize,
    /// Set by the process that sends, with which this one, which takes, ends. What it must know comes on standard input.
    #[arg(long, hide = true, value_name = "PID")]
    child_of: Option<u32>,
}

/// What the process that takes must know.
#[derive(Debug, Serialize, Deserialize)]
struct Start {
    /// To the group.
    invitation: Vec<u8>,
    /// To the regions.
    endpoint: Vec<u8>,
    tcp: SocketAddr,
    quic: SocketAddr,
}

/// What it found in one case.
#[derive(Debug, Serialize, Deserialize)]
struct Taken {
    seconds: Vec<f64>,
    cpu_s: f64,
    right: bool,
    /// Of a buffer that is handed over by the fabric: the READ alone.
    read_s: Vec<f64>,
}

/// One case: who carries, and what.
struct Case {
    peer: &'static str,
    case: &'static str,
    is_bulk: bool,
}

const fn small(peer: &'static str, case: &'static str) -> Case {
    Case {
        peer,
        case,
        is_bulk: false,
    }
}

const fn bulk(peer: &'static str, case: &'static str) -> Case {
    Case {
        peer,
        case,
        is_bulk: true,
    }
}

const POLLED: &str = "message, polled";
const ASLEEP: &str = "message, asleep";
const BUFFER: &str = "buffer";
/// One that the other process has read before, as those of rounds.
const KNOWN: &str = "buffer, known";

/// In the order in which both processes go through them. A connection of QUIC that is idle for long is given up, so it comes first.
const CASES: [Case; 12] = [
    small("quic", ASLEEP),
    bulk("quic", BUFFER),
    small("tombolo", POLLED),
    small("tombolo", ASLEEP),
    small("unix", POLLED),
    small("unix", ASLEEP),
    small("tcp", POLLED),
    small("tcp", ASLEEP),
    bulk("tombolo", BUFFER),
    bulk("tombolo", KNOWN),
    bulk("unix", BUFFER),
    bulk("tcp", BUFFER),
];

impl Fabric {
    /// Measures, or is the process that takes.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || {
            match (self.child_of, &common.state) {
                (Some(_), Some(folder)) => {
                    self.take_part(folder)?;
                    Ok(Exit::Done)
                }
                _ => {
                    let folder = folder(common)?;
                    Ok(show(common, &self.measure(folder.path())?))
                }
            }
        })
    }

    fn check(&self) -> Result<(), String> {
        within("bytes", self.bytes, BYTES_MAX)?;
        within("messages", self.messages as u64, MESSAGES_MAX)?;
        within("repeat", self.repeat as u64, REPEAT_MAX)
    }

    fn measure(&self, folder: &Path) -> io::Result<Vec<Measurement>> {
        let founding = Founding::new(&folder.join("group"), &NAMES).map_err(io::Error::other)?;
        let device = Shm::new(folder.join("regions")).open(NAMES[0]);
        let device = device.map_err(io::Error::other)?;
        let endpoint = device.grant(NAMES[1]).map_err(io::Error::other)?;
        let quic = quic::Sender::new(folder)?;
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let unix = UnixListener::bind(folder.join("socket"))?;
        let mut other = Other::start(self, folder)?;
        other.tell(&Start {
            invitation: founding.invitation(1).to_bytes(),
            endpoint: endpoint.to_bytes(),
            tcp: tcp.local_addr()?,
            quic: quic.address()?,
        })?;
        // On a thread of its own, so that its place is not that of what comes later.
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| {
                place::take(0, NAMES.len());
                let group = founding.found(LIMIT).map_err(io::Error::other)?;
                let (unix, _) = unix.accept()?;
                let (tcp, _) = tcp.accept()?;
                tcp.set_nodelay(true)?;
                let mut ends = Ends {
                    group: Meeting::new(group)?,
                    unix: Socket::new(unix),
                    tcp: Socket::new(tcp),
                    regions: Regions::Own(device),
                    quic: Box::new(quic.accept()?),
                };
                for case in &CASES {
                    ends.go(self, case, Side::Sends)?;
                }
                io::Result::Ok(())
            });
            let measured = CASES.iter().map(|case| {
                let taken = other.line()?;
                Ok(self.found(case, taken))
            });
            let measured = measured.collect::<io::Result<Vec<Measurement>>>();
            if measured.is_err() {
                // Whoever waits for it finds out.
                other.end();
            }
            let ended = ended.join();
            let ended = ended.unwrap_or_else(|_| Err(io::Error::other("the sender ended")));
            match (measured, ended) {
                (Ok(measured), Ok(())) => Ok(measured),
                (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
                // Either may be the cause of the other.
                (Err(takes), Err(sends)) => Err(io::Error::other(format!(
                    "{takes}; and the one that sends: {sends}"
                ))),
            }
        })
    }

    fn found(&self, case: &Case, taken: Taken) -> Measurement {
        let mut sorted = taken.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = sorted.len().saturating_sub(1);
            sorted.get((last as f64 * share).round() as usize).copied()
        };
        let mut more = Map::new();
        more.insert("p99_s".into(), json!(at(0.99)));
        let mut read = taken.read_s;
        read.sort_by(f64::total_cmp);
        if let Some(middle) = read.get(read.len() / 2) {
            more.insert("read_s".into(), json!(middle));
        }
        Measurement {
            group: "fabric",
            peer: case.peer,
            case: case.case.to_owned(),
            n: NAMES.len(),
            bytes: match case.is_bulk {
                true => self.bytes,
                false => ways::MESSAGE as u64,
            },
            cpu_s_per_op: taken.cpu_s / taken.seconds.len().max(1) as f64,
            seconds: taken.seconds,
            ok: taken.right,
            more,
        }
    }

    /// Is the process that takes.
    fn take_part(&self, folder: &Path) -> io::Result<()> {
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        let start: Start = serde_json::from_str(&line).map_err(io::Error::other)?;
        let endpoint = |bytes: &[u8]| Endpoint::from_bytes(bytes).map_err(io::Error::other);
        let device = Shm::new(folder.join("regions")).open(NAMES[1]);
        let device = device.map_err(io::Error::other)?;
        let reader = device
            .connect(NAMES[0], &endpoint(&start.endpoint)?)
            .map_err(io::Error::other)?;
        let quic = quic::Taker::dial(folder, start.quic)?;
        place::take(1, NAMES.len());
        let invitation = endpoint(&start.invitation)?;
        let group = Group::join(&folder.join("group"), NAMES[1], &invitation, LIMIT);
        let unix = UnixStream::connect(folder.join("socket"))?;
        let tcp = TcpStream::connect(start.tcp)?;
        let mut ends = Ends {
            group: Meeting::new(group.map_err(io::Error::other)?)?,
            unix: Socket::new(unix),
            tcp: Socket::new(tcp),
            regions: Regions::Foreign(device, reader),
            quic: Box::new(quic),
        };
        for case in &CASES {
            let before = own_cpu_seconds();
            let mut taken = ends.go(self, case, Side::Takes)?;
            taken.cpu_s = own_cpu_seconds() - before;
            print_line(&taken);
        }
        Ok(())
    }
}

/// Everything that carries, at one end.
struct Ends {
    group: Meeting,
    unix: Socket<UnixStream>,
    tcp: Socket<TcpStream>,
    regions: Regions,
    quic: Box<dyn Way>,
}

impl Ends {
    fn go(&mut self, fabric: &Fabric, case: &Case, side: Side) -> io::Result<Taken> {
        if case.peer == "tombolo" && case.is_bulk {
            let handing = Handing {
                bytes: fabric.bytes as usize,
                repeat: fabric.repeat,
                kept: case.case == KNOWN,
            };
            return self.regions.go(side, &mut self.unix, handing);
        }
        let way: &mut dyn Way = match case.peer {
            "tombolo" => &mut self.group,
            "unix" => &mut self.unix,
            "tcp" => &mut self.tcp,
            _ => &mut *self.quic,
        };
        match case.is_bulk {
            true => ways::buffers(way, side, fabric.bytes as usize, fabric.repeat),
            false => ways::messages(way, side, case.case == POLLED, fabric.messages),
        }
    }
}

/// The process that takes, which ends with this value.
struct Other {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(fabric: &Fabric, folder: &Path) -> io::Result<Other> {
        let mut command = child("fabric", folder)?.into_std();
        for (name, number) in [
            ("--bytes", fabric.bytes),
            ("--messages", fabric.messages as u64),
            ("--repeat", fabric.repeat as u64),
        ] {
            command.args([name, &number.to_string()]);
        }
        let mut child = command.stdin(Stdio::piped()).spawn()?;
        let output = child.stdout.take();
        let output = output.ok_or_else(|| io::Error::other("a process without output"))?;
        Ok(Other {
            child,
            output: BufReader::new(output),
        })
    }

    /// A secret does not belong among the arguments, which everybody sees.
    fn tell(&mut self, start: &Start) -> io::Result<()> {
        let input = self.child.stdin.as_mut();
        let input = input.ok_or_else(|| io::Error::other("a process without input"))?;
        writeln!(input, "{}", json!(start))
    }

    fn line(&mut self) -> io::Result<Taken> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        // What went wrong there is on standard error as well.
        let failed = |_| io::Error::other(format!("the process that takes said {line:?}"));
        serde_json::from_str(&line).map_err(failed)
    }

    fn end(&mut self) {
        // It has ended, or it is not wanted any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.end();
    }
}
