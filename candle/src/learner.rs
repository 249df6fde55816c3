//! A candle model and its data, and the gradient that the federation's trainer follows.

use candle_core::safetensors::SliceSafetensors;
use candle_core::{DType, Device, Tensor, bail};
use candle_nn::VarBuilder;
use tombolo::core::ids::NodeId;
use tombolo::core::plan::{ModelPlan, Precision};
use tombolo::core::rng::Rng;
use tombolo::core::tensor::{Layout, LayoutError};
use tombolo::core::trainer::{Evaluation, TrainError};
use tombolo::learn::{Gradient, GradientTrainer, TrainerError};

use crate::vars::{Declaration, Declarations, Vars, begin};

/// A model in candle, and the data that it learns.
///
/// `loss` must depend on its arguments alone, so that a round that is repeated gives the same bits: no dropout, whose generator has no seed on the CPU.
pub trait Learner: Send {
    /// The model: layers that hold tensors.
    type Model;

    /// Builds the model. Called for each step: ask `vars` for tensors by name and shape, and do nothing else that takes time.
    ///
    /// # Errors
    /// Candle's.
    fn build(&self, vars: VarBuilder<'_>) -> candle_core::Result<Self::Model>;

    /// The mean loss over `rows`, a scalar; in `f32` if the model is in another precision. Which numbers rows have is the learner's own choice.
    ///
    /// # Errors
    /// Candle's: the node reports it and takes no part in the round.
    fn loss(&self, model: &Self::Model, rows: &[usize]) -> candle_core::Result<Tensor>;

    /// Judges the model, in `f32`, on rows that nobody trains on.
    ///
    /// # Errors
    /// Candle's.
    fn evaluate(&self, model: &Self::Model) -> candle_core::Result<Evaluation>;
}

/// A learner that cannot be trained. The variant says who is to blame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CandleError {
    /// The learner's own code.
    #[error("the model cannot be built: {0}")]
    Build(candle_core::Error),
    /// There is nothing to train.
    #[error("the model asks for no tensor: take them from the VarBuilder that `build` is given")]
    NoTensors,
    /// Names and shapes that do not fit.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device has no products in that precision.
    #[error("no training in {dtype:?} on this device: {source}; take f32, or on a CPU bf16 or f16")]
    Precision {
        /// As asked for.
        dtype: DType,
        /// Candle's words.
        source: candle_core::Error,
    },
    /// A file that is no model of this kind.
    #[error("the safetensors file cannot be begun with: {0}")]
    Start(String),
    /// Settings of `[model]`.
    #[error(transparent)]
    Settings(#[from] TrainerError),
}

/// The trainer of one node of a federation, for [`Federation::trainer`](tombolo::Federation::trainer).
pub type CandleTrainer<L> = GradientTrainer<CandleGradient<L>>;

/// Trains `learner` on the CPU, on `rows` of whatever it counts as rows. Batches, steps, optimizer and precision are those of `[model]`:
/// [`Federation::plan`](tombolo::Federation::plan) has them. For another device, for `f16` or for a file to begin with, give a [`CandleGradient`] to
/// [`GradientTrainer::new`].
///
/// # Errors
/// A model that cannot be built or has no tensors, no rows, settings that cannot be trained with.
pub fn trainer<L: Learner>(
    model: &ModelPlan,
    node: &NodeId,
    rows: Vec<usize>,
    learner: L,
) -> Result<CandleTrainer<L>, CandleError> {
    let dtype = match model.precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
    };
    let gradient = CandleGradient::new(learner, Device::Cpu)?.precision(dtype)?;
    Ok(GradientTrainer::new(model, node, rows, gradient)?)
}

/// What a loss in half precision is multiplied by at first, so that small gradients are not lost; a gradient that overflows is made again with less
/// (Micikevicius et al., "Mixed precision training", 2018). Powers of two change no bit of what does fit.
const LOSS_SCALE: f32 = 16384.0;

/// What is left of it from one try to the next.
const LOSS_SCALE_SHRINKS: f32 = 1.0 / 16.0;

/// A [`Learner`] as a [`Gradient`].
#[derive(Debug)]
pub struct CandleGradient<L> {
    learner: L,
    device: Device,
    dtype: DType,
    layout: Layout,
    /// In the order of the layout.
    declarations: Vec<Declaration>,
    start: Option<Vec<f32>>,
}

impl<L: Learner> CandleGradient<L> {
    /// Builds the model once to learn what tensors it has.
    ///
    /// # Errors
    /// It cannot be built, or has no tensors.
    pub fn new(learner: L, device: Device) -> Result<Self, CandleError> {
        let declared = Declarations::default();
        let vars = VarBuilder::from_backend(Box::new(declared.clone()), DType::F32, device.clone());
        learner.build(vars).map_err(CandleError::Build)?;
        let declared = declared.take();
        if declared.is_empty() {
            return Err(CandleError::NoTensors);
        }
        let shape = |declaration: &Declaration| declaration.shape.dims().to_vec();
        let tensors = declared.iter().map(|(name, it)| (name.as_str(), shape(it)));
        Ok(CandleGradient {
            layout: Layout::new(tensors)?,
            declarations: declared.into_values().collect(),
            learner,
            device,
            dtype: DType::F32,
            start: None,
        })
    }

    /// Computes losses and gradients in another precision. The parameters stay `f32`, and so does the optimizer. On a CPU it is for trying out: `f16`
    /// and `bf16` take longer there than `f32`, and convolutions have no `bf16`.
    ///
    /// # Errors
    /// The device has no matrix products in it.
    pub fn precision(mut self, dtype: DType) -> Result<Self, CandleError> {
        let one = Tensor::ones((1, 1), dtype, &self.device);
        let product = one.and_then(|one| one.matmul(&one));
        product.map_err(|source| CandleError::Precision { dtype, source })?;
        self.dtype = dtype;
        Ok(self)
    }

    /// Begins with the tensors of a safetensors file, of a federation's checkpoint or of PyTorch, instead of those that the model's own hints give. Found by
    /// name; others in the file are passed over.
    ///
    /// # Errors
    /// It is no such file, or one of the model's tensors is not in it or has another shape.
    pub fn start_from(mut self, safetensors: &[u8]) -> Result<Self, CandleError> {
        let start = |error: candle_core::Error| CandleError::Start(error.to_string());
        let file = SliceSafetensors::new(safetensors).map_err(start)?;
        let mut parameters = vec![0.0; self.layout.len()];
        for tensor in self.layout.tensors() {
            let name = &tensor.name;
            if file.get(name).is_err() {
                return Err(CandleError::Start(format!("it has no tensor {name:?}")));
            }
            let read = file.load(name, &Device::Cpu).map_err(start)?;
            if read.dims() != tensor.shape {
                return Err(CandleError::Start(format!(
                    "tensor {name:?} is {:?} there and {:?} in the model",
                    read.dims(),
                    tensor.shape
                )));
            }
            let place = &mut parameters[tensor.offset..][..tensor.len()];
            copy(&read, place).map_err(start)?;
        }
        self.start = Some(parameters);
        Ok(self)
    }

    fn build(&self, vars: &Vars, dtype: DType) -> candle_core::Result<L::Model> {
        let vars = Box::new(vars.clone());
        let vars = VarBuilder::from_backend(vars, dtype, self.device.clone());
        self.learner.build(vars)
    }

    fn try_slope(
        &self,
        rows: &[usize],
        parameters: &[f32],
        gradient: &mut [f32],
    ) -> candle_core::Result<f64> {
        let vars = Vars::new(&self.layout, parameters, &self.device)?;
        let model = self.build(&vars, self.dtype)?;
        let loss = self.learner.loss(&model, rows)?.to_dtype(DType::F32)?;
        let mut scale = match self.dtype {
            DType::F16 => LOSS_SCALE,
            _ => 1.0,
        };
        loop {
            let slopes = (&loss * f64::from(scale))?.backward()?;
            for (var, tensor) in vars.iter().zip(self.layout.tensors()) {
                let place = &mut gradient[tensor.offset..][..tensor.len()];
                let Some(slope) = slopes.get(var) else {
                    bail!(
                        "no gradient reaches tensor {:?}: the loss must depend on it, and by operations that have one; candle's layer_norm with a bias, \
                         softmax_last_dim and the running statistics of a batch norm have none",
                        tensor.name
                    );
                };
                copy(slope, place)?;
            }
            let fits = scale <= 1.0 || gradient.iter().all(|slope| slope.is_finite());
            if fits {
                break;
            }
            scale = (scale * LOSS_SCALE_SHRINKS).max(1.0);
        }
        if scale > 1.0 {
            gradient.iter_mut().for_each(|slope| *slope /= scale);
        }
        Ok(f64::from(loss.to_scalar::<f32>()?))
    }

    fn try_evaluate(&self, parameters: &[f32]) -> candle_core::Result<Evaluation> {
        let vars = Vars::new(&self.layout, parameters, &self.device)?;
        let model = self.build(&vars, DType::F32)?;
        self.learner.evaluate(&model)
    }
}

/// The elements of a tensor of any strides and precision, as `f32` in row-major order.
fn copy(tensor: &Tensor, place: &mut [f32]) -> candle_core::Result<()> {
    let elements = tensor.to_dtype(DType::F32)?.flatten_all()?;
    place.copy_from_slice(&elements.to_vec1::<f32>()?);
    Ok(())
}

fn train_error(error: candle_core::Error) -> TrainError {
    TrainError(error.to_string())
}

impl<L: Learner> Gradient for CandleGradient<L> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    /// As the hints of the model's tensors say, each from the seed and its own name; or the file's.
    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        if let Some(start) = &self.start {
            parameters.copy_from_slice(start);
            return Ok(());
        }
        for (tensor, declaration) in self.layout.tensors().iter().zip(&self.declarations) {
            let rng = Rng::derive(seed, &[b"init", tensor.name.as_bytes()]);
            let place = &mut parameters[tensor.offset..][..tensor.len()];
            begin(declaration, rng, place);
        }
        Ok(())
    }

    fn slope(
        &mut self,
        rows: &[usize],
        parameters: &[f32],
        gradient: &mut [f32],
    ) -> Result<f64, TrainError> {
        self.try_slope(rows, parameters, gradient)
            .map_err(train_error)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.try_evaluate(parameters).map_err(train_error)
    }
}
