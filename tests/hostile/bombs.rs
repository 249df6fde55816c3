//! Bytes that are small and promise much: each is refused in words, and takes no more memory than its decoder may.

use safetensors::SafeTensors;
use tombolo::identity::notary::Notary;
use tombolo::topology;
use tombolo_core::compress::{
    Codec, Coding, Kernels, Lossless, MILLION, Packer, decode, fold_chunk,
};
use tombolo_core::outline::{ChunkValue, Outline};
use tombolo_core::record::{Leaf, Note, Verifier};
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::wire::{CHUNK_ELEMENTS, Control, LIST_BYTES_MAX, codec};

use crate::ledger::{alone, begin, most_since};

/// Words of an error, and what is formatted on the way.
const WORDS: usize = 16 << 10;

/// The most that a piece may hold here.
const PIECE: usize = 256 << 10;

/// The two blocks of 1 MiB that LZ4's frames are read with.
const LZ4_BLOCKS: usize = 2 << 20;

/// Elements of the chunks that are decoded here.
const ELEMENTS: usize = 20_000;

struct Bomb {
    what: &'static str,
    /// What its refusal says.
    reason: &'static str,
    /// Memory that it may take.
    cap: usize,
    bytes: Vec<u8>,
    decoder: fn(&[u8]) -> Result<(), String>,
}

fn bomb(
    what: &'static str,
    reason: &'static str,
    cap: usize,
    bytes: Vec<u8>,
    decoder: fn(&[u8]) -> Result<(), String>,
) -> Bomb {
    Bomb {
        what,
        reason,
        cap,
        bytes,
        decoder,
    }
}

fn packed(method: Lossless, bytes: usize) -> Vec<u8> {
    let mut packed = Vec::new();
    Packer::new(method).pack(&vec![0; bytes], &mut packed);
    packed
}

/// A thousand times what it states.
fn understated(method: Lossless) -> Vec<u8> {
    let mut bomb = packed(method, PIECE << 10);
    bomb[1..5].copy_from_slice(&(PIECE as u32).to_le_bytes());
    bomb
}

fn unpack(method: Lossless, bytes: &[u8]) -> Result<(), String> {
    let unpacked = method.unpack(bytes, PIECE, &mut Vec::new()).map(|_| ());
    unpacked.map_err(|error| error.to_string())
}

fn snappy(bytes: &[u8]) -> Result<(), String> {
    unpack(Lossless::Snappy, bytes)
}

fn lz4(bytes: &[u8]) -> Result<(), String> {
    unpack(Lossless::Lz4, bytes)
}

fn zstd(bytes: &[u8]) -> Result<(), String> {
    unpack(Lossless::Zstd, bytes)
}

fn chunk(coding: Coding, bytes: &[u8]) -> Result<(), String> {
    let compressor = coding.compressor();
    let mut out = vec![0.0; ELEMENTS];
    decode(compressor.as_ref(), Kernels::PORTABLE, bytes, &mut out)
        .map_err(|error| error.to_string())?;
    fold_chunk(
        compressor.as_ref(),
        Kernels::PORTABLE,
        bytes,
        1.0,
        true,
        &mut out,
    )
    .map_err(|error| error.to_string())
}

/// The vector that is decoded into.
const CHUNK: usize = ELEMENTS * 4 + WORDS;

fn plain(bytes: &[u8]) -> Result<(), String> {
    chunk(Codec::None.into(), bytes)
}

fn fp16(bytes: &[u8]) -> Result<(), String> {
    chunk(Codec::Fp16.into(), bytes)
}

fn int8(bytes: &[u8]) -> Result<(), String> {
    chunk(Codec::Int8.into(), bytes)
}

fn topk(bytes: &[u8]) -> Result<(), String> {
    let share = MILLION / 100;
    let codec = Codec::TopK {
        share,
        halves: false,
    };
    chunk(codec.into(), bytes)
}

fn int8_zstd(bytes: &[u8]) -> Result<(), String> {
    let (codec, lossless) = (Codec::Int8, Lossless::Zstd);
    chunk(Coding { codec, lossless }, bytes)
}

/// A sparse chunk: how many, the width of remainders, positions, values.
fn sparse(count: u32, width: u8, positions: &[u8], values: &[f32]) -> Vec<u8> {
    let mut bytes = count.to_le_bytes().to_vec();
    bytes.extend((positions.len() as u32).to_le_bytes());
    bytes.push(width);
    bytes.extend_from_slice(positions);
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

fn control(bytes: &[u8]) -> Result<(), String> {
    codec::decode::<Control>(bytes)
        .map(|_| ())
        .map_err(|error| error.to_string())
}

fn topology(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    topology::parse("bomb.toml", text, std::path::Path::new("/"))
        .map(|_| ())
        .map_err(|diagnosis| diagnosis.to_plain_text())
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_bomb_is_refused_in_words_and_in_the_memory_of_its_decoder() {
    let _alone = alone();
    let unpacked = PIECE + WORDS;
    let mut other_blocks = packed(Lossless::Lz4, PIECE);
    // Blocks of 4 MiB, for which a decoder takes buffers first.
    other_blocks[10] = 0x70;
    let mut two_frames = packed(Lossless::Zstd, PIECE / 2);
    let again = two_frames[5..].to_vec();
    two_frames.extend(again);
    two_frames[1..5].copy_from_slice(&(PIECE as u32).to_le_bytes());
    let ones = |element: f32| {
        let mut bytes = vec![0; ELEMENTS * 4];
        bytes[40..44].copy_from_slice(&element.to_le_bytes());
        bytes
    };
    let mut nan_half = vec![0; ELEMENTS * 2];
    nan_half[10..12].copy_from_slice(&0x7E00_u16.to_le_bytes());
    let mut list = codec::encode(&Control::Endpoint(vec![0; LIST_BYTES_MAX + 1])).unwrap();
    let revoked = {
        // The form of another kind with more in it than that kind may have.
        let golden = include_str!("../../core/src/wire/golden.txt");
        let line = golden.lines().find(|line| line.starts_with("Revoked "));
        let hex = line.unwrap().split_once(' ').unwrap().1;
        u8::from_str_radix(&hex[..2], 16).unwrap()
    };
    list[0] = revoked;
    let nested = |deep: usize| "[".repeat(deep).into_bytes();
    let bombs = vec![
        bomb(
            "snappy: 64 MiB",
            "states",
            WORDS,
            packed(Lossless::Snappy, 64 << 20),
            snappy,
        ),
        bomb(
            "lz4: 64 MiB",
            "states",
            WORDS,
            packed(Lossless::Lz4, 64 << 20),
            lz4,
        ),
        bomb(
            "zstd: 64 MiB",
            "states",
            WORDS,
            packed(Lossless::Zstd, 64 << 20),
            zstd,
        ),
        bomb(
            "snappy: more than it states",
            "cannot be unpacked",
            unpacked,
            understated(Lossless::Snappy),
            snappy,
        ),
        bomb(
            "lz4: more than it states",
            "longer than it states",
            unpacked + LZ4_BLOCKS,
            understated(Lossless::Lz4),
            lz4,
        ),
        bomb(
            "zstd: more than it states",
            "cannot be unpacked",
            unpacked,
            understated(Lossless::Zstd),
            zstd,
        ),
        bomb(
            "lz4: larger blocks",
            "no frame of independent blocks",
            unpacked,
            other_blocks,
            lz4,
        ),
        bomb(
            "zstd: a second frame",
            "behind the end",
            unpacked,
            two_frames,
            zstd,
        ),
        bomb(
            "a packed chunk of 64 MiB",
            "states",
            CHUNK,
            packed(Lossless::Zstd, 64 << 20),
            int8_zstd,
        ),
        bomb(
            "top-k: more than there are",
            "names 4294967295",
            CHUNK,
            sparse(u32::MAX, 0, &[], &[]),
            topk,
        ),
        bomb(
            "top-k: past the end",
            "lead past its end",
            CHUNK,
            sparse(1, 18, &[0xFF; 4], &[1.0]),
            topk,
        ),
        bomb(
            "top-k: positions that end",
            "end too early",
            CHUNK,
            sparse(2, 0, &[1], &[1.0, 1.0]),
            topk,
        ),
        bomb(
            "top-k: only zeros",
            "end too early",
            CHUNK,
            sparse(1, 0, &[0; 4096], &[1.0]),
            topk,
        ),
        bomb(
            "top-k: a wide remainder",
            "wider",
            CHUNK,
            sparse(1, 64, &[1], &[1.0]),
            topk,
        ),
        bomb(
            "top-k: values that are not there",
            "bytes where",
            CHUNK,
            sparse(20_000, 0, &[1], &[1.0]),
            topk,
        ),
        bomb(
            "top-k: no number",
            "NaN",
            CHUNK,
            sparse(1, 0, &[1], &[f32::NAN]),
            topk,
        ),
        bomb("no number", "decodes to NaN", CHUNK, ones(f32::NAN), plain),
        bomb(
            "infinity",
            "decodes to inf",
            CHUNK,
            ones(f32::INFINITY),
            plain,
        ),
        bomb("half of no number", "decodes to NaN", CHUNK, nan_half, fp16),
        bomb(
            "an endless scale",
            "decodes to",
            CHUNK,
            vec![0xFF; ELEMENTS + 4 * ELEMENTS.div_ceil(1024)],
            int8,
        ),
        bomb(
            "an outline of something else",
            "an outline of",
            WORDS,
            vec![3; 64],
            |bytes| {
                let read = Outline::read(bytes, 2 * CHUNK_ELEMENTS, Hash([7; 32]));
                read.map(|_| ()).map_err(|error| error.to_string())
            },
        ),
        bomb(
            "a shape that overflows",
            "is all that a message can announce",
            WORDS,
            Vec::new(),
            |_| {
                let layout = Layout::new([("weight", vec![usize::MAX, 2, usize::MAX])]);
                layout.map(|_| ()).map_err(|error| error.to_string())
            },
        ),
        bomb(
            "a header of 2^64 bytes",
            "header",
            WORDS,
            vec![0xFF; 64],
            |bytes| {
                let read = SafeTensors::deserialize(bytes);
                read.map(|_| ())
                    .map_err(|error| error.to_string().to_lowercase())
            },
        ),
        bomb(
            "a list of revoked certificates in a message",
            "not a valid message",
            2 * LIST_BYTES_MAX + WORDS,
            list,
            control,
        ),
        bomb(
            "a list of revoked certificates",
            "a list of 65537 bytes",
            WORDS,
            vec![0x30; LIST_BYTES_MAX + 1],
            |bytes| Notary.list(&[], bytes),
        ),
        bomb(
            "a certificate of nonsense",
            "cannot be parsed",
            WORDS,
            vec![0x30; 1 << 20],
            |bytes| {
                Notary
                    .holder("harbour", &Default::default(), bytes)
                    .map(|_| ())
            },
        ),
        bomb(
            "a statement of 1 MiB",
            "at most 262144 are allowed",
            WORDS,
            vec![b'['; 1 << 20],
            |bytes| Leaf::parse(text(bytes)).map(|_| ()),
        ),
        bomb(
            "a statement of brackets",
            "recursion limit",
            WORDS,
            [br#"{"a":"#.to_vec(), nested(200_000)].concat(),
            |bytes| Leaf::parse(text(bytes)).map(|_| ()),
        ),
        bomb(
            "a head of 1 MiB",
            "at most 393216 are allowed",
            WORDS,
            vec![b'\n'; 1 << 20],
            |bytes| Note::parse(text(bytes)).map(|_| ()),
        ),
        bomb(
            "a topology of brackets",
            "deep",
            64 << 20,
            [b"a = ".to_vec(), nested(200_000)].concat(),
            topology,
        ),
    ];
    assert!(bombs.len() >= 24);
    for Bomb {
        what,
        reason,
        cap,
        bytes,
        decoder,
    } in bombs
    {
        let since = begin();
        let refused = decoder(&bytes);
        let most = most_since(since);
        println!("{what}: {} bytes in, {most} of {cap} taken", bytes.len());
        let found = refused.expect_err(what);
        assert!(found.contains(reason), "{what}: {found}");
        assert!(
            most <= cap + cap / 4,
            "{what}: {most} bytes, {cap} are stated"
        );
    }
}

/// A chunk of a model proves itself by the outline: one byte of another gives another value.
#[test]
fn a_chunk_with_another_byte_has_another_value() {
    let _alone = alone();
    let elements = CHUNK_ELEMENTS + 9;
    let outline = Outline::of(&vec![1.0; elements]);
    let mut last: Vec<u8> = [1.0_f32; 9]
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    let value = |bytes: &[u8]| {
        let mut value = ChunkValue::new(elements, 1);
        value.push(bytes);
        value.finish()
    };
    assert_eq!(value(&last), outline.values()[1]);
    for bit in 0..last.len() * 8 {
        last[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(value(&last), outline.values()[1], "bit {bit}");
        last[bit / 8] ^= 1 << (bit % 8);
    }
}
