//! Aggregation rules of your own: one as an implementation of the trait, one as an actix actor that answers the aggregation messages.
//!
//! Run it with `cargo run --example custom_aggregator`.

use std::error::Error;

use actix::Actor;
use tombolo::actors::aggregate::Weigh;
use tombolo::core::aggregate::{AggregateError, Aggregator, Report, Weight};
use tombolo::{Federation, core::ids::NodeId};

const TOPOLOGY: &str = r#"
    [federation]
    name = "votes"
    rounds = 4
    sync_every = 20

    [model]
    trainer = "digits-softmax"

    [aggregator]
    kind = "RULE"

    [[domain]]
    name = "north"
    nodes = ["gate", "a"]

    [[domain]]
    name = "south"
    nodes = ["gate", "b"]
"#;

fn weight(node: &NodeId, weight: f64, clip: f64, reason: &str) -> Weight {
    Weight {
        node: node.clone(),
        weight,
        clip,
        reason: reason.to_owned(),
    }
}

/// No update is longer than the shortest one.
struct ShortestNorm;

impl Aggregator for ShortestNorm {
    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        let norms = reports.iter().map(|report| report.norm);
        let shortest = norms.fold(f64::INFINITY, f64::min);
        let weights = reports.iter().map(|report| {
            let clip = if report.norm > 0.0 {
                shortest / report.norm
            } else {
                1.0
            };
            weight(
                &report.node,
                report.samples as f64,
                clip,
                "cut to the shortest",
            )
        });
        Ok(weights.collect())
    }

    fn finish(&mut self, mean: &mut [f32]) -> Result<(), AggregateError> {
        // The last word on the mean, in place: here, nothing that is too small to matter.
        for element in mean.iter_mut().filter(|element| element.abs() < 1e-9) {
            *element = 0.0;
        }
        Ok(())
    }
}

/// An actor that remembers: who was heard more often counts for less.
#[derive(Default)]
struct Turns {
    heard: std::collections::BTreeMap<NodeId, u32>,
}

impl actix::Actor for Turns {
    type Context = actix::Context<Self>;
}

impl actix::Handler<Weigh> for Turns {
    type Result = Result<Vec<Weight>, AggregateError>;

    fn handle(&mut self, message: Weigh, _context: &mut Self::Context) -> Self::Result {
        let weights = message.reports.iter().map(|report| {
            let heard = self.heard.entry(report.node.clone()).or_default();
            *heard += 1;
            weight(&report.node, 1.0 / f64::from(*heard), 1.0, "by turns")
        });
        Ok(weights.collect())
    }
}

fn federation(rule: &str, folder: &std::path::Path) -> Result<Federation, Box<dyn Error>> {
    let topology = TOPOLOGY.replace("RULE", rule);
    Ok(Federation::from_toml(&topology, folder)?.state(folder.join(rule)))
}

fn main() -> Result<(), Box<dyn Error>> {
    run()
}

/// The whole example; also called by a test.
#[tokio::main(flavor = "current_thread")]
pub async fn run() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let by_trait = federation("shortest-norm", folder.path())?
        .aggregator("shortest-norm", || ShortestNorm)
        .spawn()
        .await?;
    let by_trait = by_trait.run().await?;
    let by_actor = federation("turns", folder.path())?
        .aggregator_actor("turns", || Turns::default().start().recipient())
        .spawn()
        .await?;
    let by_actor = by_actor.run().await?;
    for (name, report) in [("trait", by_trait), ("actor", by_actor)] {
        println!("{name}: accuracy {:.3}", report.finished.accuracy);
        assert!(report.succeeded(), "{:?}", report.finished);
        assert_eq!(report.rounds().len(), 4);
        assert!(report.finished.accuracy > 0.6, "{:?}", report.finished);
    }
    Ok(())
}
