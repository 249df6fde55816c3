//! Bytes from the wire, right and wrong. Field faults lance#8456 (a compressed buffer that states another length than it has) and
//! bincode#239 (a length from the wire is memory taken before it is checked).

use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

const METHODS: [Lossless; 3] = [Lossless::Snappy, Lossless::Lz4, Lossless::Zstd];

fn pack(method: Lossless, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Packer::new(method).pack(plain, &mut out);
    out
}

fn unpack(method: Lossless, bytes: &[u8], most: usize) -> Result<Vec<u8>, UnpackError> {
    let mut room = Vec::new();
    let unpacked = method.unpack(bytes, most, &mut room).map(<[u8]>::to_vec);
    assert!(
        room.capacity() <= most,
        "{method}: more than the most was allocated"
    );
    unpacked
}

fn noise(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(len as u64);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

/// Bytes that shrink, but not to nothing.
fn text(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(len as u64);
    (0..len)
        .map(|at| (at / 7) as u8 | (rng.next_u64() as u8 & 1))
        .collect()
}

#[test]
fn what_is_packed_comes_back_and_repeats_itself() {
    for method in Lossless::ALL {
        let mut packer = Packer::new(method);
        for len in [0, 1, 4, 5, 100, 4096, 70_000] {
            for plain in [vec![0; len], noise(len), text(len)] {
                let mut packed = Vec::new();
                packer.pack(&plain, &mut packed);
                assert_eq!(
                    packed,
                    pack(method, &plain),
                    "{method}: tables leave traces"
                );
                assert!(packed.len() <= method.bytes_max(len), "{method} of {len}");
                assert_eq!(
                    unpack(method, &packed, len).as_ref(),
                    Ok(&plain),
                    "{method}"
                );
            }
        }
    }
}

#[test]
fn what_shrinks_is_packed_and_what_does_not_travels_as_it_is() {
    for method in METHODS {
        assert!(pack(method, &[0; 10_000]).len() < 1000, "{method}");
        let noise = noise(10_000);
        let packed = pack(method, &noise);
        assert_eq!((packed[0], &packed[1..]), (PLAIN, &noise[..]), "{method}");
        // The shortest: a header would cost more than is saved.
        assert_eq!(pack(method, &[7; 4]), [PLAIN, 7, 7, 7, 7], "{method}");
    }
}

#[test]
fn more_than_there_can_be_is_refused_before_it_is_allocated() {
    for method in METHODS {
        let packed = pack(method, &[0; 10_000]);
        let refused = unpack(method, &packed, 9_999);
        let (found, most) = (10_000, 9_999);
        assert_eq!(
            refused,
            Err(UnpackError::Long {
                method,
                found,
                most
            })
        );
        let plain = pack(method, &noise(10_000));
        let refused = unpack(method, &plain, 9_999);
        assert_eq!(
            refused,
            Err(UnpackError::Long {
                method,
                found,
                most
            })
        );
        // All that four bytes can say.
        let refused = unpack(method, &[PACKED, 255, 255, 255, 255, 0], 100);
        assert!(
            matches!(refused, Err(UnpackError::Long { most: 100, .. })),
            "{refused:?}"
        );
    }
}

/// A bomb: few bytes that would be many, though they state few.
#[test]
fn a_bomb_is_refused_and_never_grows_beyond_what_it_states() {
    for method in METHODS {
        let mut bomb = pack(method, &vec![0; 1 << 22]);
        bomb[1..5].copy_from_slice(&1000u32.to_le_bytes());
        let refused = unpack(method, &bomb, 4096);
        assert!(
            matches!(refused, Err(UnpackError::Damaged { stated: 1000, .. })),
            "{method}: {refused:?}"
        );
    }
}

#[test]
fn a_piece_that_states_more_than_it_holds_is_refused() {
    for method in METHODS {
        let mut packed = pack(method, &text(3000));
        packed[1..5].copy_from_slice(&3001u32.to_le_bytes());
        let (stated, found) = (3001, 3000);
        let short = UnpackError::Short {
            method,
            stated,
            found,
        };
        assert_eq!(unpack(method, &packed, 4096), Err(short));
    }
}

#[test]
fn a_truncated_piece_is_refused_wherever_it_is_cut() {
    for method in METHODS {
        let packed = pack(method, &text(3000));
        assert_eq!(packed[0], PACKED, "{method}");
        for len in 0..packed.len() {
            let refused = unpack(method, &packed[..len], 4096);
            match len {
                0..HEADER_BYTES => {
                    let header = UnpackError::Header { method, found: len };
                    assert_eq!(refused, Err(header));
                }
                _ => assert!(refused.is_err(), "{method} cut to {len}"),
            }
        }
    }
}

#[test]
fn bytes_behind_the_end_are_refused_whatever_they_are() {
    for method in METHODS {
        let packed = pack(method, &text(3000));
        // Among them what a method may pass over: an empty last sequence of lz4, and a frame of zstd that is to be skipped.
        let skipped = [0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0];
        for behind in [&[0][..], &[0, 0], &[255], &[1, 2, 3, 4, 5], &skipped] {
            let long = [&packed, behind].concat();
            let refused = unpack(method, &long, 4096);
            assert!(refused.is_err(), "{method} with {behind:?} behind it");
        }
    }
    let long = [&pack(Lossless::Zstd, &text(3000))[..], &[9; 3]].concat();
    let trailing = UnpackError::Trailing {
        method: Lossless::Zstd,
        left: 3,
    };
    assert_eq!(unpack(Lossless::Zstd, &long, 4096), Err(trailing));
}

#[test]
fn a_flag_of_no_meaning_is_refused_naming_it() {
    for method in METHODS {
        let flag = UnpackError::Flag { method, found: 2 };
        assert_eq!(unpack(method, &[2, 0, 0, 0, 0, 0], 100), Err(flag));
    }
}

#[test]
fn names_are_read_back() {
    for method in Lossless::ALL {
        assert_eq!(method.to_string().parse(), Ok(method));
    }
    let refused = "gzip".parse::<Lossless>().unwrap_err();
    assert!(
        refused.contains("\"gzip\"") && refused.contains("snappy, lz4 or zstd"),
        "{refused}"
    );
}

proptest! {
    /// Any bytes are an error or a piece: never a panic, and never more memory than was given leave for.
    #[test]
    fn any_bytes_are_refused_or_read(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        packed in any::<bool>(),
        stated in 0u32..600,
        most in 0usize..500,
        which in 0usize..3,
    ) {
        let mut bytes = bytes;
        if packed && bytes.len() >= HEADER_BYTES {
            bytes[0] = PACKED;
            bytes[1..HEADER_BYTES].copy_from_slice(&stated.to_le_bytes());
        }
        if let Ok(plain) = unpack(METHODS[which], &bytes, most) {
            prop_assert!(plain.len() <= most);
        }
    }

    /// A changed bit is an error or another piece of the stated length.
    #[test]
    fn a_flipped_bit_is_refused_or_read(which in 0usize..3, at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = pack(METHODS[which], &text(2000));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(plain) = unpack(METHODS[which], &bytes, 2500) {
            prop_assert!(plain.len() <= 2500);
        }
    }
}
