//! Registered memory: the owner's view, which keeps it alive, and the peer's view, which is only a key and a length.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, marker};

use crate::pages::Pages;

/// What a peer needs to READ from a region: plain data that may travel anywhere. It gives no access without a connected queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemoteRegion {
    /// Names the region at its owner; never used again for another one.
    pub key: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// Registered, page-aligned memory of this side. Peers with a grant may READ it until it is dropped; only its owner writes.
pub struct Region {
    key: u64,
    device: DeviceId,
    storage: Option<Box<dyn Storage>>,
}

impl Region {
    pub(crate) fn new(key: u64, device: DeviceId, storage: Box<dyn Storage>) -> Region {
        Region {
            key,
            device,
            storage: Some(storage),
        }
    }

    /// A region without memory, to stand in for one that is away with a posted READ. It cannot be read into or out of.
    pub fn vacant() -> Region {
        Region {
            key: 0,
            device: DeviceId(0),
            storage: None,
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.storage
            .as_ref()
            .map_or(0, |storage| storage.pages().len())
    }

    /// Whether this is [`Region::vacant`].
    pub fn is_empty(&self) -> bool {
        self.storage.is_none()
    }

    /// The owner's view.
    pub fn bytes(&self) -> &[u8] {
        self.view()
    }

    /// The owner's view as native elements; up to three bytes at the end are left out.
    pub fn f32s(&self) -> &[f32] {
        self.view()
    }

    /// The owner's view for writing. Take a plain slice of it (`&mut *guard`) before a hot loop. Peers should not READ while it lives: see
    /// [`CompletionError::Torn`](crate::CompletionError::Torn).
    pub fn bytes_mut(&mut self) -> RegionMut<'_, u8> {
        self.view_mut()
    }

    /// The owner's view for writing as native elements; else like [`Region::bytes_mut`].
    pub fn f32s_mut(&mut self) -> RegionMut<'_, f32> {
        self.view_mut()
    }

    /// What a peer may know of it.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion {
            key: self.key,
            len: self.len() as u64,
        }
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }

    /// How a device of hardware knows it.
    pub(crate) fn local(&self) -> Option<LocalKey> {
        self.storage.as_ref().and_then(|storage| storage.local())
    }

    fn view<T: Element>(&self) -> &[T] {
        self.storage
            .as_ref()
            .map_or(&[], |storage| T::of(storage.pages()))
    }

    fn view_mut<T: Element>(&mut self) -> RegionMut<'_, T> {
        let mut storage = self.storage.as_deref_mut();
        if let Some(storage) = &mut storage {
            storage.withdraw();
        }
        RegionMut {
            storage,
            element: marker::PhantomData,
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("key", &self.key)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// A region while its owner writes.
pub struct RegionMut<'a, T: Element> {
    storage: Option<&'a mut (dyn Storage + 'static)>,
    element: marker::PhantomData<&'a mut [T]>,
}

impl<T: Element> Deref for RegionMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.storage
            .as_ref()
            .map_or(&[], |storage| T::of(storage.pages()))
    }
}

impl<T: Element> DerefMut for RegionMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.storage
            .as_mut()
            .map_or(&mut [], |storage| T::of_mut(storage.pages_mut()))
    }
}

impl<T: Element> Drop for RegionMut<'_, T> {
    fn drop(&mut self) {
        if let Some(storage) = &mut self.storage {
            storage.publish();
        }
    }
}

/// What a region can be seen as: bytes or f32.
pub trait Element: sealed::Sealed + Sized {}

impl Element for u8 {}
impl Element for f32 {}

mod sealed {
    use crate::pages::Pages;

    pub trait Sealed: Sized {
        #[expect(private_interfaces, reason = "callable in this crate only")]
        fn of(pages: &Pages) -> &[Self];
        #[expect(private_interfaces, reason = "callable in this crate only")]
        fn of_mut(pages: &mut Pages) -> &mut [Self];
    }

    #[expect(private_interfaces, reason = "callable in this crate only")]
    impl Sealed for u8 {
        fn of(pages: &Pages) -> &[u8] {
            pages.bytes()
        }

        fn of_mut(pages: &mut Pages) -> &mut [u8] {
            pages.bytes_mut()
        }
    }

    #[expect(private_interfaces, reason = "callable in this crate only")]
    impl Sealed for f32 {
        fn of(pages: &Pages) -> &[f32] {
            pages.f32s()
        }

        fn of_mut(pages: &mut Pages) -> &mut [f32] {
            pages.f32s_mut()
        }
    }
}

/// A provider's part of a region; its drop takes the region from the peers.
pub(crate) trait Storage: Send + Sync {
    fn pages(&self) -> &Pages;

    /// Called between `withdraw` and `publish` only.
    fn pages_mut(&mut self) -> &mut Pages;

    /// The owner begins to write.
    fn withdraw(&mut self) {}

    /// The owner has written.
    fn publish(&mut self) {}

    /// How the device's hardware knows it, where there is any.
    fn local(&self) -> Option<LocalKey> {
        None
    }
}

/// Names registered memory to the hardware that it is registered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalKey {
    pub(crate) key: u32,
    /// Where it begins, in the hardware's eyes.
    pub(crate) address: u64,
}

/// Which device a region is registered with, unique in this process. Zero is nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceId(u64);

impl DeviceId {
    pub(crate) fn next() -> DeviceId {
        static LAST: AtomicU64 = AtomicU64::new(0);
        DeviceId(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
