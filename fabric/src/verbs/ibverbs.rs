//! Memory READ by RDMA devices, of this machine or another (RoCE version 2).
//!
//! A device of hardware moves the bytes: the owner's processor has no part in a READ. rdma-core is loaded when it is asked for, so the same
//! program starts where there is none and says why it cannot be used.
//!
//! Each owner listens on the address of its port. A reader comes with the token of its grant, both sides make a queue pair and tell each
//! other how to reach it, and the connection stays beside the queue pair: over it the reader asks once per key where a region is, and hears
//! when its grant or its peer has ended. Peers may READ and nothing else; a device gives access only to queue pairs of the same owner's
//! protection domain, and a revoked peer's is ended before [`Device::revoke`] returns.
//!
//! The connection authenticates both sides and is not encrypted, nor are READs: the devices' network is the domain's own.

#![allow(
    clippy::disallowed_methods,
    reason = "devices live in real time, and an owner needs a thread to greet its readers"
)]

mod choice;
mod connect;
#[expect(
    unsafe_code,
    reason = "a C library is loaded and called; every structure is held to its headers"
)]
mod ffi;
mod listener;
mod memlock;
mod message;
#[expect(
    unsafe_code,
    reason = "the C library's objects are owned here; what is safe to do with them is safe to call"
)]
mod objects;
mod queue_pair;
mod table;

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Device, Endpoint, Limits, QueuePair, Stats, VerbsProvider, check_name, no_memory};
use crate::error::{FabricError, NoRdma, system};
use crate::pages::Pages;
use crate::region::Region;
use choice::Port;
use connect::Place;
use objects::Context;
use table::{Link, Shared};

const PROVIDER: &str = "ibverbs";

/// Reads of one queue pair on the way at a time: what the common devices serve.
const READS_MAX: u8 = 16;

/// How long an owner may take to answer over the connection: a greeting of three messages, in which both sides make a queue pair, is the most
/// that it is asked for. Milliseconds between devices of hardware.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens RDMA devices.
#[derive(Debug, Clone)]
pub struct Ibverbs {
    device: Option<String>,
    patience: Duration,
}

impl Default for Ibverbs {
    fn default() -> Ibverbs {
        Ibverbs {
            device: None,
            patience: PATIENCE,
        }
    }
}

impl Ibverbs {
    /// The best device of this machine: with a routable address rather than one of its link only, then the first by name.
    pub fn new() -> Ibverbs {
        Ibverbs::default()
    }

    /// The device of this name.
    pub fn on(device: &str) -> Ibverbs {
        Ibverbs {
            device: Some(device.to_owned()),
            ..Ibverbs::default()
        }
    }

    /// Owners may take this long to accept a reader and to answer its questions, instead of ten seconds. On an emulated machine that does
    /// much else, devices of software have needed more.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Ibverbs {
        Ibverbs { patience, ..self }
    }

    /// Which device nodes of this process would get.
    ///
    /// # Errors
    ///
    /// Why none: no library, no support in the kernel, no device, or none that can be used, with a reason for each.
    pub fn probe(&self) -> Result<Found, NoRdma> {
        let (_, port, link) = self.find()?;
        Ok(Found {
            text: format!("{port}, packets of {} bytes", connect::packet(link.mtu)),
            device: port.device,
        })
    }

    /// Whether this process may register so many bytes more, which locks them: asked before a node joins, since later is too late.
    ///
    /// # Errors
    ///
    /// [`FabricError::Exhausted`] with limit and need.
    pub fn check_room(&self, bytes: u64) -> Result<(), FabricError> {
        memlock::check(bytes)
    }

    fn find(&self) -> Result<(Context, Port, Link), NoRdma> {
        let mut names = objects::devices()?;
        names.retain(|name| self.device.as_ref().is_none_or(|wanted| wanted == name));
        let port = choice::choose(Path::new(choice::SYSFS), &names)?;
        let context = Context::open(&port.device)?;
        let refused = |source: io::Error| NoRdma::Refused {
            device: port.device.clone(),
            source,
        };
        let device = context.attributes().map_err(refused)?;
        let attributes = context.port(port.number).map_err(refused)?;
        let reads = |count: i32| u8::try_from(count.max(1)).unwrap_or(u8::MAX).min(READS_MAX);
        let link = Link {
            mtu: u8::try_from(attributes.mtu).unwrap_or(0),
            message_max: attributes.message_max,
            reads_begun: reads(device.reads_begun_max),
            reads_served: reads(device.reads_served_max),
            depth: at_least_one(device.queue_depth_max).min(at_least_one(device.completions_max)),
            regions: at_least_one(device.regions_max),
        };
        Ok((context, port, link))
    }
}

/// A device that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub device: String,
    text: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl VerbsProvider for Ibverbs {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn open(&self, owner: &str) -> Result<Arc<dyn Device>, FabricError> {
        check_name(owner)?;
        let (context, port, link) = self.find()?;
        let shared = Shared::new(owner, self.patience, port, link, context)?;
        let shared = Arc::new(shared);
        let gid = shared.port.gid();
        let socket = TcpListener::bind(gid.listen())
            .map_err(system("listening at the address of the RDMA device"))?;
        socket
            .set_nonblocking(true)
            .map_err(system("setting up the listening socket"))?;
        let address = socket
            .local_addr()
            .map_err(system("asking where the socket listens"))?;
        let mut device = IbverbsDevice {
            place: Place::new(gid, address.port()),
            shared,
            thread: None,
        };
        let shared = device.shared.clone();
        let thread = thread::Builder::new()
            .name("fabric-ibverbs".to_owned())
            .spawn(move || listener::run(&shared, &socket))
            .map_err(system("starting the listener thread"))?;
        device.thread = Some(thread);
        Ok(Arc::new(device))
    }
}

struct IbverbsDevice {
    shared: Arc<Shared>,
    place: Place,
    thread: Option<JoinHandle<()>>,
}

impl IbverbsDevice {
    fn make(&self, bytes: usize, address: u64) -> Result<Region, FabricError> {
        memlock::check(bytes as u64)?;
        let pages =
            Pages::to_pin(bytes).map_err(|error| no_memory("allocating memory", bytes, error))?;
        // Device and memory agree on where huge pages begin.
        let address = address + pages.start().addr().get() as u64 % table::ADDRESS_STEP;
        let registered = self
            .shared
            .domain
            .register(pages, address)
            .map_err(system("registering memory with the RDMA device"))?;
        let exported = self.shared.export(registered);
        Ok(Region::new(
            exported.key(),
            self.shared.id,
            Box::new(exported),
        ))
    }
}

impl Device for IbverbsDevice {
    fn limits(&self) -> Limits {
        self.shared.limits
    }

    fn allocate(&self, bytes: usize) -> Result<Region, FabricError> {
        let address = self.shared.reserve(bytes)?;
        self.make(bytes, address)
            .inspect_err(|_| self.shared.release(bytes))
    }

    fn grant(&self, peer: &str) -> Result<Endpoint, FabricError> {
        check_name(peer)?;
        let token = self.shared.grant(peer)?;
        Ok(Endpoint::new(PROVIDER, token, self.place.to_bytes()))
    }

    fn revoke(&self, peer: &str) {
        self.shared.revoke(peer);
    }

    fn connect(&self, peer: &str, endpoint: &Endpoint) -> Result<Box<dyn QueuePair>, FabricError> {
        check_name(peer)?;
        let (token, place) = endpoint.of(PROVIDER, peer)?;
        connect::connect(&self.shared, peer, token, &Place::from_bytes(place)?)
    }

    fn stats(&self) -> Stats {
        self.shared.stats()
    }
}

impl Drop for IbverbsDevice {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the listener has been printed where it happened; there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

fn at_least_one(count: i32) -> usize {
    usize::try_from(count).unwrap_or(0).max(1)
}
