//! Memory that all ranks of a group map and write: the raw pointers of step mode.
//!
//! Two kinds, told apart by type. [`Words`] are reached by atomic accesses only. A [`Slab`] is copied into and out of, block by block, through raw
//! pointers: no reference to it exists while another rank may write it, so what another process does there can make bytes wrong but
//! nothing else. Its owner's part is seen as a slice only between operations, which is [`Buffer`](super::Buffer)'s promise to keep.
//!
//! The memory is sealed against shrinking and growing and reserved before it is used, so that no access is a bus error. Unlike a region of the verbs
//! it has no seal against writers; whoever has it is a rank of the group.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::futex;

use super::gate::Word;
use crate::pages::{MapError, available, check_available, unmap};

/// Size of a huge page; slabs of at least that many bytes begin at a multiple of it.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// What the memory must be sealed with.
const SEALS: SealFlags = SealFlags::SEAL
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW);

/// Makes memory for a group; it takes no room before [`Slab::reserve`].
pub(super) fn create(len: usize) -> io::Result<OwnedFd> {
    check_available(len as u64, available())?;
    let file = rustix::fs::memfd_create(
        c"tombolo-step",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    rustix::fs::ftruncate(&file, len as u64)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Whether all of it has been reserved.
pub(super) fn is_reserved(file: BorrowedFd<'_>, len: usize) -> io::Result<bool> {
    let blocks = rustix::fs::fstat(file)?.st_blocks;
    Ok(u64::try_from(blocks).is_ok_and(|blocks| blocks.saturating_mul(512) >= len as u64))
}

/// Writable memory of a group.
pub(super) struct Slab {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; it is unmapped only in `drop`.
unsafe impl Send for Slab {}
// SAFETY: through `&Slab` memory is only copied by raw pointers. Ranks agree by meeting at the gate on who writes which bytes when; the
// meeting orders their accesses.
unsafe impl Sync for Slab {}

impl Slab {
    /// Maps the memory of a group.
    ///
    /// # Errors
    ///
    /// The reason why the descriptor is not safe to map, or what the kernel said.
    pub(super) fn map(file: BorrowedFd<'_>, len: u64) -> Result<Slab, MapError> {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        let seals = rustix::fs::fcntl_get_seals(file)
            .map_err(|_| MapError::Unsafe("the group's memory cannot be sealed"))?;
        if !seals.contains(SEALS) {
            return Err(MapError::Unsafe("the group's memory is not sealed"));
        }
        let stat = rustix::fs::fstat(file)?;
        if u64::try_from(stat.st_size) != Ok(len) {
            return Err(MapError::Unsafe("the group's memory has another size"));
        }
        if rustix::fs::fstatfs(file)?.f_type as u64 != TMPFS_MAGIC {
            return Err(MapError::Unsafe("the group's memory is no memory"));
        }
        let len = usize::try_from(len)
            .ok()
            .filter(|&len| len > 0 && len <= isize::MAX as usize)
            .ok_or(MapError::Unsafe(
                "the group's memory has an impossible size",
            ))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let start: NonNull<u8> =
            NonNull::new(start.cast()).ok_or(MapError::Unsafe("it maps to nothing"))?;
        if len >= HUGE_PAGE {
            // SAFETY: our own whole mapping; the advice changes what backs it, not what it holds. Where there are no huge pages it is refused,
            // which costs speed alone.
            let _ = unsafe {
                rustix::mm::madvise(start.as_ptr().cast::<c_void>(), len, Advice::LinuxHugepage)
            };
        }
        Ok(Slab { start, len })
    }

    /// Takes the room for a range, which begins at a page, now, and maps it, so that no later access finds none. What it holds stays.
    pub(super) fn reserve(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len);
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: the range is inside our mapping (asserted). The advice writes nothing but what makes pages present.
        unsafe {
            rustix::mm::madvise(
                self.start.as_ptr().add(range.start).cast::<c_void>(),
                range.len(),
                Advice::LinuxPopulateWrite,
            )
        }?;
        Ok(())
    }

    /// Copies from `offset` until `target` is full.
    pub(super) fn read(&self, offset: usize, target: &mut [u8]) {
        self.assert_inside(offset, target.len());
        // SAFETY: the source is inside the mapping (asserted), which is reserved; the target is a live exclusive slice, and a slice is never
        // handed out of a mapping while an operation reads it. No reference to the source is formed: should a rank that broke the agreement
        // write it meanwhile, the bytes are whatever they are.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start.as_ptr().add(offset),
                target.as_mut_ptr(),
                target.len(),
            );
        }
    }

    /// Copies `source` to `offset`.
    pub(super) fn write(&self, offset: usize, source: &[u8]) {
        self.assert_inside(offset, source.len());
        // SAFETY: as for `read`, with source and target changed over.
        unsafe {
            std::ptr::copy_nonoverlapping(
                source.as_ptr(),
                self.start.as_ptr().add(offset),
                source.len(),
            );
        }
    }

    /// Copies `source` to `offset` past the caches: for bytes that another core reads next. [`settle`] must come before the meeting that lets it.
    pub(super) fn stream(&self, offset: usize, source: &[u8]) {
        self.assert_inside(offset, source.len());
        // SAFETY: as for `write`.
        unsafe {
            stream(
                source.as_ptr(),
                self.start.as_ptr().add(offset),
                source.len(),
            );
        }
    }

    /// Copies from `offset` until `target` is full, past the caches on the side of the target: for bytes that are not needed soon.
    pub(super) fn read_streaming(&self, offset: usize, target: &mut [u8]) {
        self.assert_inside(offset, target.len());
        // SAFETY: as for `read`; all stores to the target are seen by this thread before any that follow `settle`.
        unsafe {
            stream(
                self.start.as_ptr().add(offset),
                target.as_mut_ptr(),
                target.len(),
            );
        }
    }

    /// # Safety
    ///
    /// Until the slice is gone no rank may write the range.
    pub(super) unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.assert_inside(range.start, range.len());
        // SAFETY: inside the mapping (asserted) and initialized by the kernel; nobody writes it, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// # Safety
    ///
    /// Until the slice is gone no other rank may read or write the range.
    pub(super) unsafe fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        self.assert_inside(range.start, range.len());
        // SAFETY: inside the mapping (asserted) and initialized by the kernel; `&mut self` makes it the only reference of this mapping, and
        // nobody else touches it, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }

    fn assert_inside(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{len} bytes at {offset} leave a slab of {}",
            self.len
        );
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, unmapped only here; slices borrow from `self`.
        unsafe { unmap(self.start, self.len) }
    }
}

/// Bytes of one streaming store.
const STORE: usize = 16;

/// Copies past the caches: a line that lies changed in one core's cache comes to another core many times slower than from memory.
///
/// # Safety
///
/// As for `copy_nonoverlapping`; and `settle` must be called before anybody else is told of the bytes.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(source: *const u8, target: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    let head = target.align_offset(STORE).min(len);
    let stores = (len - head) / STORE;
    let tail = head + stores * STORE;
    // SAFETY: all within what the caller promises; the target of each store is aligned, and the instructions belong to every x86-64.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, head);
        for index in 0..stores {
            let at = head + index * STORE;
            let value = _mm_loadu_si128(source.add(at).cast::<__m128i>());
            _mm_stream_si128(target.add(at).cast::<__m128i>(), value);
        }
        std::ptr::copy_nonoverlapping(source.add(tail), target.add(tail), len - tail);
    }
}

/// # Safety
///
/// As for `copy_nonoverlapping`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: promised by the caller.
    unsafe { std::ptr::copy_nonoverlapping(source, target, len) }
}

/// Orders what was streamed before whatever follows.
pub(super) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction belongs to every x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Memory that is reached by atomic accesses only.
pub(super) struct Words(Slab);

impl Words {
    /// Maps a group's words.
    pub(super) fn map(file: BorrowedFd<'_>, len: u64) -> Result<Words, MapError> {
        Slab::map(file, len).map(Words)
    }

    /// See [`Slab::reserve`].
    pub(super) fn reserve(&self) -> io::Result<()> {
        self.0.reserve(0..self.0.len)
    }

    /// The word at that byte.
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4));
        self.0.assert_inside(at, 4);
        // SAFETY: in bounds and aligned (asserted; the mapping begins at a page). Every access to this memory, of this process and of the other
        // ranks', is atomic, since this type gives out nothing else.
        unsafe { AtomicU32::from_ptr(self.0.start.as_ptr().add(at).cast()) }
    }

    /// The double word at that byte.
    pub(super) fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        self.0.assert_inside(at, 8);
        // SAFETY: as for `word`; no address is used as both.
        unsafe { AtomicU64::from_ptr(self.0.start.as_ptr().add(at).cast()) }
    }
}

/// Sleeping is the kernel's futex, which works between processes because the mapping is shared.
impl Word for AtomicU32 {
    fn load(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    fn store(&self, value: u32) {
        self.store(value, Ordering::Release);
    }

    fn add(&self, value: u32) -> u32 {
        self.fetch_add(value, Ordering::AcqRel)
    }

    fn exchange(&self, expected: u32, value: u32) -> Result<(), u32> {
        self.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
    }

    fn sleep(&self, expected: u32, span: Duration) {
        let span = Timespec::try_from(span).ok();
        // Whatever ends it, the caller looks again.
        let _ = futex::wait(self, futex::Flags::empty(), expected, span.as_ref());
    }

    fn wake(&self) {
        let _ = futex::wake(self, futex::Flags::empty(), i32::MAX as u32);
    }
}
