//! Makes inputs out of others, the same ones from the same seed: bits and bytes are flipped, lengths made to lie, parts cut, doubled, swapped and
//! taken from elsewhere.

use tombolo_core::rng::Rng;

/// No input is longer: what a mistake of a decoder depends on is seldom its size.
const LENGTH_MAX: usize = 64 << 10;

/// Of those that are nothing but chance.
const CHANCE_MAX: u64 = 96;

/// Changes of one input.
const CHANGES_MAX: u64 = 4;

/// Numbers at which something often changes.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFF_FFFF,
    0xFFFF_FFFF,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// Pieces of which texts are made, and some of which they are not.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "[[",
    "\"",
    "'",
    ":",
    ",",
    "=",
    "\n",
    "\\",
    "\\u0000",
    "null",
    "true",
    "-1",
    "1e999",
    "0.0",
    "18446744073709551616",
    "99999999999999999999999999",
    "{}",
    "[]",
    "[[[[[[[[",
    "{\"a\":",
    "\u{feff}",
    "é",
    "/",
    "..",
    "hq/gate",
    "hq",
    " ",
    "\t",
    "\0",
    "#",
];

/// See the module.
pub struct Engine {
    rng: Rng,
    corpus: Vec<Vec<u8>>,
    is_text: bool,
}

impl Engine {
    /// One that begins from these inputs.
    pub fn new(seed: u64, name: &str, corpus: Vec<Vec<u8>>, is_text: bool) -> Self {
        Engine {
            rng: Rng::derive(seed, &[name.as_bytes()]),
            corpus,
            is_text,
        }
    }

    /// Makes the next input.
    pub fn next(&mut self, input: &mut Vec<u8>) {
        input.clear();
        if self.corpus.is_empty() || self.rng.below(16) == 0 {
            let len = self.rng.below(CHANCE_MAX) as usize;
            input.resize(len, 0);
            return self.rng.fill(input);
        }
        let index = self.below(self.corpus.len());
        input.extend_from_slice(&self.corpus[index]);
        for _ in 0..=self.rng.below(CHANGES_MAX) {
            self.change(input);
        }
        input.truncate(LENGTH_MAX);
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound.max(1) as u64) as usize
    }

    /// A part of so many bytes: where it begins, and where it ends.
    fn part(&mut self, len: usize, most: usize) -> std::ops::Range<usize> {
        let from = self.below(len + 1);
        let bytes = self.below(most + 1);
        from..(from + bytes).min(len)
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let len = input.len();
        match self.rng.below(if self.is_text { 12 } else { 9 }) {
            0 | 1 if len > 0 => {
                let at = self.below(len);
                input[at] ^= 1 << self.rng.below(8);
            }
            2 if len > 0 => {
                let at = self.below(len);
                input[at] = self.rng.next_u64() as u8;
            }
            // A length that lies, or any other number of one, two, four or eight bytes.
            3 | 4 if len > 0 => {
                let number = self.number(len);
                let bytes = number.to_le_bytes();
                let at = self.below(len);
                let size = (1 << self.rng.below(4)).min(len - at);
                input[at..at + size].copy_from_slice(&bytes[..size]);
            }
            5 => {
                let end = self.below(len + 1);
                input.truncate(end);
            }
            6 => {
                let part = self.part(len, 32);
                input.drain(part);
            }
            7 => {
                let part = self.part(len, 64);
                let copy = input[part].to_vec();
                let at = self.below(input.len() + 1);
                input.splice(at..at, copy);
            }
            8 => {
                let other = self.below(self.corpus.len());
                let from = self.below(self.corpus[other].len() + 1);
                let tail = &self.corpus[other][from..];
                let at = (self.rng.below(len as u64 + 1)) as usize;
                input.truncate(at);
                input.extend_from_slice(tail);
            }
            9 | 10 => {
                let word = WORDS[self.below(WORDS.len())];
                let part = self.part(len, 8);
                input.splice(part, word.bytes());
            }
            11 => self.other_digits(input),
            _ => input.push(self.rng.next_u64() as u8),
        }
    }

    fn number(&mut self, len: usize) -> u64 {
        match self.rng.below(4) {
            0 => self.rng.below(2 * len as u64 + 2),
            1 => NUMBERS[self.below(NUMBERS.len())].wrapping_sub(self.rng.below(3)),
            _ => NUMBERS[self.below(NUMBERS.len())],
        }
    }

    /// Puts another number where a text has one.
    fn other_digits(&mut self, input: &mut Vec<u8>) {
        let from = self.below(input.len() + 1);
        let Some(at) = input[from..].iter().position(u8::is_ascii_digit) else {
            return;
        };
        let begin = from + at;
        let digits = input[begin..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let end = begin + digits.count();
        let number = self.number(input.len()).to_string();
        input.splice(begin..end, number.into_bytes());
    }
}
