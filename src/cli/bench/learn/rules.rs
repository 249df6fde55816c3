//! Which rule holds a model up when two of ten nodes are bad.

use serde_json::json;
use tombolo_core::compress::Codec;

use super::bad::Fault;
use super::findings::{Findings, Plot, Row, percent, points_lost, row};
use super::plain::Plain;
use super::plot::{Mark, Series, by_group};
use super::setting::Setting;
use super::{Outcome, Study};

/// Sends that fail, and are tried again.
const FAILING_SENDS: f64 = 0.12;

/// The default may lose so many points to the same run without bad nodes.
const LOSS_MAX: f64 = 2.0;

/// A mean that loses less than so many points has not failed, and the study proves nothing.
const FAILURE_MIN: f64 = 10.0;

/// A rule: its name, and its lines of `[aggregator]`, or none for a mean that checks nothing.
type Rule = (&'static str, Option<&'static str>);

const UNCHECKED: Rule = ("plain mean, nothing checked", None);
const DEFAULT: Rule = ("default", Some(""));

const RULES: &[Rule] = &[
    UNCHECKED,
    (
        "equal weights",
        Some("kind = \"fedavg\"\nweights = \"equal\"\nclip = \"none\""),
    ),
    ("dynamic weights", Some("clip = \"none\"")),
    ("median", Some("kind = \"median\"\nclip = \"none\"")),
    (
        "trimmed mean",
        Some("kind = \"trimmed-mean\"\nfaulty = 2\nclip = \"none\""),
    ),
    (
        "multi-Krum",
        Some("kind = \"multi-krum\"\nfaulty = 2\nclip = \"none\""),
    ),
    ("centred clipping", Some("kind = \"centred-clipping\"")),
    ("clip to the median norm", Some("kind = \"fedavg\"")),
    DEFAULT,
    ("default with feedback", Some("feedback = {}")),
];

/// What is varied.
struct Grid {
    rules: &'static [Rule],
    alphas: &'static [f64],
    faults: &'static [Option<Fault>],
}

const WHOLE: Grid = Grid {
    rules: RULES,
    alphas: &[0.5, 0.1],
    faults: &[
        None,
        Some(Fault::Noise),
        Some(Fault::Flip),
        Some(Fault::Thirty),
        Some(Fault::NotANumber),
    ],
};

/// What every change must hold.
const SHORT: Grid = Grid {
    rules: &[UNCHECKED, DEFAULT],
    alphas: &[0.5],
    faults: &[None, Some(Fault::Thirty), Some(Fault::NotANumber)],
};

/// Accuracies over seeds of one rule, by fault.
struct Found {
    alpha: f64,
    rule: Rule,
    cells: Vec<(Option<Fault>, Vec<f64>)>,
}

impl Found {
    fn of(&self, fault: Option<Fault>) -> &[f64] {
        let cell = self.cells.iter().find(|(of, _)| *of == fault);
        cell.map_or(&[], |(_, accuracies)| accuracies)
    }
}

/// How many runs it takes.
pub fn runs(study: &Study) -> u64 {
    let grid = grid(study);
    (grid.rules.len() * grid.alphas.len() * grid.faults.len()) as u64 * study.seeds
}

fn grid(study: &Study) -> &'static Grid {
    if study.short { &SHORT } else { &WHOLE }
}

/// Runs each rule under each fault.
pub fn run(study: &Study, findings: &mut Findings) -> Outcome<()> {
    let grid = grid(study);
    for alpha in grid.alphas {
        let mut all = Vec::new();
        for rule in grid.rules {
            let mut found = Found {
                alpha: *alpha,
                rule: *rule,
                cells: Vec::new(),
            };
            for fault in grid.faults {
                let accuracies =
                    study.over_seeds(|seed| one(seed, *alpha, *rule, *fault, findings));
                found.cells.push((*fault, accuracies?));
            }
            findings.rows.push(shown(&found));
            all.push(found);
        }
        if *alpha == 0.5 {
            claims(&all, findings);
        }
        if !study.short {
            findings.plots.push(plot(&all)?);
        }
    }
    Ok(())
}

fn column(fault: Option<Fault>) -> &'static str {
    fault.map_or("clean", Fault::name)
}

/// One run; gives its last accuracy.
fn one(
    seed: u64,
    alpha: f64,
    (name, rule): Rule,
    fault: Option<Fault>,
    findings: &mut Findings,
) -> Outcome<f64> {
    let setting = Setting {
        seed,
        alpha: Some(alpha),
        fault,
        rule: rule.unwrap_or_default(),
        failing_sends: FAILING_SENDS,
        ..Setting::default()
    };
    let mut line = row(json!({
        "study": "rules", "alpha": alpha, "rule": name, "fault": column(fault), "seed": seed,
    }));
    let accuracy = if rule.is_some() {
        let learned = setting.simulate()?;
        line.insert("missing".into(), learned.missing.into());
        line.insert("refused".into(), learned.refused.into());
        line.insert("reason".into(), learned.reason.as_str().into());
        learned.accuracy()
    } else {
        let mut plain = Plain::new(&setting, Codec::None, false)?;
        for _ in 0..setting.rounds {
            plain.round()?;
        }
        plain.accuracy()?
    };
    line.insert("accuracy".into(), accuracy.into());
    findings.runs.push(line);
    Ok(accuracy)
}

fn shown(found: &Found) -> Row {
    let mut shown = row(json!({ "study": "rules", "alpha": found.alpha, "rule": found.rule.0 }));
    for (fault, accuracies) in &found.cells {
        shown.insert(column(*fault).into(), percent(accuracies).into());
    }
    shown
}

fn claims(all: &[Found], findings: &mut Findings) {
    let of = |(name, _): Rule| all.iter().find(|found| found.rule.0 == name);
    let (Some(default), Some(unchecked)) = (of(DEFAULT), of(UNCHECKED)) else {
        return;
    };
    for (fault, accuracies) in &default.cells {
        let Some(fault) = fault.filter(|fault| *fault != Fault::Flip) else {
            continue;
        };
        let lost = points_lost(accuracies, default.of(None));
        findings.claim(
            &format!(
                "{}: the default loses at most {LOSS_MAX} points",
                fault.name()
            ),
            format!("{lost:.2} points"),
            lost <= LOSS_MAX,
        );
    }
    for fault in [Fault::Thirty, Fault::NotANumber] {
        let lost = points_lost(unchecked.of(Some(fault)), unchecked.of(None));
        findings.claim(
            &format!(
                "{}: a mean that checks nothing loses at least {FAILURE_MIN} points",
                fault.name()
            ),
            format!("{lost:.2} points"),
            lost >= FAILURE_MIN,
        );
    }
}

fn plot(all: &[Found]) -> Outcome<Plot> {
    let alpha = all.first().map_or(0.0, |found| found.alpha);
    let series = all.iter().map(|found| Series {
        name: found.rule.0.to_owned(),
        mark: Mark::Circle,
        points: found
            .cells
            .iter()
            .enumerate()
            .flat_map(|(group, (_, shares))| {
                shares
                    .iter()
                    .map(move |share| (group as f64, share * 100.0))
            })
            .collect(),
    });
    let groups: Vec<&str> = WHOLE.faults.iter().map(|fault| column(*fault)).collect();
    let title = format!(
        "Two of ten nodes bad, Dirichlet {alpha}: accuracy after 60 rounds, one mark a seed"
    );
    Ok(Plot {
        file: if alpha == 0.5 {
            "rules-0.5.svg"
        } else {
            "rules-0.1.svg"
        },
        svg: by_group(&title, &groups, &series.collect::<Vec<_>>())?,
        shows: title,
    })
}
