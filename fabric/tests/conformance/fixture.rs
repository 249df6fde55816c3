//! A provider in a place of its own, and an owner and a reader on it.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tombolo_fabric::ibverbs::Ibverbs;
use tombolo_fabric::memory::Memory;
use tombolo_fabric::shm::Shm;
use tombolo_fabric::{
    CompletionError, Device, Endpoint, FabricError, QueuePair, Read, Region, RemoteRegion, State,
    VerbsProvider, read,
};

/// Long enough for a machine under load; only failures wait for it.
pub const WAIT: Duration = Duration::from_secs(30);

/// A provider and the place where it keeps things.
pub struct World {
    pub provider: Box<dyn VerbsProvider>,
    place: Option<TempDir>,
}

impl World {
    pub fn shm() -> World {
        let place = tempfile::tempdir().unwrap();
        World {
            provider: Box::new(Shm::new(place.path().join("fabric"))),
            place: Some(place),
        }
    }

    pub fn memory() -> World {
        World {
            provider: Box::new(Memory::new()),
            place: None,
        }
    }

    /// `None` where there is no device, which the variable forbids.
    pub fn ibverbs() -> Option<World> {
        let provider = Ibverbs::new().patience(WAIT);
        if let Err(reason) = provider.probe() {
            assert!(std::env::var_os("TOMBOLO_RDMA").is_none(), "{reason}");
            eprintln!("skipped: {reason}");
            return None;
        }
        Some(World {
            provider: Box::new(provider),
            place: None,
        })
    }

    pub fn open(&self, owner: &str) -> Arc<dyn Device> {
        self.provider.open(owner).unwrap()
    }

    pub fn sockets(&self) -> usize {
        self.place.as_ref().map_or(0, |place| {
            std::fs::read_dir(place.path().join("fabric"))
                .unwrap()
                .count()
        })
    }
}

/// `hq/a` owns, `hq/b` reads.
pub struct Pair {
    pub owner: Arc<dyn Device>,
    pub peer: Arc<dyn Device>,
    pub endpoint: Endpoint,
    pub queue_pair: Box<dyn QueuePair>,
}

impl Pair {
    pub fn new(world: &World) -> Pair {
        let (owner, peer) = (world.open("hq/a"), world.open("hq/b"));
        let endpoint = owner.grant("hq/b").unwrap();
        let queue_pair = peer.connect("hq/a", &endpoint).unwrap();
        assert_eq!(queue_pair.state(), State::ReadyToSend);
        Pair {
            owner,
            peer,
            endpoint,
            queue_pair,
        }
    }

    pub fn reconnect(&mut self) {
        self.queue_pair = self.peer.connect("hq/a", &self.endpoint).unwrap();
    }

    pub fn read(
        &mut self,
        remote: &RemoteRegion,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, FabricError> {
        let mut scratch = self.peer.allocate(len.max(1)).unwrap();
        read(
            &mut *self.queue_pair,
            &mut scratch,
            0,
            remote,
            offset,
            len,
            WAIT,
        )?;
        Ok(scratch.bytes()[..len].to_vec())
    }

    pub fn read_error(
        &mut self,
        remote: &RemoteRegion,
        offset: u64,
        len: usize,
    ) -> CompletionError {
        match self.read(remote, offset, len) {
            Err(FabricError::Read { source, peer }) if peer == "hq/a" => source,
            other => panic!("expected a failed read, found {other:?}"),
        }
    }

    pub fn to_post(&self, id: u64, remote: &RemoteRegion, len: usize) -> Read {
        Read {
            id,
            scratch: self.peer.allocate(64).unwrap(),
            scratch_offset: 0,
            remote: *remote,
            offset: 0,
            len,
        }
    }

    pub fn complete(&mut self) -> (u64, Result<usize, CompletionError>, Region) {
        loop {
            if let Some(completion) = self.queue_pair.poll() {
                return (completion.id, completion.result, completion.scratch);
            }
            assert!(self.queue_pair.pending() > 0, "nothing is posted");
            self.queue_pair.wait(WAIT);
        }
    }
}

/// A pattern that begins with `first` and repeats at no power of two.
pub fn fill(region: &mut Region, first: u8) {
    for (index, byte) in region.bytes_mut().iter_mut().enumerate() {
        *byte = first.wrapping_add((index % 251) as u8);
    }
}
