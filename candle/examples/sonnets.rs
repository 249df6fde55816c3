//! A small transformer learns to go on with Shakespeare's sonnets, character by character, on four nodes at two sites.
//!
//! Run it with `RAYON_NUM_THREADS=1 cargo run --release -p tombolo-candle --example sonnets`: products as small as these are slower on several threads
//! than on one. Give it `compressed` to send the largest tenth of each update only, in half precision.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::{
    Embedding, LayerNorm, Linear, Module, VarBuilder, layer_norm_no_bias, linear, linear_no_bias,
    loss, ops,
};
use tombolo::core::trainer::Evaluation;
use tombolo::{Federation, Report};
use tombolo_candle::{Learner, trainer};

const TEXT: &str = include_str!("../data/sonnets.txt");

/// What is added to the topology for a frugal link.
pub const COMPRESSED: &str = r#"
[[link]]
between = ["north", "south"]
codec = "topk+fp16"
share = "10%"
"#;

/// Characters that the transformer sees at once.
const CONTEXT: usize = 32;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const BLOCKS: usize = 2;
const EPSILON: f64 = 1e-5;

/// The share of the text, at its end, that nobody trains on.
const TEST_SHARE: usize = 10;

/// Passages that are judged at once.
const JUDGED: usize = 64;

/// The text as numbers of its characters. A row is a place in it: the characters from there, and the one after each.
#[derive(Clone)]
pub struct Sonnets {
    text: Vec<u32>,
    characters: usize,
    train: usize,
}

impl Sonnets {
    /// The text of this repository.
    pub fn read() -> Self {
        let mut characters: Vec<char> = TEXT.chars().collect();
        let length = characters.len();
        characters.sort_unstable();
        characters.dedup();
        let number = |it| characters.binary_search(&it).expect("all are listed") as u32;
        Sonnets {
            text: TEXT.chars().map(number).collect(),
            characters: characters.len(),
            train: length - length / TEST_SHARE,
        }
    }

    /// The places that one of some nodes trains on: a part of the text of its own.
    pub fn rows(&self, node: usize, nodes: usize) -> Vec<usize> {
        let part = self.train / nodes;
        (node * part..(node + 1) * part - CONTEXT).collect()
    }

    /// (rows, CONTEXT) characters, and those after them in one line.
    fn passages(&self, rows: &[usize]) -> candle_core::Result<(Tensor, Tensor)> {
        let from = |shift: usize| -> Vec<u32> {
            let passage = |row: &usize| &self.text[row + shift..][..CONTEXT];
            rows.iter().flat_map(passage).copied().collect()
        };
        let seen = Tensor::from_vec(from(0), (rows.len(), CONTEXT), &Device::Cpu)?;
        Ok((seen, Tensor::new(from(1), &Device::Cpu)?))
    }
}

/// Self-attention (Vaswani et al., "Attention is all you need", 2017) and two dense layers, each behind a normalization, as in GPT-2.
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    out: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl Block {
    fn new(vars: VarBuilder<'_>) -> candle_core::Result<Self> {
        // Norms without a bias: candle has no gradient for the others.
        Ok(Block {
            norm1: layer_norm_no_bias(WIDTH, EPSILON, vars.pp("norm1"))?,
            qkv: linear(WIDTH, 3 * WIDTH, vars.pp("qkv"))?,
            out: linear(WIDTH, WIDTH, vars.pp("out"))?,
            norm2: layer_norm_no_bias(WIDTH, EPSILON, vars.pp("norm2"))?,
            fc1: linear(WIDTH, 4 * WIDTH, vars.pp("fc1"))?,
            fc2: linear(4 * WIDTH, WIDTH, vars.pp("fc2"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> candle_core::Result<Tensor> {
        let (rows, length, _) = x.dims3()?;
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?;
        // (3, rows, HEADS, length, width of a head)
        let qkv = qkv
            .reshape((rows, length, 3, HEADS, WIDTH / HEADS))?
            .permute((2, 0, 3, 1, 4))?
            .contiguous()?;
        let [q, k, v] = [0, 1, 2].map(|part| qkv.get(part));
        let scale = 1.0 / ((WIDTH / HEADS) as f64).sqrt();
        let scores = (q?.matmul(&k?.t()?)? * scale)?.broadcast_add(mask)?;
        let mixed = ops::softmax(&scores, D::Minus1)?.matmul(&v?)?;
        let mixed = mixed.transpose(1, 2)?.reshape((rows, length, WIDTH))?;
        let x = (x + self.out.forward(&mixed)?)?;
        let units = self.fc1.forward(&self.norm2.forward(&x)?)?.gelu()?;
        x + self.fc2.forward(&units)?
    }
}

/// A decoder-only transformer.
pub struct Transformer {
    characters: Embedding,
    places: Tensor,
    /// Minus infinity, but for what each place may look at: itself and what comes before.
    mask: Tensor,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Module for Transformer {
    /// From (rows, CONTEXT) characters to scores of the next ones in one line.
    fn forward(&self, seen: &Tensor) -> candle_core::Result<Tensor> {
        let characters = self.characters.forward(seen)?;
        let mut x = characters.broadcast_add(&self.places)?;
        for block in &self.blocks {
            x = block.forward(&x, &self.mask)?;
        }
        let scores = self.head.forward(&self.norm.forward(&x)?)?;
        scores.flatten_to(1)
    }
}

impl Learner for Sonnets {
    type Model = Transformer;

    fn build(&self, vars: VarBuilder<'_>) -> candle_core::Result<Transformer> {
        let places = (0..CONTEXT).flat_map(|place| (0..CONTEXT).map(move |other| other > place));
        let mask = places.map(|hidden| if hidden { f32::NEG_INFINITY } else { 0.0 });
        let mask = Tensor::from_iter(mask, &Device::Cpu)?.reshape((CONTEXT, CONTEXT))?;
        // Of one size, so that attention sees both from the first step on.
        let table = |rows, name| {
            let small = candle_nn::Init::Randn {
                mean: 0.0,
                stdev: 0.02,
            };
            vars.get_with_hints((rows, WIDTH), name, small)
        };
        let blocks = (0..BLOCKS).map(|block| Block::new(vars.pp("blocks").pp(block)));
        Ok(Transformer {
            characters: Embedding::new(table(self.characters, "characters.weight")?, WIDTH),
            places: table(CONTEXT, "places")?,
            mask: mask.to_dtype(vars.dtype())?,
            blocks: blocks.collect::<candle_core::Result<_>>()?,
            norm: layer_norm_no_bias(WIDTH, EPSILON, vars.pp("norm"))?,
            head: linear_no_bias(WIDTH, self.characters, vars.pp("head"))?,
        })
    }

    fn loss(&self, model: &Transformer, rows: &[usize]) -> candle_core::Result<Tensor> {
        let (seen, next) = self.passages(rows)?;
        loss::cross_entropy(&model.forward(&seen)?.to_dtype(DType::F32)?, &next)
    }

    /// On the end of the text, passage by passage; the loss is in nats a character.
    fn evaluate(&self, model: &Transformer) -> candle_core::Result<Evaluation> {
        let passages = (self.train..self.text.len() - CONTEXT).step_by(CONTEXT);
        let rows: Vec<usize> = passages.collect();
        let (mut right, mut sum) = (0.0, 0.0);
        for rows in rows.chunks(JUDGED) {
            let (seen, next) = self.passages(rows)?;
            let scores = model.forward(&seen)?;
            let of_batch = loss::cross_entropy(&scores, &next)?.to_scalar::<f32>()?;
            sum += f64::from(of_batch) * rows.len() as f64;
            let named = scores.argmax(D::Minus1)?.eq(&next)?;
            let named = named.to_dtype(DType::F32)?.sum_all()?;
            right += f64::from(named.to_scalar::<f32>()?);
        }
        let all = rows.len() as f64;
        Ok(Evaluation {
            accuracy: right / (all * CONTEXT as f64),
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
pub async fn run(topology: &str, folder: &Path, sonnets: &Sonnets) -> Result<Outcome> {
    let federation = Federation::from_toml(topology, folder)?;
    let store = federation.store()?;
    let settings = federation.plan().model.clone();
    let nodes: Vec<_> = federation
        .plan()
        .nodes()
        .map(|node| node.id.clone())
        .collect();
    let learner = sonnets.clone();
    let running = federation
        .try_trainer(move |node| {
            let place = nodes.iter().position(|other| other == node).unwrap_or(0);
            let rows = learner.rows(place, nodes.len());
            trainer(&settings, node, rows, learner.clone())
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

/// Entropy of a character in bits, from nats.
pub fn bits(loss: f64) -> f64 {
    loss / std::f64::consts::LN_2
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut topology = include_str!("sonnets.toml").to_owned();
    match std::env::args().nth(1).as_deref() {
        None => {}
        Some("compressed") => topology.push_str(COMPRESSED),
        Some(other) => anyhow::bail!("{other:?}: give nothing, or `compressed`"),
    }
    let sonnets = Sonnets::read();
    let folder = tempfile::tempdir()?;
    let outcome = run(&topology, folder.path(), &sonnets).await?;
    for round in outcome.report.rounds() {
        println!(
            "round {:>2}: {:.3} bits a character, {} bytes up",
            round.round,
            bits(round.loss),
            round.bytes_up
        );
    }
    ensure!(outcome.report.succeeded(), "{:?}", outcome.report.finished);
    // The checkpoint is the model: by name, as candle reads any safetensors file.
    let vars =
        VarBuilder::from_buffered_safetensors(outcome.safetensors, DType::F32, &Device::Cpu)?;
    let read = sonnets.evaluate(&sonnets.build(vars)?)?;
    println!("read back: {:.3} bits a character", bits(read.loss));
    Ok(())
}
