//! rdma-core's C interface: the structures and functions that we use, found at run time.
//!
//! Nothing is linked, so the same program starts on a machine without rdma-core and can say so. Symbols are looked up by version: beside the
//! current ones the library keeps old ones of the same names with other structures. What C headers define as inline functions goes through
//! a table of pointers in the context. The tests at the end hold the layouts to what a C compiler says of rdma-core's own headers.

use std::ffi::CStr;
use std::sync::OnceLock;

use libc::{c_char, c_int, c_uint, c_void};

/// `ibv_device`.
#[repr(C)]
pub(super) struct Device {
    opaque: [u8; 0],
}

/// `ibv_context`, of which only the beginning is ours to know.
#[repr(C)]
pub(super) struct Context {
    device: *mut Device,
    operations: [*const c_void; 32],
    command_file: c_int,
    asynchronous_file: c_int,
    completion_vectors: c_int,
    mutex: libc::pthread_mutex_t,
    abi: *mut c_void,
}

/// `ibv_pd`.
#[repr(C)]
pub(super) struct Domain {
    opaque: [u8; 0],
}

/// `ibv_mr`.
#[repr(C)]
pub(super) struct MemoryRegion {
    context: *mut Context,
    domain: *mut Domain,
    start: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) local_key: u32,
    pub(super) remote_key: u32,
}

/// `ibv_comp_channel`.
#[repr(C)]
pub(super) struct Channel {
    context: *mut Context,
    pub(super) file: c_int,
    references: c_int,
}

/// `ibv_cq`, of which only the beginning is ours to know.
#[repr(C)]
pub(super) struct CompletionQueue {
    context: *mut Context,
}

/// `ibv_qp`, of which only the beginning is ours to know.
#[repr(C)]
pub(super) struct QueuePair {
    context: *mut Context,
    user: *mut c_void,
    domain: *mut Domain,
    send_completions: *mut CompletionQueue,
    receive_completions: *mut CompletionQueue,
    shared_receives: *mut c_void,
    handle: u32,
    pub(super) number: u32,
}

/// `ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttributes {
    before: [u64; 14],
    pub(super) queue_depth_max: c_int,
    flags: c_uint,
    scatter_max: [c_int; 2],
    completion_queues_max: c_int,
    pub(super) completions_max: c_int,
    pub(super) regions_max: c_int,
    domains_max: c_int,
    /// READs that one queue pair serves at a time.
    pub(super) reads_served_max: c_int,
    between: [c_int; 2],
    /// READs that one queue pair has on the way at a time.
    pub(super) reads_begun_max: c_int,
    after: [u8; 72],
}

/// `ibv_port_attr`. The versioned symbol fills an older, shorter one: zero it first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct PortAttributes {
    pub(super) state: u32,
    mtu_max: u32,
    /// As a code: 1 is 256 bytes, each further one twice as much.
    pub(super) mtu: u32,
    gids: c_int,
    flags: u32,
    pub(super) message_max: u32,
    counters: [u32; 2],
    pkeys: u16,
    lids: [u16; 2],
    rest: [u8; 10],
    flags_more: u16,
}

/// `ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Capacity {
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) pieces_of_send: u32,
    pub(super) pieces_of_receive: u32,
    pub(super) inline_bytes: u32,
}

/// `ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QueuePairBirth {
    pub(super) user: *mut c_void,
    pub(super) send_completions: *mut CompletionQueue,
    pub(super) receive_completions: *mut CompletionQueue,
    pub(super) shared_receives: *mut c_void,
    pub(super) capacity: Capacity,
    pub(super) service: u32,
    pub(super) signal_all: c_int,
}

/// `ibv_ah_attr` with its `ibv_global_route` in front.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Address {
    /// A GID as it is in memory; the union in C makes it as aligned as this.
    pub(super) target: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) source_index: u8,
    pub(super) hops_max: u8,
    pub(super) traffic_class: u8,
    pub(super) lid: u16,
    pub(super) service_level: u8,
    pub(super) path_bits: u8,
    pub(super) rate: u8,
    pub(super) is_global: u8,
    pub(super) port: u8,
}

/// `ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QueuePairAttributes {
    pub(super) state: u32,
    pub(super) state_now: u32,
    pub(super) mtu: u32,
    pub(super) migration: u32,
    pub(super) datagram_key: u32,
    pub(super) sequence_theirs: u32,
    pub(super) sequence_ours: u32,
    pub(super) target_number: u32,
    pub(super) access: c_uint,
    pub(super) capacity: Capacity,
    pub(super) address: Address,
    pub(super) address_else: Address,
    pub(super) partition_index: u16,
    pub(super) partition_index_else: u16,
    pub(super) drain: [u8; 2],
    pub(super) reads_begun_max: u8,
    pub(super) reads_served_max: u8,
    pub(super) receiver_pause: u8,
    pub(super) port: u8,
    pub(super) timeout: u8,
    pub(super) retries: u8,
    pub(super) receiver_retries: u8,
    pub(super) port_else: u8,
    pub(super) timeout_else: u8,
    pub(super) rate: u32,
}

/// `ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) local_key: u32,
}

/// `ibv_send_wr`; of its unions only the part for READ has a name.
#[repr(C)]
pub(super) struct SendRequest {
    pub(super) id: u64,
    pub(super) next: *mut SendRequest,
    pub(super) pieces: *mut Piece,
    pub(super) piece_count: c_int,
    pub(super) operation: u32,
    pub(super) flags: c_uint,
    pub(super) immediate: u32,
    pub(super) remote_address: u64,
    pub(super) remote_key: u32,
    pub(super) unions: [u64; 9],
}

/// `ibv_wc`. After a failure only `id`, `status` and `vendor_error` mean anything.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Completion {
    pub(super) id: u64,
    pub(super) status: u32,
    operation: u32,
    vendor_error: u32,
    length: u32,
    immediate: u32,
    number: u32,
    source_number: u32,
    flags: u32,
    partition_index: u16,
    lid: u16,
    service_level: u8,
    path_bits: u8,
}

pub(super) const ACCESS_LOCAL_WRITE: c_uint = 1;
pub(super) const ACCESS_REMOTE_READ: c_uint = 4;
pub(super) const SERVICE_RELIABLE_CONNECTION: u32 = 2;
pub(super) const OPERATION_READ: u32 = 4;
pub(super) const SEND_SIGNALED: c_uint = 2;

pub(super) const STATE_INIT: u32 = 1;
pub(super) const STATE_READY_TO_RECEIVE: u32 = 2;
pub(super) const STATE_READY_TO_SEND: u32 = 3;
pub(super) const STATE_ERROR: u32 = 6;

/// Which fields of [`QueuePairAttributes`] a step sets.
pub(super) mod set {
    use libc::c_int;

    pub(in super::super) const STATE: c_int = 1;
    pub(in super::super) const ACCESS: c_int = 1 << 3;
    pub(in super::super) const PARTITION: c_int = 1 << 4;
    pub(in super::super) const PORT: c_int = 1 << 5;
    pub(in super::super) const ADDRESS: c_int = 1 << 7;
    pub(in super::super) const MTU: c_int = 1 << 8;
    pub(in super::super) const TIMEOUT: c_int = 1 << 9;
    pub(in super::super) const RETRIES: c_int = 1 << 10;
    pub(in super::super) const RECEIVER_RETRIES: c_int = 1 << 11;
    pub(in super::super) const SEQUENCE_THEIRS: c_int = 1 << 12;
    pub(in super::super) const READS_BEGUN: c_int = 1 << 13;
    pub(in super::super) const RECEIVER_PAUSE: c_int = 1 << 15;
    pub(in super::super) const SEQUENCE_OURS: c_int = 1 << 16;
    pub(in super::super) const READS_SERVED: c_int = 1 << 17;
    pub(in super::super) const TARGET_NUMBER: c_int = 1 << 20;
}

macro_rules! library {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)? = $version:literal;)*) => {
        /// The functions `ibv_*` by their names without that.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load() -> Result<Library, String> {
                let library = loader::open(c"libibverbs.so.1")?;
                Ok(Library {
                    $($name: {
                        const NAME: &str = concat!("ibv_", stringify!($name), "\0");
                        const VERSION: &str = concat!($version, "\0");
                        let symbol = loader::find(library, NAME, VERSION)?;
                        // SAFETY: rdma-core promises that the symbol of this name and version is a function of this type; its
                        // headers of that version say so, and versioned symbols never change.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

library! {
    get_device_list: fn(*mut c_int) -> *mut *mut Device = "IBVERBS_1.1";
    free_device_list: fn(*mut *mut Device) = "IBVERBS_1.1";
    get_device_name: fn(*mut Device) -> *const c_char = "IBVERBS_1.1";
    open_device: fn(*mut Device) -> *mut Context = "IBVERBS_1.1";
    close_device: fn(*mut Context) -> c_int = "IBVERBS_1.1";
    query_device: fn(*mut Context, *mut DeviceAttributes) -> c_int = "IBVERBS_1.1";
    query_port: fn(*mut Context, u8, *mut PortAttributes) -> c_int = "IBVERBS_1.1";
    alloc_pd: fn(*mut Context) -> *mut Domain = "IBVERBS_1.1";
    dealloc_pd: fn(*mut Domain) -> c_int = "IBVERBS_1.1";
    reg_mr_iova2: fn(*mut Domain, *mut c_void, usize, u64, c_uint) -> *mut MemoryRegion = "IBVERBS_1.8";
    dereg_mr: fn(*mut MemoryRegion) -> c_int = "IBVERBS_1.1";
    create_comp_channel: fn(*mut Context) -> *mut Channel = "IBVERBS_1.0";
    destroy_comp_channel: fn(*mut Channel) -> c_int = "IBVERBS_1.0";
    create_cq: fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut CompletionQueue = "IBVERBS_1.1";
    destroy_cq: fn(*mut CompletionQueue) -> c_int = "IBVERBS_1.1";
    get_cq_event: fn(*mut Channel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int = "IBVERBS_1.1";
    ack_cq_events: fn(*mut CompletionQueue, c_uint) = "IBVERBS_1.1";
    create_qp: fn(*mut Domain, *mut QueuePairBirth) -> *mut QueuePair = "IBVERBS_1.1";
    modify_qp: fn(*mut QueuePair, *mut QueuePairAttributes, c_int) -> c_int = "IBVERBS_1.1";
    destroy_qp: fn(*mut QueuePair) -> c_int = "IBVERBS_1.1";
}

impl Library {
    /// The library of this process, loaded at the first call and kept for good; or why there is none.
    pub(super) fn get() -> Result<&'static Library, &'static str> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        match LIBRARY.get_or_init(Library::load) {
            Ok(library) => Ok(library),
            Err(reason) => Err(reason),
        }
    }
}

/// Takes up to `count` completions; returns how many there were, or less than zero.
///
/// # Safety
///
/// The queue lives, and `completions` has room for `count`.
pub(super) unsafe fn poll_cq(
    queue: *mut CompletionQueue,
    count: c_int,
    completions: *mut Completion,
) -> c_int {
    type Operation = unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut Completion) -> c_int;
    // SAFETY: the queue lives (the caller), hence its context; place 11 of the table holds a function of this type for every driver.
    unsafe {
        let operation = (*(*queue).context).operations[11];
        std::mem::transmute::<*const c_void, Operation>(operation)(queue, count, completions)
    }
}

/// Asks for an event at the next completion.
///
/// # Safety
///
/// The queue lives.
pub(super) unsafe fn req_notify_cq(queue: *mut CompletionQueue) -> c_int {
    type Operation = unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int;
    // SAFETY: as for `poll_cq`, with place 12.
    unsafe {
        let operation = (*(*queue).context).operations[12];
        std::mem::transmute::<*const c_void, Operation>(operation)(queue, 0)
    }
}

/// Posts one request; returns zero or an error number.
///
/// # Safety
///
/// The queue pair lives, and so do the request and its pieces during the call. The memory that a READ fills is nobody else's until its
/// completion has been polled.
pub(super) unsafe fn post_send(pair: *mut QueuePair, request: *mut SendRequest) -> c_int {
    type Operation =
        unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int;
    let mut refused = std::ptr::null_mut();
    // SAFETY: as for `poll_cq`, with place 25; the rest is the caller's promise.
    unsafe {
        let operation = (*(*pair).context).operations[25];
        std::mem::transmute::<*const c_void, Operation>(operation)(pair, request, &mut refused)
    }
}

#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    target_endian = "little"
))]
mod loader {
    use super::{CStr, c_char, c_void};

    unsafe extern "C" {
        /// As `dlsym`, for one version of a symbol; of glibc, which `libc` does not declare.
        fn dlvsym(library: *mut c_void, name: *const c_char, version: *const c_char)
        -> *mut c_void;
    }

    /// Loads a library for good.
    pub(super) fn open(name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the name is a C string. What the library does as it is loaded is rdma-core's promise.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !library.is_null() {
            return Ok(library);
        }
        // SAFETY: after a failure the text is there until this thread's next call of the loader.
        let reason = unsafe { libc::dlerror() };
        if reason.is_null() {
            return Err("no reason given".to_owned());
        }
        // SAFETY: as above; it ends with a zero.
        let reason = unsafe { CStr::from_ptr(reason) };
        Err(reason.to_string_lossy().into_owned())
    }

    /// Finds a symbol; both texts end with a zero.
    pub(super) fn find(
        library: *mut c_void,
        name: &'static str,
        version: &'static str,
    ) -> Result<*mut c_void, String> {
        debug_assert!(name.ends_with('\0') && version.ends_with('\0'));
        // SAFETY: the library was opened and is never closed; both are C strings.
        let symbol = unsafe { dlvsym(library, name.as_ptr().cast(), version.as_ptr().cast()) };
        if symbol.is_null() {
            let (name, version) = (name.trim_end_matches('\0'), version.trim_end_matches('\0'));
            return Err(format!("it has no {name} of version {version}"));
        }
        Ok(symbol)
    }
}

/// Elsewhere nobody has held the layouts against the headers, or the loader knows no versions.
#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    target_endian = "little"
)))]
mod loader {
    use super::{CStr, c_void};

    pub(super) fn open(_name: &CStr) -> Result<*mut c_void, String> {
        Err("this program was built for a system without versioned symbols".to_owned())
    }

    pub(super) fn find(
        _library: *mut c_void,
        _name: &'static str,
        _version: &'static str,
    ) -> Result<*mut c_void, String> {
        Err("there is no library".to_owned())
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn structures_are_laid_out_as_the_headers_of_rdma_core_say() {
        let sizes = [
            ("ibv_context", size_of::<Context>(), 328),
            ("ibv_mr", size_of::<MemoryRegion>(), 48),
            ("ibv_device_attr", size_of::<DeviceAttributes>(), 232),
            ("ibv_port_attr", size_of::<PortAttributes>(), 52),
            ("ibv_qp_init_attr", size_of::<QueuePairBirth>(), 64),
            ("ibv_ah_attr", size_of::<Address>(), 32),
            ("ibv_qp_attr", size_of::<QueuePairAttributes>(), 144),
            ("ibv_sge", size_of::<Piece>(), 16),
            ("ibv_send_wr", size_of::<SendRequest>(), 128),
            ("ibv_wc", size_of::<Completion>(), 48),
        ];
        for (name, ours, theirs) in sizes {
            assert_eq!(ours, theirs, "{name}");
        }
    }

    #[test]
    fn fields_are_where_the_headers_of_rdma_core_put_them() {
        let offsets = [
            ("context.cmd_fd", offset_of!(Context, command_file), 264),
            ("mr.lkey", offset_of!(MemoryRegion, local_key), 36),
            ("comp_channel.fd", offset_of!(Channel, file), 8),
            ("qp.qp_num", offset_of!(QueuePair, number), 52),
            (
                "device_attr.max_qp_wr",
                offset_of!(DeviceAttributes, queue_depth_max),
                112,
            ),
            (
                "device_attr.max_mr",
                offset_of!(DeviceAttributes, regions_max),
                136,
            ),
            (
                "device_attr.max_qp_rd_atom",
                offset_of!(DeviceAttributes, reads_served_max),
                144,
            ),
            (
                "device_attr.max_qp_init_rd_atom",
                offset_of!(DeviceAttributes, reads_begun_max),
                156,
            ),
            (
                "port_attr.max_msg_sz",
                offset_of!(PortAttributes, message_max),
                20,
            ),
            (
                "qp_attr.ah_attr",
                offset_of!(QueuePairAttributes, address),
                56,
            ),
            (
                "qp_attr.pkey_index",
                offset_of!(QueuePairAttributes, partition_index),
                120,
            ),
            (
                "qp_attr.max_rd_atomic",
                offset_of!(QueuePairAttributes, reads_begun_max),
                126,
            ),
            (
                "qp_attr.timeout",
                offset_of!(QueuePairAttributes, timeout),
                130,
            ),
            ("send_wr.imm_data", offset_of!(SendRequest, immediate), 36),
            ("send_wr.wr", offset_of!(SendRequest, remote_address), 40),
            ("send_wr.rkey", offset_of!(SendRequest, remote_key), 48),
            ("wc.status", offset_of!(Completion, status), 8),
        ];
        for (name, ours, theirs) in offsets {
            assert_eq!(ours, theirs, "{name}");
        }
    }

    #[test]
    fn a_library_or_a_symbol_that_is_not_there_is_told_by_name() {
        let none = loader::open(c"libibverbs-of-nobody.so.1").unwrap_err();
        assert!(none.contains("libibverbs-of-nobody.so.1"), "{none}");
        let libc = loader::open(c"libc.so.6").unwrap();
        let none = loader::find(libc, "ibv_nothing\0", "IBVERBS_1.1\0").unwrap_err();
        assert_eq!(none, "it has no ibv_nothing of version IBVERBS_1.1");
        assert!(loader::find(libc, "malloc\0", "GLIBC_2.2.5\0").is_ok());
    }
}
