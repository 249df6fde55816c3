//! A small convolutional network learns to tell clothes apart (Fashion-MNIST: Xiao, Rasul and Vollgraf, 2017), on four nodes at two sites.
//!
//! Run it with `RAYON_NUM_THREADS=1 cargo run --release -p tombolo-candle --example fashion_cnn`: products as small as these are slower on several
//! threads than on one. The pictures are those of the Debian package `dataset-fashion-mnist`.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::{Conv2d, Linear, Module, VarBuilder, conv2d, linear, loss};
use flate2::read::GzDecoder;
use tombolo::core::trainer::Evaluation;
use tombolo::{Federation, Report};
use tombolo_candle::{Learner, trainer};

/// Where the Debian package puts its files.
pub const FOLDER: &str = "/usr/share/datasets/fashion-mnist";

const SIDE: usize = 28;
const CLASSES: usize = 10;

/// The most pictures of a file: what an honest one has.
const PICTURES_MAX: usize = 60_000;

/// Pictures that are judged at once.
const JUDGED: usize = 500;

/// Pictures as bytes, and what is on them.
#[derive(Clone)]
pub struct Pictures {
    /// (pictures, 1, 28, 28), from 0 to 255.
    pixels: Tensor,
    labels: Tensor,
}

impl Pictures {
    /// Reads `train` or `t10k` from a folder.
    pub fn read(folder: &Path, part: &str) -> Result<Self> {
        let (head, pixels) = idx(&folder.join(format!("{part}-images-idx3-ubyte.gz")), 3)?;
        let (count, labels) = idx(&folder.join(format!("{part}-labels-idx1-ubyte.gz")), 1)?;
        ensure!(
            head[1..] == [SIDE, SIDE] && head[0] == count[0],
            "{part}: pictures of {head:?} and {count:?} labels do not fit"
        );
        ensure!(
            labels.iter().all(|label| usize::from(*label) < CLASSES),
            "{part}: a label above 9"
        );
        let labels: Vec<u32> = labels.into_iter().map(u32::from).collect();
        Ok(Pictures {
            pixels: Tensor::from_vec(pixels, (head[0], 1, SIDE, SIDE), &Device::Cpu)?,
            labels: Tensor::new(labels, &Device::Cpu)?,
        })
    }

    /// The first of them.
    pub fn first(&self, count: usize) -> Self {
        let narrowed = |it: &Tensor| it.narrow(0, 0, count.min(self.count()));
        let narrowed = |it: &Tensor| narrowed(it).expect("there are so many");
        Pictures {
            pixels: narrowed(&self.pixels),
            labels: narrowed(&self.labels),
        }
    }

    /// How many there are.
    fn count(&self) -> usize {
        self.pixels.dims()[0]
    }

    /// Some of them, pixels from 0 to 1.
    fn some(&self, rows: &[usize], dtype: DType) -> candle_core::Result<(Tensor, Tensor)> {
        let rows: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
        let rows = Tensor::new(rows, &Device::Cpu)?;
        let pixels = self.pixels.index_select(&rows, 0)?.to_dtype(dtype)?;
        Ok(((pixels / 255.0)?, self.labels.index_select(&rows, 0)?))
    }
}

/// The extents and the bytes of an IDX file.
fn idx(path: &Path, rank: usize) -> Result<(Vec<usize>, Vec<u8>)> {
    let file = std::fs::File::open(path).with_context(|| {
        format!(
            "{}: install the Debian package dataset-fashion-mnist",
            path.display()
        )
    })?;
    let bytes_max = 4 + 4 * rank + PICTURES_MAX * SIDE * SIDE;
    let mut bytes = Vec::new();
    let mut reader = GzDecoder::new(file).take(bytes_max as u64 + 1);
    reader
        .read_to_end(&mut bytes)
        .with_context(|| path.display().to_string())?;
    let wrong = || format!("{}: it is no IDX file of {rank} extents", path.display());
    let (head, rest) = bytes.split_at_checked(4 + 4 * rank).with_context(wrong)?;
    ensure!(head[..4] == [0, 0, 8, rank as u8], wrong());
    let extents = head[4..].as_chunks::<4>().0.iter();
    let extents: Vec<usize> = extents
        .map(|bytes| u32::from_be_bytes(*bytes) as usize)
        .collect();
    let elements = extents
        .iter()
        .try_fold(1usize, |all, &it| all.checked_mul(it));
    ensure!(elements == Some(rest.len()), wrong());
    Ok((extents, rest.to_vec()))
}

/// Two convolutions and two dense layers. Names and shapes are those that PyTorch gives to the same layers.
pub struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    fc1: Linear,
    fc2: Linear,
}

impl Module for Cnn {
    /// From pixels to scores.
    fn forward(&self, pixels: &Tensor) -> candle_core::Result<Tensor> {
        let maps = self.conv1.forward(pixels)?.max_pool2d(2)?.relu()?;
        let maps = self.conv2.forward(&maps)?.max_pool2d(2)?.relu()?;
        let units = self.fc1.forward(&maps.flatten_from(1)?)?.relu()?;
        self.fc2.forward(&units)
    }
}

/// The pictures, and the network that learns them.
#[derive(Clone)]
pub struct Wardrobe {
    /// What is learned.
    pub train: Pictures,
    /// What nobody trains on.
    pub test: Pictures,
}

impl Wardrobe {
    /// The files of a folder.
    pub fn read(folder: &Path) -> Result<Self> {
        Ok(Wardrobe {
            train: Pictures::read(folder, "train")?,
            test: Pictures::read(folder, "t10k")?,
        })
    }
}

impl Learner for Wardrobe {
    type Model = Cnn;

    fn build(&self, vars: VarBuilder<'_>) -> candle_core::Result<Cnn> {
        Ok(Cnn {
            conv1: conv2d(1, 8, 5, Default::default(), vars.pp("conv1"))?,
            conv2: conv2d(8, 16, 5, Default::default(), vars.pp("conv2"))?,
            fc1: linear(16 * 4 * 4, 64, vars.pp("fc1"))?,
            fc2: linear(64, CLASSES, vars.pp("fc2"))?,
        })
    }

    fn loss(&self, model: &Cnn, rows: &[usize]) -> candle_core::Result<Tensor> {
        let dtype = model.fc1.weight().dtype();
        let (pixels, labels) = self.train.some(rows, dtype)?;
        let scores = model.forward(&pixels)?.to_dtype(DType::F32)?;
        loss::cross_entropy(&scores, &labels)
    }

    fn evaluate(&self, model: &Cnn) -> candle_core::Result<Evaluation> {
        let rows: Vec<usize> = (0..self.test.count()).collect();
        let (mut right, mut sum) = (0.0, 0.0);
        for rows in rows.chunks(JUDGED) {
            let (pixels, labels) = self.test.some(rows, DType::F32)?;
            let scores = model.forward(&pixels)?;
            let of_batch = loss::cross_entropy(&scores, &labels)?.to_scalar::<f32>()?;
            sum += f64::from(of_batch) * rows.len() as f64;
            let named = scores.argmax(D::Minus1)?.eq(&labels)?;
            let named = named.to_dtype(DType::F32)?.sum_all()?;
            right += f64::from(named.to_scalar::<f32>()?);
        }
        let all = rows.len() as f64;
        Ok(Evaluation {
            accuracy: right / all,
            loss: sum / all,
        })
    }
}

/// What came of a run, and the model as its checkpoint has it.
pub struct Outcome {
    /// What each round did.
    pub report: Report,
    /// The last committed model.
    pub safetensors: Vec<u8>,
}

/// Trains it by a topology. The state lies in `folder`.
pub async fn run(topology: &str, folder: &Path, wardrobe: &Wardrobe) -> Result<Outcome> {
    let federation = Federation::from_toml(topology, folder)?;
    let store = federation.store()?;
    let settings = federation.plan().model.clone();
    let nodes: Vec<_> = federation
        .plan()
        .nodes()
        .map(|node| node.id.clone())
        .collect();
    let learner = wardrobe.clone();
    let running = federation
        .try_trainer(move |node| {
            // Every fourth picture, if there are four nodes.
            let place = nodes.iter().position(|other| other == node).unwrap_or(0);
            let rows = (place..learner.train.count()).step_by(nodes.len());
            trainer(&settings, node, rows.collect(), learner.clone())
        })
        .spawn()
        .await?;
    let report = running.run().await?;
    let last = report.rounds().iter().rfind(|round| round.is_committed());
    let last = last.context("no round was committed")?;
    Ok(Outcome {
        safetensors: store.model(last.round)?,
        report,
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let wardrobe = Wardrobe::read(&PathBuf::from(FOLDER))?;
    let folder = tempfile::tempdir()?;
    let outcome = run(include_str!("fashion_cnn.toml"), folder.path(), &wardrobe).await?;
    for round in outcome.report.rounds() {
        println!(
            "round {:>2}: {:.1} % right, loss {:.3}",
            round.round,
            100.0 * round.accuracy,
            round.loss
        );
    }
    ensure!(outcome.report.succeeded(), "{:?}", outcome.report.finished);
    // The checkpoint is the model: by name, as candle reads any safetensors file.
    let vars =
        VarBuilder::from_buffered_safetensors(outcome.safetensors, DType::F32, &Device::Cpu)?;
    let model = wardrobe.build(vars)?;
    let read = wardrobe.evaluate(&model)?;
    println!("read back: {:.1} % right", 100.0 * read.accuracy);
    Ok(())
}
