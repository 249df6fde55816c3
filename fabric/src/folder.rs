//! The folder of sockets: names that nobody guesses, paths of any length, and no trace of the dead.
//!
//! A socket is bound under a passing name and renamed once it listens. So a socket with a final name that refuses a connection has no owner
//! any more, and may be removed; one that lives never refuses.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;

use crate::error::{FabricError, system};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Entries looked at in one sweep; a folder with more is not ours alone.
const SWEEP_MAX: usize = 4096;

const FINAL: &str = ".sock";
const PASSING: &str = ".new";

/// An open folder that only this user can enter.
pub(crate) struct Folder {
    handle: OwnedFd,
    identity: (u64, u64),
}

impl Folder {
    /// Opens the folder, making it at need.
    pub(crate) fn open(path: &Path) -> Result<Folder, FabricError> {
        let refuse = |reason: String| FabricError::Folder {
            path: path.to_owned(),
            reason,
        };
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(path)
            .map_err(|error| refuse(error.to_string()))?;
        let handle = rustix::fs::open(
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|errno| refuse(errno.to_string()))?;
        let stat = rustix::fs::fstat(&handle).map_err(|errno| refuse(errno.to_string()))?;
        let user = rustix::process::geteuid().as_raw();
        if stat.st_uid != user {
            return Err(refuse(format!("user {} owns it, not {user}", stat.st_uid)));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(refuse(format!(
                "its mode is {:04o}, so others may enter",
                stat.st_mode & 0o7777
            )));
        }
        Ok(Folder {
            handle,
            identity: (stat.st_dev as u64, stat.st_ino as u64),
        })
    }

    /// A listening socket and its name.
    pub(crate) fn listen(&self) -> Result<(OwnedFd, String), FabricError> {
        // A sweeper in another process namespace may take the passing name of a living process for a dead one's, within microseconds.
        const TRIES: usize = 3;
        let mut tries = 1;
        loop {
            match self.listen_once() {
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < TRIES => {
                    tries += 1;
                }
                listening => return listening.map_err(system("listening on a UNIX socket")),
            }
        }
    }

    fn listen_once(&self) -> io::Result<(OwnedFd, String)> {
        let name = hex(&random::<16>()?);
        let passing = format!("{}-{name}{PASSING}", std::process::id());
        let name = format!("{name}{FINAL}");
        let socket = socket()?;
        rustix::net::bind(&socket, &self.path(&passing)?)?;
        let listening = rustix::net::listen(&socket, BACKLOG)
            .and_then(|()| rustix::fs::renameat(&self.handle, &passing, &self.handle, &name));
        if let Err(errno) = listening {
            self.remove(&passing);
            return Err(errno.into());
        }
        Ok((socket, name))
    }

    /// Where peers find a socket of this folder.
    pub(crate) fn address(&self, name: &str) -> Address {
        Address {
            folder: self.identity,
            name: name.to_owned(),
        }
    }

    /// A path that is short whatever the folder's own: a socket address holds 107 bytes.
    fn path(&self, name: &str) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd()))
    }

    /// The socket address of a peer, which must use the same folder.
    pub(crate) fn resolve(
        &self,
        peer: &str,
        address: &Address,
    ) -> Result<SocketAddrUnix, FabricError> {
        if address.folder != self.identity {
            return Err(FabricError::Incompatible {
                peer: peer.to_owned(),
                expected: format!("socket folder {:x?} (device, inode)", self.identity),
                found: format!("{:x?}", address.folder),
            });
        }
        self.path(&address.name)
            .map_err(system("naming the peer's socket"))
    }

    /// Removes a socket; one that is gone already is no matter.
    pub(crate) fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.handle, name, AtFlags::empty());
    }

    /// Removes the sockets of dead owners. What cannot be judged stays.
    pub(crate) fn sweep(&self) {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.handle) else {
            return;
        };
        for entry in entries.take(SWEEP_MAX).flatten() {
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            let dead = if is_final(name) {
                self.refuses(name)
            } else if let Some(owner) = passing_owner(name) {
                matches!(rustix::process::test_kill_process(owner), Err(Errno::SRCH))
            } else {
                false
            };
            if dead {
                self.remove(name);
            }
        }
    }

    fn refuses(&self, name: &str) -> bool {
        let refused = || {
            let socket = socket()?;
            rustix::net::connect(&socket, &self.path(name)?)
        };
        matches!(refused(), Err(Errno::CONNREFUSED))
    }
}

/// A socket that keeps packet borders and never blocks.
fn socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// A socket in a folder, as an endpoint names it. It carries no path, so an endpoint can send nobody to a socket outside the folder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Address {
    folder: (u64, u64),
    name: String,
}

impl Address {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&self.folder.0.to_le_bytes());
        bytes.extend_from_slice(&self.folder.1.to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Address, FabricError> {
        let parse = |bytes: &[u8]| {
            let (device, rest) = bytes.split_first_chunk()?;
            let (inode, name) = rest.split_first_chunk()?;
            let name = std::str::from_utf8(name)
                .ok()
                .filter(|name| is_final(name))?;
            Some(Address {
                folder: (u64::from_le_bytes(*device), u64::from_le_bytes(*inode)),
                name: name.to_owned(),
            })
        };
        parse(bytes).ok_or_else(|| FabricError::Malformed {
            what: "endpoint",
            expected: "a folder and the name of a socket in it".to_owned(),
            found: format!("{} other bytes", bytes.len()),
        })
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_hex(text: &str) -> bool {
    text.len() == 32
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_final(name: &str) -> bool {
    name.strip_suffix(FINAL).is_some_and(is_hex)
}

/// The process that binds the socket, from its passing name.
fn passing_owner(name: &str) -> Option<Pid> {
    let (process, random) = name.strip_suffix(PASSING)?.split_once('-')?;
    Pid::from_raw(process.parse().ok()?).filter(|_| is_hex(random))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_sweep_removes_sockets_of_the_dead_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("fabric");
        let folder = Folder::open(&path).unwrap();
        let (live, live_name) = folder.listen().unwrap();
        let (dead, dead_name) = folder.listen().unwrap();
        drop(dead);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = child.id();
        child.wait().unwrap();
        let random = "0".repeat(32);
        let dead_passing = format!("{ended}-{random}{PASSING}");
        let live_passing = format!("{}-{random}{PASSING}", std::process::id());
        let foreign = "notes.txt".to_owned();
        for name in [&dead_passing, &live_passing, &foreign] {
            std::fs::write(path.join(name), "").unwrap();
        }
        folder.sweep();
        let mut expected = vec![live_name, live_passing, foreign];
        expected.sort();
        assert_eq!(names(&path), expected);
        assert!(!expected.contains(&dead_name));
        drop(live);
    }

    #[test]
    fn a_folder_that_others_may_enter_is_refused_and_a_missing_one_is_made_private() {
        let place = tempfile::tempdir().unwrap();
        let made = place.path().join("a/b");
        Folder::open(&made).unwrap();
        let mode = std::fs::metadata(&made).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o755)).unwrap();
        let refused = Folder::open(&made).map(|_| ()).unwrap_err().to_string();
        assert!(
            refused.contains("0755") && refused.contains("0700"),
            "{refused}"
        );
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(
            Folder::open(&file),
            Err(FabricError::Folder { .. })
        ));
    }

    #[test]
    fn a_path_longer_than_a_socket_address_works() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(&place.path().join("long/".repeat(40))).unwrap();
        let (_socket, name) = folder.listen().unwrap();
        assert!(!folder.refuses(&name));
    }

    #[test]
    fn an_address_cannot_leave_the_folder() {
        for name in ["../x.sock", "", "/tmp/a.sock", "0.sock"] {
            let bytes = [&[0; 16], name.as_bytes()].concat();
            assert!(Address::from_bytes(&bytes).is_err(), "{name}");
        }
        let good = Address {
            folder: (1, 2),
            name: format!("{}.sock", "a".repeat(32)),
        };
        assert_eq!(Address::from_bytes(&good.to_bytes()).unwrap(), good);
    }
}
