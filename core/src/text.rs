//! Texts of others: of a user's trainer or rule, of a panic, of a library. They come in any length; what goes on from here is bounded, so
//! that no text makes a message, an event or a report too long. And they may hold what a terminal obeys; what people see is spelled out.

use std::borrow::Cow;
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

/// A span of time for people: `6 d 3 h`, `3 h 20 min`, `20 min` or `90 s`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=3_599 => format!("{} min", seconds / 60),
        3_600..=86_399 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Whether a character does something to a terminal, or to the order of what is read, instead of being seen.
pub fn is_hidden(character: char) -> bool {
    let directs = matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    character.is_control() || directs
}

/// A text in which everything can be seen, on one line: what is hidden is spelled out as in Rust's source, `\u{1b}` or `\n`.
pub fn visible(text: &str) -> Cow<'_, str> {
    spelled_out(text, is_hidden)
}

/// As [`visible`], of a text of ours with line breaks and tabs.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    spelled_out(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

fn spelled_out(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hidden) {
        return Cow::Borrowed(text);
    }
    let mut seen = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match hidden(character) {
            true => seen.extend(character.escape_default()),
            false => seen.push(character),
        }
    }
    Cow::Owned(seen)
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
    fn what_a_terminal_would_obey_is_spelled_out() {
        let hostile = "a\u{1b}[2J\u{0}\u{9b}b\u{7f}\r\n\tc\u{202e}d\u{200b}é🏝";
        let seen = visible(hostile);
        assert_eq!(
            seen,
            "a\\u{1b}[2J\\u{0}\\u{9b}b\\u{7f}\\r\\n\\tc\\u{202e}d\\u{200b}é🏝"
        );
        assert!(!visible_lines(hostile).contains('\u{1b}'));
        assert_eq!(visible_lines("a\n\tb\rc"), "a\n\tb\\rc");
        assert!(matches!(visible("plain"), Cow::Borrowed("plain")));
    }

    #[test]
    fn a_text_is_bounded_however_it_came_to_be() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        assert!(Text::from(long.as_str()).len() <= TEXT_BYTES_MAX);
        // Who sends one has bounded it.
        let sent = codec::encode(&long).unwrap();
        assert!(codec::decode::<Text>(&sent).is_err());
        let sent = codec::encode(&Text::from(long.as_str())).unwrap();
        assert_eq!(codec::decode(&sent), Ok(Text::from(long)));
    }
}
