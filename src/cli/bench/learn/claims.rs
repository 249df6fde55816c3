//! The row that the articles this rule comes from have claimed (86 rounds became 67, 12 % failed contributions became 5 %, 82.3 % accuracy became
//! 86.1 %), beside ours, and how much of it is the retries' and how much the weights'.

use serde_json::{Value, json};

use super::bad::Fault;
use super::findings::{Findings, Plot, mean, percent, row};
use super::plot::{Mark, Series, by_round};
use super::setting::{Learned, Setting};
use super::{Outcome, Study};

/// Sends that fail; without retries the contribution is lost.
const FAILING: f64 = 0.12;

const ROUNDS: u64 = 100;

/// Few local steps, so that there are rounds to be saved.
const SYNC_EVERY: &str = "2";

/// The accuracy that is waited for.
const TARGET: f64 = 0.861;

const EQUAL: &str = "kind = \"fedavg\"\nweights = \"equal\"\nclip = \"none\"";

/// Name, whether what failed is sent again, lines of `[aggregator]`.
const ARMS: &[(&str, bool, &str)] = &[
    ("neither", false, EQUAL),
    ("retries", true, EQUAL),
    ("weights", false, ""),
    ("both", true, ""),
];

/// How many runs it takes.
pub fn runs(study: &Study) -> u64 {
    ARMS.len() as u64 * study.seeds
}

/// Runs the federation with retries, with weights, with both and with neither.
pub fn run(study: &Study, findings: &mut Findings) -> Outcome<()> {
    let mut series = Vec::new();
    let mut missing = Vec::new();
    findings.rows.push(row(json!({
        "study": "claims", "with": "the articles, neither", "failed_percent": "12", "accuracy": "82.3", "rounds_to_86.1": "86",
    })));
    findings.rows.push(row(json!({
        "study": "claims", "with": "the articles, both", "failed_percent": "5", "accuracy": "86.1", "rounds_to_86.1": "67",
    })));
    for (name, retries, rule) in ARMS {
        let mut all = Vec::new();
        for seed in study.seeds() {
            let learned = study.step(|| one(seed, *retries, rule))?;
            findings.runs.push(row(json!({
                "study": "claims", "with": name, "seed": seed, "missing": learned.missing,
                "accuracies": learned.accuracies, "rounds_to_target": reached(&learned),
            })));
            all.push(learned);
        }
        let failed: Vec<f64> = all.iter().map(|learned| learned.missing).collect();
        let accuracies: Vec<f64> = all.iter().map(Learned::accuracy).collect();
        let rounds: Vec<String> = all
            .iter()
            .map(|learned| reached(learned).to_string())
            .collect();
        findings.rows.push(row(json!({
            "study": "claims", "with": name, "failed_percent": percent(&failed), "accuracy": percent(&accuracies),
            "rounds_to_86.1": rounds.join(", "),
        })));
        if let Some(first) = all.first() {
            let rounds = (1..).map(f64::from);
            let shares = first.accuracies.iter().map(|share| share * 100.0);
            series.push(Series {
                name: (*name).to_owned(),
                mark: Mark::Line,
                points: rounds.zip(shares).collect(),
            });
        }
        missing.push((*retries, mean(&failed)));
    }
    let share = |with: bool| {
        let of: Vec<f64> = missing
            .iter()
            .filter(|(it, _)| *it == with)
            .map(|(_, share)| *share)
            .collect();
        mean(&of) * 100.0
    };
    findings.claim(
        "retries bring 12 % failed sends below 5 % failed contributions",
        format!("{:.2} % without, {:.2} % with", share(false), share(true)),
        share(true) < 5.0 && share(false) > 8.0,
    );
    let title =
        "Two of ten nodes with wrong labels, 12 % of sends fail: accuracy by round, first seed"
            .to_owned();
    findings.plots.push(Plot {
        file: "claims.svg",
        svg: by_round(&title, &series)?,
        shows: title,
    });
    Ok(())
}

fn one(seed: u64, retries: bool, rule: &'static str) -> Outcome<Learned> {
    let setting = Setting {
        seed,
        rounds: ROUNDS,
        sync_every: SYNC_EVERY,
        fault: Some(Fault::Flip),
        rule,
        failing_sends: if retries { FAILING } else { 0.0 },
        absent: if retries { 0.0 } else { FAILING },
        ..Setting::default()
    };
    setting.simulate()
}

/// The first round after which the model was good enough.
fn reached(learned: &Learned) -> Value {
    let at = learned
        .accuracies
        .iter()
        .position(|accuracy| *accuracy >= TARGET);
    at.map_or("never".into(), |at| (at + 1).into())
}
