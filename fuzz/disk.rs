//! Files of a state folder, which may lie in a store that others write into.

use safetensors::SafeTensors;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tombolo_actors::checkpoint::{CommitRecord, Manifest, unseal};
use tombolo_core::view::View;

use super::WORDS;

/// JSON is read into values twice where it has no hash of its own: a value takes 32 bytes or 72 with its key, for two bytes or six of text.
pub fn room(len: usize) -> usize {
    WORDS + 160 * len
}

pub fn safetensors(bytes: &[u8]) -> bool {
    SafeTensors::deserialize(bytes).is_ok_and(|tensors| {
        tensors
            .iter()
            .all(|(_, tensor)| tensor.data().len() <= bytes.len())
    })
}

/// What was read is written and read to the same.
fn sealed<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> bool {
    unseal::<T>(bytes).is_ok_and(|read| {
        let written = serde_json::to_vec(&read).unwrap();
        assert_eq!(unseal::<T>(&written).unwrap(), read);
        true
    })
}

pub fn manifest(bytes: &[u8]) -> bool {
    sealed::<Manifest>(bytes)
}

pub fn commit_record(bytes: &[u8]) -> bool {
    sealed::<CommitRecord>(bytes)
}

pub fn view(bytes: &[u8]) -> bool {
    sealed::<View>(bytes)
}
