//! The rounds of a picture as an event file of TensorBoard: scalars over rounds.
//!
//! The file is a sequence of records (a length, the record, and for each of the two a masked CRC-32C), each of which is one protobuf message;
//! the first says which version of the format follows. Of the messages only what a scalar needs is written down here.

use prost::Message;

use super::picture::{Picture, RoundPicture};

/// What a reader looks for in the first record.
const FILE_VERSION: &str = "brain.Event:2";

/// Added to a rotated checksum, so that the checksum of data that holds checksums is no trivial one.
const MASK: u32 = 0xA282_EAD8;

/// A record: `tensorflow.Event`.
#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "What", tags = "3, 5")]
    what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Value>,
}

/// `tensorflow.Summary.Value`, as far as scalars go.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    /// Of several forms, so a zero is written, too.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// The rounds that have ended, one step each. `began` is when the run did, in seconds since 1970.
pub fn tensorboard(picture: &Picture, began: f64) -> Vec<u8> {
    let mut file = Vec::new();
    let version = Record {
        wall_time: began,
        step: 0,
        what: Some(What::FileVersion(FILE_VERSION.to_owned())),
    };
    push(&mut file, &version.encode_to_vec());
    for round in &picture.rounds {
        let Some(elapsed) = round.elapsed_s else {
            continue;
        };
        let values = scalars(round).into_iter().filter_map(|(tag, value)| {
            let (tag, value) = (tag.to_owned(), value?);
            Some(Value {
                tag,
                simple_value: Some(value as f32),
            })
        });
        let summary = Summary {
            values: values.collect(),
        };
        let record = Record {
            wall_time: began + round.opened + elapsed,
            step: i64::try_from(round.round).unwrap_or(i64::MAX),
            what: Some(What::Summary(summary)),
        };
        push(&mut file, &record.encode_to_vec());
    }
    file
}

/// What is told of a round. A round without a commit has no model of its own to tell of.
fn scalars(round: &RoundPicture) -> [(&'static str, Option<f64>); 9] {
    let is_committed = round.state != Some(tombolo_core::event::RoundState::Aborted);
    let of_model = |value: Option<f64>| value.filter(|_| is_committed);
    [
        ("model/loss", of_model(round.loss)),
        ("model/accuracy", of_model(round.accuracy)),
        ("model/weight_norm", of_model(round.weight_norm)),
        ("wan/bytes", Some(round.bytes as f64)),
        ("wan/bytes_up", Some(round.bytes_up as f64)),
        ("wan/bytes_down", Some(round.bytes_down as f64)),
        ("round/seconds", round.elapsed_s),
        ("round/counted", Some(round.counted as f64)),
        ("round/asked", Some(round.asked as f64)),
    ]
}

/// Puts a record behind the others.
fn push(file: &mut Vec<u8>, record: &[u8]) {
    let length = (record.len() as u64).to_le_bytes();
    file.extend_from_slice(&length);
    file.extend_from_slice(&masked(&length).to_le_bytes());
    file.extend_from_slice(record);
    file.extend_from_slice(&masked(record).to_le_bytes());
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::super::picture::Bounds;
    use super::*;
    use crate::simulation::{Simulation, secs};

    const REEF: &str = r#"
        [federation]
        name = "reef"
        rounds = 5
        sync_every = 3
        [round]
        quorum = { nodes = 1, domains = 1 }
        [model]
        trainer = "digits-softmax"
        [[domain]]
        name = "hq"
        nodes = ["gate", "a"]
    "#;

    /// The records of a file; each checksum must be right, and nothing may be left over.
    fn records(mut file: &[u8]) -> Vec<Record> {
        let mut records = Vec::new();
        while !file.is_empty() {
            let (length, rest) = file.split_at(8);
            let (sum, rest) = rest.split_at(4);
            assert_eq!(sum, masked(length).to_le_bytes());
            let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
            let (record, rest) = rest.split_at(length);
            let (sum, rest) = rest.split_at(4);
            assert_eq!(sum, masked(record).to_le_bytes());
            records.push(Record::decode(record).unwrap());
            file = rest;
        }
        records
    }

    /// The checksum of RFC 3720 (appendix B.4: 32 zeros), masked by hand.
    #[test]
    fn the_checksum_is_the_masked_castagnoli_one() {
        let plain: u32 = 0x8A91_36AA;
        assert_eq!(crc32c::crc32c(&[0; 32]), plain);
        let by_hand = plain.rotate_right(15).wrapping_add(0xA282_EAD8);
        assert_eq!(masked(&[0; 32]), by_hand);
    }

    #[test]
    fn every_round_of_a_run_is_read_back_with_its_scalars() {
        let report = Simulation::from_toml(REEF)
            .unwrap()
            .limit(secs(100))
            .run()
            .unwrap();
        let mut picture = Picture::new(Bounds::REPORT);
        for (at, event) in report.events {
            let (at, life) = (at.0 as f64 / 1e6, 0);
            picture.apply(&crate::explain::Past { at, life, event });
        }
        let records = records(&tensorboard(&picture, 1e9));
        let first = What::FileVersion("brain.Event:2".to_owned());
        assert_eq!(records[0].what, Some(first));
        assert_eq!(records.len(), 6);
        let mut last = 1e9;
        for (record, round) in records[1..].iter().zip(&report.rounds) {
            assert_eq!(record.step, round.round as i64);
            assert!(record.wall_time >= last, "time goes on");
            last = record.wall_time;
            let Some(What::Summary(summary)) = &record.what else {
                panic!("{record:?}")
            };
            let scalar = |tag: &str| {
                let mut found = summary.values.iter().filter(|value| value.tag == tag);
                found.next().unwrap_or_else(|| panic!("{tag}")).simple_value
            };
            assert_eq!(scalar("model/loss"), Some(round.loss as f32));
            assert_eq!(scalar("model/accuracy"), Some(round.accuracy as f32));
            assert_eq!(scalar("model/weight_norm"), Some(round.weight_norm as f32));
            assert_eq!(
                scalar("wan/bytes"),
                Some(round.bytes as f32),
                "a zero is a value"
            );
            assert_eq!(scalar("round/counted"), Some(round.counted.len() as f32));
        }
    }
}
