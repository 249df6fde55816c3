//! Pages of memory: our own (private or shared with readers) and those of others.
//!
//! This file holds the raw pointers to memory of the verbs and gives out a safe interface. [`Pages`] are written by their owner only, so they
//! may be seen as slices. [`ForeignPages`] may change at any moment and are only copied from. Memory that a group writes together is in
//! `group/slab.rs`.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Alignment of private pages; mapped ones have at least this.
const PAGE: usize = 4096;

/// What a shared memory must be sealed with before a reader may map it. SHRINK and FUTURE_WRITE (which also forbids punching holes) make
/// sure that no access beyond what was reserved, hence no SIGBUS, can come; FUTURE_WRITE leaves the owner as the only writer; SEAL
/// closes the set.
pub(crate) const SEALS: SealFlags = SealFlags::SEAL
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE);

/// Memory that only its owner writes: page aligned, zeroed at birth.
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
}

enum Origin {
    Private(Layout),
    Shared,
}

// SAFETY: `Pages` owns its memory like a boxed slice does; the pointer is freed only in `drop`, and access follows `&self` and `&mut self`.
unsafe impl Send for Pages {}
// SAFETY: as above; `&Pages` only gives out shared slices of plain bytes.
unsafe impl Sync for Pages {}

impl Pages {
    /// Private memory. Fails instead of aborting when there is none.
    pub(crate) fn private(len: usize) -> io::Result<Pages> {
        let layout = Layout::from_size_align(len, PAGE)
            .ok()
            .filter(|layout| layout.size() > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the layout's size is not zero, checked above.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages {
            start,
            len,
            origin: Origin::Private(layout),
        })
    }

    /// Private memory that a device will pin. Pinning more than there is would call the kernel's OOM killer, so this asks first.
    pub(crate) fn to_pin(len: usize) -> io::Result<Pages> {
        check_available(len as u64, available())?;
        Pages::private(len)
    }

    /// Memory that others can map read-only through the descriptor: reserved in full, mapped here, then sealed with [`SEALS`].
    ///
    /// Reserving more than there is would not fail: it would call the kernel's OOM killer on the whole machine. So this asks first.
    pub(crate) fn shared(len: usize) -> io::Result<(Pages, OwnedFd)> {
        check_available(len as u64, available())?;
        let size = i64::try_from(len)
            .ok()
            .filter(|&size| size > 0)
            .ok_or(io::ErrorKind::InvalidInput)? as u64;
        let file =
            rustix::fs::memfd_create(c"tombolo", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, size)?;
        rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size)
        })?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &file,
                0,
            )
        }?;
        let pages = Pages {
            start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            len,
            origin: Origin::Shared,
        };
        // From here on the mapping above is the only way to write; nobody else has seen the descriptor before.
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok((pages, file))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where they begin, for who tells a device.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` bytes until drop, initialized by the kernel or `alloc_zeroed`. Nobody writes meanwhile: writing
        // needs `&mut self`, other processes cannot (sealed FUTURE_WRITE before the descriptor left `shared`), and a device writes only
        // while a queue owns the region with these pages (`verbs/ibverbs/objects.rs`).
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and `&mut self` makes this the only reference. Readers elsewhere have mappings of their own and copy raw.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// As many whole elements as there are.
    pub(crate) fn f32s(&self) -> &[f32] {
        // SAFETY: as for `bytes`; the start is page aligned and any bits are an f32.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 4) }
    }

    /// As many whole elements as there are.
    pub(crate) fn f32s_mut(&mut self) -> &mut [f32] {
        // SAFETY: as for `bytes_mut`; the start is page aligned and any bits are an f32.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len / 4) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: allocated in `private` with this layout, freed only here.
            Origin::Private(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            // SAFETY: mapped in `shared` with this length, unmapped only here; no slice outlives `self`.
            Origin::Shared => unsafe { unmap(self.start, self.len) },
        }
    }
}

/// What the kernel thinks can still be given out, in bytes; `None` where it does not tell.
pub(crate) fn available() -> Option<u64> {
    memory_info("MemAvailable:")
}

/// One figure of the kernel's, in bytes.
pub(crate) fn memory_info(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

pub(crate) fn check_available(len: u64, available: Option<u64>) -> io::Result<()> {
    // A sixteenth stays, for what others take between the question and the deed.
    match available {
        Some(available) if len <= available - available / 16 => Ok(()),
        _ => Err(io::ErrorKind::OutOfMemory.into()),
    }
}

/// A shared table of words that its owner sets and readers look at without a call.
pub(crate) struct Words(Pages);

impl Words {
    pub(crate) fn shared(count: usize) -> io::Result<(Words, OwnedFd)> {
        let (pages, file) = Pages::shared(count * 8)?;
        Ok((Words(pages), file))
    }

    /// Sets a word; what was written before is seen by who sees the word.
    pub(crate) fn set(&self, index: usize, value: u64) {
        assert!(index < self.0.len / 8, "word {index} is outside the table");
        // SAFETY: in bounds and aligned (page start plus a multiple of 8). The pages are private to this type, which only makes atomic
        // accesses, so no plain reference to the same memory exists.
        let word = unsafe { AtomicU64::from_ptr(self.0.start.as_ptr().cast::<u64>().add(index)) };
        word.store(value, Ordering::Release);
    }
}

/// Read-only memory of a peer, which may change at any moment but can neither shrink nor lose pages.
pub(crate) struct ForeignPages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; it is unmapped only in `drop`.
unsafe impl Send for ForeignPages {}

impl ForeignPages {
    /// Maps a peer's memory of `len` bytes.
    ///
    /// # Errors
    ///
    /// The reason why the descriptor is not safe to map, or what the kernel said.
    pub(crate) fn map(file: BorrowedFd<'_>, len: u64) -> Result<ForeignPages, MapError> {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        // Order matters: what is checked after the seals cannot change any more.
        let seals = rustix::fs::fcntl_get_seals(file)
            .map_err(|_| MapError::Unsafe("its memory cannot be sealed"))?;
        if !seals.contains(SEALS) {
            return Err(MapError::Unsafe("its memory is not sealed"));
        }
        let stat = rustix::fs::fstat(file)?;
        if u64::try_from(stat.st_size) != Ok(len) {
            return Err(MapError::Unsafe("its memory has another size than it says"));
        }
        // Reading a hole could fail for want of memory, which would be a SIGBUS in this process. Huge pages come from another pool.
        let reserved = u64::try_from(stat.st_blocks).map_or(0, |blocks| blocks.saturating_mul(512));
        if reserved < len || rustix::fs::fstatfs(file)?.f_type as u64 != TMPFS_MAGIC {
            return Err(MapError::Unsafe("its memory is not reserved"));
        }
        let len = usize::try_from(len)
            .ok()
            .filter(|&len| len > 0 && len <= isize::MAX as usize)
            .ok_or(MapError::Unsafe("its memory has an impossible size"))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(MapError::Unsafe("it maps to nothing"))?;
        Ok(ForeignPages { start, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies from `offset` until `target` is full; the bytes may be torn if the owner writes meanwhile.
    pub(crate) fn copy_to(&self, offset: usize, target: &mut [u8]) {
        let end = offset.checked_add(target.len());
        assert!(
            end.is_some_and(|end| end <= self.len),
            "the range was checked against the mapping"
        );
        // SAFETY: the source range is inside the mapping (asserted) and stays backed by pages (the seals and the reservation were checked in
        // `map`); the target is a live exclusive slice, so it cannot be part of a mapping that only this type knows. No reference to the
        // source is formed: the owner may write it during the copy, and then the bytes are whatever they are.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start.as_ptr().add(offset),
                target.as_mut_ptr(),
                target.len(),
            );
        }
    }

    /// One word of a table; zero if the table is too short.
    pub(crate) fn word(&self, index: usize) -> u64 {
        if index >= self.len / 8 {
            return 0;
        }
        // SAFETY: in bounds and aligned; an atomic load of a word works on read-only memory, and every access to it from this process is
        // atomic.
        let word = unsafe { AtomicU64::from_ptr(self.start.as_ptr().cast::<u64>().add(index)) };
        word.load(Ordering::Acquire)
    }
}

impl Drop for ForeignPages {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, unmapped only here; nothing borrows from it.
        unsafe { unmap(self.start, self.len) }
    }
}

/// Why a peer's memory was not mapped.
#[derive(Debug)]
pub(crate) enum MapError {
    /// The peer's fault.
    Unsafe(&'static str),
    /// Our kernel's word.
    System(rustix::io::Errno),
}

impl From<rustix::io::Errno> for MapError {
    fn from(errno: rustix::io::Errno) -> MapError {
        MapError::System(errno)
    }
}

/// # Safety
///
/// `start` and `len` are a mapping of the caller's that nobody uses any more.
pub(crate) unsafe fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: promised by the caller. It fails only for arguments that were never mapped.
    let unmapped = unsafe { rustix::mm::munmap(start.as_ptr().cast::<c_void>(), len) };
    debug_assert!(unmapped.is_ok(), "a mapping of ours can be unmapped");
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_sealed_memory_can_be_read_and_in_no_way_changed_by_who_gets_the_descriptor() {
        let (mut pages, file) = Pages::shared(3 * PAGE + 5).unwrap();
        pages.bytes_mut()[PAGE] = 7;
        assert_eq!(
            rustix::fs::ftruncate(&file, 1).unwrap_err(),
            Errno::PERM,
            "shrink"
        );
        assert_eq!(
            rustix::fs::ftruncate(&file, 1 << 20).unwrap_err(),
            Errno::PERM,
            "grow"
        );
        assert_eq!(
            rustix::io::pwrite(&file, b"x", 0).unwrap_err(),
            Errno::PERM,
            "write"
        );
        assert_eq!(
            rustix::fs::fallocate(
                &file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                0,
                PAGE as u64
            )
            .unwrap_err(),
            Errno::PERM,
            "hole"
        );
        assert_eq!(
            rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).unwrap_err(),
            Errno::PERM,
            "seal"
        );
        // SAFETY: new mappings at addresses of the kernel's choice.
        let map = |protection| unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                PAGE,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        assert_eq!(
            map(ProtFlags::READ | ProtFlags::WRITE).unwrap_err(),
            Errno::PERM,
            "map"
        );
        let read_only = map(ProtFlags::READ).unwrap();
        // SAFETY: a change of our own fresh mapping, which is not used, then its end.
        let (widened, unmapped) = unsafe {
            (
                rustix::mm::mprotect(
                    read_only,
                    PAGE,
                    rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
                ),
                rustix::mm::munmap(read_only, PAGE),
            )
        };
        assert_eq!(
            (widened.unwrap_err(), unmapped),
            (Errno::ACCESS, Ok(())),
            "protect"
        );

        let foreign = ForeignPages::map(file.as_fd(), 3 * PAGE as u64 + 5).unwrap();
        let mut byte = [0];
        foreign.copy_to(PAGE, &mut byte);
        assert_eq!(byte, [7]);
    }

    #[test]
    fn memory_that_could_shrink_or_has_holes_or_another_size_is_not_mapped() {
        let reason = |file: &OwnedFd, len| match ForeignPages::map(file.as_fd(), len) {
            Err(MapError::Unsafe(reason)) => reason,
            Err(MapError::System(errno)) => panic!("{errno}"),
            Ok(_) => "mapped",
        };
        let file =
            rustix::fs::memfd_create(c"liar", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .unwrap();
        rustix::fs::ftruncate(&file, 2 * PAGE as u64).unwrap();
        assert_eq!(reason(&file, 2 * PAGE as u64), "its memory is not sealed");
        rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
        assert_eq!(reason(&file, 2 * PAGE as u64), "its memory is not reserved");
        let (_pages, honest) = Pages::shared(PAGE).unwrap();
        assert_eq!(
            reason(&honest, 2 * PAGE as u64),
            "its memory has another size than it says"
        );
        let plain = OwnedFd::from(tempfile::tempfile().unwrap());
        assert!(reason(&plain, 0).starts_with("its memory "));
        assert_eq!(reason(&honest, PAGE as u64), "mapped");
    }

    #[test]
    fn no_memory_is_an_error_and_not_an_abort() {
        for len in [0, usize::MAX, isize::MAX as usize - PAGE] {
            assert!(Pages::private(len).is_err(), "{len}");
        }
    }

    // On figures, not by asking for the memory: were the check broken, that would end other processes of the machine.
    #[test]
    fn shared_memory_beyond_what_is_free_or_where_nobody_knows_is_refused() {
        assert!(check_available(15 << 20, Some(16 << 20)).is_ok());
        assert!(check_available((15 << 20) + 1, Some(16 << 20)).is_err());
        assert!(check_available(1, None).is_err());
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
