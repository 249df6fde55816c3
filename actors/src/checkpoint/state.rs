//! One state on disk: `model.safetensors`, `outer.safetensors` if the outer optimizer has state, and `manifest.json`, which is written last
//! and names the others with their hashes. The files are what everybody else's tools read.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use super::{CheckpointError, FORMAT, OuterState, State, damaged, files_error, json};
use crate::env::Files;
use crate::slab::{Pool, Slab};
use tombolo_core::event::RoundRecord;
use tombolo_core::ids::{Epoch, Round};
use tombolo_core::mutants;
use tombolo_core::tensor::{Hash, Layout, bytes_of};

/// The model's file.
pub const MODEL: &str = "model.safetensors";
const OUTER: &str = "outer.safetensors";
const MANIFEST: &str = "manifest.json";

/// What a state folder holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The round that committed it.
    pub round: Round,
    /// The model's hash.
    pub model: Hash,
    /// BLAKE3 of each file.
    pub files: BTreeMap<String, Hash>,
}

/// The folder's name within `states/`.
pub(super) fn name(record: &RoundRecord, term: Epoch) -> String {
    let hash = record.model_hash.to_string();
    let name = format!("{:06}-{}", record.round, &hash[..16]);
    match term {
        0 => name,
        term => format!("{name}-{term:06}"),
    }
}

/// The round in a folder's name.
pub(super) fn round_of(name: &str) -> Option<Round> {
    name.split('-').next()?.parse().ok()
}

/// Writes a state into its folder, which no record names yet.
pub(super) fn write(
    files: &dyn Files,
    folder: &str,
    layout: &Layout,
    state: &State,
) -> Result<(), CheckpointError> {
    // What a crash before the record left behind is the same bytes, or of no worth.
    files
        .remove(folder)
        .map_err(|error| files_error(folder, &error))?;
    let info = |shape: &[usize], begin: usize, len: usize| TensorInfo {
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        data_offsets: (begin * 4, (begin + len) * 4),
    };
    let tensors = layout.tensors().iter().map(|tensor| {
        let info = info(&tensor.shape, tensor.offset, tensor.len());
        (tensor.name.clone(), info)
    });
    let mut hashes = BTreeMap::new();
    let model = write_tensors(
        files,
        folder,
        MODEL,
        tensors.collect(),
        &[state.model.as_ref()],
    )?;
    hashes.insert(MODEL.to_owned(), model);
    let outer = state.outer.lock().unwrap_or_else(PoisonError::into_inner);
    let slices = outer.state();
    if !slices.is_empty() {
        let mut begin = 0;
        let mut tensors = Vec::new();
        for (name, elements) in &slices {
            let len = elements.len();
            tensors.push(((*name).to_owned(), info(&[len], begin, len)));
            begin += len;
        }
        let parts: Vec<&[u8]> = slices
            .iter()
            .map(|(_, elements)| bytes_of(elements))
            .collect();
        let hash = write_tensors(files, folder, OUTER, tensors, &parts)?;
        hashes.insert(OUTER.to_owned(), hash);
    }
    let manifest = Manifest {
        format: FORMAT,
        round: state.record.round,
        model: state.record.model_hash,
        files: hashes,
    };
    let bytes = serde_json::to_vec_pretty(&manifest).expect("a manifest is plain data");
    let path = format!("{folder}/{MANIFEST}");
    files
        .replace(&path, &[&bytes])
        .map_err(|error| files_error(&path, &error))
}

/// Writes a safetensors file of `parts` and gives its hash.
fn write_tensors(
    files: &dyn Files,
    folder: &str,
    name: &str,
    tensors: Vec<(String, TensorInfo)>,
    parts: &[&[u8]],
) -> Result<Hash, CheckpointError> {
    let path = format!("{folder}/{name}");
    let header = header(tensors).map_err(|reason| damaged(&path, reason))?;
    let mut all: Vec<&[u8]> = vec![&header];
    all.extend(parts);
    let mut hasher = blake3::Hasher::new();
    all.iter().for_each(|part| {
        hasher.update(part);
    });
    files
        .replace(&path, &all)
        .map_err(|error| files_error(&path, &error))?;
    Ok(Hash(*hasher.finalize().as_bytes()))
}

/// The head of a safetensors file whose tensors follow in the order given.
fn header(tensors: Vec<(String, TensorInfo)>) -> Result<Vec<u8>, String> {
    let metadata = Metadata::new(None, tensors).map_err(|error| error.to_string())?;
    let mut json = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    // The format wants the data aligned.
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

/// Reads a state and verifies every byte of it.
pub(super) fn read(
    files: &dyn Files,
    folder: &str,
    record: &RoundRecord,
    layout: &Layout,
    pool: &Pool,
) -> Result<(Slab, OuterState), CheckpointError> {
    let manifest = manifest(files, folder, record)?;
    let path = format!("{folder}/{MODEL}");
    let bytes = verified(files, folder, &manifest, MODEL)?;
    let damaged_model = |reason: String| damaged(&path, reason);
    let tensors =
        SafeTensors::deserialize(&bytes).map_err(|error| damaged_model(error.to_string()))?;
    let mut model = pool.take(layout.len());
    for tensor in layout.tensors() {
        let view = tensors
            .tensor(&tensor.name)
            .map_err(|error| damaged_model(error.to_string()))?;
        if view.dtype() != Dtype::F32 || view.shape() != tensor.shape {
            return Err(damaged_model(format!(
                "tensor {:?} is {:?} {:?}, the model has F32 {:?}",
                tensor.name,
                view.dtype(),
                view.shape(),
                tensor.shape
            )));
        }
        decode(
            view.data(),
            &mut model[tensor.offset..tensor.offset + tensor.len()],
        );
    }
    let found = Hash::of(&model);
    if found != record.model_hash {
        return Err(damaged_model(other_model(found, record)));
    }
    let outer = match manifest.files.contains_key(OUTER) {
        true => read_outer(files, folder, &manifest)?,
        false => Vec::new(),
    };
    Ok((model.freeze(), outer))
}

fn read_outer(
    files: &dyn Files,
    folder: &str,
    manifest: &Manifest,
) -> Result<OuterState, CheckpointError> {
    let path = format!("{folder}/{OUTER}");
    let damaged = |error: safetensors::SafeTensorError| damaged(&path, error.to_string());
    let bytes = verified(files, folder, manifest, OUTER)?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(damaged)?;
    let mut names = tensors.names();
    names.sort_unstable();
    let mut outer = Vec::new();
    for name in names {
        let view = tensors.tensor(name).map_err(damaged)?;
        let mut elements = vec![0.0; view.data().len() / 4];
        decode(view.data(), &mut elements);
        outer.push((name.to_owned(), elements));
    }
    Ok(outer)
}

/// Verifies every byte of a state, whatever its layout; gives its size and the bytes of the model's file.
pub(super) fn verify(
    files: &dyn Files,
    folder: &str,
    record: &RoundRecord,
) -> Result<(u64, Vec<u8>), CheckpointError> {
    let manifest = manifest(files, folder, record)?;
    let mut size = 0;
    for name in manifest.files.keys().filter(|name| *name != MODEL) {
        size += verified(files, folder, &manifest, name)?.len() as u64;
    }
    let model = verified(files, folder, &manifest, MODEL)?;
    let path = format!("{folder}/{MODEL}");
    let (header, _) =
        SafeTensors::read_metadata(&model).map_err(|error| damaged(&path, error.to_string()))?;
    let found = Hash::of_bytes(&model[8 + header..]);
    if found != record.model_hash {
        return Err(damaged(&path, other_model(found, record)));
    }
    Ok((size + model.len() as u64, model))
}

/// Reads a state whatever its layout: its elements in order, every byte verified.
pub(super) fn whole(
    files: &dyn Files,
    folder: &str,
    record: &RoundRecord,
) -> Result<(Vec<f32>, OuterState), CheckpointError> {
    let (_, bytes) = verify(files, folder, record)?;
    let path = format!("{folder}/{MODEL}");
    let (header, _) =
        SafeTensors::read_metadata(&bytes).map_err(|error| damaged(&path, error.to_string()))?;
    let bytes = &bytes[8 + header..];
    let mut model = vec![0.0; bytes.len() / 4];
    decode(bytes, &mut model);
    let manifest = manifest(files, folder, record)?;
    let outer = match manifest.files.contains_key(OUTER) {
        true => read_outer(files, folder, &manifest)?,
        false => Vec::new(),
    };
    Ok((model, outer))
}

fn other_model(found: Hash, record: &RoundRecord) -> String {
    let expected = record.model_hash;
    format!("its model has hash {found}, the commit record says {expected}")
}

/// The manifest, which must be about what the record says.
fn manifest(
    files: &dyn Files,
    folder: &str,
    record: &RoundRecord,
) -> Result<Manifest, CheckpointError> {
    let path = format!("{folder}/{MANIFEST}");
    let manifest: Manifest = json(files, &path)?;
    let expected = (FORMAT, record.round, record.model_hash);
    let found = (manifest.format, manifest.round, manifest.model);
    if found != expected {
        return Err(damaged(
            &path,
            format!(
                "it is about (format, round, model) {found:?}, the commit record about {expected:?}"
            ),
        ));
    }
    // A name that has changed would make its file look as if it were not needed.
    let known = [MODEL, OUTER];
    if let Some(other) = manifest
        .files
        .keys()
        .find(|name| !known.contains(&name.as_str()))
    {
        let reason = format!("it names {other:?}, a state has {known:?} and no other");
        return Err(damaged(&path, reason));
    }
    Ok(manifest)
}

/// A file whose hash is the manifest's.
fn verified(
    files: &dyn Files,
    folder: &str,
    manifest: &Manifest,
    name: &str,
) -> Result<Vec<u8>, CheckpointError> {
    let path = format!("{folder}/{name}");
    let bytes = files
        .read(&path)
        .map_err(|error| files_error(&path, &error))?;
    let (found, expected) = (Hash::of_bytes(&bytes), manifest.files.get(name));
    if expected != Some(&found) && !mutants::is("manifest-unchecked") {
        let expected = expected.map_or_else(|| "nothing of it".to_owned(), Hash::to_string);
        let reason = format!("its hash is {found}, {MANIFEST} says {expected}");
        return Err(damaged(&path, reason));
    }
    Ok(bytes)
}

fn decode(bytes: &[u8], into: &mut [f32]) {
    for (element, bytes) in into.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *element = f32::from_le_bytes(*bytes);
    }
}
