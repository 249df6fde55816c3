//! Where a model gets its tensors from: once from nowhere, to learn which there are and how they begin, then from the parameters of each step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Result, Shape, Tensor, Var, bail};
use candle_nn::Init;
use candle_nn::init::NormalOrUniform;
use candle_nn::var_builder::SimpleBackend;
use tombolo::core::rng::Rng;
use tombolo::core::tensor::Layout;

/// A tensor that a model asked for.
#[derive(Debug, Clone)]
pub(crate) struct Declaration {
    pub(crate) shape: Shape,
    pub(crate) init: Init,
}

/// Notes what a model asks for, and gives zeros.
#[derive(Debug, Clone, Default)]
pub(crate) struct Declarations(Arc<Mutex<BTreeMap<String, Declaration>>>);

impl Declarations {
    /// What was asked for, by name.
    pub(crate) fn take(&self) -> BTreeMap<String, Declaration> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SimpleBackend for Declarations {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = noted.get(name)
            && first.shape != shape
        {
            bail!(
                "tensor {name:?} is asked for as {:?} and as {shape:?}: give one of them another name",
                first.shape
            );
        }
        let zeros = Tensor::zeros(&shape, dtype, device)?;
        noted
            .entry(name.to_owned())
            .or_insert(Declaration { shape, init });
        Ok(zeros)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!(
            "tensor {name:?} is asked for without a shape: a model that is to be trained must say one"
        );
    }

    fn contains_tensor(&self, name: &str) -> bool {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.contains_key(name)
    }
}

/// The parameters of one step, in order of their names.
#[derive(Debug, Clone)]
pub(crate) struct Vars(Arc<BTreeMap<String, Var>>);

impl Vars {
    /// `parameters` are as long as the layout.
    pub(crate) fn new(layout: &Layout, parameters: &[f32], device: &Device) -> Result<Self> {
        let vars = layout.tensors().iter().map(|tensor| {
            let elements = &parameters[tensor.offset..][..tensor.len()];
            let var = Var::from_slice(elements, tensor.shape.as_slice(), device)?;
            Ok((tensor.name.clone(), var))
        });
        Ok(Vars(Arc::new(vars.collect::<Result<_>>()?)))
    }

    /// In the order of the layout.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Var> {
        self.0.values()
    }
}

impl SimpleBackend for Vars {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if *tensor.shape() != shape {
            bail!(
                "tensor {name:?} is asked for as {shape:?} and was {:?} at first: a model must have the same tensors whenever it is built",
                tensor.shape()
            );
        }
        Ok(tensor)
    }

    /// In another precision than the parameters': a cast through which gradients flow back.
    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> Result<Tensor> {
        match self.0.get(name) {
            Some(var) => var.as_tensor().to_dtype(dtype),
            None => bail!(
                "tensor {name:?} was not asked for at first: a model must have the same tensors whenever it is built"
            ),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// Writes what a tensor begins with, as candle's [`Init`] says, but from a seed: its own generator on the CPU has none. With `libm`, so that
/// all nodes begin with the same bits.
pub(crate) fn begin(declaration: &Declaration, mut rng: Rng, elements: &mut [f32]) {
    let mut uniform = |low: f64, high: f64| low + (high - low) * rng.next_f64();
    // Box and Muller, "A note on the generation of random normal deviates", 1958; the root's argument is above 0.
    let normal = |mean: f64, deviation: f64, uniform: &mut dyn FnMut(f64, f64) -> f64| {
        let radius = (-2.0 * libm::log(1.0 - uniform(0.0, 1.0))).sqrt();
        let angle = std::f64::consts::TAU * uniform(0.0, 1.0);
        mean + deviation * radius * libm::cos(angle)
    };
    for element in elements {
        *element = match declaration.init {
            Init::Const(value) => value,
            Init::Uniform { lo, up } => uniform(lo, up),
            Init::Randn { mean, stdev } => normal(mean, stdev, &mut uniform),
            Init::Kaiming {
                dist,
                fan,
                non_linearity,
            } => {
                let fan = fan.for_shape(&declaration.shape).max(1);
                let deviation = non_linearity.gain() / (fan as f64).sqrt();
                match dist {
                    NormalOrUniform::Normal => normal(0.0, deviation, &mut uniform),
                    NormalOrUniform::Uniform => {
                        let limit = 3f64.sqrt() * deviation;
                        uniform(-limit, limit)
                    }
                }
            }
        } as f32;
    }
}
