//! What accuracy costs in bytes: codecs with and without their memory, and more local steps between two rounds.

use serde_json::json;
use tombolo_core::compress::{Codec, MILLION};

use super::findings::{Findings, Plot, mean, percent, points_lost, row};
use super::plain::Plain;
use super::plot::{Mark, Series, by_bytes};
use super::setting::Setting;
use super::{Outcome, Study};

/// Local steps of every run, however many rounds they are.
const STEPS: u64 = 2000;

/// H: local steps between two rounds, and the same as the topology says it.
const SPANS: &[(u64, &str)] = &[(1, "1"), (10, "10"), (50, "50"), (200, "200")];

/// Without and with Nesterov's outer step, as DiLoCo has it (Douillard et al., 2023).
const OUTERS: &[(&str, &str)] = &[
    ("sgd", ""),
    (
        "nesterov",
        "optimizer = \"nesterov\"\nlearning_rate = 0.7\nmomentum = 0.9",
    ),
];

/// H = 50 may lose so many points to H = 1.
const LOSS_MAX: f64 = 0.5;

const fn top(share: u32) -> Codec {
    Codec::TopK {
        share,
        halves: false,
    }
}

/// Name, codec, and whether what it loses is remembered.
const CODECS: &[(&str, Codec, bool)] = &[
    ("f32", Codec::None, false),
    ("fp16", Codec::Fp16, true),
    ("int8", Codec::Int8, true),
    ("top 10 %", top(MILLION / 10), true),
    ("top 10 %, no feedback", top(MILLION / 10), false),
    ("top 1 %", top(MILLION / 100), true),
    ("top 1 %, no feedback", top(MILLION / 100), false),
];

/// How many runs it takes.
pub fn runs(study: &Study) -> u64 {
    (SPANS.len() * OUTERS.len() * CODECS.len()) as u64 * study.seeds
}

/// Runs each codec with each number of local steps.
pub fn run(study: &Study, findings: &mut Findings) -> Outcome<()> {
    let mut series = Vec::new();
    let mut plain = Vec::new();
    for (outer, settings) in OUTERS {
        for (codec, how, remembers) in CODECS {
            let mut points = Vec::new();
            for (span, sync_every) in SPANS {
                let mut bytes = 0;
                let accuracies = study.over_seeds(|seed| {
                    let setting = Setting {
                        seed,
                        alpha: None,
                        rounds: STEPS / span,
                        sync_every,
                        outer: settings,
                        ..Setting::default()
                    };
                    let (accuracy, uplink) = one(&setting, *how, *remembers)?;
                    bytes = uplink;
                    findings.runs.push(row(json!({
                        "study": "codecs", "outer": outer, "codec": codec, "h": span, "seed": seed,
                        "rounds": setting.rounds, "uplink_bytes": uplink, "accuracy": accuracy,
                    })));
                    Ok(accuracy)
                })?;
                points.push((bytes as f64, mean(&accuracies) * 100.0));
                findings.rows.push(row(json!({
                    "study": "codecs", "outer": outer, "codec": codec, "h": span, "rounds": STEPS / span,
                    "uplink_bytes": bytes, "accuracy": percent(&accuracies),
                })));
                if (*outer, *codec) == ("sgd", "f32") {
                    plain.push((*span, bytes, accuracies));
                }
            }
            series.push(Series {
                name: format!("{codec}, {outer}"),
                mark: if *outer == "sgd" {
                    Mark::Circle
                } else {
                    Mark::Triangle
                },
                points,
            });
        }
    }
    claim(&plain, findings);
    let title = format!(
        "Rows dealt out evenly, {STEPS} local steps: accuracy against uplink bytes, H = 1, 10, 50, 200"
    );
    findings.plots.push(Plot {
        file: "codecs.svg",
        svg: by_bytes(&title, &series)?,
        shows: title,
    });
    Ok(())
}

/// The last accuracy of one run, and the bytes that it took.
fn one(setting: &Setting, codec: Codec, remembers: bool) -> Outcome<(f64, u64)> {
    let mut plain = Plain::new(setting, codec, remembers)?;
    for _ in 0..setting.rounds {
        plain.round()?;
    }
    Ok((plain.accuracy()?, plain.uplink))
}

fn claim(plain: &[(u64, u64, Vec<f64>)], findings: &mut Findings) {
    let of = |span| plain.iter().find(|(of, ..)| *of == span);
    let (Some((_, all, each)), Some((_, few, seldom))) = (of(1), of(50)) else {
        return;
    };
    let lost = points_lost(seldom, each);
    findings.claim(
        &format!("H = 50 loses at most {LOSS_MAX} points to H = 1 for 1/50 of the bytes"),
        format!("{lost:.2} points, 1/{} of the bytes", all / few),
        lost <= LOSS_MAX && few * 50 <= *all,
    );
}
