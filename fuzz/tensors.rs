//! Tensors on their way: outlines, chunks of every codec, what is packed without loss.

use std::cell::RefCell;
use std::sync::LazyLock;

use tombolo_core::compress::{
    self, Codec, Coding, Encoded, Kernels, Lossless, MILLION, Packer, fold_chunk,
};
use tombolo_core::outline::Outline;
use tombolo_core::tensor::Hash;
use tombolo_core::wire::CHUNK_ELEMENTS;

use super::WORDS;

/// Of the chunks that are decoded: a block, and a part of one.
pub const ELEMENTS: usize = 4096 + 77;

/// Of the model whose outlines are read: three chunks, the last of which is short.
const MODEL_ELEMENTS: usize = 2 * CHUNK_ELEMENTS + 5;

/// The most bytes that a packed piece may hold.
pub const PIECE: usize = 64 << 10;

/// The chunk itself twice, as it is and unpacked, and the decoder.
pub fn room(_: usize) -> usize {
    WORDS + 2 * ELEMENTS * 4
}

/// What a method may write, and its own buffers: LZ4's two blocks of 1 MiB; Zstandard's are not of Rust's allocator, and of fixed size.
pub fn room_unpacked(_: usize) -> usize {
    WORDS + PIECE + (3 << 20)
}

/// The outline of a model of zeros.
static OUTLINE: LazyLock<Outline> = LazyLock::new(|| Outline::of(&vec![0.0; MODEL_ELEMENTS]));

/// What [`outline`] takes.
pub fn zeros() -> Vec<u8> {
    OUTLINE.to_bytes()
}

pub fn outline(bytes: &[u8]) -> bool {
    let of_any = Outline::read(bytes, MODEL_ELEMENTS, Hash::default());
    assert!(of_any.is_err(), "nobody knows a model of that hash");
    Outline::read(bytes, MODEL_ELEMENTS, OUTLINE.hash()).is_ok_and(|outline| {
        assert_eq!(outline.to_bytes(), bytes);
        assert_eq!(outline, *OUTLINE);
        true
    })
}

/// A chunk is decoded and folded alike; what was folded is finite.
fn chunk(coding: Coding, bytes: &[u8]) -> bool {
    thread_local! {
        static ROOM: RefCell<[Vec<f32>; 2]> = const { RefCell::new([const { Vec::new() }; 2]) };
    }
    let compressor = coding.compressor();
    ROOM.with_borrow_mut(|[decoded, folded]| {
        decoded.clear();
        decoded.resize(ELEMENTS, 0.0);
        folded.clear();
        folded.resize(ELEMENTS, 0.0);
        let kernels = Kernels::PORTABLE;
        let read = compress::decode(compressor.as_ref(), kernels, bytes, decoded);
        let into = fold_chunk(compressor.as_ref(), kernels, bytes, 1.0, true, folded);
        match (read, into) {
            (Ok(()), Ok(())) => {
                assert!(decoded.iter().all(|value| value.is_finite()));
                assert_eq!(decoded, folded);
                true
            }
            // A fold refuses what is not finite, too.
            (Ok(()), Err(_)) => {
                assert!(decoded.iter().any(|value| !value.is_finite()));
                false
            }
            (Err(_), Ok(())) => panic!("it was folded and cannot be decoded"),
            (Err(_), Err(_)) => false,
        }
    })
}

/// One in a hundred.
const fn top(halves: bool) -> Codec {
    Codec::TopK {
        share: MILLION / 100,
        halves,
    }
}

pub fn chunk_plain(bytes: &[u8]) -> bool {
    chunk(Codec::None.into(), bytes)
}

pub fn chunk_fp16(bytes: &[u8]) -> bool {
    chunk(Codec::Fp16.into(), bytes)
}

pub fn chunk_bf16(bytes: &[u8]) -> bool {
    chunk(Codec::Bf16.into(), bytes)
}

pub fn chunk_int8(bytes: &[u8]) -> bool {
    chunk(Codec::Int8.into(), bytes)
}

pub fn chunk_topk(bytes: &[u8]) -> bool {
    chunk(top(false).into(), bytes)
}

pub fn chunk_topk_fp16(bytes: &[u8]) -> bool {
    chunk(top(true).into(), bytes)
}

/// What [`chunk_int8_zstd`] reads.
const PACKED: Coding = Coding {
    codec: Codec::Int8,
    lossless: Lossless::Zstd,
};

pub fn chunk_int8_zstd(bytes: &[u8]) -> bool {
    chunk(PACKED, bytes)
}

/// What an encoder makes of a vector, for each target of chunks.
pub fn chunks() -> Vec<(&'static str, Vec<u8>)> {
    let codings: [(&str, Coding); 7] = [
        ("chunk_plain", Codec::None.into()),
        ("chunk_fp16", Codec::Fp16.into()),
        ("chunk_bf16", Codec::Bf16.into()),
        ("chunk_int8", Codec::Int8.into()),
        ("chunk_topk", top(false).into()),
        ("chunk_topk_fp16", top(true).into()),
        ("chunk_int8_zstd", PACKED),
    ];
    let values: Vec<f32> = (0..ELEMENTS)
        .map(|at| ((at * 37 % 101) as f32 - 50.0) / (1 + at % 7) as f32)
        .collect();
    let encode = |coding: Coding| {
        let mut encoded = Encoded::default();
        let compressor = coding.compressor();
        compressor.encode(Kernels::PORTABLE, &values, &mut encoded);
        encoded.take()
    };
    codings.map(|(name, coding)| (name, encode(coding))).into()
}

/// What is unpacked is never longer than it may be, and packs and unpacks to itself.
fn unpack(method: Lossless, bytes: &[u8]) -> bool {
    let (mut room, mut again) = (Vec::new(), Vec::new());
    let Ok(plain) = method.unpack(bytes, PIECE, &mut room) else {
        assert!(room.len() <= PIECE && room.capacity() <= 2 * PIECE);
        return false;
    };
    assert!(plain.len() <= PIECE);
    let mut packed = Vec::new();
    Packer::new(method).pack(plain, &mut packed);
    assert_eq!(method.unpack(&packed, PIECE, &mut again).unwrap(), plain);
    true
}

pub fn snappy(bytes: &[u8]) -> bool {
    unpack(Lossless::Snappy, bytes)
}

pub fn lz4(bytes: &[u8]) -> bool {
    unpack(Lossless::Lz4, bytes)
}

pub fn zstd(bytes: &[u8]) -> bool {
    unpack(Lossless::Zstd, bytes)
}
