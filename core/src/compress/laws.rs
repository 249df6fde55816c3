//! What every codec must hold. A new one is tested here by its line in [`all`].

use proptest::prelude::*;

use super::*;
use crate::rng::Rng;
use crate::wire::CHUNK_ELEMENTS;

/// Every codec alone, then each with a lossless stage behind it.
fn all() -> Vec<Coding> {
    let top = |share, halves| Codec::TopK { share, halves };
    let codecs = [
        Codec::None,
        Codec::Fp16,
        Codec::Bf16,
        Codec::Int8,
        top(10_000, false),
        top(10_000, true),
        top(500_000, true),
        top(MILLION, false),
    ];
    let stages = [Lossless::Snappy, Lossless::Lz4, Lossless::Zstd];
    let mut all: Vec<Coding> = codecs.map(Coding::from).into();
    for (at, codec) in codecs.into_iter().enumerate() {
        // One stage a codec: what packs sees bytes only.
        let lossless = stages[at % stages.len()];
        all.push(Coding { codec, lossless });
    }
    all
}

fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    let one = |rng: &mut Rng| (rng.next_f64() + rng.next_f64() + rng.next_f64() - 1.5) as f32;
    (0..len).map(|_| one(&mut rng)).collect()
}

fn encode(codec: Coding, kernels: Kernels, values: &[f32]) -> Encoded {
    let mut encoded = Encoded::default();
    codec.compressor().encode(kernels, values, &mut encoded);
    encoded
}

fn decode_all(codec: Coding, encoded: &Encoded, len: usize) -> Vec<f32> {
    let compressor = codec.compressor();
    let mut out = vec![0.0; len];
    assert_eq!(encoded.len(), len.div_ceil(CHUNK_ELEMENTS));
    for (out, bytes) in out.chunks_mut(CHUNK_ELEMENTS).zip(encoded.chunks()) {
        assert!(bytes.len() <= compressor.bytes_max(out.len()));
        decode(compressor.as_ref(), Kernels::widest(), bytes, out).unwrap();
    }
    out
}

/// Lengths around the borders of groups, blocks and chunks.
const LENGTHS: [usize; 9] = [
    0,
    1,
    1023,
    1025,
    BLOCK,
    BLOCK + 1,
    3 * BLOCK - 1,
    CHUNK_ELEMENTS,
    CHUNK_ELEMENTS + 5,
];

#[test]
fn what_comes_back_is_near_what_was_sent() {
    for len in LENGTHS {
        let values = random(len, len as u64);
        for codec in all() {
            let back = decode_all(codec, &encode(codec, Kernels::widest(), &values), len);
            let far = |a: &f32, b: &f32| (a - b).abs();
            let worst = values
                .iter()
                .zip(&back)
                .map(|(a, b)| far(a, b))
                .fold(0.0, f32::max);
            match codec.codec {
                Codec::None
                | Codec::TopK {
                    share: MILLION,
                    halves: false,
                } => assert_eq!(values, back),
                Codec::Fp16 => assert!(worst <= 1.5 / 2048.0, "{codec} {worst}"),
                Codec::Bf16 => assert!(worst <= 1.5 / 256.0, "{codec} {worst}"),
                Codec::Int8 => assert!(worst <= 1.5 / 254.0, "{codec} {worst}"),
                Codec::TopK { share, .. } => {
                    let sent = back.iter().filter(|value| **value != 0.0).count();
                    let expected = (len * share as usize / MILLION as usize).max(1).min(len);
                    assert_eq!(sent, expected, "{codec} of {len}");
                }
            }
        }
    }
}

#[test]
fn the_wide_path_and_the_portable_one_make_the_same_bytes() {
    for len in LENGTHS {
        let mut values = random(len, 7);
        // Everything a float can be, infinities and what is no number among it.
        let mut rng = Rng::new(9);
        for value in values.iter_mut().step_by(3) {
            *value = f32::from_bits(rng.next_u64() as u32);
        }
        for codec in all() {
            let wide = encode(codec, Kernels::widest(), &values);
            assert_eq!(
                wide,
                encode(codec, Kernels::PORTABLE, &values),
                "{codec} {len}"
            );
            let compressor = codec.compressor();
            for bytes in wide.chunks().take(1) {
                let mut outs = [
                    vec![0.0f32; len.min(CHUNK_ELEMENTS)],
                    vec![0.0; len.min(CHUNK_ELEMENTS)],
                ];
                decode(compressor.as_ref(), Kernels::widest(), bytes, &mut outs[0]).unwrap();
                decode(compressor.as_ref(), Kernels::PORTABLE, bytes, &mut outs[1]).unwrap();
                let bits =
                    |out: &[f32]| out.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&outs[0]), bits(&outs[1]), "{codec} {len}");
            }
        }
    }
}

#[test]
fn a_fold_of_a_chunk_is_a_decoding_and_a_fold() {
    let values = random(2 * BLOCK + 17, 4);
    for codec in all() {
        let compressor = codec.compressor();
        let encoded = encode(codec, Kernels::widest(), &values);
        let bytes = encoded.chunks().next().unwrap();
        let decoded = decode_all(codec, &encoded, values.len());
        let mut expected = vec![-0.0; values.len()];
        let mut folded = expected.clone();
        for (is_first, factor) in [(true, 4.0), (false, 0.5)] {
            if is_first {
                fold::scale_into(&mut expected, factor, &decoded);
            } else {
                fold::add_scaled(&mut expected, factor, &decoded);
            }
            fold_chunk(
                compressor.as_ref(),
                Kernels::widest(),
                bytes,
                factor,
                is_first,
                &mut folded,
            )
            .unwrap();
        }
        let bits = |out: &[f32]| out.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&folded), bits(&expected), "{codec}");
    }
}

#[test]
fn what_is_not_finite_is_refused_after_decoding_and_what_is_finite_stays_so() {
    for codec in all() {
        let mut values = random(5000, 2);
        let fold = |values: &[f32]| {
            let encoded = encode(codec, Kernels::widest(), values);
            let mut sum = vec![0.0; values.len()];
            let bytes = encoded.chunks().next().unwrap();
            fold_chunk(
                codec.compressor().as_ref(),
                Kernels::widest(),
                bytes,
                1.0,
                true,
                &mut sum,
            )
        };
        if codec.codec != Codec::Bf16 {
            values[77] = -f32::MAX;
            fold(&values).unwrap();
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            values[4321] = bad;
            let refused = fold(&values).unwrap_err();
            assert!(
                matches!(refused, ChunkError::NotFinite { .. }),
                "{codec}: {refused}"
            );
        }
    }
}

/// What is sent, and what is left over at the end, is all that there was: over rounds whose exponents differ, and in any order of the
/// elements. Field fault: compression ranks by magnitude; sent values plus residue equal the true sum. pfl-research#65,
/// pytorch#48670, horovod#2054
#[test]
fn nothing_is_lost_over_rounds() {
    let len = 3 * BLOCK + 100;
    for codec in all() {
        let compressor = codec.compressor();
        let (mut residual, mut pending) = (vec![0.0f32; len], vec![0.0f32; len]);
        let (mut given, mut sent) = (vec![0.0f64; len], vec![0.0f64; len]);
        let mut encoded = Encoded::default();
        for round in 0..40 {
            let exponent = [3, 5, 4, -2][round % 4];
            let mut sum = random(len, round as u64);
            let unit = f64::from(fold::power(exponent).unwrap());
            for (given, sum) in given.iter_mut().zip(&sum) {
                *given += f64::from(*sum) * unit;
            }
            feedback::apply(Kernels::widest(), &mut sum, &residual, exponent).unwrap();
            compressor.encode(Kernels::widest(), &sum, &mut encoded);
            let kept = compressor.as_ref();
            feedback::remember(
                Kernels::widest(),
                kept,
                &sum,
                &encoded,
                exponent,
                &mut pending,
            )
            .unwrap();
            std::mem::swap(&mut residual, &mut pending);
            for (sent, value) in sent.iter_mut().zip(decode_all(codec, &encoded, len)) {
                *sent += f64::from(value) * unit;
            }
        }
        for index in 0..len {
            let found = sent[index] + f64::from(residual[index]);
            let off = (found - given[index]).abs();
            assert!(
                off < 1e-3,
                "{codec}: element {index} is {found}, not {}",
                given[index]
            );
        }
    }
}

#[test]
fn names_are_read_back() {
    for codec in all() {
        let read: Coding = codec.to_string().parse().unwrap();
        assert_eq!(read.to_string(), codec.to_string());
    }
    assert!("topk+int8".parse::<Codec>().is_err());
    let alone: Coding = "lz4".parse().unwrap();
    assert_eq!(alone.to_string(), "none+lz4");
    for wrong in [
        "",
        "+",
        "lz4+zstd",
        "zstd+fp16",
        "fp16+none",
        "fp16+",
        "+lz4",
        "topk+int8+lz4",
    ] {
        assert!(wrong.parse::<Coding>().is_err(), "{wrong:?}");
    }
}

/// What a lossless stage packs decodes to the same bits as without it.
#[test]
fn a_lossless_stage_changes_bytes_and_no_number() {
    let mut values = random(CHUNK_ELEMENTS + 77, 3);
    values[5000..90_000].fill(0.0);
    values[6000] = -0.0;
    for codec in [Codec::None, Codec::Fp16, Codec::Int8] {
        let plain = encode(codec.into(), Kernels::widest(), &values);
        let expected = decode_all(codec.into(), &plain, values.len());
        for lossless in [Lossless::Snappy, Lossless::Lz4, Lossless::Zstd] {
            let coding = Coding { codec, lossless };
            let packed = encode(coding, Kernels::widest(), &values);
            assert!(packed.bytes().len() < plain.bytes().len(), "{coding}");
            let found = decode_all(coding, &packed, values.len());
            let bits = |out: &[f32]| out.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&expected), "{coding}");
        }
    }
}

proptest! {
    /// Any bytes are an error or a chunk: never a panic, and never more memory than was given.
    #[test]
    fn any_bytes_are_refused_or_read(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        elements in 0usize..300,
        which in 0usize..16,
    ) {
        let compressor = all()[which].compressor();
        let mut out = vec![0.0; elements];
        let _ = decode(compressor.as_ref(), Kernels::PORTABLE, &bytes, &mut out);
    }

    /// A changed byte is an error or another chunk.
    #[test]
    fn a_flipped_bit_is_refused_or_read(which in 0usize..16, at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let codec = all()[which];
        let encoded = encode(codec, Kernels::PORTABLE, &random(600, 1));
        let mut bytes = encoded.bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let mut out = vec![0.0; 600];
        let _ = decode(codec.compressor().as_ref(), Kernels::PORTABLE, &bytes, &mut out);
        let cut = &bytes[..at];
        prop_assert!(decode(codec.compressor().as_ref(), Kernels::PORTABLE, cut, &mut out).is_err());
    }
}
