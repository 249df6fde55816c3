//! A buffer of every rank in one piece of memory, and an operation on it.

use super::slab::{Slab, settle};
use super::{Group, GroupError};

/// As many bytes of each rank, in memory that all ranks of the group map. Between operations a rank sees its own part as a slice.
///
/// # Trust
///
/// Ranks of a group write into each other's parts; that is what makes it fast. A rank that does not keep to its operations (all of them are the
/// same program, of the same user, let in by a secret) can change bytes under another's slice. Ranks that do not trust each other so
/// far use operations on memory of their own, which only ever copy out of a buffer.
pub struct Buffer {
    slab: Slab,
    /// From one rank's part to the next one's.
    stride: usize,
    len: usize,
    rank: usize,
    group: u64,
    /// No operation on it has begun without ending well.
    is_whole: bool,
}

impl Buffer {
    pub(super) fn new(slab: Slab, stride: usize, len: usize, rank: usize, group: u64) -> Buffer {
        Buffer {
            slab,
            stride,
            len,
            rank,
            group,
            is_whole: true,
        }
    }

    /// Bytes of one rank.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether a rank has no bytes; never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// This rank's part.
    ///
    /// # Errors
    ///
    /// [`GroupError::Retired`]: an operation on it failed.
    pub fn bytes(&self) -> Result<&[u8], GroupError> {
        let range = self.own()?;
        // SAFETY: ranks write this part in operations only, and an operation is one of all: each that began has ended at a gate that every
        // rank passed after its last access (`is_whole`), and none goes on before this rank takes part in it, which takes `&mut self`.
        Ok(unsafe { self.slab.bytes(range) })
    }

    /// This rank's part for writing.
    ///
    /// # Errors
    ///
    /// As for [`Buffer::bytes`].
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], GroupError> {
        let range = self.own()?;
        // SAFETY: as for `bytes`; ranks read this part in operations only, too.
        Ok(unsafe { self.slab.bytes_mut(range) })
    }

    fn own(&self) -> Result<std::ops::Range<usize>, GroupError> {
        let start = self.rank * self.stride;
        match self.is_whole {
            true => Ok(start..start + self.len),
            false => Err(GroupError::Retired),
        }
    }

    fn at(&self, rank: usize, offset: usize, len: usize) -> usize {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{len} bytes at {offset} leave a part of {}",
            self.len
        );
        rank * self.stride + offset
    }
}

/// One operation of all ranks on a buffer. Dropped before its end, it fails the group.
pub struct Operation<'a> {
    group: &'a mut Group,
    buffer: &'a mut Buffer,
}

impl<'a> Operation<'a> {
    /// After all ranks have met for it.
    pub(super) fn begun(group: &'a mut Group, buffer: &'a mut Buffer) -> Operation<'a> {
        buffer.is_whole = false;
        Operation { group, buffer }
    }

    /// Whether the buffer may be used in the group.
    pub(super) fn check(group: &Group, buffer: &Buffer) -> Result<(), GroupError> {
        if buffer.group != group.id {
            return Err(GroupError::Foreign);
        }
        buffer.own().map(|_| ())
    }

    /// What a rank gave along when it began.
    pub fn contribution(&self, rank: usize) -> u64 {
        self.group.control.contribution(rank)
    }

    /// Copies from a rank's part. Which ranks touch which bytes between two meetings is the caller's to agree on.
    pub fn read(&self, rank: usize, offset: usize, target: &mut [u8]) {
        let at = self.buffer.at(rank, offset, target.len());
        self.buffer.slab.read(at, target);
    }

    /// Copies into a rank's part. Nobody else may touch those bytes before the next meeting.
    pub fn write(&self, rank: usize, offset: usize, source: &[u8]) {
        let at = self.buffer.at(rank, offset, source.len());
        self.buffer.slab.write(at, source);
    }

    /// Copies as [`Operation::write`] does, past the caches: faster for much that another rank reads soon and this one does not, slower for little.
    pub fn stream(&self, rank: usize, offset: usize, source: &[u8]) {
        let at = self.buffer.at(rank, offset, source.len());
        self.buffer.slab.stream(at, source);
    }

    /// Copies as [`Operation::read`] does, past the caches on the side of the target: for much that is not needed soon.
    pub fn read_streaming(&self, rank: usize, offset: usize, target: &mut [u8]) {
        let at = self.buffer.at(rank, offset, target.len());
        self.buffer.slab.read_streaming(at, target);
    }

    /// Waits until all ranks are here: what each has written is seen by all.
    ///
    /// # Errors
    ///
    /// Names the rank that is to blame; the group has failed.
    pub fn meet(&mut self) -> Result<(), GroupError> {
        settle();
        self.group.meet(None)
    }

    /// The last meeting. The buffer's parts are their ranks' again.
    ///
    /// # Errors
    ///
    /// As for [`Operation::meet`]; the buffer is retired.
    pub fn finish(self) -> Result<(), GroupError> {
        settle();
        self.group.meet(None)?;
        self.buffer.is_whole = true;
        Ok(())
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if !self.buffer.is_whole {
            self.group.give_up();
        }
    }
}
