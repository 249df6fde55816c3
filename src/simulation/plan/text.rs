//! Quantities of a plan as its file writes them: `"500ms"`, `"200 Mbit/s"`, `"5%"`.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

use crate::topology::units;

fn read<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|why| D::Error::custom(format!("{text:?} {why}")))
}

/// Durations in whole microseconds.
pub mod span {
    use super::*;
    use std::time::Duration;

    pub fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&units::show_duration(*span))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        read(from, units::duration)
    }
}

/// Durations that may be absent.
pub mod span_if_any {
    use super::*;
    use std::time::Duration;

    pub fn serialize<S: Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => to.serialize_str(&units::show_duration(*span)),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        read(from, units::duration).map(Some)
    }
}

/// Shares from 0 to 1 as percentages.
pub mod share {
    use super::*;

    pub fn serialize<S: Serializer>(share: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&units::show_share(*share))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        read(from, units::share)
    }
}

/// Bits per second.
pub mod rate {
    use super::*;

    pub fn serialize<S: Serializer>(rate: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&units::show_rate(*rate))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        read(from, units::rate)
    }
}
