//! How ranks find each other: the first waits at a socket for all others, then gives each what they need.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};
use rustix::process::PidfdFlags;

use super::control::{CONTROL_LENGTH, Control};
use super::message::{Message, NoMessage};
use super::slab::{self, Words};
use super::{Group, GroupError, RANKS_MAX, YIELDS, check_files, files, files_max, no_files};
use crate::dial::Dial;
use crate::error::{FabricError, system};
use crate::folder::{Address, Folder, random};
use crate::pages::MapError;
use crate::verbs::{Endpoint, Token, check_name};

/// The tag in invitations.
const PROVIDER: &str = "group";

/// Connections that have not said who they are. The oldest makes room: a rank greets at once.
const STRANGERS_MAX: usize = 32;

/// Greetings in one attempt to join: a first rank that closes so many times does not want us.
const GREETINGS_MAX: usize = 16;

/// The longest look at the sockets: whatever is missed is found out then.
const LOOK: Duration = Duration::from_millis(100);

/// A group that is about to be, in the hands of its first rank.
pub struct Founding {
    folder: Folder,
    socket: OwnedFd,
    /// Of the socket in the folder.
    socket_name: String,
    id: u64,
    seats: Vec<Seat>,
    /// Connections that have not said yet who they are.
    strangers: Vec<OwnedFd>,
}

struct Seat {
    name: String,
    token: Token,
    taken: Option<Arrival>,
}

/// A rank that has shown its invitation.
struct Arrival {
    socket: OwnedFd,
    life: OwnedFd,
}

impl Founding {
    /// Opens the door to a group of these ranks, of which the first is this one. The folder is made at need, for this user only; all ranks must name
    /// the same one.
    ///
    /// # Errors
    ///
    /// Names that cannot be used or come twice, none or more than [`RANKS_MAX`] of them, more than this process may open files for, or what the
    /// system said.
    pub fn new(folder: &Path, names: &[&str]) -> Result<Founding, FabricError> {
        if names.is_empty() || names.len() > RANKS_MAX {
            return Err(FabricError::Exhausted {
                what: "the ranks of a group",
                needed: names.len() as u64,
                limit: RANKS_MAX as u64,
                advice: "name at least one and no more than that",
            });
        }
        check_files(names.len())?;
        let mut seats: Vec<Seat> = Vec::new();
        for &name in names {
            check_name(name)?;
            if seats.iter().any(|seat| seat.name == name) {
                return Err(FabricError::Malformed {
                    what: "list of ranks",
                    expected: "each name once".to_owned(),
                    found: format!("{name:?} twice"),
                });
            }
            seats.push(Seat {
                name: name.to_owned(),
                token: random().map_err(system("drawing random bytes"))?,
                taken: None,
            });
        }
        let id = random().map_err(system("drawing random bytes"))?;
        let folder = Folder::open(folder)?;
        folder.sweep();
        let (socket, socket_name) = folder.listen()?;
        Ok(Founding {
            folder,
            socket,
            socket_name,
            id: u64::from_le_bytes(id),
            seats,
            strangers: Vec::new(),
        })
    }

    /// What a rank joins with. It carries a secret, so it belongs on a link that has authenticated that rank. The first rank needs none.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    pub fn invitation(&self, rank: usize) -> Endpoint {
        let address = self.folder.address(&self.socket_name).to_bytes();
        Endpoint::new(PROVIDER, self.seats[rank].token, address)
    }

    /// Waits for the others. `wait` is also how long a rank may keep the others waiting at a meeting.
    ///
    /// # Errors
    ///
    /// [`FabricError::TimedOut`] names one that has not come.
    pub fn found(mut self, wait: Duration) -> Result<Group, GroupError> {
        self.gather(wait)?;
        let file = slab::create(CONTROL_LENGTH).map_err(system("making a group's words"))?;
        let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
        let own = own.map_err(system("opening a descriptor of this process"))?;
        let (mut sockets, mut lives) = (Vec::new(), vec![own]);
        for seat in &mut self.seats[1..] {
            let arrival = seat.taken.take().expect("all have come");
            sockets.push(arrival.socket);
            lives.push(arrival.life);
        }
        let names: Vec<String> = self.seats.iter().map(|seat| seat.name.clone()).collect();
        let words = map(&file).map_err(|error| match error {
            MapError::Unsafe(reason) => FabricError::Distrusted {
                peer: names[0].clone(),
                reason: reason.to_owned(),
            },
            MapError::System(errno) => system("mapping a group's words")(errno),
        })?;
        let mut group = Group {
            id: self.id,
            rank: 0,
            control: Control::new(words, names.len()),
            names,
            lives,
            sockets,
            turn: 0,
            wait,
            spins: 0,
            yields: YIELDS,
            doubts: Arc::default(),
        };
        for (index, socket) in group.sockets.iter().enumerate() {
            let welcome = Message::Welcome {
                rank: index + 1,
                id: group.id,
                names: group.names.clone(),
            };
            let files: Vec<BorrowedFd<'_>> =
                [file.as_fd()].into_iter().chain(group.lives()).collect();
            let sent = welcome.send(socket, &files);
            sent.map_err(|error| group.failed_with(system("welcoming a rank")(error)))?;
        }
        group.convene()?;
        Ok(group)
    }

    /// Waits until all others are there, for who has other things to look after meanwhile; may be called again.
    ///
    /// # Errors
    ///
    /// [`FabricError::TimedOut`] names one that has not come.
    pub fn gather(&mut self, wait: Duration) -> Result<(), FabricError> {
        let mut strangers = std::mem::take(&mut self.strangers);
        let gathered = self.seat(&mut strangers, wait);
        self.strangers = strangers;
        gathered
    }

    /// Until every seat but the first is taken.
    fn seat(&mut self, strangers: &mut Vec<OwnedFd>, wait: Duration) -> Result<(), FabricError> {
        let until = Instant::now() + wait;
        while let Some(missing) = self.seats[1..].iter().find(|seat| seat.taken.is_none()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(FabricError::TimedOut {
                    peer: missing.name.clone(),
                    doing: "waiting for it to join a group",
                    wait,
                });
            }
            self.look(strangers, left.min(LOOK));
            for seat in &mut self.seats {
                if seat.taken.as_ref().is_some_and(|it| has_gone(&it.socket)) {
                    seat.taken = None;
                }
            }
            let mut index = 0;
            while index < strangers.len() {
                match Message::receive(&strangers[index], RecvFlags::DONTWAIT) {
                    Err(NoMessage::Nothing) => index += 1,
                    Ok((Message::Hello { name, token }, _)) => {
                        self.admit(strangers.remove(index), &name, &token)?;
                    }
                    Ok(_) | Err(_) => drop(strangers.remove(index)),
                }
            }
            self.accept(strangers)?;
        }
        Ok(())
    }

    /// Waits until there is something to do.
    fn look(&self, strangers: &[OwnedFd], span: Duration) {
        let seated = self.seats.iter().filter_map(|seat| seat.taken.as_ref());
        let mut files: Vec<PollFd<'_>> = [PollFd::new(&self.socket, PollFlags::IN)]
            .into_iter()
            .chain(strangers.iter().map(|it| PollFd::new(it, PollFlags::IN)))
            .chain(seated.map(|it| PollFd::new(&it.socket, PollFlags::empty())))
            .collect();
        let span = Timespec::try_from(span).expect("milliseconds fit");
        // An interrupted wait is one in which nothing is ready.
        let _ = rustix::event::poll(&mut files, Some(&span));
    }

    /// Takes what has connected, if it is this user's.
    fn accept(&self, strangers: &mut Vec<OwnedFd>) -> Result<(), FabricError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let socket = match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::MFILE) => return Err(self.files_ran_out()),
                // Nobody more, or gone again.
                Err(_) => return Ok(()),
            };
            let user = rustix::net::sockopt::socket_peercred(&socket).map(|peer| peer.uid);
            if user != Ok(rustix::process::geteuid()) {
                continue;
            }
            if strangers.len() >= STRANGERS_MAX {
                strangers.remove(0);
            }
            strangers.push(socket);
        }
    }

    fn files_ran_out(&self) -> FabricError {
        no_files(files_max().saturating_add(files(self.seats.len())))
    }

    /// Gives a rank its seat, if it shows the right invitation and nobody has it.
    fn admit(&mut self, socket: OwnedFd, name: &str, token: &Token) -> Result<(), FabricError> {
        let seat = self.seats[1..].iter_mut().find(|seat| seat.name == name);
        // All bytes are looked at, so that the time taken tells nothing of where they differ.
        let shows = |seat: &Seat| {
            let bytes = seat.token.iter().zip(token);
            bytes.fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
        };
        match seat.filter(|seat| seat.taken.is_none() && shows(seat)) {
            Some(seat) => match life(&socket) {
                Ok(life) => seat.taken = Some(Arrival { socket, life }),
                Err(Errno::MFILE) => return Err(self.files_ran_out()),
                // It has gone.
                Err(_) => {}
            },
            None => {
                let _ = Message::Denied.send(&socket, &[]);
            }
        }
        Ok(())
    }
}

impl Drop for Founding {
    fn drop(&mut self) {
        self.folder.remove(&self.socket_name);
    }
}

impl Group {
    /// Joins a group with the invitation that its first rank made for `name`. `wait` is how long this rank waits for all to join, and later for others
    /// at a meeting.
    ///
    /// # Errors
    ///
    /// Says whether nobody is there, the invitation was refused, or it does not fit.
    pub fn join(
        folder: &Path,
        name: &str,
        invitation: &Endpoint,
        wait: Duration,
    ) -> Result<Group, GroupError> {
        check_name(name)?;
        // What the first rank is called is not known yet.
        let first = "the group's first rank";
        let (token, address) = invitation.of(PROVIDER, first)?;
        let folder = Folder::open(folder)?;
        let address = folder.resolve(first, &Address::from_bytes(address)?)?;
        let dial = Dial::new(first, address, wait);
        let hello = Message::Hello {
            name: name.to_owned(),
            token: *token,
        };
        let (socket, message, mut files) = greet(&dial, &hello)?;
        let (rank, id, names) = match message {
            Message::Welcome { rank, id, names } => (rank, id, names),
            Message::Denied => {
                return Err(FabricError::Denied {
                    peer: first.to_owned(),
                }
                .into());
            }
            _ => return Err(dial.distrusted(NO_ANSWER).into()),
        };
        let is_ours = names.get(rank).is_some_and(|own| own == name) && rank > 0;
        if !is_ours || files.len() != names.len() + 1 {
            return Err(dial.distrusted(NO_ANSWER).into());
        }
        let lives = files.split_off(1);
        let words = map(&files[0]).map_err(|error| match error {
            MapError::Unsafe(reason) => dial.distrusted(reason),
            MapError::System(errno) => system("mapping a group's words")(errno),
        })?;
        let mut group = Group {
            id,
            rank,
            control: Control::new(words, names.len()),
            names,
            lives,
            sockets: vec![socket],
            turn: 0,
            wait,
            spins: 0,
            yields: YIELDS,
            doubts: Arc::default(),
        };
        group.convene()?;
        Ok(group)
    }
}

const NO_ANSWER: &str = "it did not answer our greeting as agreed";

fn greet(
    dial: &Dial<'_>,
    hello: &Message,
) -> Result<(OwnedFd, Message, Vec<OwnedFd>), FabricError> {
    for _ in 0..GREETINGS_MAX {
        let socket = dial.connect()?;
        if hello.send(&socket, &[]).is_err() {
            continue;
        }
        loop {
            dial.bound_waits(&socket)?;
            match Message::receive(&socket, RecvFlags::empty()) {
                Ok((message, files)) => return Ok((socket, message, files)),
                Err(NoMessage::Nothing) => {}
                Err(NoMessage::Gone) => break,
                Err(NoMessage::Malformed) => return Err(dial.distrusted(NO_ANSWER)),
                Err(NoMessage::FilesLost) => {
                    return Err(no_files(files_max().saturating_add(files(RANKS_MAX))));
                }
            }
        }
    }
    Err(dial.unreachable("it closes every connection"))
}

fn map(file: &OwnedFd) -> Result<Words, MapError> {
    let words = Words::map(file.as_fd(), CONTROL_LENGTH as u64)?;
    words
        .reserve()
        .map_err(|_| MapError::Unsafe("there is no room for the group's words"))?;
    Ok(words)
}

/// A descriptor of the process at the other end, readable once it has ended.
fn life(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    let process = rustix::net::sockopt::socket_peercred(socket)?.pid;
    let life = rustix::process::pidfd_open(process, PidfdFlags::empty())?;
    // Had it ended before, another might have its number by now; but then its end of the socket would be closed.
    match has_gone(socket) {
        false => Ok(life),
        true => Err(Errno::SRCH),
    }
}

fn has_gone(socket: &OwnedFd) -> bool {
    let mut file = [PollFd::new(socket, PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let _ = rustix::event::poll(&mut file, Some(&at_once));
    file[0]
        .revents()
        .intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}
