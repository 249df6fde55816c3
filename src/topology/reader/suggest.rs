//! What somebody may have meant.

use super::{Kind, Table};

/// Longer names are not compared: nobody mistypes a key that badly, and comparing costs their product.
const COMPARED_MAX: usize = 64;

/// The candidate that is close enough to be what was meant.
pub(in crate::topology) fn nearest<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    closest(given, candidates).map(|(_, candidate)| candidate)
}

/// The same with its distance. Case, dashes and underscores do not count.
fn closest<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<(usize, &'a str)> {
    if given.len() > COMPARED_MAX {
        return None;
    }
    let plain = |text: &str| text.replace(['_', '-'], "").to_lowercase();
    let given = plain(given);
    let (distance, candidate) = candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&given, &plain(candidate)), candidate))
        .min_by_key(|&(distance, _)| distance)?;
    let allowed = (given.chars().count().max(candidate.len()) / 3).max(1);
    (distance <= allowed && distance < candidate.len()).then_some((distance, candidate))
}

/// What to do about a key that a table does not have: a section that has it, then a slip of the finger, then what else it could be.
pub(super) fn for_key(
    root: &'static Table,
    table: &'static Table,
    name: &str,
    is_table: bool,
) -> String {
    let (mut sections, mut homes) = (Vec::new(), Vec::new());
    find_homes(root, name, &mut homes);
    sections.extend(homes.iter().filter(|home| home.starts_with('[')).copied());
    // A table at the top level was meant to be one: its name is not a key of a section.
    if !sections.is_empty() && !is_table {
        return belongs(&sections);
    }
    let own = closest(name, table.keys.iter().map(|key| key.name));
    let meant = |key: &str| match table.key(key).map(|key| key.kind) {
        Some(Kind::Table(inner) | Kind::Tables(inner, _)) if inner.shown.starts_with('[') => {
            format!("did you mean {}?", inner.shown)
        }
        _ => format!("did you mean `{key}`?"),
    };
    if let Some((0..=1, key)) = own {
        return meant(key);
    }
    if let Some(key) = root.key(name) {
        let head = match key.kind {
            Kind::Tables(..) => format!("[[{name}]]"),
            _ => format!("[{name}]"),
        };
        return format!("{head} is a table of its own at the top level");
    }
    match (homes.as_slice(), own) {
        ([], Some((_, key))) => meant(key),
        ([], None) => {
            let all: Vec<&str> = table.keys.iter().map(|key| key.name).collect();
            format!("its keys are {}", all.join(", "))
        }
        (homes, _) => belongs(homes),
    }
}

fn belongs(homes: &[&str]) -> String {
    match homes {
        [first @ .., last] if !first.is_empty() => {
            format!("this key belongs to {} or {last}", first.join(", "))
        }
        homes => format!("this key belongs to {}", homes.concat()),
    }
}

fn find_homes(table: &'static Table, name: &str, homes: &mut Vec<&'static str>) {
    for key in table.keys {
        if let Kind::Table(inner) | Kind::Tables(inner, _) = key.kind {
            if inner.key(name).is_some() {
                homes.push(inner.shown);
            }
            find_homes(inner, name, homes);
        }
    }
}

/// A text of the file as a message may show it: short, and without control characters.
pub(in crate::topology) fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 40;
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(SHOWN_MAX).map(clean).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        short.push_str("...");
    }
    short
}

/// A doc sentence inside a help: without its capital and its full stop.
pub(super) fn sentence(doc: &str) -> String {
    let doc = doc.trim_end_matches('.');
    let mut rest = doc.chars();
    rest.next().map_or(String::new(), |first| {
        first.to_lowercase().collect::<String>() + rest.as_str()
    })
}

#[cfg(test)]
mod tests {
    use super::super::keys;
    use super::*;

    #[test]
    fn a_near_word_is_found_and_a_far_one_is_not() {
        let words = ["rounds", "sync_every", "seed"];
        for (given, meant) in [
            ("rouns", Some("rounds")),
            ("syncEvery", Some("sync_every")),
            ("sync-every", Some("sync_every")),
            ("xyzzy", None),
            ("", None),
            ("e", None),
        ] {
            assert_eq!(nearest(given, words), meant, "{given}");
        }
        let long = "x".repeat(COMPARED_MAX);
        assert_eq!(nearest(&long[1..], [&*long]), Some(&*long));
        assert_eq!(
            nearest(&(long.clone() + "x"), [&*long]),
            None,
            "too long to compare"
        );
    }

    #[test]
    fn a_section_wins_over_a_slip_and_a_slip_over_an_inline_table() {
        let federation = match keys::FILE.keys[0].kind {
            Kind::Table(table) => table,
            _ => unreachable!(),
        };
        assert_eq!(
            for_key(&keys::FILE, federation, "round", false),
            "did you mean `rounds`?"
        );
        assert_eq!(
            for_key(&keys::FILE, federation, "deadline", false),
            "this key belongs to [round]"
        );
        assert_eq!(
            for_key(&keys::FILE, federation, "delay", false),
            "this key belongs to link.emulate"
        );
        assert_eq!(
            for_key(&keys::FILE, &keys::FILE, "rounds", false),
            "this key belongs to [federation]"
        );
        assert_eq!(
            for_key(&keys::FILE, &keys::FILE, "rounds", true),
            "did you mean [round]?"
        );
        assert!(for_key(&keys::FILE, federation, "momentum", false).ends_with("[outer]"));
        assert!(
            for_key(&keys::FILE, federation, "checkpoint", true).starts_with("[checkpoint] is")
        );
        assert!(
            for_key(&keys::FILE, federation, "xyzzy", false)
                .starts_with("its keys are name, rounds")
        );
    }

    #[test]
    fn what_is_shown_is_short_and_printable() {
        assert_eq!(shown("a\u{1b}[31m"), "a\u{fffd}[31m");
        assert_eq!(shown(&"é".repeat(1000)).chars().count(), 43);
    }
}
