//! The one codec for control messages: bincode 2, fixed-width little-endian integers.

use bincode::enc::write::Writer;
use bincode::error::EncodeError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::CONTROL_BYTES_MAX;

/// A peer sent something that is no message of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Longer than the bound.
    #[error("a message of {found} bytes, at most {limit} are allowed")]
    TooLong {
        /// As announced.
        found: usize,
        /// The bound.
        limit: usize,
    },
    /// Bytes behind the message.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// Not the form of this message.
    #[error("not a valid message: {0}")]
    Malformed(String),
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard()
        .with_fixed_int_encoding()
        .with_limit::<CONTROL_BYTES_MAX>()
}

/// Encodes a message.
///
/// # Errors
/// The message is longer than [`CONTROL_BYTES_MAX`], which no plan within its limits can bring about.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, DecodeError> {
    let bytes = bincode::serde::encode_to_vec(message, config())
        .map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if bytes.len() > CONTROL_BYTES_MAX {
        return Err(DecodeError::TooLong {
            found: bytes.len(),
            limit: CONTROL_BYTES_MAX,
        });
    }
    Ok(bytes)
}

/// Decodes a message that must fill `bytes` exactly, in the only form in which [`encode`] writes it: entries of a map that are out of order or there
/// twice would let two nodes that hold the same bytes mean different things.
///
/// # Errors
/// Too long, malformed, in another form, or followed by other bytes. Never panics.
pub fn decode<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() > CONTROL_BYTES_MAX {
        return Err(DecodeError::TooLong {
            found: bytes.len(),
            limit: CONTROL_BYTES_MAX,
        });
    }
    let (message, read) = bincode::serde::decode_from_slice(bytes, config())
        .map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if read != bytes.len() {
        return Err(DecodeError::Trailing(bytes.len() - read));
    }
    match bincode::serde::encode_into_writer(&message, Same(bytes), config()) {
        Ok(()) => Ok(message),
        Err(_) => Err(DecodeError::Malformed(
            "it is written in another form than this message is".into(),
        )),
    }
}

/// Takes nothing but these bytes.
struct Same<'a>(&'a [u8]);

impl Writer for Same<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let rest = self.0.strip_prefix(bytes);
        self.0 = rest.ok_or(EncodeError::Other("other bytes"))?;
        Ok(())
    }
}
