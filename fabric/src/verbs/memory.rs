//! A fabric within one process, for simulation: no thread, no clock, no chance, no system call, and the hard semantics of the others.
//!
//! All devices of a [`Memory`] see each other. READs happen in `poll`. What hardware would tear in silence (the owner writes while a peer
//! reads) is an error here, so that simulation finds it. Nodes can crash and pairs can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use super::in_order::{InOrder, Wire, check_bounds};
use super::{
    Device, Endpoint, GRANTS_MAX, Limits, QUEUE_DEPTH, QueuePair, READ_LENGTH_MAX, REGIONS_MAX,
    Stats, Token, VerbsProvider, check_name,
};
use crate::error::{CompletionError, FabricError};
use crate::pages::Pages;
use crate::region::{DeviceId, Region, RemoteRegion, Storage};

const PROVIDER: &str = "memory";

const LIMITS: Limits = Limits {
    read_length_max: READ_LENGTH_MAX,
    queue_depth: QUEUE_DEPTH,
    regions_max: REGIONS_MAX,
    // What no test machine has: here the allocator is the limit.
    bytes_max: 1 << 40,
};

/// A world of devices in this process; clones are the same world.
#[derive(Clone, Default)]
pub struct Memory {
    world: World,
}

impl Memory {
    /// An empty world.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Ends the devices of `owner` as a killed process would: its regions vanish for its peers, and nothing of it works until it is opened
    /// anew. Its local views stay valid memory.
    pub fn crash(&self, owner: &str) {
        locked(&self.world)
            .devices
            .retain(|_, device| device.owner != owner);
    }

    /// Devices that are open, and regions whose owner still has them: what should be gone when everybody is.
    pub fn in_use(&self) -> (usize, usize) {
        let world = locked(&self.world);
        (world.devices.len(), world.owned)
    }

    /// Cuts the fabric between two nodes, both ways, until [`Memory::heal`]. Queue pairs that notice stay dead.
    pub fn cut(&self, a: &str, b: &str) {
        locked(&self.world).cuts.insert(pair(a, b));
    }

    /// Joins two nodes again.
    pub fn heal(&self, a: &str, b: &str) {
        locked(&self.world).cuts.remove(&pair(a, b));
    }
}

impl VerbsProvider for Memory {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn open(&self, owner: &str) -> Result<Arc<dyn Device>, FabricError> {
        check_name(owner)?;
        let mut world = locked(&self.world);
        let address = world.number();
        world
            .devices
            .insert(address, DeviceState::new(owner.to_owned()));
        drop(world);
        Ok(Arc::new(MemoryDevice {
            world: self.world.clone(),
            owner: owner.to_owned(),
            address,
            id: DeviceId::next(),
        }))
    }
}

struct MemoryDevice {
    world: World,
    owner: String,
    /// Names the device in its world; a reopened one has another.
    address: u64,
    id: DeviceId,
}

impl MemoryDevice {
    fn with<T>(
        &self,
        act: impl FnOnce(&mut State, &str) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        let mut world = locked(&self.world);
        if !world.devices.contains_key(&self.address) {
            return Err(FabricError::Closed {
                owner: self.owner.clone(),
            });
        }
        act(&mut world, &self.owner)
    }
}

impl Device for MemoryDevice {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn allocate(&self, bytes: usize) -> Result<Region, FabricError> {
        self.with(|world, _| {
            let key = world.number();
            let device = world
                .devices
                .get_mut(&self.address)
                .expect("checked by `with`");
            super::check_room(&LIMITS, device.regions.len(), device.bytes, bytes)?;
            let pages = Pages::private(bytes).map_err(|source| FabricError::System {
                what: "allocating memory",
                source,
            })?;
            let pages = Arc::new(pages);
            let shelf: Shelf = Arc::new(Mutex::new(Some(pages.clone())));
            device.regions.insert(
                key,
                Exported {
                    len: bytes as u64,
                    shelf: shelf.clone(),
                },
            );
            device.bytes += bytes as u64;
            world.owned += 1;
            let storage = Owned {
                pages,
                shelf,
                world: self.world.clone(),
                address: self.address,
                key,
            };
            Ok(Region::new(key, self.id, Box::new(storage)))
        })
    }

    fn grant(&self, peer: &str) -> Result<Endpoint, FabricError> {
        check_name(peer)?;
        self.with(|world, _| {
            let id = world.number();
            let grants = &mut world
                .devices
                .get_mut(&self.address)
                .expect("checked by `with`")
                .grants;
            if grants.len() >= GRANTS_MAX && !grants.contains_key(peer) {
                return Err(super::too_many_grants());
            }
            let token = token(id);
            grants.insert(peer.to_owned(), Grant { id, token });
            Ok(Endpoint::new(
                PROVIDER,
                token,
                self.address.to_le_bytes().to_vec(),
            ))
        })
    }

    fn revoke(&self, peer: &str) {
        if let Some(device) = locked(&self.world).devices.get_mut(&self.address) {
            device.grants.remove(peer);
        }
    }

    fn connect(&self, peer: &str, endpoint: &Endpoint) -> Result<Box<dyn QueuePair>, FabricError> {
        let (token, address) = endpoint.of(PROVIDER, peer)?;
        let target = <[u8; 8]>::try_from(address)
            .map(u64::from_le_bytes)
            .map_err(|_| FabricError::Malformed {
                what: "endpoint",
                expected: "an address of 8 bytes".to_owned(),
                found: format!("{} bytes", address.len()),
            })?;
        self.with(|world, owner| {
            let unreachable = |reason: &str| FabricError::Unreachable {
                peer: peer.to_owned(),
                reason: reason.to_owned(),
            };
            let Some(device) = world.devices.get(&target) else {
                return Err(unreachable("its device is closed"));
            };
            if world.cuts.contains(&pair(owner, &device.owner)) {
                return Err(unreachable("the fabric between us is cut"));
            }
            let grant = device
                .grants
                .get(owner)
                .filter(|grant| grant.token == *token)
                .map(|grant| grant.id)
                .ok_or_else(|| FabricError::Denied {
                    peer: peer.to_owned(),
                })?;
            let device = world
                .devices
                .get_mut(&self.address)
                .expect("checked by `with`");
            device.queue_pairs += 1;
            let wire = Direct {
                world: self.world.clone(),
                source: self.address,
                target,
                grant,
            };
            let queue_pair: Box<dyn QueuePair> = InOrder::connected(peer, self.id, LIMITS, wire);
            Ok(queue_pair)
        })
    }

    fn stats(&self) -> Stats {
        locked(&self.world)
            .devices
            .get(&self.address)
            .map_or(Stats::default(), |device| Stats {
                regions: device.regions.len(),
                bytes: device.bytes,
                queue_pairs: device.queue_pairs,
            })
    }
}

impl Drop for MemoryDevice {
    fn drop(&mut self) {
        locked(&self.world).devices.remove(&self.address);
    }
}

/// The owner's side of a region. While the owner writes, the pages are off the shelf and no reader can hold them.
struct Owned {
    pages: Arc<Pages>,
    shelf: Shelf,
    world: World,
    address: u64,
    key: u64,
}

impl Storage for Owned {
    fn pages(&self) -> &Pages {
        &self.pages
    }

    fn pages_mut(&mut self) -> &mut Pages {
        Arc::get_mut(&mut self.pages)
            .expect("withdrawn, and readers use the pages on the shelf only, under its lock")
    }

    fn withdraw(&mut self) {
        locked(&self.shelf).take();
    }

    fn publish(&mut self) {
        *locked(&self.shelf) = Some(self.pages.clone());
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut world = locked(&self.world);
        world.owned -= 1;
        if let Some(device) = world.devices.get_mut(&self.address)
            && let Some(exported) = device.regions.remove(&self.key)
        {
            device.bytes -= exported.len;
        }
    }
}

/// The reader's side: looks everything up at each READ.
struct Direct {
    world: World,
    source: u64,
    target: u64,
    grant: u64,
}

impl Direct {
    fn find(&self, remote: &RemoteRegion) -> Result<(u64, Shelf), CompletionError> {
        let world = locked(&self.world);
        let source = world
            .devices
            .get(&self.source)
            .ok_or(CompletionError::DeviceClosed)?;
        let target = world
            .devices
            .get(&self.target)
            .filter(|target| !world.cuts.contains(&pair(&source.owner, &target.owner)))
            .ok_or(CompletionError::PeerGone)?;
        if target
            .grants
            .get(&source.owner)
            .is_none_or(|grant| grant.id != self.grant)
        {
            return Err(CompletionError::Revoked);
        }
        let exported = target
            .regions
            .get(&remote.key)
            .ok_or(CompletionError::RemoteKey { key: remote.key })?;
        Ok((exported.len, exported.shelf.clone()))
    }
}

impl Wire for Direct {
    fn fetch(
        &mut self,
        remote: &RemoteRegion,
        offset: u64,
        target: &mut [u8],
    ) -> Poll<Result<(), CompletionError>> {
        let fetched = self.find(remote).and_then(|(len, shelf)| {
            let offset = check_bounds(remote, len, offset, target.len())?;
            let shelf = locked(&shelf);
            let pages = shelf
                .as_ref()
                .ok_or(CompletionError::Torn { key: remote.key })?;
            target.copy_from_slice(&pages.bytes()[offset..offset + target.len()]);
            Ok(())
        });
        Poll::Ready(fetched)
    }

    fn wait(&mut self, _span: Duration) {
        // Every read is ready at once.
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        if let Some(device) = locked(&self.world).devices.get_mut(&self.source) {
            device.queue_pairs -= 1;
        }
    }
}

type World = Arc<Mutex<State>>;

/// Where readers find the pages of a region; empty while the owner writes.
type Shelf = Arc<Mutex<Option<Arc<Pages>>>>;

#[derive(Default)]
struct State {
    last: u64,
    /// Regions that their owners have not dropped, of open devices and of ended ones.
    owned: usize,
    devices: BTreeMap<u64, DeviceState>,
    cuts: BTreeSet<(String, String)>,
}

impl State {
    /// A number that nothing else in this world has: addresses, keys and grants are never mistaken for each other.
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

struct DeviceState {
    owner: String,
    regions: BTreeMap<u64, Exported>,
    bytes: u64,
    grants: BTreeMap<String, Grant>,
    queue_pairs: usize,
}

impl DeviceState {
    fn new(owner: String) -> DeviceState {
        DeviceState {
            owner,
            regions: BTreeMap::new(),
            bytes: 0,
            grants: BTreeMap::new(),
            queue_pairs: 0,
        }
    }
}

struct Exported {
    len: u64,
    shelf: Shelf,
}

struct Grant {
    id: u64,
    token: Token,
}

/// Unlike any other in this world, and the same in every run.
fn token(id: u64) -> Token {
    let mut token = *b"simulated token, without secrecy";
    token[..8].copy_from_slice(&id.to_le_bytes());
    token
}

fn pair(a: &str, b: &str) -> (String, String) {
    (a.min(b).to_owned(), a.max(b).to_owned())
}

/// A panic elsewhere leaves whole values behind in these locks: every change under them is a single insertion or removal.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
