//! `tombolo bench codec`: the codecs of contributions on one thread, beside a copy of the same numbers.

use std::io;

use clap::Args;
use serde_json::{Map, json};

use super::measure::{self, Measurement, repeated, show, within};
use crate::cli::{Common, Exit};
use tombolo_core::compress::{
    Codec, Compressor, Encoded, Kernels, MILLION, decode, feedback, fold_chunk,
};
use tombolo_core::rng::Rng;
use tombolo_core::wire::CHUNK_ELEMENTS;

/// Seven buffers of so many elements are 7 GB.
const ELEMENTS_MAX: usize = 1 << 28;

/// More repetitions tell nothing new.
const REPEAT_MAX: usize = 1000;

/// One in a hundred, which is what the topology's `topk` means until it is said otherwise.
const SHARE: u32 = MILLION / 100;

const CODECS: [Codec; 6] = [
    Codec::None,
    Codec::Fp16,
    Codec::Bf16,
    Codec::Int8,
    Codec::TopK {
        share: SHARE,
        halves: false,
    },
    Codec::TopK {
        share: SHARE,
        halves: true,
    },
];

/// The accumulator's factor of each term: no power of two, so that the multiplication is a real one.
const FACTOR: f32 = 0.3;

/// Arguments of `bench codec`.
#[derive(Debug, Args)]
pub struct Codecs {
    /// Numbers to encode, of four bytes each.
    #[arg(long, default_value_t = 25_600_000)]
    elements: usize,
    /// How often each operation is measured; once before that it is not.
    #[arg(long, default_value_t = 7)]
    repeat: usize,
    /// Any processor's instructions instead of the widest that this one has.
    #[arg(long)]
    portable: bool,
}

impl Codecs {
    /// Measures.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || Ok(show(common, &self.measure()?)))
    }

    fn check(&self) -> Result<(), String> {
        within("elements", self.elements as u64, ELEMENTS_MAX as u64)?;
        within("repeat", self.repeat as u64, REPEAT_MAX as u64)
    }

    fn measure(&self) -> io::Result<Vec<Measurement>> {
        let mut stand = Stand::new(self);
        let mut measurements = vec![stand.copy()?];
        for codec in CODECS {
            measurements.extend(stand.codec(codec)?);
        }
        Ok(measurements)
    }
}

/// The vector, and buffers that are touched before anything is measured.
struct Stand {
    kernels: Kernels,
    repeat: usize,
    values: Vec<f32>,
    residual: Vec<f32>,
    decoded: Vec<f32>,
    out: Vec<f32>,
    encoded: Encoded,
}

impl Stand {
    fn new(asked: &Codecs) -> Self {
        let mut rng = Rng::new(1);
        let mut values: Vec<f32> = (0..asked.elements).map(|_| bell(&mut rng)).collect();
        let residual = values.iter().rev().map(|value| value * 0.5).collect();
        // What stands first is found by a decoder that stops at the first block, what stands last by one that forgets the last.
        values[0] = 1.0;
        values[asked.elements - 1] = -1.0;
        Stand {
            kernels: match asked.portable {
                true => Kernels::PORTABLE,
                false => Kernels::widest(),
            },
            repeat: asked.repeat,
            residual,
            decoded: values.clone(),
            out: values.clone(),
            values,
            encoded: Encoded::default(),
        }
    }

    /// Times an operation, then asks whether the result is right.
    fn time(
        &mut self,
        peer: &'static str,
        case: String,
        mut operation: impl FnMut(&mut Self),
        is_right: impl FnOnce(&mut Self) -> bool,
    ) -> io::Result<Measurement> {
        let (seconds, cpu_s_per_op) = repeated(self.repeat, || operation(self))?;
        Ok(Measurement {
            group: "codec",
            peer,
            case,
            n: 1,
            bytes: self.values.len() as u64 * 4,
            seconds,
            cpu_s_per_op,
            ok: is_right(self),
            more: Map::new(),
        })
    }

    fn copy(&mut self) -> io::Result<Measurement> {
        self.time(
            "limit-copy",
            "copy".into(),
            |stand| {
                stand
                    .out
                    .copy_from_slice(std::hint::black_box(&stand.values))
            },
            |stand| stand.out == stand.values,
        )
    }

    fn codec(&mut self, codec: Codec) -> io::Result<Vec<Measurement>> {
        let compressor = codec.compressor();
        let compressor = compressor.as_ref();
        let mut encode = self.time(
            "tombolo",
            format!("{codec} encode"),
            |stand| compressor.encode(stand.kernels, &stand.values, &mut stand.encoded),
            |stand| stand.decode(compressor) && stand.is_near(codec),
        )?;
        let encoded_bytes = self.encoded.bytes().len();
        encode
            .more
            .insert("encoded_bytes".into(), json!(encoded_bytes));
        let fold = self.time(
            "tombolo",
            format!("{codec} decode and fold"),
            |stand| {
                stand.fold(compressor, true);
            },
            |stand| {
                let first = stand.fold(compressor, true);
                let added = stand.fold(compressor, false);
                let mut sums = stand.out.iter().zip(&stand.decoded);
                first && added && sums.all(|(sum, term)| *sum == FACTOR * term + FACTOR * term)
            },
        )?;
        // Of a lossless codec nothing is owed.
        if codec.is_lossless() {
            return Ok(vec![encode, fold]);
        }
        let kernels = self.kernels;
        let apply = self.time(
            "tombolo",
            format!("{codec} add what is owed"),
            |stand| {
                let applied = feedback::apply(kernels, &mut stand.out, &stand.residual, 0);
                applied.expect("0 is an exponent");
            },
            |stand| {
                stand.out.copy_from_slice(&stand.values);
                let applied = feedback::apply(kernels, &mut stand.out, &stand.residual, 0);
                let mut sums = stand.out.iter().zip(&stand.values).zip(&stand.residual);
                applied.is_ok() && sums.all(|((sum, value), owed)| *sum == value + owed)
            },
        )?;
        let remember = self.time(
            "tombolo",
            format!("{codec} keep the rest"),
            |stand| {
                let (values, encoded) = (&stand.values, &stand.encoded);
                let kept =
                    feedback::remember(kernels, compressor, values, encoded, 0, &mut stand.out);
                kept.expect("0 is an exponent");
            },
            |stand| {
                let mut rests = stand.out.iter().zip(&stand.values).zip(&stand.decoded);
                rests.all(|((rest, value), sent)| *rest == value - sent)
            },
        )?;
        Ok(vec![encode, fold, apply, remember])
    }

    /// Decodes all of it; false if it cannot be done.
    fn decode(&mut self, compressor: &dyn Compressor) -> bool {
        let chunks = self.decoded.chunks_mut(CHUNK_ELEMENTS);
        chunks.len() == self.encoded.len()
            && chunks
                .zip(self.encoded.chunks())
                .all(|(out, bytes)| decode(compressor, self.kernels, bytes, out).is_ok())
    }

    fn fold(&mut self, compressor: &dyn Compressor, is_first: bool) -> bool {
        let chunks = self.out.chunks_mut(CHUNK_ELEMENTS);
        chunks.zip(self.encoded.chunks()).all(|(out, bytes)| {
            fold_chunk(compressor, self.kernels, bytes, FACTOR, is_first, out).is_ok()
        })
    }

    /// Whether what was decoded differs from the values by no more than the codec may lose.
    fn is_near(&self, codec: Codec) -> bool {
        let pairs = || self.values.iter().zip(&self.decoded);
        let half = |value: f32, found: f32| (value - found).abs() <= value.abs() / 2048.0 + 6e-8;
        match codec {
            Codec::None => self.values == self.decoded,
            Codec::Fp16 => pairs().all(|(value, found)| half(*value, *found)),
            Codec::Bf16 => {
                pairs().all(|(value, found)| (value - found).abs() <= value.abs() / 256.0)
            }
            Codec::Int8 => {
                let blocks = self.values.chunks(1024).zip(self.decoded.chunks(1024));
                blocks.into_iter().all(|(values, decoded)| {
                    let most = values
                        .iter()
                        .fold(0.0_f32, |most, value| most.max(value.abs()));
                    let mut pairs = values.iter().zip(decoded);
                    // Half a step of 127, and what rounding adds.
                    pairs.all(|(value, found)| (value - found).abs() <= most / 253.0)
                })
            }
            Codec::TopK { share, halves } => {
                let kept = |found: f32| found != 0.0;
                let sent = pairs().filter(|(_, found)| kept(**found));
                let least = sent.fold(f32::INFINITY, |least, (value, _)| least.min(value.abs()));
                let left = pairs().filter(|(_, found)| !kept(**found));
                let most = left.fold(0.0_f32, |most, (value, _)| most.max(value.abs()));
                let count = self.decoded.iter().filter(|found| kept(**found)).count();
                let asked = self.values.len() as u64 * u64::from(share) / u64::from(MILLION);
                let same = |value: f32, found: f32| match halves {
                    true => half(value, found),
                    false => value == found,
                };
                least >= most
                    && count.abs_diff(asked.max(1) as usize) <= 1
                    && pairs().all(|(value, found)| !kept(*found) || same(*value, *found))
            }
        }
    }
}

/// About a normal deviate of 0.01, as updates are: the sum of eight even ones (Irwin and Hall), never farther out than 4.9 deviations.
pub(super) fn bell(rng: &mut Rng) -> f32 {
    let mut sum = 0;
    for bits in [rng.next_u64(), rng.next_u64()] {
        sum += (0..4)
            .map(|part| (bits >> (16 * part)) & 0xFFFF)
            .sum::<u64>();
    }
    // The sum's deviation is sqrt(8 / 12) of one part's range.
    (sum as f32 / 65_536.0 - 4.0) * 0.01 / 0.816_5
}
