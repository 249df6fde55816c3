//! Rounds in a plain loop: the mean of all updates as it is taken where nothing is checked, and codecs with and without their memory. Where
//! a federation can do the same it comes to the same bits, which a test holds.

use std::collections::BTreeMap;

use tombolo_core::compress::{self, Codec, Encoded, Kernels, feedback};
use tombolo_core::fold;
use tombolo_core::ids::NodeId;
use tombolo_core::outer::{self, OuterOptimizer};
use tombolo_core::plan::Plan;
use tombolo_core::trainer::{Task, Trainer};
use tombolo_core::wire::CHUNK_ELEMENTS;

use super::Outcome;
use super::bad::Suspect;
use super::setting::Setting;

/// All that takes part.
pub struct Plain {
    plan: Plan,
    trainers: BTreeMap<NodeId, Suspect>,
    outer: Box<dyn OuterOptimizer>,
    /// The committed parameters.
    pub model: Vec<f32>,
    round: u64,
    codec: Codec,
    /// What each node's codec lost, where that is remembered.
    residuals: Option<BTreeMap<NodeId, Vec<f32>>>,
    /// Bytes of what the nodes but the first one have sent.
    pub uplink: u64,
}

impl Plain {
    /// Before the first round.
    ///
    /// # Errors
    /// Settings that cannot be trained with.
    pub fn new(setting: &Setting, codec: Codec, remembers: bool) -> Outcome<Self> {
        let plan = setting.plan()?;
        let mut trainers = setting.trainers(&plan)?;
        let first = trainers.values_mut().next().ok_or("no node")?;
        let mut model = vec![0.0; first.layout().len()];
        first.initialize(plan.seed, &mut model)?;
        let residuals = trainers
            .keys()
            .cloned()
            .map(|node| (node, vec![0.0; model.len()]));
        Ok(Plain {
            outer: outer::build(&plan.outer, model.len()),
            residuals: remembers.then(|| residuals.collect()),
            round: 0,
            uplink: 0,
            plan,
            trainers,
            model,
            codec,
        })
    }

    /// One round with everybody, weighed by samples.
    ///
    /// # Errors
    /// Training fails, or what was sent cannot be folded.
    pub fn round(&mut self) -> Outcome<()> {
        self.round += 1;
        let nodes: Vec<NodeId> = self.trainers.keys().cloned().collect();
        let mut step = vec![0.0; self.model.len()];
        let mut weights = Vec::new();
        for node in &nodes {
            let (weight, update) = self.train(node)?;
            let exponent = fold::exponent(weight)?;
            let mut sum = vec![0.0; update.len()];
            fold::scale_into(&mut sum, fold::factor(weight, 1.0)?, &update);
            fold::scale_power(&mut sum, -exponent)?;
            let factor = fold::power(exponent)?;
            match weights.is_empty() {
                // The first node's own sum goes nowhere.
                true => fold::scale_into(&mut step, factor, &sum),
                false => {
                    self.send(node, exponent, &mut sum)?;
                    fold::add_scaled(&mut step, factor, &sum);
                }
            }
            weights.push(weight);
        }
        fold::divide(&mut step, fold::total(weights)?);
        self.outer.step(0, &mut step)?;
        self.outer.accept();
        outer::adopt(&mut self.model, &step);
        Ok(())
    }

    /// A node's weight and its update.
    fn train(&mut self, node: &NodeId) -> Outcome<(f64, Vec<f32>)> {
        let task = Task {
            node: node.clone(),
            round: self.round,
            seed: self.plan.seed,
            sync_every: self.plan.sync_every,
            domain: tombolo_core::trainer::Domain::alone(),
        };
        let mut local = self.model.clone();
        let trainer = self.trainers.get_mut(node).ok_or("no such node")?;
        let trained = trainer.train(&task, &mut local)?;
        for (parameter, global) in local.iter_mut().zip(&self.model) {
            *parameter -= global;
        }
        Ok((trained.samples as f64, local))
    }

    /// Makes of a sum what arrives of it.
    fn send(&mut self, node: &NodeId, exponent: i32, sum: &mut [f32]) -> Outcome<()> {
        if self.codec.is_lossless() {
            self.uplink += sum.len() as u64 * 4;
            return Ok(());
        }
        let (kernels, compressor) = (Kernels::widest(), self.codec.compressor());
        let residual = self.residuals.as_mut().and_then(|all| all.get_mut(node));
        if let Some(residual) = &residual {
            feedback::apply(kernels, sum, residual, exponent)?;
        }
        let mut encoded = Encoded::default();
        compressor.encode(kernels, sum, &mut encoded);
        self.uplink += encoded.bytes().len() as u64;
        if let Some(residual) = residual {
            let compressor = compressor.as_ref();
            feedback::remember(kernels, compressor, sum, &encoded, exponent, residual)?;
        }
        for (chunk, bytes) in sum.chunks_mut(CHUNK_ELEMENTS).zip(encoded.chunks()) {
            compress::decode(compressor.as_ref(), kernels, bytes, chunk)?;
        }
        Ok(())
    }

    /// Accuracy of the model on the test rows.
    ///
    /// # Errors
    /// It cannot be judged.
    pub fn accuracy(&mut self) -> Outcome<f64> {
        let judge = self.trainers.values_mut().next().ok_or("no node")?;
        Ok(judge.evaluate(&self.model)?.accuracy)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bad::Fault;
    use super::*;
    use tombolo_core::tensor::Hash;

    #[test]
    fn the_loop_comes_to_the_bits_of_a_federation() {
        let setting = Setting {
            rounds: 4,
            rule: "kind = \"fedavg\"\nclip = \"none\"",
            outer: "optimizer = \"nesterov\"\nlearning_rate = 0.7",
            ..Setting::default()
        };
        let federation = setting.simulate().unwrap();
        let mut plain = Plain::new(&setting, Codec::None, false).unwrap();
        let accuracies: Vec<f64> = (0..4)
            .map(|_| {
                plain.round().unwrap();
                plain.accuracy().unwrap()
            })
            .collect();
        assert_eq!(accuracies, federation.accuracies);
        assert_eq!(Hash::of(&plain.model), federation.model);
    }

    #[test]
    fn one_update_that_is_no_number_is_the_end_of_a_mean_without_checks() {
        let setting = Setting {
            fault: Some(Fault::NotANumber),
            ..Setting::default()
        };
        let mut plain = Plain::new(&setting, Codec::None, false).unwrap();
        plain.round().unwrap();
        assert!(plain.model.iter().any(|parameter| parameter.is_nan()));
    }

    #[test]
    fn bytes_are_those_of_nine_encodings_a_round() {
        let setting = Setting::default();
        for (codec, bytes) in [(Codec::None, 4.0), (Codec::Fp16, 2.0), (Codec::Int8, 1.0)] {
            let mut plain = Plain::new(&setting, codec, false).unwrap();
            plain.round().unwrap();
            let least = bytes * 9.0 * plain.model.len() as f64;
            let found = plain.uplink as f64;
            assert!(
                (least..least * 1.05).contains(&found),
                "{codec}: {found} for {least}"
            );
        }
    }
}
