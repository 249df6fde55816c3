//! Frames of a connection.

use tombolo_core::link::Memory;
use tombolo_core::relay::{Halves, Header};
use tombolo_core::wire::{
    Control, FrameHeader, Heartbeat, Hello, ObjectHeader, REGION_HEADER_BYTES, RegionHeader, codec,
};
use tombolo_fabric::Endpoint;

pub fn frame_header(bytes: &[u8]) -> bool {
    let Ok(array) = bytes.try_into() else {
        return false;
    };
    FrameHeader::from_bytes(array).is_ok_and(|header| {
        assert_eq!(header.to_bytes()[..], *bytes);
        true
    })
}

pub fn object_header(bytes: &[u8]) -> bool {
    let Ok(array) = bytes.try_into() else {
        return false;
    };
    ObjectHeader::from_bytes(array).is_some_and(|header| {
        assert_eq!(header.to_bytes()[..], *bytes);
        true
    })
}

pub fn region_header(bytes: &[u8]) -> bool {
    RegionHeader::from_bytes(bytes).is_some_and(|header| {
        let written = header.to_bytes();
        assert_eq!(written.len(), REGION_HEADER_BYTES);
        assert_eq!(RegionHeader::from_bytes(&written), Some(header));
        true
    })
}

/// Datagrams of a tunnel, each behind its length.
pub fn tunnel(mut bytes: &[u8]) -> bool {
    let mut halves = Halves::default();
    let mut any = false;
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (datagram, rest) = rest.split_at(length);
        if let Some((header, contents)) = Header::read(datagram) {
            assert_eq!(header.write(contents), datagram);
            any |= halves.take(header, contents).is_some();
        }
        bytes = rest;
    }
    any
}

pub fn heartbeat(bytes: &[u8]) -> bool {
    Heartbeat::from_bytes(bytes).is_ok_and(|heartbeat| {
        assert_eq!(heartbeat.to_bytes()[..], *bytes);
        true
    })
}

pub fn hello(bytes: &[u8]) -> bool {
    codec::decode::<Hello>(bytes).is_ok_and(|hello| {
        assert_eq!(codec::encode(&hello).unwrap(), bytes);
        true
    })
}

/// Whether a golden frame is a control message.
pub fn is_control(name: &str) -> bool {
    let others = [
        "Hello",
        "FrameHeader",
        "ObjectHeader",
        "RegionHeader",
        "Heartbeat",
    ];
    !others.contains(&name)
}

pub fn control(bytes: &[u8]) -> bool {
    codec::decode::<Control>(bytes).is_ok_and(|control| {
        assert_eq!(codec::encode(&control).unwrap(), bytes);
        true
    })
}

/// A stream of frames, as a session reads it: each message is delivered once, in order.
pub fn frames(mut bytes: &[u8]) -> bool {
    let (mut memory, mut last, mut taken) = (Memory::default(), 0, 0);
    while let Some((header, rest)) = bytes.split_first_chunk() {
        let Ok(header) = FrameHeader::from_bytes(header) else {
            return false;
        };
        let Some((message, rest)) = rest.split_at_checked(header.len as usize) else {
            return false;
        };
        bytes = rest;
        let is_good = header.sequence == 0 || codec::decode::<Control>(message).is_ok();
        if !is_good {
            return false;
        }
        if memory.on_frame(header) {
            assert!(header.sequence > last);
            last = header.sequence;
        }
        assert_eq!(memory.acknowledgement().acknowledged, last);
        taken += 1;
    }
    taken > 0 && bytes.is_empty()
}

pub fn endpoint(bytes: &[u8]) -> bool {
    Endpoint::from_bytes(bytes).is_ok_and(|endpoint| {
        assert_eq!(endpoint.to_bytes(), bytes);
        true
    })
}
