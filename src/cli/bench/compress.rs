//! `tombolo bench compress`: what lossless methods make of updates, on one thread: as they are, in half precision, and sparse.
//!
//! The vector is seeded, so ratios are the same everywhere; speeds are this machine's and stand beside a copy of the same bytes.

use std::hint::black_box;
use std::io;

use clap::Args;
use miniz_oxide::{deflate, inflate};
use serde_json::{Map, json};

use super::codec::bell;
use super::measure::{self, Measurement, repeated, show, within};
use crate::cli::{Common, Exit};
use tombolo_core::compress::{Codec, Encoded, Kernels, Lossless, MILLION, Packer, decode};
use tombolo_core::rng::Rng;
use tombolo_core::tensor::bytes_of;
use tombolo_core::wire::CHUNK_ELEMENTS;

/// A few buffers of so many elements are 4 GB.
const ELEMENTS_MAX: usize = 1 << 28;

/// More repetitions tell nothing new.
const REPEAT_MAX: usize = 1000;

/// Packed at once, as a chunk of a contribution is.
const PIECE_BYTES: usize = CHUNK_ELEMENTS * 4;

/// What the gzip program takes unless it is told otherwise.
const GZIP_LEVEL: u8 = 6;

/// Arguments of `bench compress`.
#[derive(Debug, Args)]
pub struct Compress {
    /// Numbers of the update, of four bytes each.
    #[arg(long, default_value_t = 2_560_000)]
    elements: usize,
    /// How often each operation is measured; once before that it is not.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
}

impl Compress {
    /// Measures.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || Ok(show(common, &self.measure()?)))
    }

    fn check(&self) -> Result<(), String> {
        within("elements", self.elements as u64, ELEMENTS_MAX as u64)?;
        within("repeat", self.repeat as u64, REPEAT_MAX as u64)
    }

    fn measure(&self) -> io::Result<Vec<Measurement>> {
        let mut measurements = Vec::new();
        for (data, bytes) in updates(self.elements) {
            measurements.push(self.copy(data, &bytes)?);
            for method in METHODS {
                measurements.extend(self.method(data, &bytes, method)?);
            }
        }
        Ok(measurements)
    }

    fn copy(&self, data: &str, bytes: &[u8]) -> io::Result<Measurement> {
        let mut out = bytes.to_vec();
        let mut measurement = self.time(bytes.len(), || out.copy_from_slice(black_box(bytes)))?;
        measurement.peer = "limit-copy";
        measurement.case = format!("{data} copy");
        measurement.ok = out == bytes;
        Ok(measurement)
    }

    fn method(&self, data: &str, bytes: &[u8], method: Method) -> io::Result<[Measurement; 2]> {
        let mut pieces = Vec::new();
        let mut encode = self.time(bytes.len(), || pieces = method.encode(black_box(bytes)))?;
        let mut back = Vec::with_capacity(bytes.len());
        let mut is_whole = true;
        let mut decode = self.time(bytes.len(), || {
            back.clear();
            is_whole &= method.decode(&pieces, &mut back);
        })?;
        let packed: usize = pieces.iter().map(Vec::len).sum();
        let name = method.name();
        for (measurement, what) in [(&mut encode, "encode"), (&mut decode, "decode")] {
            measurement.peer = method.peer();
            measurement.case = format!("{data} {name} {what}");
            measurement.ok = is_whole && back == bytes;
            let more = &mut measurement.more;
            more.insert("packed_bytes".into(), json!(packed));
            let ratio = bytes.len() as f64 / packed as f64;
            more.insert("ratio".into(), json!(ratio));
        }
        Ok([encode, decode])
    }

    /// Times an operation on so many bytes.
    fn time(&self, bytes: usize, operation: impl FnMut()) -> io::Result<Measurement> {
        let (seconds, cpu_s_per_op) = repeated(self.repeat, operation)?;
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let mut more = Map::new();
        // Of the quickest: what others do on this machine only makes an operation slower.
        more.insert("mb_per_s".into(), json!(bytes as f64 / least / 1e6));
        Ok(Measurement {
            group: "compress",
            peer: "tombolo",
            case: String::new(),
            n: 1,
            bytes: bytes as u64,
            seconds,
            cpu_s_per_op,
            ok: false,
            more,
        })
    }
}

/// One update as it is, in half precision, and with all but its largest hundredth zero.
fn updates(elements: usize) -> [(&'static str, Vec<u8>); 3] {
    let mut rng = Rng::new(1);
    let values: Vec<f32> = (0..elements).map(|_| bell(&mut rng)).collect();
    let (kernels, mut encoded) = (Kernels::PORTABLE, Encoded::default());
    Codec::Fp16
        .compressor()
        .encode(kernels, &values, &mut encoded);
    let halves = encoded.bytes().to_vec();
    let largest = Codec::TopK {
        share: MILLION / 100,
        halves: false,
    };
    let largest = largest.compressor();
    largest.encode(kernels, &values, &mut encoded);
    let mut sparse = vec![0.0; elements];
    for (out, chunk) in sparse.chunks_mut(CHUNK_ELEMENTS).zip(encoded.chunks()) {
        let decoded = decode(largest.as_ref(), kernels, chunk, out);
        decoded.expect("what was encoded can be decoded");
    }
    [
        ("raw", bytes_of(&values).to_vec()),
        ("fp16", halves),
        ("sparse", bytes_of(&sparse).to_vec()),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Method {
    Gzip,
    Ours(Lossless),
}

const METHODS: [Method; 4] = [
    Method::Gzip,
    Method::Ours(Lossless::Snappy),
    Method::Ours(Lossless::Lz4),
    Method::Ours(Lossless::Zstd),
];

impl Method {
    fn name(self) -> String {
        match self {
            Method::Gzip => "gzip".into(),
            Method::Ours(lossless) => lossless.to_string(),
        }
    }

    fn peer(self) -> &'static str {
        match self {
            Method::Gzip => "miniz_oxide",
            Method::Ours(_) => "tombolo",
        }
    }

    fn encode(self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let pieces = bytes.chunks(PIECE_BYTES);
        match self {
            Method::Gzip => {
                let piece = |piece| deflate::compress_to_vec_zlib(piece, GZIP_LEVEL);
                pieces.map(piece).collect()
            }
            Method::Ours(lossless) => {
                let mut packer = Packer::new(lossless);
                let piece = |piece| {
                    let mut packed = Vec::new();
                    packer.pack(piece, &mut packed);
                    packed
                };
                pieces.map(piece).collect()
            }
        }
    }

    /// Appends what the pieces hold; false if one of them cannot be read.
    fn decode(self, pieces: &[Vec<u8>], out: &mut Vec<u8>) -> bool {
        let mut room = Vec::new();
        pieces.iter().all(|piece| match self {
            Method::Gzip => match inflate::decompress_to_vec_zlib_with_limit(piece, PIECE_BYTES) {
                Ok(plain) => {
                    out.extend_from_slice(&plain);
                    true
                }
                Err(_) => false,
            },
            Method::Ours(lossless) => match lossless.unpack(piece, PIECE_BYTES, &mut room) {
                Ok(plain) => {
                    out.extend_from_slice(plain);
                    true
                }
                Err(_) => false,
            },
        })
    }
}
