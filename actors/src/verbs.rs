//! A node's access to its domain's fabric: registers memory, exchanges endpoints with neighbours, hands out readers.
//!
//! The actor does what is slow and rare (registering, granting); reading goes through [`Readers`], which lives in blocking work and never
//! in a mailbox.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::env::{Work, work};
use crate::shell::{Actor, Cx, Reply, Stage, later};
use tombolo_core::ids::NodeId;
use tombolo_core::wire::{REGION_HEADER_BYTES, RegionHeader, RegionRef};
use tombolo_fabric::{Device, Endpoint, QueuePair, Region, RemoteRegion};

/// Bytes of one READ: large enough to keep a NIC busy, small enough to be folded while it lies in a core's cache.
pub const READ_BYTES: usize = 256 * 1024;

/// What it takes.
pub enum Message {
    /// Register so many bytes.
    Allocate(usize, Reply<Result<Region, String>>),
    /// Make an endpoint for a neighbour.
    Grant(NodeId, Reply<Result<Vec<u8>, String>>),
    /// A neighbour's endpoint for us; answers once it is known, or was refused.
    Learn(NodeId, Vec<u8>, Reply<()>),
}

/// A device and the endpoints of the neighbours; outlives the actor.
#[derive(Clone)]
pub struct Fabric {
    device: Arc<dyn Device>,
    endpoints: Arc<Mutex<BTreeMap<NodeId, Endpoint>>>,
    granted: Arc<Mutex<BTreeMap<NodeId, Vec<u8>>>>,
    wait: Duration,
}

impl Fabric {
    /// The endpoint for a neighbour: the same one for the device's life, since a new grant would end what reads with the old one while the
    /// word of it is still on the way.
    fn grant(&self, peer: &NodeId) -> Result<Vec<u8>, String> {
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = granted.get(peer) {
            return Ok(endpoint.clone());
        }
        let endpoint = self.device.grant(peer.as_str());
        let endpoint = endpoint.map_err(|error| error.to_string())?.to_bytes();
        granted.insert(peer.clone(), endpoint.clone());
        Ok(endpoint)
    }

    /// A device whose reads may take `wait`.
    pub fn new(device: Arc<dyn Device>, wait: Duration) -> Self {
        Fabric {
            device,
            endpoints: Arc::default(),
            granted: Arc::default(),
            wait,
        }
    }

    /// What is in use.
    pub fn stats(&self) -> tombolo_fabric::Stats {
        self.device.stats()
    }

    /// A set of connections of its own, made when they are needed.
    pub fn readers(&self) -> Readers {
        Readers {
            fabric: self.clone(),
            scratch: None,
            pairs: BTreeMap::new(),
        }
    }

    /// Registers a region. Blocks.
    ///
    /// # Errors
    /// In words, with limit and need.
    pub fn allocate(&self, bytes: usize) -> Result<Region, String> {
        self.device
            .allocate(bytes)
            .map_err(|error| error.to_string())
    }

    fn endpoint(&self, peer: &NodeId) -> Option<Endpoint> {
        self.endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(peer)
            .cloned()
    }
}

/// Connections to neighbours' memory and a scratch region. Blocks; for use off the arbiters.
pub struct Readers {
    fabric: Fabric,
    scratch: Option<Region>,
    pairs: BTreeMap<NodeId, (Endpoint, Box<dyn QueuePair>)>,
}

impl Readers {
    /// READs `len` bytes, at most [`READ_BYTES`], at `offset` behind the region's header.
    ///
    /// # Errors
    /// In words: who could not be read and why.
    pub fn read(&mut self, region: &RegionRef, offset: usize, len: usize) -> Result<&[u8], String> {
        self.read_at(region, (REGION_HEADER_BYTES + offset) as u64, len)
    }

    /// READs the header and checks that the region holds what was announced.
    ///
    /// # Errors
    /// In words, with both headers.
    pub fn expect(&mut self, region: &RegionRef, expected: RegionHeader) -> Result<(), String> {
        let found = RegionHeader::from_bytes(self.read_at(region, 0, REGION_HEADER_BYTES)?);
        if found == Some(expected) {
            return Ok(());
        }
        Err(format!(
            "region {} of {} holds {found:?}, expected {expected:?}",
            region.key, region.owner
        ))
    }

    /// READs `len` bytes at `offset` behind the region's header straight into a region of ours, also at `offset`.
    ///
    /// # Errors
    /// In words: who could not be read and why. A read that failed for good keeps the region: `into` is then empty.
    pub fn read_into(
        &mut self,
        into: &mut Region,
        region: &RegionRef,
        offset: usize,
        len: usize,
    ) -> Result<(), String> {
        let at = (REGION_HEADER_BYTES + offset) as u64;
        self.transfer(into, offset, region, at, len)
    }

    fn read_at(&mut self, region: &RegionRef, offset: u64, len: usize) -> Result<&[u8], String> {
        debug_assert!(len <= READ_BYTES);
        // A read that failed for good keeps its scratch region: another one is registered.
        let mut scratch = match self.scratch.take().filter(|scratch| !scratch.is_empty()) {
            Some(kept) => kept,
            None => self.fabric.allocate(READ_BYTES)?,
        };
        let result = self.transfer(&mut scratch, 0, region, offset, len);
        let scratch = self.scratch.insert(scratch);
        result.map(|()| &scratch.bytes()[..len])
    }

    fn transfer(
        &mut self,
        into: &mut Region,
        into_offset: usize,
        region: &RegionRef,
        offset: u64,
        len: usize,
    ) -> Result<(), String> {
        let Readers { fabric, pairs, .. } = self;
        let owner = &region.owner;
        let endpoint = fabric
            .endpoint(owner)
            .ok_or_else(|| format!("{owner} has not sent its fabric endpoint yet"))?;
        if pairs.get(owner).is_none_or(|(known, pair)| {
            *known != endpoint || pair.state() == tombolo_fabric::State::Error
        }) {
            pairs.remove(owner);
            let pair = fabric
                .device
                .connect(owner.as_str(), &endpoint)
                .map_err(|error| error.to_string())?;
            pairs.insert(owner.clone(), (endpoint, pair));
        }
        let (_, pair) = pairs.get_mut(owner).expect("inserted above");
        let remote = RemoteRegion {
            key: region.key,
            len: region.len,
        };
        tombolo_fabric::read(
            pair.as_mut(),
            into,
            into_offset,
            &remote,
            offset,
            len,
            fabric.wait,
        )
        .map_err(|error| error.to_string())
    }
}

/// See the module.
pub struct Verbs {
    stage: Stage,
    fabric: Fabric,
}

impl Verbs {
    /// An actor for a device.
    pub fn new(stage: Stage, fabric: Fabric) -> Self {
        Verbs { stage, fabric }
    }
}

impl Actor for Verbs {
    type Message = Message;
    const NAME: &'static str = "Verbs";

    fn started(&mut self, _: &mut Cx<Self>) {
        // A rank reads its own updates the same way as others': one path, one meaning.
        let own = self.stage.node.clone();
        if self.fabric.endpoint(&own).is_none()
            && let Ok(endpoint) = self.fabric.device.grant(own.as_str())
        {
            self.fabric
                .endpoints
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(own, endpoint);
        }
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            Message::Allocate(bytes, reply) => {
                let fabric = self.fabric.clone();
                let env = self.stage.env.clone();
                let region = work(env.as_ref(), Work::Bytes(bytes as u64), move || {
                    fabric.allocate(bytes)
                });
                later(cx, region, |_, region, _| {
                    reply.send(region.unwrap_or_else(|panicked| Err(panicked.to_string())));
                });
            }
            Message::Grant(peer, reply) => {
                reply.send(self.fabric.grant(&peer));
            }
            Message::Learn(peer, bytes, reply) => {
                match Endpoint::from_bytes(&bytes) {
                    Ok(endpoint) => {
                        self.fabric
                            .endpoints
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .insert(peer, endpoint);
                    }
                    Err(error) => {
                        tracing::warn!(node = %self.stage.node, %peer, %error, "endpoint refused")
                    }
                }
                reply.send(());
            }
        }
    }
}
