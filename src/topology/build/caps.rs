//! What a site sends over its links at most, and when.

use tombolo_core::shaping::{Cap, Hours, Overload};

use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::value::{Item, Section, Value};

/// Of a link: from the first of `between` to the second, and back.
pub(super) fn of(link: &Section, mistakes: &mut Mistakes) -> (Option<Cap>, Option<Cap>) {
    let overload = match link.word("overload") {
        "drop" => Overload::Drop,
        "adapt" => Overload::Adapt,
        _ => Overload::Delay,
    };
    let forth = rate(link, "cap");
    let back = rate(link, "cap_back").or(forth);
    if forth.is_none() && back.is_none() {
        refuse_without_cap(link, mistakes);
    }
    let cap = |rate, hours| Cap {
        rate,
        hours,
        overload,
    };
    (
        forth.map(|rate| cap(rate, hours(link, false))),
        back.map(|rate| cap(rate, hours(link, true))),
    )
}

fn rate(section: &Section, key: &str) -> Option<u64> {
    match section.find(key).map(|entry| &entry.item.value) {
        Some(Value::Whole(bits)) => Some(*bits),
        _ => None,
    }
}

fn hours(link: &Section, is_back: bool) -> Vec<Hours> {
    let hours = link.list("hours").iter().map(Item::section);
    let found = hours.filter_map(|hours| {
        let back = rate(hours, "cap_back").filter(|_| is_back);
        Some(Hours {
            from: rate(hours, "from")? as u16,
            to: rate(hours, "to")? as u16,
            rate: back.or(rate(hours, "cap"))?,
        })
    });
    found.collect()
}

/// Refuses what says how a cap is held where there is none.
fn refuse_without_cap(link: &Section, mistakes: &mut Mistakes) {
    for key in ["hours", "overload"] {
        let wrong = ["cap", "cap_back"].iter().any(|cap| link.is_wrong(cap));
        let is_default = key == "overload" && link.word(key) == "delay";
        if link.gives(key) && !is_default && !wrong {
            mistakes.push(
                Mistake::at(&link.place(key), format!("`{key}` has no meaning without a cap"))
                    .label("nothing is capped")
                    .help("write the cap that holds otherwise, such as cap = \"200 Mbit/s\", or remove it"),
            );
        }
    }
}
