//! Memory shared between processes of one machine and one user.
//!
//! A region is a sealed memfd. A reader asks the owner's UNIX socket for it once per key, checks the seals itself, maps it read-only, and
//! from then on a READ is a copy, without any call. A small shared table of words, the board, tells readers at each READ whether a key and
//! their grant still hold, so a dropped region fails at once although its mapping stays valid memory.
//!
//! Identity comes from the token in the [`Endpoint`] and from the kernel's word on the other process's user. Memory once mapped cannot be
//! taken back from a reader that ignores the board: a grant means that the peer may see what the region holds now and later.
//! When an owner is killed, readers go on with what they have mapped, and new keys fail. Nothing of it stays in the system but a
//! socket file, which the next [`Shm`] in the folder removes.

#![allow(
    clippy::disallowed_methods,
    reason = "other processes live in real time, and a device needs a thread to serve them"
)]

mod board;
mod listener;
mod message;
mod reader;
mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;

use super::{
    Device, Endpoint, Limits, QUEUE_DEPTH, QueuePair, READ_LENGTH_MAX, REGIONS_MAX, Stats,
    VerbsProvider, bytes_max, check_name, no_memory, wake,
};
use crate::error::{FabricError, system};
use crate::folder::{Address, Folder};
use crate::pages::Pages;
use crate::region::{Region, Storage};
use table::Shared;

const PROVIDER: &str = "shm";

/// Opens devices whose sockets live in one folder. Peers must name the same folder.
pub struct Shm {
    folder: PathBuf,
}

impl Shm {
    /// A provider for `folder`, which is made at need, for this user only. Removes sockets there whose owners are dead.
    pub fn new(folder: PathBuf) -> Shm {
        if let Ok(folder) = Folder::open(&folder) {
            folder.sweep();
        }
        Shm { folder }
    }
}

impl VerbsProvider for Shm {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn open(&self, owner: &str) -> Result<Arc<dyn Device>, FabricError> {
        check_name(owner)?;
        let folder = Folder::open(&self.folder)?;
        folder.sweep();
        let shared = Arc::new(Shared::new(owner, limits())?);
        let (socket, name) = folder.listen()?;
        let mut device = ShmDevice {
            shared,
            folder,
            name,
            thread: None,
        };
        let shared = device.shared.clone();
        let thread = thread::Builder::new()
            .name("fabric-shm".to_owned())
            .spawn(move || listener::run(&shared, &socket))
            .map_err(system("starting the listener thread"))?;
        device.thread = Some(thread);
        Ok(Arc::new(device))
    }
}

struct ShmDevice {
    shared: Arc<Shared>,
    folder: Folder,
    /// Of the socket in the folder.
    name: String,
    thread: Option<JoinHandle<()>>,
}

impl Device for ShmDevice {
    fn limits(&self) -> Limits {
        self.shared.limits
    }

    fn allocate(&self, bytes: usize) -> Result<Region, FabricError> {
        let seat = self.shared.reserve(bytes)?;
        match Pages::shared(bytes) {
            Ok((pages, file)) => {
                let key = self.shared.export(seat, bytes, file);
                let storage = Exported {
                    pages,
                    key,
                    shared: self.shared.clone(),
                };
                Ok(Region::new(key, self.shared.id, Box::new(storage)))
            }
            Err(error) => {
                self.shared.release(seat, bytes);
                Err(no_memory("reserving shared memory", bytes, error))
            }
        }
    }

    fn grant(&self, peer: &str) -> Result<Endpoint, FabricError> {
        check_name(peer)?;
        let token = self.shared.grant(peer)?;
        Ok(Endpoint::new(
            PROVIDER,
            token,
            self.folder.address(&self.name).to_bytes(),
        ))
    }

    fn revoke(&self, peer: &str) {
        self.shared.revoke(peer);
    }

    fn connect(&self, peer: &str, endpoint: &Endpoint) -> Result<Box<dyn QueuePair>, FabricError> {
        check_name(peer)?;
        let (token, address) = endpoint.of(PROVIDER, peer)?;
        let address = Address::from_bytes(address)?;
        reader::connect(&self.shared, &self.folder, peer, token, &address)
    }

    fn stats(&self) -> Stats {
        self.shared.stats()
    }
}

impl Drop for ShmDevice {
    fn drop(&mut self) {
        self.shared.close();
        self.folder.remove(&self.name);
        if let Some(thread) = self.thread.take() {
            // A panic of the listener has been printed where it happened; there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

/// The owner's side of a region. Readers see the pages through mappings of their own, so the owner's writes need no ceremony.
struct Exported {
    pages: Pages,
    key: u64,
    shared: Arc<Shared>,
}

impl Storage for Exported {
    fn pages(&self) -> &Pages {
        &self.pages
    }

    fn pages_mut(&mut self) -> &mut Pages {
        &mut self.pages
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.shared.withdraw(self.key, self.pages.len());
    }
}

fn limits() -> Limits {
    Limits {
        read_length_max: READ_LENGTH_MAX,
        queue_depth: QUEUE_DEPTH,
        regions_max: REGIONS_MAX,
        bytes_max: bytes_max(),
    }
}
