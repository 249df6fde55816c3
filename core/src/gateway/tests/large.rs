//! A domain as large as one may be.

use super::*;
use crate::fold;
use crate::wire::{Term, codec};
use std::collections::BTreeMap;

/// A domain whose every rank has a slice, with everybody's update measured.
fn measured(ranks: usize) -> (Domain, Vec<String>) {
    let names: Vec<String> = (0..ranks).map(|rank| format!("r{rank:04}")).collect();
    let ids = names.iter().map(|name| n(name)).collect();
    let layout = Layout::new([("w", vec![ranks * fold::BLOCK])]).unwrap();
    let mut hq = Domain {
        machine: Gateway::new("hq".parse().unwrap(), ids, layout, Rng::new(1)),
        tokens: BTreeMap::new(),
        events: Vec::new(),
        standings: Vec::new(),
    };
    hq.obtained(0);
    (hq, names)
}

#[test]
fn a_question_to_fold_carries_the_checksums_of_its_own_slices_and_fits_into_a_message() {
    let (hq, names) = measured(600);
    let slices: Vec<u32> = hq.machine.slices.clone();
    assert_eq!(slices.len(), names.len());
    let checksum = |rank: usize, slice: u32| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(rank as u64).to_le_bytes());
        bytes[8..12].copy_from_slice(&slice.to_le_bytes());
        Hash(bytes)
    };
    let terms = || {
        names.iter().enumerate().map(|(rank, name)| Term {
            node: n(name),
            round: 1,
            epoch: 1,
            region: region(name, 1),
            factor: 1.0,
            checksums: slices.iter().map(|slice| checksum(rank, *slice)).collect(),
        })
    };
    let folding = || Folding {
        token: 1,
        attempt: 0,
        terms: terms().collect(),
        members: Vec::new(),
        weight: 1.0,
        exponent: 0,
        pending: BTreeMap::new(),
        done: BTreeMap::new(),
        gathering: false,
    };
    // Spread over everybody; and all of it asked of the one rank that is left.
    for left in [names.len(), 1] {
        let (mut hq, _) = measured(600);
        hq.open(1, 0);
        for name in &names[..left] {
            hq.machine.present.insert(n(name));
        }
        let current = hq.machine.current.as_mut().unwrap();
        current.fold = Some(folding());
        let mut out = Out::default();
        hq.machine.spread(&mut Context::new(Micros(0), &mut out));
        let mut asked: Vec<u32> = Vec::new();
        for effect in &out.effects {
            let fold = fold_of(effect);
            for (rank, term) in fold.terms.iter().enumerate() {
                let expected: Vec<Hash> = fold
                    .slices
                    .iter()
                    .map(|slice| checksum(rank, *slice))
                    .collect();
                assert_eq!(term.checksums, expected);
            }
            codec::encode(&Control::Fold(fold.clone())).unwrap();
            asked.extend(&fold.slices);
        }
        asked.sort_unstable();
        assert_eq!(asked, slices);
    }
}
