//! What a device, its listener thread and its queue pairs share: regions, grants, and the queue pairs that serve peers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fd::OwnedFd;

use super::choice::Port;
use super::message::Window;
use super::objects::{Completions, Context, Domain, Pair, Registered, Source};
use crate::error::{FabricError, system};
use crate::folder::random;
use crate::pages::Pages;
use crate::region::{DeviceId, LocalKey, Storage};
use crate::verbs::{
    GRANTS_MAX, Limits, QUEUE_DEPTH, READ_LENGTH_MAX, REGIONS_MAX, Stats, Token, bytes_max,
    check_room, too_many_grants, wake,
};

/// A huge page. So much at least lies between the addresses of two regions, so that a read past the end of one meets nothing.
pub(super) const ADDRESS_STEP: u64 = 2 << 20;

/// One device's state.
pub(super) struct Shared {
    pub(super) owner: String,
    pub(super) id: DeviceId,
    pub(super) limits: Limits,
    /// How long an owner may take to answer.
    pub(super) patience: Duration,
    pub(super) port: Port,
    pub(super) link: Link,
    pub(super) context: Arc<Context>,
    pub(super) domain: Arc<Domain>,
    /// Queue pairs that this device connected.
    pub(super) queue_pairs: AtomicUsize,
    /// Of the queue pairs that serve: nothing is posted on them, so nothing comes.
    idle: Arc<Completions>,
    wake: OwnedFd,
    closed: AtomicBool,
    table: Mutex<Table>,
}

/// What the device and its link can do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    /// The largest packet, as a code.
    pub(super) mtu: u8,
    pub(super) message_max: u32,
    pub(super) reads_begun: u8,
    pub(super) reads_served: u8,
    /// Requests and completions that a queue holds.
    pub(super) depth: usize,
    /// Regions at one time.
    pub(super) regions: usize,
}

impl Link {
    fn limits(&self) -> Limits {
        Limits {
            read_length_max: READ_LENGTH_MAX.min(self.message_max.max(1) as usize),
            queue_depth: QUEUE_DEPTH.min(self.depth),
            regions_max: REGIONS_MAX.min(self.regions),
            bytes_max: bytes_max(),
        }
    }
}

struct Table {
    regions: BTreeMap<u64, Window>,
    /// Regions that are or are being made, and their bytes.
    taken: (usize, u64),
    grants: BTreeMap<String, Grant>,
    /// Queue pairs that serve a grant.
    serving: Vec<(u64, Arc<Pair>)>,
    /// The last number given to a region or grant. Begins at random, so that what names a region of a dead device of this owner names
    /// nothing in its successor.
    last: u64,
    /// Where the next region begins, in the device's eyes. No address is used twice: one that a peer still knows reaches nothing, even if
    /// the device uses a key again.
    next_address: u64,
}

struct Grant {
    number: u64,
    token: Token,
}

impl Shared {
    pub(super) fn new(
        owner: &str,
        patience: Duration,
        port: Port,
        link: Link,
        context: Context,
    ) -> Result<Shared, FabricError> {
        let context = Arc::new(context);
        let domain = Domain::new(context.clone()).map_err(system("making a protection domain"))?;
        let idle = Completions::new(&context, 1, false)
            .map_err(system("making a completion queue for peers"))?;
        // 40 random bits: regions of a thousand a second for centuries stay below 64.
        let last = random::<8>()
            .map(u64::from_le_bytes)
            .map_err(system("drawing random bytes"))?
            >> 24;
        Ok(Shared {
            owner: owner.to_owned(),
            id: DeviceId::next(),
            limits: link.limits(),
            patience,
            port,
            link,
            context,
            domain,
            queue_pairs: AtomicUsize::new(0),
            idle: Arc::new(idle),
            wake: wake().map_err(system("making an event descriptor"))?,
            closed: AtomicBool::new(false),
            table: Mutex::new(Table {
                regions: BTreeMap::new(),
                taken: (0, 0),
                grants: BTreeMap::new(),
                serving: Vec::new(),
                last,
                next_address: ADDRESS_STEP,
            }),
        })
    }

    /// Takes room for a region before it is made, which can take long; returns its address, to which less than a step may be added.
    pub(super) fn reserve(&self, bytes: usize) -> Result<u64, FabricError> {
        let mut table = self.table();
        if self.is_closed() {
            return Err(self.closed());
        }
        check_room(&self.limits, table.taken.0, table.taken.1, bytes)?;
        let address = table.next_address;
        let end = address
            .checked_add(bytes as u64)
            .and_then(|end| end.checked_next_multiple_of(ADDRESS_STEP))
            .and_then(|end| end.checked_add(2 * ADDRESS_STEP));
        // At a terabyte a second this takes half a year.
        table.next_address = end.ok_or_else(|| self.closed())?;
        table.taken.0 += 1;
        table.taken.1 += bytes as u64;
        Ok(address)
    }

    /// Gives the room back.
    pub(super) fn release(&self, bytes: usize) {
        let mut table = self.table();
        table.taken.0 -= 1;
        table.taken.1 -= bytes as u64;
    }

    /// Lets peers find a region for which room was taken.
    pub(super) fn export(self: &Arc<Self>, registered: Registered) -> Exported {
        let window = Window {
            source: Source {
                address: registered.local().address,
                key: registered.remote_key(),
            },
            len: registered.pages().len() as u64,
        };
        let mut table = self.table();
        let key = table.number();
        table.regions.insert(key, window);
        drop(table);
        Exported {
            registered,
            key,
            shared: self.clone(),
        }
    }

    /// Where a peer finds the region.
    pub(super) fn region(&self, key: u64) -> Option<Window> {
        self.table().regions.get(&key).copied()
    }

    /// Draws a token for `peer`; an older one ends.
    pub(super) fn grant(&self, peer: &str) -> Result<Token, FabricError> {
        let token = random().map_err(system("drawing random bytes"))?;
        let mut table = self.table();
        if self.is_closed() {
            return Err(self.closed());
        }
        if table.grants.len() >= GRANTS_MAX && !table.grants.contains_key(peer) {
            return Err(too_many_grants());
        }
        let number = table.number();
        let grant = Grant { number, token };
        let old = table.grants.insert(peer.to_owned(), grant);
        if let Some(old) = old {
            table.end(old.number);
        }
        drop(table);
        self.wake();
        Ok(token)
    }

    /// When this returns, no READ of the peer's reaches our memory.
    pub(super) fn revoke(&self, peer: &str) {
        let mut table = self.table();
        if let Some(old) = table.grants.remove(peer) {
            table.end(old.number);
        }
        drop(table);
        self.wake();
    }

    /// Number and token of a peer's grant.
    pub(super) fn granted(&self, peer: &str) -> Option<(u64, Token)> {
        let table = self.table();
        let grant = table.grants.get(peer)?;
        Some((grant.number, grant.token))
    }

    /// Whether the grant still holds.
    pub(super) fn holds(&self, peer: &str, number: u64) -> bool {
        self.table()
            .grants
            .get(peer)
            .is_some_and(|grant| grant.number == number)
    }

    /// A queue pair that serves a grant, in INIT.
    pub(super) fn server(&self) -> std::io::Result<Arc<Pair>> {
        let pair = Pair::new(&self.domain, self.idle.clone(), 1)?;
        pair.initialize(self.port.number, true)?;
        Ok(Arc::new(pair))
    }

    /// Notes a queue pair before it serves; false if its grant has ended meanwhile.
    pub(super) fn serve(&self, peer: &str, number: u64, pair: &Arc<Pair>) -> bool {
        let mut table = self.table();
        let holds = table
            .grants
            .get(peer)
            .is_some_and(|grant| grant.number == number);
        if holds {
            table.serving.push((number, pair.clone()));
        }
        holds
    }

    /// Forgets a queue pair that served.
    pub(super) fn dismiss(&self, pair: &Arc<Pair>) {
        self.table()
            .serving
            .retain(|(_, other)| !Arc::ptr_eq(other, pair));
    }

    /// Ends all grants and stops the listener. Regions stay the owner's.
    pub(super) fn close(&self) {
        let mut table = self.table();
        self.closed.store(true, Ordering::Release);
        table.grants.clear();
        for (_, pair) in table.serving.drain(..) {
            pair.fail();
        }
        drop(table);
        self.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Readable when the listener must look at `is_closed` and the grants.
    pub(super) fn wake_file(&self) -> &OwnedFd {
        &self.wake
    }

    pub(super) fn stats(&self) -> Stats {
        let (regions, bytes) = self.table().taken;
        Stats {
            regions,
            bytes,
            queue_pairs: self.queue_pairs.load(Ordering::Relaxed),
        }
    }

    pub(super) fn closed(&self) -> FabricError {
        FabricError::Closed {
            owner: self.owner.clone(),
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// A panic elsewhere leaves a whole table behind: no change under this lock can stop in the middle.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Stops what serves a grant.
    fn end(&mut self, grant: u64) {
        self.serving.retain(|(number, pair)| {
            if *number == grant {
                pair.fail();
            }
            *number != grant
        });
    }
}

/// The owner's side of a region. Peers' devices see its memory, so the owner's writes need no ceremony.
pub(super) struct Exported {
    registered: Registered,
    key: u64,
    shared: Arc<Shared>,
}

impl Exported {
    pub(super) fn key(&self) -> u64 {
        self.key
    }
}

impl Storage for Exported {
    fn pages(&self) -> &Pages {
        self.registered.pages()
    }

    fn pages_mut(&mut self) -> &mut Pages {
        self.registered.pages_mut()
    }

    fn local(&self) -> Option<LocalKey> {
        Some(self.registered.local())
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        // The registration ends behind this, with the field.
        self.shared.table().regions.remove(&self.key);
        self.shared.release(self.registered.pages().len());
    }
}
