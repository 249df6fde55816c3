//! Rice coding of sorted positions (Rice and Plaunt, 1971): the gap between two is a quotient in unary and a remainder of fixed width.
//!
//! Positions chosen from all with equal chance have gaps of a geometric distribution, for which no other prefix code of single gaps is
//! shorter than Golomb's (Gallager and Van Voorhis, 1975); a width that is a power of two costs at most three hundredths of a bit more.

/// The largest width of a remainder: gaps are below 2^18 in a chunk.
pub(super) const WIDTH_MAX: u32 = 18;

/// The width that makes these positions shortest.
pub(super) fn width(positions: &[u32], elements: usize) -> u32 {
    let mean = elements / positions.len().max(1);
    let guess = mean.max(1).ilog2();
    let bits = |width: u32| {
        let unary: u64 = gaps(positions).map(|gap| u64::from(gap >> width)).sum();
        unary + positions.len() as u64 * u64::from(width + 1)
    };
    let widths = guess.saturating_sub(2)..=(guess + 1).min(WIDTH_MAX);
    widths.min_by_key(|width| bits(*width)).unwrap_or(0)
}

/// From each position to the next: how many lie between.
fn gaps(positions: &[u32]) -> impl Iterator<Item = u32> {
    let mut next = 0;
    positions.iter().map(move |position| {
        let gap = position - next;
        next = position + 1;
        gap
    })
}

/// Appends the gaps. The last byte is filled up with zeros.
pub(super) fn write(positions: &[u32], width: u32, out: &mut Vec<u8>) {
    let mut bits = Bits {
        word: 0,
        filled: 0,
        out,
    };
    for gap in gaps(positions) {
        let mut quotient = gap >> width;
        while quotient >= 32 {
            bits.push(0, 32);
            quotient -= 32;
        }
        // Zeros, then a one.
        bits.push(1 << quotient, quotient + 1);
        bits.push(u64::from(gap & ((1 << width) - 1)), width);
    }
    bits.finish();
}

/// Bits from the lowest of each byte upwards.
struct Bits<'a> {
    word: u64,
    filled: u32,
    out: &'a mut Vec<u8>,
}

impl Bits<'_> {
    /// At most 33 of them.
    fn push(&mut self, bits: u64, count: u32) {
        self.word |= bits << self.filled;
        self.filled += count;
        while self.filled >= 8 {
            self.out.push(self.word as u8);
            self.word >>= 8;
            self.filled -= 8;
        }
    }

    fn finish(mut self) {
        self.push(0, (8 - self.filled % 8) % 8);
    }
}

/// Reads positions one after another.
pub(super) struct Reader<'a> {
    left: &'a [u8],
    word: u64,
    filled: u32,
    width: u32,
    next: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], width: u32) -> Self {
        Reader {
            left: bytes,
            word: 0,
            filled: 0,
            width,
            next: 0,
        }
    }

    /// The next position below `end`.
    ///
    /// # Errors
    /// What is wrong with the list.
    pub(super) fn next(&mut self, end: usize) -> Result<u32, &'static str> {
        let mut quotient: u64 = 0;
        loop {
            self.fill();
            if self.filled == 0 {
                return Err("end too early");
            }
            let zeros = self.word.trailing_zeros().min(self.filled);
            quotient += u64::from(zeros);
            self.drop(zeros);
            if self.filled > 0 {
                self.drop(1);
                break;
            }
        }
        self.fill();
        if self.filled < self.width {
            return Err("end too early");
        }
        let remainder = self.word & ((1 << self.width) - 1);
        self.drop(self.width);
        let position = self.next + (quotient << self.width) + remainder;
        if position >= end as u64 {
            return Err("lead past its end");
        }
        self.next = position + 1;
        Ok(position as u32)
    }

    /// Whether nothing but the filling of the last byte is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.left.is_empty() && self.filled < 8 && self.word == 0
    }

    fn drop(&mut self, count: u32) {
        // A word may be all zeros, and go at once.
        self.word = self.word.checked_shr(count).unwrap_or(0);
        self.filled -= count;
    }

    /// At least 56 bits, if so many are left.
    fn fill(&mut self) {
        while self.filled <= 56 {
            let Some((first, rest)) = self.left.split_first() else {
                return;
            };
            self.word |= u64::from(*first) << self.filled;
            self.filled += 8;
            self.left = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent_and_read(positions: &[u32], elements: usize) -> (Vec<u8>, Vec<u32>) {
        let width = width(positions, elements);
        let mut bytes = Vec::new();
        write(positions, width, &mut bytes);
        let mut reader = Reader::new(&bytes, width);
        let read = positions.iter().map(|_| reader.next(elements).unwrap());
        let read = read.collect();
        assert!(reader.is_at_end());
        (bytes, read)
    }

    proptest! {
        #[test]
        fn positions_come_back(chosen in prop::collection::btree_set(0u32..5000, 0..600)) {
            let positions: Vec<u32> = chosen.into_iter().collect();
            prop_assert_eq!(sent_and_read(&positions, 5000).1, positions);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), width in 0..=WIDTH_MAX) {
            let mut reader = Reader::new(&bytes, width);
            let mut last = None;
            while let Ok(position) = reader.next(1000) {
                prop_assert!(position < 1000 && last < Some(position));
                last = Some(position);
            }
        }
    }

    #[test]
    fn gaps_of_many_whole_words_of_zeros_are_read() {
        for gap in [62, 63, 64, 65, 127, 128, 129, 4000] {
            let positions = [3, gap + 4, gap + 5];
            let mut bytes = Vec::new();
            write(&positions, 0, &mut bytes);
            let mut reader = Reader::new(&bytes, 0);
            let read = positions.map(|_| reader.next(5000).unwrap());
            assert_eq!(read, positions);
            assert!(reader.is_at_end());
        }
        assert!(Reader::new(&[0; 64], 0).next(5000).is_err());
    }

    #[test]
    fn one_in_a_hundred_costs_little_more_than_its_entropy() {
        let mut rng = crate::rng::Rng::new(3);
        let elements = 1 << 18;
        let positions: Vec<u32> = (0..elements).filter(|_| rng.below(100) == 0).collect();
        let (bytes, _) = sent_and_read(&positions, elements as usize);
        let share = positions.len() as f64 / f64::from(elements);
        let entropy = -share * share.log2() - (1.0 - share) * (1.0 - share).log2();
        let floor = entropy * f64::from(elements) / 8.0;
        let ratio = bytes.len() as f64 / floor;
        assert!((1.0..1.02).contains(&ratio), "{ratio}");
    }
}
