//! Texts of others: of a user's trainer or rule, of a panic, of a library. They come in any length; what goes on from here is bounded, so
//! that no text makes a message, an event or a report too long.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// The longest text that travels. It holds a few lines, and a message with one for each of 1,024 nodes still fits the wire.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Stands for what was cut off.
const ELLIPSIS: char = '\u{2026}';

/// Cuts a text to [`TEXT_BYTES_MAX`].
pub fn clip(text: impl Into<String>) -> String {
    clip_to(text, TEXT_BYTES_MAX)
}

/// Cuts a text to so many bytes, between two characters and with an ellipsis at its end.
pub fn clip_to(text: impl Into<String>, bytes_max: usize) -> String {
    let mut text = text.into();
    if text.len() > bytes_max {
        let kept = bytes_max.saturating_sub(ELLIPSIS.len_utf8());
        text.truncate(text.floor_char_boundary(kept));
        text.push(ELLIPSIS);
        // What was cut off may have been large.
        text.shrink_to_fit();
    }
    text
}

/// A text of at most [`TEXT_BYTES_MAX`] bytes: whatever it is made from, or decoded from, is cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct Text(String);

impl From<String> for Text {
    fn from(text: String) -> Self {
        Text(clip(text))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Text(clip(text))
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        text.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::codec;

    #[test]
    fn a_short_text_stays_and_a_long_one_is_cut_between_characters() {
        let most = "x".repeat(TEXT_BYTES_MAX);
        assert_eq!(clip(most.as_str()), most);
        for long in [most + "x", "é".repeat(TEXT_BYTES_MAX), "🏝".repeat(1 << 20)] {
            let cut = clip(long.as_str());
            assert!(cut.len() <= TEXT_BYTES_MAX, "{}", cut.len());
            assert!(cut.len() > TEXT_BYTES_MAX - 8, "{}", cut.len());
            let kept = cut.strip_suffix(ELLIPSIS).unwrap();
            assert!(long.starts_with(kept));
        }
    }

    #[test]
    fn a_text_is_bounded_however_it_came_to_be() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        assert!(Text::from(long.as_str()).len() <= TEXT_BYTES_MAX);
        let sent = codec::encode(&long).unwrap();
        assert_eq!(codec::decode(&sent), Ok(Text::from(long)));
    }
}
