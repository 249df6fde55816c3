//! The built-in models: dense layers, softmax and mean cross-entropy.
//!
//! The products are plain loops rather than a tuned library: at this size they cost tens of microseconds a step, and their bits do not depend on
//! the processor, so that the hash of a trained model can be compared between machines. Every sum runs in a fixed order: over rows as
//! given, over inputs ascending. Zero inputs (half of all pixels, and units that are off) are skipped: for finite weights that changes nothing.

use half::bf16;
use tombolo_core::plan::{Precision, TrainerKind};
use tombolo_core::rng::Rng;
use tombolo_core::tensor::{Layout, LayoutError};

use super::digits::{CLASSES, Digits, PIXELS};

/// A layer's place in the flat parameters.
#[derive(Debug, Clone, Copy)]
struct Layer {
    inputs: usize,
    outputs: usize,
    bias: usize,
    weight: usize,
}

impl Layer {
    /// `out = bias + input * weight`.
    fn forward(&self, parameters: &[f32], input: &[f32], out: &mut [f32]) {
        out.copy_from_slice(&parameters[self.bias..][..self.outputs]);
        let weight = &parameters[self.weight..][..self.inputs * self.outputs];
        for (x, row) in input.iter().zip(weight.chunks_exact(self.outputs)) {
            add_scaled(out, *x, row);
        }
    }

    /// Adds one row's part to the gradient.
    fn backward(&self, gradient: &mut [f32], input: &[f32], delta: &[f32]) {
        let bias = &mut gradient[self.bias..][..self.outputs];
        add_scaled(bias, 1.0, delta);
        let weight = &mut gradient[self.weight..][..self.inputs * self.outputs];
        for (x, row) in input.iter().zip(weight.chunks_exact_mut(self.outputs)) {
            add_scaled(row, *x, delta);
        }
    }

    /// The derivative by the input, zero where the input is (it comes from a ReLU).
    fn input_delta(&self, parameters: &[f32], input: &[f32], delta: &[f32], out: &mut [f32]) {
        let weight = &parameters[self.weight..][..self.inputs * self.outputs];
        let rows = input.iter().zip(weight.chunks_exact(self.outputs));
        for (out, (x, row)) in out.iter_mut().zip(rows) {
            *out = match *x > 0.0 {
                true => row.iter().zip(delta).fold(0.0, |sum, (w, d)| sum + w * d),
                false => 0.0,
            };
        }
    }

    fn initialize(&self, rng: &mut Rng, parameters: &mut [f32]) {
        parameters[self.bias..][..self.outputs].fill(0.0);
        let limit = (6.0 / (self.inputs + self.outputs) as f64).sqrt();
        for weight in &mut parameters[self.weight..][..self.inputs * self.outputs] {
            *weight = ((rng.next_f64() * 2.0 - 1.0) * limit) as f32;
        }
    }
}

/// A model and the memory it works in.
#[derive(Debug)]
pub(super) struct Network {
    layout: Layout,
    precision: Precision,
    hidden: Option<Layer>,
    output: Layer,
    /// The parameters as a lower precision has them; empty with `f32`.
    rounded: Vec<f32>,
    gradient: Vec<f32>,
    units: Vec<f32>,
    units_delta: Vec<f32>,
    scores: [f32; CLASSES],
}

impl Network {
    /// A model of one kind; `hidden` units if it has a hidden layer. Its gradients are made in that precision.
    pub(super) fn new(
        kind: TrainerKind,
        hidden: usize,
        precision: Precision,
    ) -> Result<Self, LayoutError> {
        let (layout, hidden_units) = match kind {
            TrainerKind::DigitsSoftmax => (
                Layout::new([("bias", vec![CLASSES]), ("weight", vec![PIXELS, CLASSES])])?,
                0,
            ),
            TrainerKind::DigitsMlp => (
                Layout::new([
                    ("hidden.bias", vec![hidden]),
                    ("hidden.weight", vec![PIXELS, hidden]),
                    ("output.bias", vec![CLASSES]),
                    ("output.weight", vec![hidden, CLASSES]),
                ])?,
                hidden,
            ),
        };
        let layer = |prefix: &str, inputs, outputs| {
            let place = |name: String| {
                let tensors = layout.tensors();
                tensors.iter().find(|t| t.name == name).map(|t| t.offset)
            };
            Some(Layer {
                inputs,
                outputs,
                bias: place(format!("{prefix}bias"))?,
                weight: place(format!("{prefix}weight"))?,
            })
        };
        let (hidden, output) = match kind {
            TrainerKind::DigitsSoftmax => (None, layer("", PIXELS, CLASSES)),
            TrainerKind::DigitsMlp => (
                layer("hidden.", PIXELS, hidden_units),
                layer("output.", hidden_units, CLASSES),
            ),
        };
        let rounded = match precision {
            Precision::F32 => 0,
            Precision::Bf16 => layout.len(),
        };
        Ok(Network {
            precision,
            rounded: vec![0.0; rounded],
            hidden,
            output: output.expect("the layout above names the output layer"),
            gradient: vec![0.0; layout.len()],
            units: vec![0.0; hidden_units],
            units_delta: vec![0.0; hidden_units],
            scores: [0.0; CLASSES],
            layout,
        })
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Uniform weights within Glorot and Bengio's limit (2010), biases zero.
    pub(super) fn initialize(&self, mut rng: Rng, parameters: &mut [f32]) {
        for layer in self.hidden.iter().chain([&self.output]) {
            layer.initialize(&mut rng, parameters);
        }
    }

    /// The mean cross-entropy of `rows` and its gradient.
    pub(super) fn slope(
        &mut self,
        digits: &Digits,
        rows: &[usize],
        parameters: &[f32],
    ) -> (f64, &[f32]) {
        let loss = match self.precision {
            Precision::F32 => self.accumulate(digits, rows, parameters),
            Precision::Bf16 => {
                let mut rounded = std::mem::take(&mut self.rounded);
                rounded.copy_from_slice(parameters);
                round(&mut rounded, self.precision);
                let loss = self.accumulate(digits, rows, &rounded);
                self.rounded = rounded;
                loss
            }
        };
        (loss, &self.gradient)
    }

    /// Leaves the gradient of the mean cross-entropy of `rows` and gives that loss.
    fn accumulate(&mut self, digits: &Digits, rows: &[usize], parameters: &[f32]) -> f64 {
        self.gradient.fill(0.0);
        let share = 1.0 / rows.len() as f32;
        let mut loss = 0.0;
        for &row in rows {
            let (image, label) = (digits.image(row), usize::from(digits.label(row)));
            self.forward(parameters, image, self.precision);
            loss += cross_entropy(&mut self.scores, label);
            // The scores are probabilities now; with the label taken off they are the derivative.
            self.scores[label] -= 1.0;
            let mut delta = self.scores.map(|score| score * share);
            round(&mut delta, self.precision);
            match self.hidden {
                None => self.output.backward(&mut self.gradient, image, &delta),
                Some(hidden) => {
                    self.output
                        .backward(&mut self.gradient, &self.units, &delta);
                    self.output
                        .input_delta(parameters, &self.units, &delta, &mut self.units_delta);
                    round(&mut self.units_delta, self.precision);
                    hidden.backward(&mut self.gradient, image, &self.units_delta);
                }
            }
        }
        loss / rows.len() as f64
    }

    /// Whether the model names the digit of `row` (of equal scores the first counts), and its cross-entropy.
    pub(super) fn judge(&mut self, digits: &Digits, row: usize, parameters: &[f32]) -> (bool, f64) {
        let label = usize::from(digits.label(row));
        self.forward(parameters, digits.image(row), Precision::F32);
        let mut best = 0;
        for (class, score) in self.scores.iter().enumerate() {
            if *score > self.scores[best] {
                best = class;
            }
        }
        (best == label, cross_entropy(&mut self.scores, label))
    }

    /// The pixels, sixteenths up to one, are exact in any precision.
    fn forward(&mut self, parameters: &[f32], image: &[f32], precision: Precision) {
        match self.hidden {
            None => self.output.forward(parameters, image, &mut self.scores),
            Some(hidden) => {
                hidden.forward(parameters, image, &mut self.units);
                for unit in &mut self.units {
                    // Not `max`, which would hide a NaN.
                    if *unit < 0.0 {
                        *unit = 0.0;
                    }
                }
                round(&mut self.units, precision);
                self.output
                    .forward(parameters, &self.units, &mut self.scores);
            }
        }
    }
}

/// Turns scores into probabilities; the negative logarithm of the label's.
fn cross_entropy(scores: &mut [f32; CLASSES], label: usize) -> f64 {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let of_label = f64::from(scores[label] - largest);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = libm::expf(*score - largest);
        sum += *score;
    }
    for score in scores.iter_mut() {
        *score /= sum;
    }
    libm::log(f64::from(sum)) - of_label
}

/// To the nearest number of that precision, ties to even.
fn round(values: &mut [f32], precision: Precision) {
    if precision == Precision::Bf16 {
        for value in values {
            *value = bf16::from_f32(*value).to_f32();
        }
    }
}

fn add_scaled(out: &mut [f32], x: f32, row: &[f32]) {
    if x == 0.0 {
        return;
    }
    for (out, weight) in out.iter_mut().zip(row) {
        *out += x * weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models() -> [Network; 2] {
        [
            network(TrainerKind::DigitsSoftmax, Precision::F32),
            network(TrainerKind::DigitsMlp, Precision::F32),
        ]
    }

    fn network(kind: TrainerKind, precision: Precision) -> Network {
        Network::new(kind, 7, precision).unwrap()
    }

    fn started(network: &Network) -> Vec<f32> {
        let mut parameters = vec![f32::NAN; network.layout().len()];
        network.initialize(Rng::new(1), &mut parameters);
        parameters
    }

    #[test]
    fn gradients_are_the_slope_of_the_loss() {
        let digits = Digits::load().unwrap();
        let rows = [0, 1, 2, 3, 5, 6, 7, 8];
        for mut network in models() {
            let mut parameters = started(&network);
            network.accumulate(digits, &rows, &parameters);
            let gradient = network.gradient.clone();
            let steps = network.layout().len() / 13;
            let mut largest = 0.0f64;
            for at in (0..network.layout().len()).step_by(steps.max(1)) {
                let (kept, width) = (parameters[at], 1e-2);
                let mut loss = |value| {
                    parameters[at] = value;
                    let loss = network.accumulate(digits, &rows, &parameters);
                    parameters[at] = kept;
                    loss
                };
                let slope = (loss(kept + width) - loss(kept - width)) / f64::from(2.0 * width);
                assert!(
                    (slope - f64::from(gradient[at])).abs() < 2e-4,
                    "{at}: {slope} {}",
                    gradient[at]
                );
                largest = largest.max(slope.abs());
            }
            assert!(largest > 1e-2, "the slopes looked at are all flat");
        }
    }

    #[test]
    fn a_gradient_in_bf16_is_made_of_rounded_numbers_only_and_points_the_same_way() {
        let digits = Digits::load().unwrap();
        let rows = [0, 1, 2, 3, 5, 6, 7, 8];
        for kind in [TrainerKind::DigitsSoftmax, TrainerKind::DigitsMlp] {
            let (mut exact, mut low) = (
                network(kind, Precision::F32),
                network(kind, Precision::Bf16),
            );
            let begun = started(&exact);
            let (_, slope) = low.slope(digits, &rows, &begun);
            let slope = slope.to_vec();
            let rounded: Vec<f32> = begun.iter().map(|p| bf16::from_f32(*p).to_f32()).collect();
            assert_eq!(slope, low.slope(digits, &rows, &rounded).1);

            let wanted = exact.slope(digits, &rows, &begun).1;
            let length = |values: &[f32]| values.iter().map(|v| v * v).sum::<f32>().sqrt();
            let apart: Vec<f32> = slope.iter().zip(wanted).map(|(a, b)| a - b).collect();
            let apart = length(&apart) / length(wanted);
            // A rounding is off by 2^-9 at most; a few of them follow each other.
            assert!(apart > 0.0 && apart < 1.0 / 64.0, "{apart}");

            // One row alone: each derivative by the bias is a number of 8 bits, and none of them would be one otherwise.
            let bias = low.output.bias;
            let is_low = |value: &f32| bf16::from_f32(*value).to_f32() == *value;
            let (_, slope) = low.slope(digits, &[0], &begun);
            assert!(slope[bias..][..CLASSES].iter().all(is_low));
            let (_, slope) = exact.slope(digits, &[0], &begun);
            assert!(!slope[bias..][..CLASSES].iter().any(is_low));
        }
    }

    #[test]
    fn activations_are_rounded_in_bf16_and_a_committed_model_is_judged_without() {
        let digits = Digits::load().unwrap();
        let mut network = network(TrainerKind::DigitsMlp, Precision::Bf16);
        let parameters = started(&network);
        let is_low = |value: &f32| bf16::from_f32(*value).to_f32() == *value;
        network.accumulate(digits, &[0], &parameters);
        assert!(network.units.iter().all(is_low));
        assert!(network.units_delta.iter().all(is_low));
        network.judge(digits, 0, &parameters);
        assert!(!network.units.iter().all(is_low));
    }

    #[test]
    fn an_untrained_model_without_weights_knows_nothing() {
        let digits = Digits::load().unwrap();
        let mut network = network(TrainerKind::DigitsSoftmax, Precision::F32);
        let parameters = vec![0.0; network.layout().len()];
        let loss = network.accumulate(digits, &[0, 1, 2], &parameters);
        assert!((loss - 10f64.ln()).abs() < 1e-6);
        // Of ten equal scores the first is taken: right on a zero only.
        assert!(network.judge(digits, 0, &parameters).0);
        assert!(!network.judge(digits, 1, &parameters).0);
    }

    #[test]
    fn starting_weights_fill_their_range_and_nothing_else() {
        for network in models() {
            let parameters = started(&network);
            let layer = network.hidden.unwrap_or(network.output);
            let weight = &parameters[layer.weight..][..layer.inputs * layer.outputs];
            let limit = (6.0 / (layer.inputs + layer.outputs) as f32).sqrt();
            assert!(weight.iter().all(|w| w.abs() <= limit));
            assert!(weight.iter().any(|w| *w > limit / 2.0));
            assert!(weight.iter().any(|w| *w < -limit / 2.0));
            let bias = &parameters[layer.bias..][..layer.outputs];
            assert!(bias.iter().all(|b| *b == 0.0));
            assert!(parameters.iter().all(|p| p.is_finite()));
        }
    }

    #[test]
    fn a_poisoned_model_is_seen_in_its_loss() {
        let digits = Digits::load().unwrap();
        for mut network in models() {
            let mut parameters = started(&network);
            parameters[0] = f32::NAN;
            assert!(network.judge(digits, 0, &parameters).1.is_nan());
        }
    }

    #[test]
    fn probabilities_of_huge_scores_stay_finite() {
        let mut scores = [-3e38f32; CLASSES];
        scores[4] = 3e38;
        assert_eq!(cross_entropy(&mut scores, 4), 0.0);
        assert_eq!(scores[4], 1.0);
    }
}
