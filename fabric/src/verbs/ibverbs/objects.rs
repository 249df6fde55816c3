//! rdma-core's objects as values that own what they name: made in order, ended in the other order, and safe to use.
//!
//! The promise that carries this file: **memory that the device may write belongs to a [`Reader`] until the device has said that it is done
//! with it.** `post` takes the region, `poll` gives it back with the device's word, a failed queue pair is drained before anything is given
//! back, and what a broken device never returns is leaked rather than freed under it.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::BorrowedFd;

use super::ffi::{self, Library, set};
use crate::error::NoRdma;
use crate::pages::Pages;
use crate::region::{LocalKey, Region};
use crate::verbs::Read;

/// How long to wait for a failed queue pair's requests to come back. A device flushes within microseconds; only of a broken one is this the end.
pub(super) const DRAIN_WAIT: Duration = Duration::from_secs(30);

/// An open device.
pub(super) struct Context {
    library: &'static Library,
    raw: NonNull<ffi::Context>,
}

// SAFETY: rdma-core locks within; a context may be used from any thread, and it is closed only in `drop`.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of this name.
    pub(super) fn open(name: &str) -> Result<Context, NoRdma> {
        let library = library()?;
        let list = List::of(library)?;
        let device = list
            .devices()
            .iter()
            .copied()
            .find(|&device| list.name(device) == name)
            .ok_or(NoRdma::NoDevice)?;
        // SAFETY: the device is of the list, which lives.
        let raw = unsafe { (library.open_device)(device) };
        let raw = NonNull::new(raw).ok_or_else(|| NoRdma::Refused {
            device: name.to_owned(),
            source: io::Error::last_os_error(),
        })?;
        Ok(Context { library, raw })
    }

    pub(super) fn attributes(&self) -> io::Result<ffi::DeviceAttributes> {
        // SAFETY: numbers and bytes; zeros are values of all of them.
        let mut attributes: ffi::DeviceAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context lives; the structure is of the size that this version of the symbol fills.
        check(unsafe { (self.library.query_device)(self.raw.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    pub(super) fn port(&self, port: u8) -> io::Result<ffi::PortAttributes> {
        let mut attributes = ffi::PortAttributes::default();
        // SAFETY: the context lives; this version of the symbol fills no more than the structure has.
        check(unsafe { (self.library.query_port)(self.raw.as_ptr(), port, &mut attributes) })?;
        Ok(attributes)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, closed only here; what was made with it holds an `Arc` of it.
        unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

/// The library, or why there is none.
fn library() -> Result<&'static Library, NoRdma> {
    Library::get().map_err(|reason| NoRdma::NoLibrary {
        reason: reason.to_owned(),
    })
}

/// Names of the devices that the library knows.
pub(super) fn devices() -> Result<Vec<String>, NoRdma> {
    let list = List::of(library()?)?;
    Ok(list
        .devices()
        .iter()
        .map(|&device| list.name(device))
        .collect())
}

struct List {
    library: &'static Library,
    first: NonNull<*mut ffi::Device>,
    count: usize,
}

impl List {
    fn of(library: &'static Library) -> Result<List, NoRdma> {
        let mut count = 0;
        // SAFETY: it writes one number.
        let first = unsafe { (library.get_device_list)(&mut count) };
        let first = NonNull::new(first).ok_or_else(|| NoRdma::NoKernel {
            source: io::Error::last_os_error(),
        })?;
        let count = usize::try_from(count).unwrap_or(0);
        Ok(List {
            library,
            first,
            count,
        })
    }

    fn devices(&self) -> &[*mut ffi::Device] {
        // SAFETY: the library's list has so many entries and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }

    /// `device` is of this list.
    fn name(&self, device: *mut ffi::Device) -> String {
        // SAFETY: an entry of the list lives as long as the list; its name is a C string within it.
        let name = unsafe { CStr::from_ptr((self.library.get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made in `of`, freed only here; open contexts do not need it.
        unsafe { (self.library.free_device_list)(self.first.as_ptr()) };
    }
}

/// A protection domain: what is registered with one is out of reach of queue pairs of another.
pub(super) struct Domain {
    raw: NonNull<ffi::Domain>,
    context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Domain {}
// SAFETY: as for `Context`.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(context: Arc<Context>) -> io::Result<Arc<Domain>> {
        // SAFETY: the context lives.
        let raw = unsafe { (context.library.alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Domain { raw, context }))
    }

    /// Registers pages that the device and its peers know by `address`, which differs from where they are by whole pages. Peers may READ
    /// them and nothing else.
    pub(super) fn register(
        self: &Arc<Domain>,
        pages: Pages,
        address: u64,
    ) -> io::Result<Registered> {
        let access = ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_READ;
        // SAFETY: the domain lives; the pages are ours and outlive the registration, see `Registered`.
        let raw = unsafe {
            (self.context.library.reg_mr_iova2)(
                self.raw.as_ptr(),
                pages.start().as_ptr().cast(),
                pages.len(),
                address,
                access,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Registered {
            raw,
            pages: ManuallyDrop::new(pages),
            address,
            domain: self.clone(),
        })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made in `new`, freed only here; what was made with it holds an `Arc` of it.
        unsafe { (self.context.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Pages that the device may reach.
pub(super) struct Registered {
    raw: NonNull<ffi::MemoryRegion>,
    pages: ManuallyDrop<Pages>,
    address: u64,
    domain: Arc<Domain>,
}

// SAFETY: as for `Context`; the pages are `Send` and `Sync` themselves.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(super) fn pages_mut(&mut self) -> &mut Pages {
        &mut self.pages
    }

    pub(super) fn local(&self) -> LocalKey {
        LocalKey {
            // SAFETY: the registration lives until `drop`; nobody writes this field.
            key: unsafe { (*self.raw.as_ptr()).local_key },
            address: self.address,
        }
    }

    /// What a peer's device needs beside the address.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as for `local`.
        unsafe { (*self.raw.as_ptr()).remote_key }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered in `register`, ended only here.
        let ended = unsafe { (self.domain.context.library.dereg_mr)(self.raw.as_ptr()) };
        if ended == 0 {
            // SAFETY: the device has let go of the pages, nobody uses them after this, and this runs once.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
        // Else the device still knows the pages: better lost than given to somebody else.
    }
}

/// Where completions arrive, and a descriptor that says so.
pub(super) struct Completions {
    raw: NonNull<ffi::CompletionQueue>,
    /// Behind the queue, so that it goes after it.
    channel: Option<Channel>,
    context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Completions {}
// SAFETY: as for `Context`; completion queues lock within.
unsafe impl Sync for Completions {}

impl Completions {
    /// Room for `count`; only one with a channel can be waited for.
    pub(super) fn new(
        context: &Arc<Context>,
        count: usize,
        with_channel: bool,
    ) -> io::Result<Completions> {
        let channel = with_channel.then(|| Channel::new(context)).transpose()?;
        let raw_channel = channel
            .as_ref()
            .map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        // SAFETY: context and channel live as long as the queue; vector zero is always there.
        let raw = unsafe {
            (context.library.create_cq)(
                context.raw.as_ptr(),
                count,
                std::ptr::null_mut(),
                raw_channel,
                0,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Completions {
            raw,
            channel,
            context: context.clone(),
        })
    }

    fn poll(&self) -> Option<ffi::Completion> {
        let mut completion = ffi::Completion::default();
        // SAFETY: the queue lives; there is room for one.
        let count = unsafe { ffi::poll_cq(self.raw.as_ptr(), 1, &mut completion) };
        (count == 1).then_some(completion)
    }

    fn arm(&self) {
        // SAFETY: the queue lives. A failure shows as a wait that lasts its span.
        unsafe { ffi::req_notify_cq(self.raw.as_ptr()) };
    }

    /// Takes the events that have come; each must be acknowledged, or the queue could never be destroyed.
    fn take_events(&self) {
        let Some(channel) = &self.channel else {
            return;
        };
        loop {
            let (mut queue, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: the channel lives, its descriptor never blocks, and both results are written on success only.
            let got = unsafe {
                (self.context.library.get_cq_event)(channel.raw.as_ptr(), &mut queue, &mut user)
            };
            if got != 0 {
                return;
            }
            // SAFETY: the event named a queue of this channel, of which there is only this one.
            unsafe { (self.context.library.ack_cq_events)(queue, 1) };
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed only here; queue pairs that use it hold an `Arc` of it, and all events are acknowledged.
        unsafe { (self.context.library.destroy_cq)(self.raw.as_ptr()) };
    }
}

struct Channel {
    raw: NonNull<ffi::Channel>,
    context: Arc<Context>,
}

impl Channel {
    fn new(context: &Arc<Context>) -> io::Result<Channel> {
        // SAFETY: the context lives.
        let raw = unsafe { (context.library.create_comp_channel)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Channel {
            raw,
            context: context.clone(),
        };
        let flags = rustix::fs::fcntl_getfl(channel.file())?;
        rustix::fs::fcntl_setfl(channel.file(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(channel)
    }

    fn file(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps its descriptor open until `drop`.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).file) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed only here; its queue has gone before, see the order in `Completions`.
        unsafe { (self.context.library.destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// The way to a peer, as both sides found it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    /// Of our port.
    pub(super) port: u8,
    /// Of our address in the port's table.
    pub(super) source_index: u8,
    /// The peer's address.
    pub(super) target: [u8; 16],
    /// The peer's queue pair.
    pub(super) number: u32,
    /// Where our packets begin to count, and theirs.
    pub(super) sequences: (u32, u32),
    /// As a code.
    pub(super) mtu: u8,
    /// READs on the way at a time.
    pub(super) reads: u8,
}

/// How often a device repeats what was not answered, and how long it waits each time: 4.1 microseconds times two to this power, about a
/// second. A peer that ends says so over the connection beside the queue pair; this is for cables and switches, and a slow guest needs it. Seven,
/// the most, is for ever on soft-RoCE.
const TIMEOUT: u8 = 18;
const RETRIES: u8 = 6;

/// Routers between two sites of a domain; as IP's usual limit.
const HOPS_MAX: u8 = 64;

/// A queue pair of the reliable connected service.
pub(super) struct Pair {
    raw: NonNull<ffi::QueuePair>,
    domain: Arc<Domain>,
    completions: Arc<Completions>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Pair {}
// SAFETY: as for `Context`; queue pairs lock within.
unsafe impl Sync for Pair {}

impl Pair {
    /// A new one, in RESET, for `depth` posted requests.
    pub(super) fn new(
        domain: &Arc<Domain>,
        completions: Arc<Completions>,
        depth: usize,
    ) -> io::Result<Pair> {
        let mut birth = ffi::QueuePairBirth {
            user: std::ptr::null_mut(),
            send_completions: completions.raw.as_ptr(),
            receive_completions: completions.raw.as_ptr(),
            shared_receives: std::ptr::null_mut(),
            capacity: ffi::Capacity {
                sends: u32::try_from(depth).unwrap_or(u32::MAX),
                receives: 1,
                pieces_of_send: 1,
                pieces_of_receive: 1,
                inline_bytes: 0,
            },
            service: ffi::SERVICE_RELIABLE_CONNECTION,
            signal_all: 0,
        };
        // SAFETY: domain and completion queue live as long as the queue pair; the library writes into `birth` only during the call.
        let raw = unsafe { (domain.context.library.create_qp)(domain.raw.as_ptr(), &mut birth) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Pair {
            raw,
            domain: domain.clone(),
            completions,
        })
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives; nobody writes this field after its birth.
        unsafe { (*self.raw.as_ptr()).number }
    }

    /// RESET to INIT. Who only reads lets nobody in.
    pub(super) fn initialize(&self, port: u8, peers_may_read: bool) -> io::Result<()> {
        let attributes = ffi::QueuePairAttributes {
            state: ffi::STATE_INIT,
            port,
            access: if peers_may_read {
                ffi::ACCESS_REMOTE_READ
            } else {
                0
            },
            ..Default::default()
        };
        self.modify(
            attributes,
            set::STATE | set::PARTITION | set::PORT | set::ACCESS,
        )
    }

    /// INIT to RTR to RTS.
    pub(super) fn connect(&self, route: &Route) -> io::Result<()> {
        let (low, high) = route.target.split_at(8);
        let half = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("half of sixteen"));
        let receive = ffi::QueuePairAttributes {
            state: ffi::STATE_READY_TO_RECEIVE,
            mtu: route.mtu.into(),
            target_number: route.number,
            sequence_theirs: route.sequences.1,
            reads_served_max: route.reads,
            // 0.64 ms between "not ready" and the next try; nothing of ours receives.
            receiver_pause: 12,
            address: ffi::Address {
                target: [half(low), half(high)],
                source_index: route.source_index,
                hops_max: HOPS_MAX,
                is_global: 1,
                port: route.port,
                ..Default::default()
            },
            ..Default::default()
        };
        self.modify(
            receive,
            set::STATE
                | set::ADDRESS
                | set::MTU
                | set::TARGET_NUMBER
                | set::SEQUENCE_THEIRS
                | set::READS_SERVED
                | set::RECEIVER_PAUSE,
        )?;
        let send = ffi::QueuePairAttributes {
            state: ffi::STATE_READY_TO_SEND,
            sequence_ours: route.sequences.0,
            timeout: TIMEOUT,
            retries: RETRIES,
            receiver_retries: RETRIES,
            reads_begun_max: route.reads,
            ..Default::default()
        };
        self.modify(
            send,
            set::STATE
                | set::TIMEOUT
                | set::RETRIES
                | set::RECEIVER_RETRIES
                | set::SEQUENCE_OURS
                | set::READS_BEGUN,
        )
    }

    /// To ERR from anywhere: what is posted comes back flushed, and nothing of the peer's is served any more.
    pub(super) fn fail(&self) {
        let attributes = ffi::QueuePairAttributes {
            state: ffi::STATE_ERROR,
            ..Default::default()
        };
        // A device that refuses this has failed already, or is gone.
        let _ = self.modify(attributes, set::STATE);
    }

    fn modify(&self, mut attributes: ffi::QueuePairAttributes, mask: i32) -> io::Result<()> {
        let modify = self.domain.context.library.modify_qp;
        // SAFETY: the queue pair lives; the structure is read during the call only.
        check(unsafe { modify(self.raw.as_ptr(), &mut attributes, mask) })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed only here.
        unsafe { (self.domain.context.library.destroy_qp)(self.raw.as_ptr()) };
    }
}

/// Where a READ finds its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) address: u64,
    pub(super) key: u32,
}

/// The device's word on a READ: `Err` holds its status.
pub(super) type Outcome = Result<(), u32>;

/// A queue pair that READs, with the reads that are on their way.
pub(super) struct Reader {
    pair: Pair,
    flying: VecDeque<Read>,
    /// The number of the first of `flying`.
    first: u64,
    /// The word on it, if it came while we waited.
    seen: Option<Outcome>,
}

impl Reader {
    /// For a queue pair whose completion queue is its alone.
    pub(super) fn new(pair: Pair) -> Reader {
        Reader {
            pair,
            flying: VecDeque::new(),
            first: 0,
            seen: None,
        }
    }

    pub(super) fn pair(&self) -> &Pair {
        &self.pair
    }

    /// Reads on their way.
    pub(super) fn flying(&self) -> usize {
        self.flying.len()
    }

    /// Gives a READ to the device, or back. Its ranges were checked; where they were not, the device does it.
    pub(super) fn post(&mut self, read: Read, source: Source) -> Result<(), (Read, io::Error)> {
        let (Some(local), Ok(length)) = (read.scratch.local(), u32::try_from(read.len)) else {
            return Err((read, io::ErrorKind::InvalidInput.into()));
        };
        let mut piece = ffi::Piece {
            address: local.address.wrapping_add(read.scratch_offset as u64),
            length,
            local_key: local.key,
        };
        let mut request = ffi::SendRequest {
            id: self.first.wrapping_add(self.flying.len() as u64),
            next: std::ptr::null_mut(),
            pieces: &mut piece,
            piece_count: 1,
            operation: ffi::OPERATION_READ,
            flags: ffi::SEND_SIGNALED,
            immediate: 0,
            remote_address: source.address,
            remote_key: source.key,
            unions: [0; 9],
        };
        // SAFETY: the queue pair lives, the request during the call. The memory is reached through `local`, which is the scratch region's;
        // the region is moved into `flying` and comes out only once its completion was polled (`poll`), or never (`lose`, `drop`).
        let refused = unsafe { ffi::post_send(self.pair.raw.as_ptr(), &mut request) };
        if refused != 0 {
            return Err((read, io::Error::from_raw_os_error(refused)));
        }
        self.flying.push_back(read);
        Ok(())
    }

    /// Takes the next READ that is done.
    pub(super) fn poll(&mut self) -> Option<(Read, Outcome)> {
        if !self.is_ready() {
            return None;
        }
        let outcome = self.seen.take()?;
        self.first = self.first.wrapping_add(1);
        Some((self.flying.pop_front()?, outcome))
    }

    /// Whether `poll` has something.
    pub(super) fn is_ready(&mut self) -> bool {
        while self.seen.is_none() && !self.flying.is_empty() {
            let Some(completion) = self.pair.completions.poll() else {
                return false;
            };
            // Each is signalled and they end in order; a word on anything else is not one on our memory.
            debug_assert_eq!(completion.id, self.first);
            if completion.id == self.first {
                self.seen = Some(match completion.status {
                    0 => Ok(()),
                    status => Err(status),
                });
            }
        }
        self.seen.is_some()
    }

    /// Sleeps until `poll` has something, `beside` is readable, or `span` is over; returns whether `beside` is.
    pub(super) fn sleep(&mut self, beside: Option<BorrowedFd<'_>>, span: Duration) -> bool {
        let completions = self.pair.completions.clone();
        let mut files = Vec::with_capacity(2);
        if let Some(channel) = completions.channel.as_ref().filter(|_| self.flying() > 0) {
            completions.arm();
            // What came before it was armed makes no event.
            if self.is_ready() {
                return false;
            }
            files.push(PollFd::from_borrowed_fd(channel.file(), PollFlags::IN));
        }
        let own = files.len();
        if let Some(beside) = beside {
            files.push(PollFd::from_borrowed_fd(beside, PollFlags::IN));
        }
        if let Ok(span) = Timespec::try_from(span) {
            // Whatever ends the wait, the next poll finds out.
            let _ = rustix::event::poll(&mut files, Some(&span));
        }
        let beside = files
            .get(own)
            .is_some_and(|file| !file.revents().is_empty());
        completions.take_events();
        beside
    }

    /// Gives up the first READ of a failed queue pair whose device does not return it: the region stays where it is, for good.
    pub(super) fn lose(&mut self) -> Option<Read> {
        let mut read = self.flying.pop_front()?;
        self.first = self.first.wrapping_add(1);
        self.seen = None;
        std::mem::forget(std::mem::replace(&mut read.scratch, Region::vacant()));
        Some(read)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.flying.is_empty() {
            return;
        }
        self.pair.fail();
        let until = Instant::now() + DRAIN_WAIT;
        while !self.flying.is_empty() {
            if self.poll().is_none() {
                if Instant::now() >= until {
                    while self.lose().is_some() {}
                    return;
                }
                thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

/// Functions of the library that return a number return zero or an error number.
fn check(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        // Some set `errno` and return -1.
        code if code < 0 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
