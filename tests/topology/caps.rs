//! What a site sends over its links at most.

use tombolo_core::shaping::{Cap, Hours, Overload};

use crate::good::{SMALL, link_of, read};
use tombolo::topology::config_hash;

#[test]
fn a_cap_holds_each_way_unless_the_way_back_has_its_own_and_hours_have_theirs() {
    let link = link_of(
        r#"cap = "200 Mbit/s"
        cap_back = "10 Mbit/s"
        overload = "adapt"
        hours = [{ from = "08:30", to = "18:00", cap = "20 Mbit/s" }, { from = "22:00", to = "05:00", cap = "1 Gbit/s", cap_back = "50 Mbit/s" }]"#,
    );
    let hours = |rates: [u64; 2]| {
        let [day, night] = rates;
        vec![
            Hours {
                from: 510,
                to: 1080,
                rate: day,
            },
            Hours {
                from: 1320,
                to: 300,
                rate: night,
            },
        ]
    };
    let cap = |rate, rates| Cap {
        rate,
        hours: hours(rates),
        overload: Overload::Adapt,
    };
    assert_eq!(
        link.cap,
        Some(cap(200_000_000, [20_000_000, 1_000_000_000]))
    );
    assert_eq!(
        link.cap_back,
        Some(cap(10_000_000, [20_000_000, 50_000_000]))
    );
    let one_way = link_of("cap_back = \"10 Mbit/s\"");
    assert_eq!(
        (one_way.cap, one_way.cap_back),
        (None, Some(Cap::of(10_000_000)))
    );
    // What a site sends is its own business: others need not have the same.
    assert_eq!(
        config_hash(&read(&format!(
            "{SMALL}\n[[link]]\nbetween = [\"hq\", \"plant\"]\n"
        ))),
        config_hash(&read(&format!(
            "{SMALL}\n[[link]]\nbetween = [\"hq\", \"plant\"]\ncap = \"1 Mbit/s\"\n"
        )))
    );
}
