//! What the adapter makes of a candle model: order, beginnings, gradients, precision, files.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor};
use candle_nn::{LayerNorm, Linear, Module, VarBuilder, layer_norm, linear};
use tombolo::core::ids::NodeId;
use tombolo::core::plan::{InnerKind, ModelPlan, Precision, SyncEvery};
use tombolo::core::trainer::{Evaluation, Snapshot, Snapshots, Task, Trained, Trainer};
use tombolo::learn::Gradient;
use tombolo_candle::{CandleError, CandleGradient, Learner, trainer};

const INPUTS: usize = 3;
const HIDDEN: usize = 5;

/// A small regression on rows that are made up.
#[derive(Default)]
struct Waves {
    /// What the loss is multiplied by.
    scale: f64,
    /// A normalization whose operation has no gradient.
    norm: bool,
    /// Built with another shape from the third time on.
    grows: bool,
    built: AtomicUsize,
}

fn waves() -> Waves {
    Waves {
        scale: 1.0,
        ..Waves::default()
    }
}

struct Net {
    hidden: Linear,
    norm: Option<LayerNorm>,
    output: Linear,
}

impl Learner for Waves {
    type Model = Net;

    fn build(&self, vars: VarBuilder<'_>) -> candle_core::Result<Net> {
        let built = self.built.fetch_add(1, Ordering::Relaxed);
        let more = usize::from(self.grows && built >= 2);
        let norm = self.norm.then(|| layer_norm(HIDDEN, 1e-5, vars.pp("norm")));
        Ok(Net {
            // Asked for against the order of names.
            output: linear(HIDDEN, 1 + more, vars.pp("output"))?,
            norm: norm.transpose()?,
            hidden: linear(INPUTS, HIDDEN, vars.pp("hidden"))?,
        })
    }

    fn loss(&self, net: &Net, rows: &[usize]) -> candle_core::Result<Tensor> {
        let inputs = rows.iter().flat_map(|row| {
            (0..INPUTS).map(move |input| ((row * 7 + input * 3) as f32 * 0.37).sin())
        });
        let inputs = Tensor::from_iter(inputs, &Device::Cpu)?.reshape((rows.len(), INPUTS))?;
        let inputs = inputs.to_dtype(net.output.weight().dtype())?;
        let wanted = inputs.sum_keepdim(1)?.cos()?;
        let mut units = net.hidden.forward(&inputs)?.tanh()?;
        if let Some(norm) = &net.norm {
            units = norm.forward(&units)?;
        }
        let error = (net.output.forward(&units)? - wanted)?;
        error.to_dtype(DType::F32)?.sqr()?.mean_all()? * self.scale
    }

    fn evaluate(&self, net: &Net) -> candle_core::Result<Evaluation> {
        let rows: Vec<usize> = (100..120).collect();
        let loss = self.loss(net, &rows)?.to_scalar::<f32>()?;
        Ok(Evaluation {
            accuracy: 0.0,
            loss: f64::from(loss),
        })
    }
}

fn gradient(learner: Waves) -> CandleGradient<Waves> {
    CandleGradient::new(learner, Device::Cpu).unwrap()
}

fn begun(gradient: &mut CandleGradient<Waves>, seed: u64) -> Vec<f32> {
    let mut parameters = vec![f32::NAN; gradient.layout().len()];
    gradient.initialize(seed, &mut parameters).unwrap();
    parameters
}

fn node() -> NodeId {
    "hq/a".parse().unwrap()
}

fn task(round: u64) -> Task {
    Task {
        node: node(),
        round,
        seed: 7,
        sync_every: SyncEvery::Steps(6),
        domain: tombolo::core::trainer::Domain::alone(),
    }
}

fn adam() -> ModelPlan {
    let mut model = ModelPlan {
        learning_rate: 0.01,
        batch: 8,
        ..ModelPlan::default()
    };
    model.inner.optimizer = InnerKind::AdamW;
    model
}

fn tensor_of<'a>(gradient: &CandleGradient<Waves>, all: &'a [f32], name: &str) -> &'a [f32] {
    let tensors = gradient.layout().tensors();
    let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
    &all[tensor.offset..][..tensor.len()]
}

#[test]
fn tensors_lie_in_the_order_of_their_names_whatever_the_order_of_asking() {
    let gradient = gradient(waves());
    let tensors = gradient.layout().tensors().iter();
    let tensors: Vec<_> = tensors
        .map(|it| (it.name.as_str(), &it.shape[..]))
        .collect();
    let expected = [
        ("hidden.bias", &[HIDDEN][..]),
        ("hidden.weight", &[HIDDEN, INPUTS]),
        ("output.bias", &[1]),
        ("output.weight", &[1, HIDDEN]),
    ];
    assert_eq!(tensors, expected);
}

#[test]
fn a_model_begins_as_its_hints_say_from_the_seed_alone() {
    let (mut one, mut other) = (gradient(waves()), gradient(waves()));
    let parameters = begun(&mut one, 7);
    assert_eq!(parameters, begun(&mut other, 7));
    assert_ne!(parameters, begun(&mut other, 8));
    // candle's `linear` asks for biases within 1 / sqrt(inputs), and for weights of Kaiming's normal distribution: sqrt(2 / inputs).
    let biases = tensor_of(&one, &parameters, "hidden.bias");
    let limit = (1.0 / INPUTS as f32).sqrt();
    assert!(biases.iter().all(|bias| bias.abs() <= limit), "{biases:?}");
    assert!(biases.iter().any(|bias| *bias < 0.0));
    assert!(biases.iter().any(|bias| *bias > 0.0));
    let weights = tensor_of(&one, &parameters, "hidden.weight");
    let squares = weights.iter().map(|weight| weight * weight);
    let deviation = (squares.sum::<f32>() / weights.len() as f32).sqrt();
    assert!((0.4..1.4).contains(&deviation), "{deviation}");
}

#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    let mut gradient = gradient(waves());
    let mut parameters = begun(&mut gradient, 7);
    let rows = [0, 3, 5, 8];
    let (mut slopes, mut unused) = (vec![0.0; parameters.len()], vec![0.0; parameters.len()]);
    gradient.slope(&rows, &parameters, &mut slopes).unwrap();
    for at in 0..parameters.len() {
        let (kept, width) = (parameters[at], 1e-2);
        let mut loss = |value| {
            parameters[at] = value;
            gradient.slope(&rows, &parameters, &mut unused).unwrap()
        };
        let slope = (loss(kept + width) - loss(kept - width)) / f64::from(2.0 * width);
        parameters[at] = kept;
        let found = f64::from(slopes[at]);
        assert!((slope - found).abs() < 2e-3, "{at}: {slope} {found}");
    }
    assert!(slopes.iter().any(|slope| slope.abs() > 0.1));
}

#[test]
fn four_batches_accumulated_are_one_of_four_times_the_rows() {
    let after = |batch, accumulate| {
        let model = ModelPlan {
            learning_rate: 0.1,
            batch,
            accumulate,
            ..ModelPlan::default()
        };
        let mut trainer = trainer(&model, &node(), (0..48).collect(), waves()).unwrap();
        let mut parameters = vec![0.0; trainer.layout().len()];
        trainer.initialize(7, &mut parameters).unwrap();
        let begun = parameters.clone();
        trainer.train(&task(1), &mut parameters).unwrap();
        assert_ne!(parameters, begun);
        parameters
    };
    let (whole, parts) = (after(16, 1), after(4, 4));
    let apart = whole.iter().zip(&parts).map(|(a, b)| (a - b).abs());
    let most = apart.fold(0.0, f32::max);
    assert!(most < 1e-6, "{most}");
}

/// Keeps what a training leaves after its third step.
#[derive(Default)]
struct Third(Option<(u64, Vec<f32>, Vec<u8>)>, u64);

impl Snapshots for Third {
    fn are_due(&self) -> bool {
        self.0.is_none()
    }

    fn take(&mut self, snapshot: Snapshot<'_>) {
        self.1 += 1;
        if snapshot.steps == 3 {
            let (parameters, state) = (snapshot.parameters.to_vec(), snapshot.state.to_vec());
            self.0 = Some((snapshot.steps, parameters, state));
        }
    }
}

#[test]
fn a_training_goes_on_to_the_same_bits_from_round_to_round_and_after_a_kill() {
    let make = || trainer(&adam(), &node(), (0..48).collect(), waves()).unwrap();
    let mut whole = make();
    let mut parameters = vec![0.0; whole.layout().len()];
    whole.initialize(7, &mut parameters).unwrap();
    whole.train(&task(1), &mut parameters).unwrap();
    let (first, state) = (parameters.clone(), whole.state());
    let mut third = Third::default();
    let trained = whole.train_from(&task(2), None, &mut parameters, &mut third);
    let trained: Trained = trained.unwrap();
    // Another life, from what was written down after the first round and in mid of the second.
    let mut second = make();
    second.restore(&state).unwrap();
    let (steps, left, state) = third.0.unwrap();
    let from = Snapshot {
        steps,
        parameters: &left,
        state: &state,
    };
    let mut again = first.clone();
    let taken = &mut Third::default();
    let resumed = second.train_from(&task(2), Some(from), &mut again, taken);
    assert_eq!(resumed, Ok(trained));
    assert_eq!(again, parameters);
    assert_eq!(taken.1, 3, "only what was left is trained again");
    assert_eq!(second.state(), whole.state());
    assert_ne!(parameters, first);
}

#[test]
fn fewer_bits_give_nearly_the_same_gradient_also_of_very_small_and_large_losses() {
    for (dtype, scale, apart_max) in [
        (DType::F16, 1.0, 0.01),
        (DType::F16, 1e-6, 0.01),
        (DType::F16, 30.0, 0.01),
        // Eight bits of each number, but of all sizes.
        (DType::BF16, 1.0, 0.05),
        (DType::BF16, 1e-6, 0.05),
        (DType::BF16, 30.0, 0.05),
    ] {
        let of_scale = || Waves { scale, ..waves() };
        let mut full = gradient(of_scale());
        let mut half = gradient(of_scale()).precision(dtype).unwrap();
        let parameters = begun(&mut full, 7);
        let rows: Vec<usize> = (0..16).collect();
        let mut slopes = [vec![0.0; parameters.len()], vec![0.0; parameters.len()]];
        let [exact, rough] = &mut slopes;
        let loss = full.slope(&rows, &parameters, exact).unwrap();
        let roughly = half.slope(&rows, &parameters, rough).unwrap();
        assert!(
            (loss - roughly).abs() < apart_max * loss,
            "{loss} {roughly}"
        );
        assert_ne!(exact, rough, "it was not computed in another precision");
        let norm = |of: &[f32]| of.iter().map(|it| it * it).sum::<f32>().sqrt();
        let apart: Vec<f32> = exact.iter().zip(&*rough).map(|(a, b)| a - b).collect();
        let apart = norm(&apart) / norm(exact);
        assert!(
            f64::from(apart) < apart_max,
            "{dtype:?}, scale {scale}: {apart}"
        );
    }
}

#[test]
fn a_trainer_has_the_precision_that_its_topology_says() {
    let after = |precision| {
        let model = ModelPlan {
            precision,
            ..adam()
        };
        let mut trainer = trainer(&model, &node(), (0..48).collect(), waves()).unwrap();
        let mut parameters = vec![0.0; trainer.layout().len()];
        trainer.initialize(7, &mut parameters).unwrap();
        trainer.train(&task(1), &mut parameters).unwrap();
        parameters
    };
    assert_ne!(after(Precision::F32), after(Precision::Bf16));
}

#[test]
fn a_precision_that_the_device_has_not_is_refused() {
    let error = gradient(waves()).precision(DType::I64).err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("no training in I64 on this device") && text.contains("take f32"),
        "{text}"
    );
}

#[test]
fn a_tensor_that_no_gradient_reaches_is_named() {
    let mut gradient = gradient(Waves {
        norm: true,
        ..waves()
    });
    let parameters = begun(&mut gradient, 7);
    let mut slopes = vec![0.0; parameters.len()];
    let error = gradient.slope(&[0, 1], &parameters, &mut slopes);
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("no gradient reaches tensor \"hidden.bias\""),
        "{text}"
    );
}

#[test]
fn a_model_of_other_tensors_than_at_first_is_refused() {
    let mut gradient = gradient(Waves {
        grows: true,
        ..waves()
    });
    let parameters = begun(&mut gradient, 7);
    let mut slopes = vec![0.0; parameters.len()];
    assert!(gradient.slope(&[0], &parameters, &mut slopes).is_ok());
    let error = gradient.slope(&[0], &parameters, &mut slopes);
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("\"output.weight\" is asked for as [2, 5] and was [1, 5]"),
        "{text}"
    );
}

struct Nothing;

impl Learner for Nothing {
    type Model = ();

    fn build(&self, _: VarBuilder<'_>) -> candle_core::Result<()> {
        Ok(())
    }

    fn loss(&self, (): &(), _: &[usize]) -> candle_core::Result<Tensor> {
        Tensor::zeros((), DType::F32, &Device::Cpu)
    }

    fn evaluate(&self, (): &()) -> candle_core::Result<Evaluation> {
        candle_core::bail!("there is nothing to judge")
    }
}

#[test]
fn a_model_without_tensors_and_a_node_without_rows_are_refused() {
    let error = CandleGradient::new(Nothing, Device::Cpu).err().unwrap();
    assert!(matches!(error, CandleError::NoTensors), "{error}");
    let error = trainer(&adam(), &node(), Vec::new(), waves())
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "hq/a has no row to train on: give it some, or leave it out of the topology"
    );
}

#[test]
fn a_safetensors_file_is_begun_with_by_name_in_any_precision() {
    let named = |hidden: usize| {
        let of = |shape: &[usize], value: f32| Tensor::full(value, shape, &Device::Cpu).unwrap();
        vec![
            ("unknown", of(&[2], 9.0)),
            ("output.weight", of(&[1, HIDDEN], 4.0)),
            ("output.bias", of(&[1], 3.0).to_dtype(DType::F16).unwrap()),
            ("hidden.weight", of(&[hidden, INPUTS], 2.0)),
            ("hidden.bias", of(&[HIDDEN], 1.0)),
        ]
    };
    let file = |tensors: Vec<(&str, Tensor)>| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        candle_core::safetensors::save(&tensors.into_iter().collect(), &path).unwrap();
        std::fs::read(path).unwrap()
    };
    let start = |bytes: &[u8]| gradient(waves()).start_from(bytes);
    let mut right = start(&file(named(HIDDEN))).unwrap();
    let parameters = begun(&mut right, 7);
    for (name, value) in [
        ("hidden.bias", 1.0),
        ("hidden.weight", 2.0),
        ("output.bias", 3.0),
        ("output.weight", 4.0),
    ] {
        let of_name = tensor_of(&right, &parameters, name);
        assert!(of_name.iter().all(|element| *element == value), "{name}");
    }
    let text = |bytes: &[u8]| start(bytes).err().unwrap().to_string();
    let missing = text(&file(named(HIDDEN)[..4].to_vec()));
    assert!(
        missing.ends_with("it has no tensor \"hidden.bias\""),
        "{missing}"
    );
    let shape = text(&file(named(HIDDEN + 1)));
    assert!(
        shape.ends_with("tensor \"hidden.weight\" is [6, 3] there and [5, 3] in the model"),
        "{shape}"
    );
    assert!(text(b"no such file").starts_with("the safetensors file cannot be begun with"));
}
