//! One number for a plan: equal on every machine that will compute the same federation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write};

use serde::{Deserialize, Serialize};
use tombolo_core::collective::Shape;
use tombolo_core::compress::{Coding, Lossless};
use tombolo_core::congestion::Law;
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::{
    AggregatorPlan, InnerPlan, LinkPlan, ModelPlan, OuterPlan, Partition, Plan, Precision,
    RoundPlan,
};
use tombolo_core::tensor::Hash;

/// Domains whose gateways are told; the file may hold anything.
const GATEWAYS_MAX: usize = 4_096;

/// The longest value that is kept as it is; a longer one is kept as its hash.
const VALUE_BYTES_MAX: usize = 200;

/// The hash of everything in a plan that decides the outcome, whatever the file's formatting: see [`SharedKeys`].
pub fn config_hash(plan: &Plan) -> [u8; 32] {
    SharedKeys::of(plan).hash().0
}

/// Everything in a plan that decides the outcome, key by key, whatever the file's formatting.
///
/// Not in it: policies, with which a run may go on that has begun with others (nodes compare them all the same), addresses, fabrics, certificates, how patient a node is with a silent peer, the state folder and what is kept there
/// for how long.
/// A node compares the hash with its peers' before it joins, and a resumed run with that of the run before, whose keys say what differs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SharedKeys(BTreeMap<String, String>);

impl SharedKeys {
    /// The keys of a plan.
    pub fn of(plan: &Plan) -> Self {
        // Taken apart without `..`, here and below, so that a new field must be placed on one side or the other.
        let Plan {
            name,
            rounds,
            sync_every,
            balance_steps,
            coordinator,
            standby,
            seed,
            round,
            model,
            aggregator,
            outer,
            domains,
            links,
            // By which way something comes changes nothing of what comes.
            route: _,
            heartbeat: _,
            security: _,
            checkpoint: _,
            // A run may go on with other policies; what nodes compare with each other holds them, too: `policy::bind`.
            policy: _,
        } = plan;
        let mut keys = SharedKeys::default();
        keys.add("federation.name", name);
        keys.add("federation.rounds", rounds);
        keys.add("federation.sync_every", sync_every);
        if *balance_steps {
            // As below.
            keys.add("run.balance_steps", balance_steps);
        }
        keys.add("federation.coordinator", coordinator);
        if !standby.is_empty() {
            // A run without any has the hash it always had.
            keys.add("federation.standby", standby);
        }
        keys.add("federation.seed", seed);
        keys.add_round(round);
        keys.add_model(model);
        keys.add_rule(aggregator, outer);
        let order: Vec<_> = domains.iter().map(|domain| &domain.id).collect();
        keys.add("domain.name", &order);
        for domain in domains {
            let nodes: Vec<_> = domain.nodes.iter().map(|node| node.id.name()).collect();
            keys.add(&format!("domain.nodes of {}", domain.id), &nodes);
            keys.add(
                &format!("domain.gateways of {}", domain.id),
                &domain.gateways,
            );
            if domain.step_shape != Shape::Direct {
                // The default has the hash it always had.
                let name = format!("domain.step_collective of {}", domain.id);
                keys.add(&name, &domain.step_shape);
            }
        }
        links.iter().for_each(|link| keys.add_link(link));
        keys
    }

    /// One number for all of them.
    pub fn hash(&self) -> Hash {
        let mut text = String::new();
        for (key, value) in &self.0 {
            writeln!(text, "{key} = {value}").expect("writing into a string cannot fail");
        }
        Hash::of_bytes(text.as_bytes())
    }

    /// The keys whose values differ, by name; those that one side lacks are among them.
    pub fn differences<'a>(&'a self, other: &'a SharedKeys) -> Vec<&'a str> {
        let names: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        names
            .into_iter()
            .filter(|name| self.0.get(*name) != other.0.get(*name))
            .map(String::as_str)
            .collect()
    }

    /// How a key's value is written.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The first gateway of each domain, of those whose gateways are few enough to be written out.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = (DomainId, NodeId)> {
        let gateways = self.0.iter().filter_map(|(key, value)| {
            let domain = key.strip_prefix("domain.gateways of ")?.parse().ok()?;
            let all = value.strip_prefix('[')?.strip_suffix(']')?;
            Some((domain, all.split(", ").next()?.parse().ok()?))
        });
        gateways.take(GATEWAYS_MAX)
    }

    /// Debug output of plain enums and numbers is their source text.
    fn add(&mut self, key: &str, value: &dyn Debug) {
        let mut value = format!("{value:?}");
        if value.len() > VALUE_BYTES_MAX {
            value = format!("of hash {}", Hash::of_bytes(value.as_bytes()));
        }
        self.0.insert(key.to_owned(), value);
    }

    fn add_round(&mut self, round: &RoundPlan) {
        let RoundPlan {
            quorum,
            deadline,
            grace,
            failed_limit,
            close_limit,
            patience: _,
            durability: _,
            absent,
            asynchronous,
            codec_down,
        } = round;
        if *codec_down != Lossless::None {
            // Models that travel as they are leave the hash that always was.
            self.add("round.codec_down", codec_down);
        }
        self.add("round.quorum", quorum);
        self.add("round.deadline", deadline);
        self.add("round.grace", grace);
        self.add("round.failed_limit", failed_limit);
        self.add("round.close_limit", close_limit);
        self.add("round.absent", absent);
        // Named only where it is chosen: older states of synchronous runs stay theirs.
        if let Some(asynchronous) = asynchronous {
            self.add("round.asynchronous", asynchronous);
        }
    }

    fn add_model(&mut self, model: &ModelPlan) {
        let ModelPlan {
            trainer,
            hidden,
            learning_rate,
            inner,
            batch,
            accumulate,
            precision,
            proximal,
            data_parallel,
            init,
            order,
            partition,
        } = model;
        self.add("model.trainer", trainer);
        self.add("model.hidden", hidden);
        self.add("model.learning_rate", learning_rate);
        if *inner != InnerPlan::default() {
            // Plain steps have the hash they always had.
            let InnerPlan {
                optimizer,
                beta1,
                beta2,
                epsilon,
                weight_decay,
            } = inner;
            self.add("model.optimizer", optimizer);
            self.add("model.beta1", beta1);
            self.add("model.beta2", beta2);
            self.add("model.epsilon", epsilon);
            self.add("model.weight_decay", weight_decay);
        }
        self.add("model.batch", batch);
        self.add("model.accumulate", accumulate);
        if *precision != Precision::F32 {
            // The default has the hash it always had.
            self.add("model.precision", precision);
        }
        self.add("model.proximal", proximal);
        if *data_parallel {
            // Nodes that train each by itself have the hash they always had.
            self.add("model.data_parallel", data_parallel);
        }
        self.add("model.init", init);
        self.add("model.order", order);
        match partition {
            // A file of rows is compared by what it says.
            Partition::Rows(rows) => self.add("model.partition", &("rows", rows)),
            Partition::Clients(clients) => self.add("model.partition", &("clients", clients)),
            other => self.add("model.partition", other),
        }
    }

    fn add_rule(&mut self, aggregator: &AggregatorPlan, outer: &OuterPlan) {
        let AggregatorPlan {
            kind,
            weights,
            clip,
            loss_limit,
            norm_limit,
            penalty,
            relative,
            faulty,
            iterations,
            feedback,
            // Follows from the rule.
            needs: _,
        } = aggregator;
        self.add("aggregator.kind", kind);
        self.add("aggregator.weights", weights);
        self.add("aggregator.clip", clip);
        self.add("aggregator.loss_limit", loss_limit);
        self.add("aggregator.norm_limit", norm_limit);
        self.add("aggregator.penalty", penalty);
        self.add("aggregator.thresholds", relative);
        self.add("aggregator.faulty", faulty);
        self.add("aggregator.iterations", iterations);
        if feedback.is_some() {
            // Without it a rule has the hash it always had.
            self.add("aggregator.feedback", feedback);
        }
        let OuterPlan {
            optimizer,
            learning_rate,
            momentum,
            beta1,
            beta2,
            epsilon,
        } = outer;
        self.add("outer.optimizer", optimizer);
        self.add("outer.learning_rate", learning_rate);
        self.add("outer.momentum", momentum);
        self.add("outer.beta1", beta1);
        self.add("outer.beta2", beta2);
        self.add("outer.epsilon", epsilon);
    }

    /// Every setting of a link holds both ways, so its ends have no order, and links among themselves have none.
    fn add_link(&mut self, link: &LinkPlan) {
        let LinkPlan {
            between: (a, b),
            emulate,
            codec,
            lossless_down,
            congestion,
            // A site's own business.
            cap: _,
            cap_back: _,
        } = link;
        let (first, second) = (a.min(b), a.max(b));
        self.add(
            &format!("link.emulate between {first} and {second}"),
            emulate,
        );
        if let Some(lossless) = lossless_down {
            let name = format!("link.lossless_down between {first} and {second}");
            self.add(&name, lossless);
        }
        let Coding { codec, lossless } = codec;
        self.add(&format!("link.codec between {first} and {second}"), codec);
        if *lossless != Lossless::None {
            // As below: a link without a stage has the hash it always had.
            let name = format!("link.codec, lossless, between {first} and {second}");
            self.add(&name, lossless);
        }
        if *congestion != Law::Cubic {
            // A link of the default has the hash it always had.
            self.add(
                &format!("link.congestion between {first} and {second}"),
                congestion,
            );
        }
    }
}
