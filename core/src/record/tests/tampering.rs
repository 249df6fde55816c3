//! Copies that somebody has changed: every change is found.

use super::*;

/// What somebody may do to a copy who can write to it and, in a fork, holds one node's key.
fn tamper(rng: &mut Rng, world: &World) -> (usize, World, &'static str) {
    let at = rng.below(3) as usize;
    let mut other = World {
        sites: world.sites.clone(),
        scribe: Scribe::default(),
        size_before: 0,
    };
    let site = &mut other.sites[at];
    let leaves = site.lines.len() as u64;
    let one = rng.below(leaves) as usize;
    let what = match rng.below(7) {
        0 => {
            let mut bytes = site.lines[one].clone().into_bytes();
            let byte = rng.below(bytes.len() as u64) as usize;
            bytes[byte] = match bytes[byte] {
                b'7' => b'8',
                b'x' => b'y',
                _ => b'7',
            };
            site.lines[one] = String::from_utf8_lossy(&bytes).into_owned();
            "a byte"
        }
        1 => {
            let replaced = site.lines[one]
                .replace("0.5", "0.25")
                .replace("20.25", "20.5")
                .replace("/a\"", "/b\"");
            site.lines[one] = match replaced == site.lines[one] {
                true => site.lines[(one + 1) % site.lines.len()].clone(),
                false => replaced,
            };
            "a leaf"
        }
        2 => {
            site.lines.remove(one);
            "a deletion"
        }
        3 => {
            let other = (one + 1 + rng.below(leaves - 1) as usize) % site.lines.len();
            site.lines.swap(one, other);
            "a swap"
        }
        4 => {
            let line = site.lines[rng.below(leaves) as usize].clone();
            site.lines.insert(one, line);
            "an insertion"
        }
        5 => {
            // With the head that it once signed over what is left. Of the newest head nobody else has its signature yet.
            let ends = site
                .lines
                .iter()
                .enumerate()
                .filter(|(_, line)| line.contains("\"leaf\":\"round\""));
            let ends: Vec<usize> = ends.map(|(at, _)| at + 1).collect();
            let end = ends[rng.below(ends.len() as u64 - 2) as usize];
            site.lines.truncate(end);
            let old = site.keeper.head(end as u64).unwrap().text();
            site.checkpoint = Some(old);
            if rng.below(2) == 0 {
                site.cosigned = None;
            } else {
                site.lines.truncate(one.min(end - 1));
            }
            "a truncation"
        }
        _ => {
            // Another end of the history, under good signatures of the coordinator and of the node.
            let from = 2 + rng.below(ROUNDS - 2);
            let mut liar = World::new();
            liar.run(1..=from - 1);
            let salt = 1 + rng.below(1 << 40);
            for number in from..=ROUNDS {
                let by = usize::from(number >= PROMOTED);
                liar.tell(by, &lines(&round(number, salt)), None);
            }
            *site = liar.sites[at].clone();
            site.cosigned = None;
            "a fork"
        }
    };
    (at, other, what)
}

/// 10,000 times somebody changes one copy of three, and each time the audit says so and names the copy or whom it contradicts.
#[test]
fn ten_thousand_edits_deletions_swaps_truncations_and_forks_are_all_found() {
    let mut world = World::new();
    world.run(1..=ROUNDS);
    assert_eq!(world.audit().findings, []);
    let mut rng = Rng::new(6);
    let mut found: BTreeMap<&str, u32> = BTreeMap::new();
    for turn in 0..10_000 {
        let (at, tampered, what) = tamper(&mut rng, &world);
        if tampered.sites[at].lines == world.sites[at].lines
            && tampered.sites[at].checkpoint == world.sites[at].checkpoint
        {
            // Two equal neighbours were swapped, or a byte became itself.
            continue;
        }
        let findings = tampered.audit().findings;
        let named = findings
            .iter()
            .any(|it| it.copy == GATES[at] || it.reason.contains(GATES[at]));
        assert!(
            named,
            "turn {turn}: {what} of {} is not found: {findings:#?}",
            GATES[at]
        );
        *found.entry(what).or_default() += 1;
    }
    assert_eq!(found.len(), 7, "{found:?}");
    assert!(found.values().sum::<u32>() > 9_900, "{found:?}");
}
