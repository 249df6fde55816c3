use std::collections::BTreeSet;
use std::fmt::Write;

use proptest::prelude::*;

use super::samples::{KINDS, controls, hello, name};
use super::*;
use crate::time::Micros;

/// Every frame's bytes as of this version of the protocol, `name hex` a line.
const GOLDEN: &str = include_str!("golden.txt");

#[test]
fn every_kind_of_message_has_a_sample() {
    let names: BTreeSet<&str> = controls().iter().map(name).collect();
    assert_eq!(names.len(), KINDS);
}

#[test]
fn the_bytes_of_every_frame_are_the_golden_ones() {
    let mut found = String::new();
    for (name, bytes) in frames() {
        let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        let _ = writeln!(found, "{name} {hex}");
    }
    assert!(
        found == GOLDEN,
        "the encoding has changed; if that is meant, raise VERSION and make golden.txt:\n{found}"
    );
}

#[test]
fn the_fingerprint_is_that_of_the_golden_bytes() {
    let mut hasher = blake3::Hasher::new();
    for (_, bytes) in frames() {
        hasher.update(&bytes);
    }
    let first = hasher.finalize().as_bytes()[..8].try_into().unwrap();
    let right = u64::from_le_bytes(first);
    assert_eq!(FINGERPRINT, right, "FINGERPRINT must be 0x{right:016x}");
}

#[test]
fn what_was_encoded_is_decoded() {
    for control in controls() {
        let bytes = codec::encode(&control).unwrap();
        assert_eq!(codec::decode::<Control>(&bytes), Ok(control));
    }
    let bytes = codec::encode(&hello()).unwrap();
    assert_eq!(codec::decode::<Hello>(&bytes), Ok(hello()));
    let header = FrameHeader {
        len: 5,
        sequence: 6,
        acknowledged: 7,
    };
    assert_eq!(FrameHeader::from_bytes(&header.to_bytes()), Ok(header));
    let header = ObjectHeader {
        tag: 5,
        len: 6,
        stripe: 7,
        stripes: 8,
    };
    assert_eq!(ObjectHeader::from_bytes(&header.to_bytes()), Some(header));
    for (stripe, stripes) in [(0, 0), (1, 1), (8, 8), (0, STRIPES_MAX + 1)] {
        let none = ObjectHeader {
            stripe,
            stripes,
            ..header
        };
        assert_eq!(ObjectHeader::from_bytes(&none.to_bytes()), None);
    }
    let header = RegionHeader {
        epoch: 1,
        round: 2,
        attempt: 3,
        token: 4,
    };
    assert_eq!(RegionHeader::from_bytes(&header.to_bytes()), Some(header));
}

#[test]
fn a_message_that_is_cut_short_or_followed_by_bytes_is_refused() {
    for control in controls() {
        let mut bytes = codec::encode(&control).unwrap();
        for len in 0..bytes.len() {
            let cut = codec::decode::<Control>(&bytes[..len]);
            assert!(cut.is_err(), "{} cut to {len} bytes", name(&control));
        }
        bytes.push(0);
        assert_eq!(
            codec::decode::<Control>(&bytes),
            Err(DecodeError::Trailing(1))
        );
    }
}

#[test]
fn a_message_over_the_limit_is_refused_on_both_sides_before_anything_is_allocated() {
    let long = vec![0; CONTROL_BYTES_MAX + 1];
    let (found, limit) = (CONTROL_BYTES_MAX + 1, CONTROL_BYTES_MAX);
    let too_long = DecodeError::TooLong { found, limit };
    assert_eq!(codec::decode::<Control>(&long), Err(too_long.clone()));
    assert!(codec::encode(&Control::Endpoint(long)).is_err());
    let mut header = FrameHeader {
        len: 0,
        sequence: 1,
        acknowledged: 0,
    }
    .to_bytes();
    header[..4].copy_from_slice(&(found as u32).to_le_bytes());
    assert_eq!(FrameHeader::from_bytes(&header), Err(too_long));
}

/// Field fault: lengths from the wire are checked before anything is allocated. bincode#239, bincode#764, serde#744
#[test]
fn a_huge_length_inside_a_message_fails_fast() {
    let endpoint = codec::encode(&Control::Endpoint(vec![1, 2, 3])).unwrap();
    let chunks = codec::encode(&vec![Hash::default()]).unwrap();
    for len in [u64::MAX, u64::MAX / 32, 1 << 40, CONTROL_BYTES_MAX as u64] {
        let mut bytes = endpoint.clone();
        bytes[4..12].copy_from_slice(&len.to_le_bytes());
        assert!(codec::decode::<Control>(&bytes).is_err(), "{len} bytes");
        let mut bytes = chunks.clone();
        bytes[..8].copy_from_slice(&len.to_le_bytes());
        assert!(codec::decode::<Vec<Hash>>(&bytes).is_err(), "{len} hashes");
        assert!(codec::decode::<String>(&bytes).is_err(), "{len} letters");
    }
}

/// What a fuzzer found: a view whose domains stood in it twice was taken, and meant the last of them.
#[test]
fn a_map_out_of_order_or_with_an_entry_twice_is_refused() {
    let entry = |domain: &str, node: &str| (domain.to_owned(), node.to_owned());
    // A map is a list of pairs, as far as its bytes go.
    let view = |gateways: Vec<(String, String)>| {
        let kind = 5_u32.to_le_bytes().to_vec();
        let out: Vec<(String, u32)> = Vec::new();
        let rest = codec::encode(&(1_u64, "hq/a".to_owned(), gateways, out)).unwrap();
        codec::decode::<Control>(&[kind, rest].concat())
    };
    let (hq, plant) = (entry("hq", "hq/a"), entry("plant", "plant/b"));
    let Ok(Control::View(good)) = view(vec![hq.clone(), plant.clone()]) else {
        panic!("this is how a view is written")
    };
    assert_eq!(good.gateways.len(), 2);
    for bad in [vec![plant.clone(), hq.clone()], vec![hq.clone(), hq, plant]] {
        let error = view(bad).unwrap_err().to_string();
        assert!(error.contains("another form"), "{error}");
    }
}

#[test]
fn names_that_break_the_rule_are_refused_while_decoding() {
    for bad in ["HQ/a", "hq", "hq/../a", "hq/a\0", ""] {
        let bytes = codec::encode(&bad.to_owned()).unwrap();
        assert!(codec::decode::<NodeId>(&bytes).is_err(), "{bad:?}");
    }
    for bad in ["HQ", "hq/a", "..", "hq\0", ""] {
        let bytes = codec::encode(&bad.to_owned()).unwrap();
        assert!(codec::decode::<DomainId>(&bytes).is_err(), "{bad:?}");
    }
}

#[test]
fn a_region_without_a_header_is_seen() {
    assert_eq!(RegionHeader::from_bytes(&[0; REGION_HEADER_BYTES]), None);
    let bytes = RegionHeader {
        epoch: 1,
        round: 2,
        attempt: 3,
        token: 4,
    }
    .to_bytes();
    for len in 0..32 {
        assert_eq!(RegionHeader::from_bytes(&bytes[..len]), None, "{len} bytes");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        if let Ok(control) = codec::decode::<Control>(&bytes) {
            let again = codec::encode(&control).unwrap();
            prop_assert_eq!(&again, &bytes, "one message, one encoding");
        }
        let _ = codec::decode::<Hello>(&bytes);
        let _ = RegionHeader::from_bytes(&bytes);
    }

    #[test]
    fn a_message_with_a_wrong_byte_is_decoded_without_panic(
        index in 0..controls().len(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = codec::encode(&controls()[index]).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(control) = codec::decode::<Control>(&bytes) {
            prop_assert_eq!(codec::encode(&control).unwrap(), bytes);
        }
    }
}

/// Every frame and header with its name.
fn frames() -> Vec<(String, Vec<u8>)> {
    let mut frames = vec![
        ("Hello".to_owned(), codec::encode(&hello()).unwrap()),
        (
            "FrameHeader".to_owned(),
            FrameHeader {
                len: 1,
                sequence: 2,
                acknowledged: 3,
            }
            .to_bytes()
            .to_vec(),
        ),
        (
            "ObjectHeader".to_owned(),
            ObjectHeader {
                tag: 1,
                len: 2,
                stripe: 3,
                stripes: 4,
            }
            .to_bytes()
            .to_vec(),
        ),
        (
            "RegionHeader".to_owned(),
            RegionHeader {
                epoch: 1,
                round: 2,
                attempt: 3,
                token: 4,
            }
            .to_bytes()
            .to_vec(),
        ),
        (
            "Heartbeat".to_owned(),
            Heartbeat {
                sequence: 1,
                count: 1,
                health: 0,
                sent: Micros(2),
                echo: None,
            }
            .to_bytes()
            .to_vec(),
        ),
        (
            "Heartbeat".to_owned(),
            Heartbeat {
                sequence: 6,
                count: 5,
                health: HEALTH_MAX,
                sent: Micros(4),
                echo: Some(Echo {
                    sent: Micros(2),
                    received: Micros(3),
                }),
            }
            .to_bytes()
            .to_vec(),
        ),
    ];
    for control in controls() {
        frames.push((name(&control).to_owned(), codec::encode(&control).unwrap()));
    }
    frames
}
