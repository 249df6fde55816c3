//! Every decoder of what comes from outside, as a function of bytes: it says whether they were taken, and panics if what was taken is not what
//! it should be.
//!
//! `tests/fuzz` gives them what lies in `corpus/` and what is generated from it, and counts the memory that each takes. A harness of another
//! fuzzer needs nothing but these functions; it may name this file by its path.

mod disk;
mod files;
mod identity;
mod record;
mod tensors;
mod wire;

/// A decoder.
pub struct Target {
    /// Its name, and that of its folder in `corpus/`.
    pub name: &'static str,
    /// Whether the bytes were taken.
    pub run: fn(&[u8]) -> bool,
    /// The most bytes of memory that an input of so many bytes may take.
    pub room: fn(usize) -> usize,
    /// Which lines of the golden frames it takes, by their names.
    pub golden: fn(&str) -> bool,
    /// What it reads is text.
    pub is_text: bool,
}

/// What an error may take: its words, and what is formatted on the way.
const WORDS: usize = 4 << 10;

/// A header of fixed size: no memory but for an error's words.
fn fixed(_: usize) -> usize {
    WORDS
}

/// What serde takes at most for a list on the word of its length, before its elements are there: one mebibyte. A message may hold two lists, and the second a
/// list in its first element.
const ON_ITS_WORD: usize = 3 << 20;

/// Values of a tree that refer to nothing else: a small multiple of their bytes, since the shortest names and numbers take one byte or two on the wire,
/// and a pointer, a length and an allocation of their own in memory.
fn tree(len: usize) -> usize {
    WORDS + ON_ITS_WORD + 48 * len
}

fn none(_: &str) -> bool {
    false
}

const fn binary(name: &'static str, run: fn(&[u8]) -> bool, room: fn(usize) -> usize) -> Target {
    Target {
        name,
        run,
        room,
        golden: none,
        is_text: false,
    }
}

const fn text(name: &'static str, run: fn(&[u8]) -> bool, room: fn(usize) -> usize) -> Target {
    Target {
        is_text: true,
        ..binary(name, run, room)
    }
}

const fn frame(
    name: &'static str,
    run: fn(&[u8]) -> bool,
    room: fn(usize) -> usize,
    golden: fn(&str) -> bool,
) -> Target {
    Target {
        golden,
        ..binary(name, run, room)
    }
}

/// All of them.
pub const TARGETS: &[Target] = &[
    frame("frame_header", wire::frame_header, fixed, |name| {
        name == "FrameHeader"
    }),
    frame("object_header", wire::object_header, fixed, |name| {
        name == "ObjectHeader"
    }),
    frame("region_header", wire::region_header, fixed, |name| {
        name == "RegionHeader"
    }),
    frame("heartbeat", wire::heartbeat, fixed, |name| {
        name == "Heartbeat"
    }),
    frame("hello", wire::hello, tree, |name| name == "Hello"),
    frame("control", wire::control, tree, wire::is_control),
    binary("frames", wire::frames, tree),
    binary("tunnel", wire::tunnel, tree),
    binary("endpoint", wire::endpoint, fixed),
    binary("outline", tensors::outline, tree),
    binary("chunk_plain", tensors::chunk_plain, tensors::room),
    binary("chunk_fp16", tensors::chunk_fp16, tensors::room),
    binary("chunk_bf16", tensors::chunk_bf16, tensors::room),
    binary("chunk_int8", tensors::chunk_int8, tensors::room),
    binary("chunk_topk", tensors::chunk_topk, tensors::room),
    binary("chunk_topk_fp16", tensors::chunk_topk_fp16, tensors::room),
    binary("chunk_int8_zstd", tensors::chunk_int8_zstd, tensors::room),
    binary("lossless_snappy", tensors::snappy, tensors::room_unpacked),
    binary("lossless_lz4", tensors::lz4, tensors::room_unpacked),
    binary("lossless_zstd", tensors::zstd, tensors::room_unpacked),
    binary("safetensors", disk::safetensors, tree),
    text("manifest", disk::manifest, disk::room),
    text("commit_record", disk::commit_record, disk::room),
    text("view", disk::view, disk::room),
    text("leaf", record::leaf, disk::room),
    text("record", record::lines, disk::room),
    text("note", record::note, disk::room),
    text("proof", record::proof, disk::room),
    text("topology", files::topology, files::room),
    text("faults", files::faults, files::room),
    text("event", files::event, disk::room),
    text("request", files::request, disk::room),
    text("response", files::response, disk::room),
    binary("certificate", identity::certificate, identity::room),
    binary("root", identity::root, identity::room),
    binary("revocation_list", identity::revocation_list, identity::room),
    text("spiffe_name", identity::spiffe_name, fixed),
];

/// What makes inputs that are taken.
pub mod corpus {
    pub use super::files::SITES;
    pub use super::identity::{FEDERATION, NOW};
    pub use super::record::proven;
    pub use super::tensors::{PIECE, chunks, zeros};
}
