use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..len)
        .map(|_| ((rng.next_f64() - 0.5) * 8.0) as f32)
        .collect()
}

fn bits(elements: &[f32]) -> Vec<u32> {
    elements.iter().map(|element| element.to_bits()).collect()
}

fn bytes(elements: &[f32]) -> Vec<u8> {
    elements.iter().flat_map(|e| e.to_le_bytes()).collect()
}

/// The definition once more, one element at a time and with other means.
fn by_hand(domains: &[Vec<(f64, f64, Vec<f32>)>], at: usize) -> f32 {
    let mut global = None;
    let mut total = 0.0f64;
    for members in domains {
        let mut sum: Option<f32> = None;
        let mut weight = 0.0f64;
        for (w, clip, update) in members.iter().filter(|(w, ..)| *w != 0.0) {
            let term = ((w * clip) as f32) * update[at];
            sum = Some(sum.map_or(term, |sum| sum + term));
            weight += w;
        }
        let Some(sum) = sum else { continue };
        let k = weight.log2().floor() as i32;
        let back = (sum * 2f32.powi(-k)) * 2f32.powi(k);
        global = Some(global.map_or(back, |global| global + back));
        total += weight;
    }
    global.unwrap() / total as f32
}

#[test]
fn the_reference_follows_its_definition_to_the_bit() {
    let domains: Vec<Vec<(f64, f64, Vec<f32>)>> = vec![
        vec![
            (137.0, 1.0, numbers(1, 50)),
            (0.0, 1.0, numbers(2, 50)),
            (19.3, 0.37, numbers(3, 50)),
        ],
        vec![(0.0, 1.0, numbers(4, 50))],
        vec![(0.3, 0.9, numbers(5, 50)), (211.7, 1.0, numbers(6, 50))],
    ];
    let counted: Vec<Vec<Counted<'_>>> = domains
        .iter()
        .map(|members| {
            members
                .iter()
                .map(|(weight, clip, update)| Counted {
                    weight: *weight,
                    clip: *clip,
                    update,
                })
                .collect()
        })
        .collect();
    let mean = reference(&counted).unwrap();
    let expected: Vec<f32> = (0..50).map(|at| by_hand(&domains, at)).collect();
    assert_eq!(bits(&mean), bits(&expected));
}

#[test]
fn order_decides_the_bits_so_the_fold_has_one() {
    let (one, two, three) = ([1e8f32], [-1e8f32], [1.0f32]);
    let fold = |updates: [&[f32]; 3]| {
        let domain = updates.map(|update| Counted {
            weight: 1.0,
            clip: 1.0,
            update,
        });
        reference(&[domain.to_vec()]).unwrap()
    };
    assert_eq!(fold([&one, &two, &three]), [1.0 / 3.0]);
    assert_eq!(fold([&one, &three, &two]), [0.0]);
}

#[test]
fn nothing_with_a_weight_and_unequal_lengths_are_refused() {
    assert_eq!(reference(&[]), Err(FoldError::Empty));
    let update = [1.0, 2.0];
    let of = |weight, update| Counted {
        weight,
        clip: 1.0,
        update,
    };
    assert_eq!(reference(&[vec![of(0.0, &update)]]), Err(FoldError::Empty));
    assert_eq!(
        reference(&[vec![of(1.0, &update)], vec![of(1.0, &update[..1])]]),
        Err(FoldError::Length {
            expected: 2,
            found: 1
        })
    );
}

#[test]
fn exponents_hold_their_definition_and_their_bounds() {
    for (weight, expected) in [
        (1.0, 0),
        (1.999_999, 0),
        (2.0, 1),
        (0.75, -1),
        (1437.0, 10),
        (2f64.powi(-126), -126),
        (2f64.powi(127) - 2f64.powi(100), 126),
    ] {
        assert_eq!(exponent(weight), Ok(expected), "{weight}");
    }
    for weight in [
        0.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::MIN_POSITIVE / 2.0,
        2f64.powi(-127),
        2f64.powi(127),
    ] {
        assert!(exponent(weight).is_err(), "{weight}");
    }
    assert_eq!(power(-126), Ok(f32::MIN_POSITIVE));
    assert_eq!(power(126), Ok(2f32.powi(126)));
    for exponent in [-127, 127, i32::MAX, -i32::MAX] {
        assert_eq!(power(exponent), Err(FoldError::Exponent { exponent }));
    }
}

#[test]
fn weights_and_clip_factors_out_of_range_are_refused() {
    for (weight, clip) in [
        (-1.0, 1.0),
        (f64::NAN, 1.0),
        (1e300, 1.0),
        (1e-300, 1.0),
        (1.0, -0.1),
        (1.0, 1.5),
        (1.0, f64::NAN),
    ] {
        assert!(factor(weight, clip).is_err(), "{weight} {clip}");
        let update = [1.0];
        let of = |weight, clip| Counted {
            weight,
            clip,
            update: &update,
        };
        assert!(reference(&[vec![of(1.0, 1.0), of(weight, clip)]]).is_err());
    }
    assert_eq!(factor(3.0, 0.1), Ok(0.3));
    assert_eq!(factor(0.0, 1.0), Ok(0.0));
    // Each fits, their sum does not.
    assert!(exponent(1.5 * 2f64.powi(126)).is_ok());
    assert!(exponent(2.0 * 1.5 * 2f64.powi(126)).is_err());
    assert!(total([2f64.powi(126); 4]).is_err());
    assert!(total([]).is_err() && total([0.0]).is_err());
}

/// Counted with weight zero is not there at all; clipped to nothing is, and pulls the mean to zero.
#[test]
fn a_member_without_weight_is_no_term() {
    let updates = [[f32::NAN], [4.0f32], [f32::MAX]];
    let fold = |parts: [(f64, f64); 3]| {
        let members = parts.iter().zip(&updates);
        let members = members.map(|((weight, clip), update)| Counted {
            weight: *weight,
            clip: *clip,
            update,
        });
        reference(&[members.collect()])
    };
    assert_eq!(fold([(0.0, 1.0), (3.0, 0.5), (5.0, 0.0)]), Ok(vec![0.75]));
    assert_eq!(fold([(0.0, 1.0), (3.0, 0.5), (0.0, 0.0)]), Ok(vec![2.0]));
    assert_eq!(fold([(0.0, 1.0); 3]), Err(FoldError::Empty));
}

proptest! {
    #[test]
    fn scaling_there_and_back_loses_no_bit(
        elements in prop::collection::vec(-1e6f32..1e6, 1..40),
        weight in 1e-3f64..1e9,
    ) {
        let elements: Vec<f32> = elements.into_iter().filter(|e| e.abs() > 1e-20).collect();
        let k = exponent(weight).unwrap();
        let mut scaled = elements.clone();
        scale_power(&mut scaled, -k).unwrap();
        scale_power(&mut scaled, k).unwrap();
        prop_assert_eq!(bits(&scaled), bits(&elements));
    }

    #[test]
    fn chunks_give_the_bits_of_the_whole(seed: u64, len in 1usize..200, cut in 0usize..200) {
        let cut = cut.min(len);
        let (one, two) = (numbers(seed, len), numbers(seed ^ 1, len));
        let mut whole = vec![0.0; len];
        scale_into(&mut whole, 0.7, &one);
        add_scaled(&mut whole, 1.3, &two);
        divide(&mut whole, 3.0);
        let mut parts = vec![0.0; len];
        for range in [cut..len, 0..cut] {
            let part = &mut parts[range.clone()];
            scale_into(part, 0.7, &one[range.clone()]);
            add_scaled(part, 1.3, &two[range]);
            divide(part, 3.0);
        }
        prop_assert_eq!(bits(&parts), bits(&whole));
    }

    #[test]
    fn bytes_in_any_pieces_fold_like_the_slice(
        seed: u64,
        len in 0usize..60,
        cuts in prop::collection::vec(0usize..240, 0..12),
    ) {
        let (one, two) = (numbers(seed, len), numbers(seed ^ 1, len));
        let mut expected = vec![f32::NAN; len];
        scale_into(&mut expected, 0.3, &one);
        add_scaled(&mut expected, 1.7, &two);

        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(len * 4)).collect();
        cuts.extend([0, len * 4]);
        cuts.sort_unstable();
        let mut folded = vec![f32::NAN; len];
        for (mut fold, update) in [(ByteFold::first(0.3), &one), (ByteFold::next(1.7), &two)] {
            let bytes = bytes(update);
            for pair in cuts.windows(2) {
                fold.push(&mut folded, &bytes[pair[0]..pair[1]]).unwrap();
            }
            fold.finish(&folded).unwrap();
        }
        prop_assert_eq!(bits(&folded), bits(&expected));
    }

    #[test]
    fn slices_cover_everything_once_at_block_borders(len in 0usize..100_000, ranks in 1usize..40) {
        let slices = slices(len, ranks);
        prop_assert_eq!(slices.len(), ranks);
        let mut at = 0;
        for slice in &slices {
            prop_assert_eq!(slice.start, at);
            prop_assert!(slice.end == len || slice.end % BLOCK == 0);
            at = slice.end;
        }
        prop_assert_eq!(at, len);
        let blocks = |range: &Range<usize>| range.len().div_ceil(BLOCK);
        let most = slices.iter().map(blocks).max().unwrap();
        let least = slices.iter().map(blocks).min().unwrap();
        prop_assert!(most - least <= 1);
    }

    #[test]
    fn squares_do_not_depend_on_the_pieces_in_which_blocks_come(
        seed: u64,
        len in 0usize..60_000,
        ranks in 1usize..9,
        scale in -30i32..30,
    ) {
        let update: Vec<f32> = numbers(seed, len).iter().map(|e| e * 10f32.powi(scale)).collect();
        let mut pieces = Squares::default();
        for slice in slices(len, ranks) {
            pieces.add(&bytes(&update[slice]));
        }
        prop_assert_eq!(pieces, squares(&update));
        let plain: f64 = update.iter().map(|e| f64::from(*e) * f64::from(*e)).sum();
        prop_assert!((pieces.sum() - plain).abs() <= plain * 1e-12);
    }
}

#[test]
fn too_many_and_too_few_bytes_are_refused_without_a_trace() {
    let mut accumulator = [7.0f32; 2];
    let mut fold = ByteFold::first(1.0);
    fold.push(&mut accumulator, &[0; 3]).unwrap();
    assert_eq!(
        fold.push(&mut accumulator, &[0; 6]),
        Err(FoldError::Bytes {
            expected: 8,
            found: 9
        })
    );
    assert_eq!(accumulator, [7.0, 7.0]);
    fold.push(&mut accumulator, &[0; 4]).unwrap();
    assert_eq!(
        fold.finish(&accumulator),
        Err(FoldError::Bytes {
            expected: 8,
            found: 7
        })
    );
}

#[test]
fn no_ranks_take_no_slice_and_surplus_ranks_take_empty_ones() {
    assert!(slices(10, 0).is_empty());
    assert_eq!(slices(BLOCK + 1, 3), [0..4096, 4096..4097, 4097..4097]);
    assert_eq!(slices(usize::MAX, 2)[1].end, usize::MAX);
}

#[test]
fn squares_reach_both_ends_of_f32() {
    let norm = |elements: &[f32]| squares(elements).sum().sqrt();
    assert_eq!(norm(&[]), 0.0);
    assert_eq!(norm(&[3.0, 4.0]), 5.0);
    let smallest = f32::from_bits(1);
    assert_eq!(norm(&[smallest; 4]), f64::from(smallest) * 2.0);
    assert_eq!(norm(&[f32::MAX; 16]), f64::from(f32::MAX) * 4.0);
}

#[test]
fn an_element_that_is_not_finite_is_seen_wherever_it_is() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 7, 4095, 4096, 9998] {
            let mut update = numbers(3, 9999);
            update[at] = bad;
            assert!(!squares(&update).sum().is_finite(), "{bad} {at}");
        }
    }
    assert!(squares(&numbers(3, 9999)).sum().is_finite());
}

fn squares(elements: &[f32]) -> Squares {
    let mut squares = Squares::default();
    squares.add(&bytes(elements));
    squares
}
