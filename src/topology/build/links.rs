//! Explicit settings between domains.

use std::collections::BTreeMap;
use std::time::Duration;

use tombolo_core::aggregate::Needs;
use tombolo_core::compress::{Codec, Coding, Lossless, MILLION, planner};
use tombolo_core::congestion::Law;
use tombolo_core::congestion::delay_gradient::Settings;
use tombolo_core::ids::DomainId;
use tombolo_core::plan::{Emulate, LinkPlan};
use tombolo_core::shaping::Cap;

use super::domains::{Domain, Domains};
use super::{caps, did_you_mean};
use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::reader::shown;
use crate::topology::value::{Item, Section, Span, Value};

pub(super) fn plan(
    file: &Section,
    domains: &Domains<'_>,
    home: Option<&DomainId>,
    mistakes: &mut Mistakes,
) -> Vec<LinkPlan> {
    let mut seen: BTreeMap<(&str, &str), Span> = BTreeMap::new();
    let mut links = Vec::new();
    for link in file.list("link").iter().map(Item::section) {
        let [one, two] = link.list("between") else {
            continue;
        };
        let place = link.place("between");
        for end in [one, two] {
            if domains.known {
                check_end(end, &domains.list, mistakes);
            }
        }
        let (a, b) = (one.text(), two.text());
        check_congestion(link, mistakes);
        if a == b {
            mistakes.push(
                Mistake::at(
                    &place,
                    format!("a link joins two domains, not {:?} with itself", shown(a)),
                )
                .label("the same domain twice")
                .help("name two domains"),
            );
            continue;
        }
        if let Some(first) = seen.insert((a.min(b), a.max(b)), place.clone()) {
            mistakes.push(
                Mistake::at(
                    &place,
                    format!(
                        "the link between {:?} and {:?} is there twice",
                        shown(a),
                        shown(b)
                    ),
                )
                .label("second")
                .also(&first, "first")
                .help("keep one [[link]] for each pair of domains"),
            );
        }
        if let (Ok(a), Ok(b)) = (a.parse::<DomainId>(), b.parse::<DomainId>()) {
            let (cap, cap_back) = caps::of(link, mistakes);
            // Contributions go to the coordinator's domain, models away from it.
            let (up, down) = match home == Some(&a) {
                true => (&cap_back, &cap),
                false => (&cap, &cap_back),
            };
            links.push(LinkPlan {
                emulate: emulate(link.section("emulate")),
                codec: codec(link, up.as_ref(), mistakes),
                lossless_down: lossless_down(link, down.as_ref(), mistakes),
                congestion: congestion(link),
                between: (a, b),
                cap,
                cap_back,
            });
        }
    }
    links
}

/// How contributions travel over a link.
fn codec(link: &Section, cap: Option<&Cap>, mistakes: &mut Mistakes) -> Coding {
    if link.word("codec") == "auto" {
        let budget = link.number("accuracy_budget");
        return auto(link, "codec", cap, budget, mistakes);
    }
    let coding: Coding = link.word("codec").parse().unwrap_or_default();
    let codec = match coding.codec {
        Codec::TopK { halves, .. } => Codec::TopK {
            share: (link.number("share") * f64::from(MILLION)).round() as u32,
            halves,
        },
        plain => plain,
    };
    Coding { codec, ..coding }
}

/// What packs models over a link, if it says so.
fn lossless_down(link: &Section, cap: Option<&Cap>, mistakes: &mut Mistakes) -> Option<Lossless> {
    const KEY: &str = "lossless_down";
    link.gives(KEY).then(|| match link.word(KEY) {
        "auto" => auto(link, KEY, cap, 0.0, mistakes).lossless,
        word => word.parse().unwrap_or_default(),
    })
}

/// What the planner chooses. It is part of the plan, so all nodes of a file choose the same, and a run that goes on has what it began with.
fn auto(
    link: &Section,
    key: &str,
    cap: Option<&Cap>,
    budget: f64,
    mistakes: &mut Mistakes,
) -> Coding {
    let path = emulate(link.section("emulate")).rate;
    let rate = path.into_iter().chain(cap.map(|cap| cap.rate)).min();
    if rate.is_none() {
        mistakes.push(
            Mistake::at(
                &link.place(key),
                format!("`{key} = \"auto\"` goes by the rate of the link, and none is stated"),
            )
            .label("cannot be chosen")
            .help("write what may be sent, as in cap = \"200 Mbit/s\", or the path's emulate = { rate = \"200 Mbit/s\" }, or name what to use"),
        );
    }
    let chosen = planner::choose(planner::PRICES, rate.unwrap_or(u64::MAX), budget);
    chosen.map_or(Coding::PLAIN, |price| price.coding)
}

/// The law of a link's connections.
fn congestion(link: &Section) -> Law {
    match link.word("congestion") {
        "bbr" => Law::Bbr,
        "delay-gradient" => Law::DelayGradient(Settings {
            factor: link.number("factor"),
            additive: link.number("additive"),
        }),
        _ => Law::Cubic,
    }
}

/// Refuses settings of the law that is not chosen.
fn check_congestion(link: &Section, mistakes: &mut Mistakes) {
    let law = link.word("congestion");
    if law == "delay-gradient" {
        return;
    }
    for key in ["factor", "additive"] {
        if link.gives(key) {
            mistakes.push(
                Mistake::at(
                    &link.place(key),
                    format!("`{key}` has no meaning for congestion {law:?}"),
                )
                .label("only delay-gradient has it")
                .help("remove it, or write congestion = \"delay-gradient\""),
            );
        }
    }
}

/// Refuses codecs that would encode nothing: contributions go to the coordinator's domain, and a rule that must see each update gets them whole.
pub(super) fn check_codecs(
    file: &Section,
    home: Option<&DomainId>,
    needs: Needs,
    mistakes: &mut Mistakes,
) {
    for link in file.list("link").iter().map(Item::section) {
        let codec = link.word("codec");
        if !codec.starts_with("topk") && link.gives("share") {
            mistakes.push(
                Mistake::at(
                    &link.place("share"),
                    format!("`share` has no meaning for codec {codec:?}"),
                )
                .label("only top-k sends a share")
                .help("remove it, or write codec = \"topk\""),
            );
        }
        if codec != "auto" && link.gives("accuracy_budget") {
            mistakes.push(
                Mistake::at(
                    &link.place("accuracy_budget"),
                    format!("`accuracy_budget` has no meaning for codec {codec:?}"),
                )
                .label("only auto chooses by it")
                .help("remove it, or write codec = \"auto\""),
            );
        }
        if codec == "none" {
            continue;
        }
        let between = link.list("between");
        let reaches = |home: &DomainId| between.iter().any(|end| end.text() == home.as_str());
        if home.is_some_and(|home| !reaches(home)) {
            mistakes.push(
                Mistake::at(
                    &link.place("codec"),
                    "contributions do not cross this link: they go to the coordinator's domain",
                )
                .label("encodes nothing")
                .help("remove it, or set it on the links of the coordinator's domain"),
            );
        }
        if needs != Needs::Sum {
            mistakes.push(
                Mistake::at(
                    &link.place("codec"),
                    "the aggregator must see each update, and those travel as they are",
                )
                .label("encodes nothing")
                .help("remove it, or choose an aggregator that needs the sum: fedavg or dynamic-weighted"),
            );
        }
    }
}

fn check_end(end: &Item, domains: &[Domain<'_>], mistakes: &mut Mistakes) {
    let names = || domains.iter().filter_map(|domain| domain.name);
    if names().any(|name| name == end.text()) {
        return;
    }
    let help = did_you_mean(
        mistakes,
        end.text(),
        names(),
        "links join the domains of this file",
    );
    mistakes.push(
        Mistake::at(
            &end.span,
            format!("there is no domain {:?}", shown(end.text())),
        )
        .label("unknown domain")
        .help(help),
    );
}

fn emulate(section: &Section) -> Emulate {
    Emulate {
        delay: section.duration("delay"),
        jitter: section.duration("jitter"),
        loss: section.number("loss"),
        rate: match section.find("rate").map(|entry| &entry.item.value) {
            Some(Value::Whole(bits)) => Some(*bits),
            _ => None,
        },
    }
}

/// Whether a path is emulated at all.
pub(in crate::topology) fn is_emulated(emulate: &Emulate) -> bool {
    emulate.delay > Duration::ZERO
        || emulate.jitter > Duration::ZERO
        || emulate.loss > 0.0
        || emulate.rate.is_some()
}
