//! The digits: 1,797 images of 8 by 8 pixels and what they show.
//!
//! The file is 65 bytes a row (64 pixels from 0 to 16 in reading order, then the label), compressed. Rows keep the order of the source, because
//! topologies name them by number. Source and licence stand in `NOTICE`.

use std::sync::OnceLock;

use miniz_oxide::inflate;
use tombolo_core::tensor::Hash;

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Kinds of digits.
pub const CLASSES: usize = 10;
/// Rows of the whole file, test rows included.
pub const ROWS: usize = 1797;

const ROW_BYTES: usize = PIXELS + 1;
const COMPRESSED: &[u8] = include_bytes!("digits.bin.zlib");
const CONTENT_HASH: &str = "871a762edb23c6d138f1434d0b23e9fe94a1a2ee79328e095347ab9f62740139";

/// The built-in data does not load: the program file is damaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// It does not decompress to the right length.
    #[error(
        "the built-in digits do not decompress ({0}): this program file is damaged, install it again"
    )]
    Decompress(String),
    /// It decompresses to something else.
    #[error(
        "the built-in digits have the hash {found} instead of {CONTENT_HASH}: this program file is damaged, install it again"
    )]
    Hash {
        /// What was found.
        found: Hash,
    },
}

/// All images and labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Digits {
    pixels: Vec<f32>,
    labels: Vec<u8>,
}

impl Digits {
    /// The built-in data; decompressed and verified once in a process.
    ///
    /// # Errors
    /// The program file is damaged.
    pub fn load() -> Result<&'static Digits, DataError> {
        static LOADED: OnceLock<Result<Digits, DataError>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| parse(COMPRESSED));
        loaded.as_ref().map_err(DataError::clone)
    }

    /// One image, pixels from 0 to 1.
    ///
    /// # Panics
    /// If `row` is not below [`ROWS`].
    pub fn image(&self, row: usize) -> &[f32] {
        &self.pixels[row * PIXELS..][..PIXELS]
    }

    /// What an image shows, from 0 to 9.
    ///
    /// # Panics
    /// If `row` is not below [`ROWS`].
    pub fn label(&self, row: usize) -> u8 {
        self.labels[row]
    }

    /// Changes the label of each training row; a label that is no digit becomes its remainder.
    pub(super) fn relabel(&mut self, mut label: impl FnMut(usize, u8) -> u8) {
        for row in Digits::training_rows() {
            self.labels[row] = label(row, self.labels[row]) % CLASSES as u8;
        }
    }

    /// Whether a row is held out for judging models: every fifth.
    pub fn is_test(row: usize) -> bool {
        row % 5 == 4
    }

    /// The rows that nodes may train on, ascending.
    pub fn training_rows() -> impl Iterator<Item = usize> {
        (0..ROWS).filter(|row| !Digits::is_test(*row))
    }

    /// The rows that models are judged on, ascending.
    pub fn test_rows() -> impl Iterator<Item = usize> {
        (0..ROWS).filter(|row| Digits::is_test(*row))
    }
}

fn parse(compressed: &[u8]) -> Result<Digits, DataError> {
    let bytes = inflate::decompress_to_vec_zlib_with_limit(compressed, ROWS * ROW_BYTES)
        .map_err(|error| DataError::Decompress(error.to_string()))?;
    let found = Hash::of_bytes(&bytes);
    if found.to_string() != CONTENT_HASH {
        return Err(DataError::Hash { found });
    }
    let (rows, _) = bytes.as_chunks::<ROW_BYTES>();
    // Sixteenths are exact in f32.
    let pixels = rows.iter().flat_map(|row| &row[..PIXELS]);
    Ok(Digits {
        pixels: pixels.map(|pixel| f32::from(*pixel) / 16.0).collect(),
        labels: rows.iter().map(|row| row[PIXELS]).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use miniz_oxide::deflate::compress_to_vec_zlib;

    #[test]
    fn the_whole_data_set_loads() {
        let digits = Digits::load().unwrap();
        assert_eq!(digits.labels.len(), ROWS);
        assert!(
            digits
                .pixels
                .iter()
                .all(|pixel| (0.0..=1.0).contains(pixel))
        );
        // The first row of the source begins "0,0,5,13,9,1" and shows a zero.
        let expected = [0.0, 0.0, 5.0, 13.0, 9.0, 1.0].map(|pixel| pixel / 16.0);
        assert_eq!(digits.image(0)[..6], expected);
        assert_eq!(digits.label(0), 0);
        let mut counts = [0; CLASSES];
        for row in 0..ROWS {
            counts[usize::from(digits.label(row))] += 1;
        }
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }

    #[test]
    fn every_fifth_row_is_held_out() {
        assert_eq!(Digits::test_rows().count(), 359);
        assert_eq!(Digits::training_rows().count(), 1438);
        assert_eq!(Digits::test_rows().take(2).collect::<Vec<_>>(), [4, 9]);
        assert!(Digits::training_rows().all(|row| !Digits::is_test(row)));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        assert!(matches!(
            parse(&COMPRESSED[..1000]),
            Err(DataError::Decompress(_))
        ));
        let other = compress_to_vec_zlib(&[0; ROWS * ROW_BYTES], 1);
        assert!(matches!(parse(&other), Err(DataError::Hash { .. })));
        let longer = compress_to_vec_zlib(&[0; ROWS * ROW_BYTES + 1], 1);
        assert!(matches!(parse(&longer), Err(DataError::Decompress(_))));
    }
}
