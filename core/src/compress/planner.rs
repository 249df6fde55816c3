//! `auto`: the codec with which an update is usable soonest.
//!
//! The time from a sum to its being usable is `encode + bytes / rate + decode`, each in proportion to the elements, and half a round trip,
//! which is the same for all. So the choice depends on neither the model's size nor the round trip; what is predicted depends on both. It
//! is made of numbers that every node has: the rate that the file states, and a table of prices. No node measures its own, or two would differ.

use std::time::Duration;

use super::{Codec, Coding, Lossless, MILLION};

/// What a codec costs for one element of an update, on one core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// The codec.
    pub coding: Coding,
    /// Bytes that travel.
    pub bytes: f64,
    /// Nanoseconds to encode it, and to keep what is lost.
    pub encode_ns: f64,
    /// Nanoseconds to decode and fold it.
    pub decode_ns: f64,
    /// The share of the update's length that stays behind in a round, to be sent later.
    pub loss: f64,
}

const fn price(codec: Codec, lossless: Lossless, numbers: [f64; 4]) -> Price {
    let [bytes, encode_ns, decode_ns, loss] = numbers;
    Price {
        coding: Coding { codec, lossless },
        bytes,
        encode_ns,
        decode_ns,
        loss,
    }
}

const TOP: Codec = Codec::TopK {
    share: MILLION / 100,
    halves: true,
};

/// Prices of what `auto` may choose. Bytes and losses are those of a bell curve, and a test holds them to what the codecs do; times are rough,
/// of one core that AVX-512 has: they decide only where two are about as good. Snappy and lz4 find nothing in such numbers.
pub const PRICES: &[Price] = &[
    price(Codec::None, Lossless::None, [4.0, 0.4, 0.5, 0.0]),
    price(Codec::None, Lossless::Zstd, [3.70, 11.0, 7.0, 0.0]),
    price(Codec::Fp16, Lossless::None, [2.0, 1.5, 0.6, 0.000_21]),
    price(Codec::Bf16, Lossless::None, [2.0, 1.5, 0.6, 0.001_7]),
    price(Codec::Bf16, Lossless::Zstd, [1.55, 10.0, 5.0, 0.001_7]),
    price(Codec::Int8, Lossless::None, [1.0, 2.0, 0.6, 0.007_3]),
    price(Codec::Int8, Lossless::Zstd, [0.93, 7.0, 4.0, 0.007_3]),
    price(TOP, Lossless::None, [0.03, 4.0, 0.6, 0.96]),
];

impl Price {
    /// Nanoseconds until an element is usable, at so many bits a second.
    fn nanoseconds(&self, rate: u64) -> f64 {
        self.encode_ns + self.decode_ns + self.bytes * 8e9 / rate.max(1) as f64
    }

    /// How long an update of so many elements takes until it is usable.
    pub fn predict(&self, rate: u64, round_trip: Duration, elements: usize) -> Duration {
        let update = self.nanoseconds(rate) * elements as f64;
        // A float's conversion is bounded; centuries are as good as for ever.
        round_trip / 2 + Duration::from_nanos(update as u64)
    }
}

/// The price that makes an update usable soonest at so many bits a second, among those that lose no more than `budget` of its length in a
/// round; of equal ones the first. Nothing only if all lose more.
pub fn choose(prices: &[Price], rate: u64, budget: f64) -> Option<&Price> {
    let may = prices.iter().filter(|price| price.loss <= budget);
    may.min_by(|a, b| a.nanoseconds(rate).total_cmp(&b.nanoseconds(rate)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compress::{Encoded, Kernels, decode};
    use crate::rng::Rng;
    use crate::wire::CHUNK_ELEMENTS;

    const MBIT: u64 = 1_000_000;

    fn chosen(rate: u64, budget: f64) -> String {
        choose(PRICES, rate, budget).unwrap().coding.to_string()
    }

    #[test]
    fn a_thin_link_is_worth_more_work_and_a_fat_one_none() {
        assert_eq!(chosen(10 * MBIT, 0.01), "int8+zstd");
        assert_eq!(chosen(1000 * MBIT, 0.01), "int8");
        assert_eq!(chosen(10 * MBIT, 0.001), "fp16");
        assert_eq!(chosen(10 * MBIT, 0.0), "none+zstd");
        assert_eq!(chosen(10 * MBIT, 1.0), "topk+fp16");
        assert_eq!(chosen(u64::MAX, 1.0), "none");
    }

    /// 10 Mbit/s up, 200 Mbit/s down: each way is chosen for itself.
    #[test]
    fn a_link_with_two_rates_picks_what_goes_up_and_what_goes_down_apart() {
        let up = choose(PRICES, 10 * MBIT, 0.01).unwrap().coding;
        let down = choose(PRICES, 200 * MBIT, 0.0).unwrap().coding;
        assert_eq!((up.codec, up.lossless), (Codec::Int8, Lossless::Zstd));
        assert_eq!((down.codec, down.lossless), (Codec::None, Lossless::None));
    }

    #[test]
    fn what_is_predicted_grows_with_the_model_and_the_way() {
        let plain = &PRICES[0];
        let at = |ms, elements| plain.predict(8 * MBIT, Duration::from_millis(ms), elements);
        let second = at(0, 250_000).as_secs_f64();
        assert!((1.0..1.01).contains(&second), "{second}");
        assert_eq!(at(80, 250_000) - at(0, 250_000), Duration::from_millis(40));
        assert!(plain.predict(0, Duration::ZERO, usize::MAX) > Duration::from_secs(1 << 30));
    }

    /// The table's bytes and losses are what the codecs do to a bell curve.
    #[test]
    fn the_prices_are_those_of_the_codecs() {
        let mut rng = Rng::new(5);
        let mut one = || (0..8).map(|_| rng.next_f64()).sum::<f64>() - 4.0;
        let values: Vec<f32> = (0..CHUNK_ELEMENTS).map(|_| one() as f32).collect();
        let mut wrong = Vec::new();
        for price in PRICES {
            let compressor = price.coding.compressor();
            let mut encoded = Encoded::default();
            compressor.encode(Kernels::PORTABLE, &values, &mut encoded);
            let mut back = vec![0.0; values.len()];
            let bytes = encoded.bytes();
            decode(compressor.as_ref(), Kernels::PORTABLE, bytes, &mut back).unwrap();
            let squares = |of: &mut dyn Iterator<Item = f32>| {
                of.map(|one| f64::from(one).powi(2)).sum::<f64>()
            };
            let lost = squares(&mut values.iter().zip(&back).map(|(a, b)| a - b));
            let loss = (lost / squares(&mut values.iter().copied())).sqrt();
            let bytes = encoded.bytes().len() as f64 / values.len() as f64;
            let near = |found: f64, stated: f64| (found - stated).abs() <= 0.05 * stated;
            if !near(bytes, price.bytes) || !near(loss, price.loss) {
                wrong.push(format!("{}: {bytes} bytes, loss {loss}", price.coding));
            }
        }
        assert!(wrong.is_empty(), "the table differs from {wrong:#?}");
    }

    proptest! {
        /// Never slower than the elements as they are, never beyond the budget, and with a larger budget never slower.
        #[test]
        fn a_choice_is_bounded_and_a_larger_budget_never_slows_it(
            rate in 1u64..1 << 40, budget in 0.0f64..1.0, more in 0.0f64..1.0,
        ) {
            let price = choose(PRICES, rate, budget).unwrap();
            prop_assert!(price.loss <= budget);
            prop_assert!(price.nanoseconds(rate) <= PRICES[0].nanoseconds(rate));
            let freer = choose(PRICES, rate, budget + more).unwrap();
            prop_assert!(freer.nanoseconds(rate) <= price.nanoseconds(rate));
        }

        /// On a slower link no more bytes travel.
        #[test]
        fn a_slower_link_carries_no_more_bytes(
            rate in 1u64..1 << 40, slower in 1u64..1 << 40, budget in 0.0f64..1.0,
        ) {
            let (slow, fast) = (rate.min(slower), rate.max(slower));
            let bytes = |rate| choose(PRICES, rate, budget).unwrap().bytes;
            prop_assert!(bytes(slow) <= bytes(fast));
        }
    }

    #[test]
    fn if_everything_loses_more_nothing_is_chosen() {
        assert_eq!(choose(&PRICES[2..], MBIT, 0.0), None);
    }
}
