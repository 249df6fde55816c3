//! The fold of a rule that must see each update: one chunk of every node at a time, so that the memory does not grow with the model.

use super::Setup;
use super::sums::{Domain, Source, Spoilt, Trouble, chunk_of, sources, tell, tensors, wrong};
use crate::aggregate::{self, Folder};
use crate::env::{Work, work};
use crate::slab::SlabMut;
use tombolo_core::aggregate::{Needs, Weight};
use tombolo_core::coordinator::FoldError;
use tombolo_core::fold::ByteFold;
use tombolo_core::wire::CHUNK_ELEMENTS;

/// The rule's own mean over every member of these contributions: domains by name, in each its members by rank.
///
/// A rule that looks first reads everything twice. What it reads was written down as it came, so it crosses the WAN once; if it is not there any more
/// it is fetched again.
pub(super) async fn fold(
    setup: &Setup,
    domains: &[Domain],
    weights: &[Weight],
    spoilt: &Spoilt,
) -> Result<SlabMut, Trouble> {
    let members = domains.iter().flat_map(|(noted, _)| &noted.members);
    let counted = members.map(|member| weights.iter().find(|weight| weight.node == *member));
    let counted: Option<Vec<Weight>> = counted.map(Option::<&Weight>::cloned).collect();
    let counted = counted.ok_or_else(|| unusable("a counted update was not weighed".into()))?;
    let question = |reply| aggregate::Message::Each(counted.clone(), reply);
    let fold = setup.aggregate.ask(question).await;
    let fold = fold.map_err(|error| unusable(format!("the aggregator: {error}")))?;
    let mut bench = Bench {
        updates: vec![vec![0.0; CHUNK_ELEMENTS.min(setup.layout.len())]; counted.len()],
        fold: fold.map_err(|error| unusable(error.to_string()))?,
        mean: setup.pool.take(setup.layout.len()),
    };
    if setup.stage.plan.aggregator.needs == Needs::EachTwice {
        bench = pass(setup, domains, spoilt, bench, Bench::look).await?;
    }
    let decided = run(setup, 0, bench, |bench| bench.fold.0.decide()).await?;
    let (bench, decided) = decided;
    decided.map_err(|error| unusable(error.to_string()))?;
    let bench = pass(setup, domains, spoilt, bench, Bench::fold).await?;
    Ok(bench.mean)
}

fn unusable(reason: String) -> Trouble {
    Trouble::Wrong(FoldError::Result(reason))
}

/// What the blocking work uses; lent to it.
struct Bench {
    fold: Folder,
    /// One chunk of every update.
    updates: Vec<Vec<f32>>,
    mean: SlabMut,
}

impl Bench {
    fn look(&mut self, start: usize, end: usize) {
        let chunk: Vec<&[f32]> = self
            .updates
            .iter()
            .map(|update| &update[..end - start])
            .collect();
        self.fold.0.look(&chunk);
    }

    fn fold(&mut self, start: usize, end: usize) {
        let chunk: Vec<&[f32]> = self
            .updates
            .iter()
            .map(|update| &update[..end - start])
            .collect();
        self.fold.0.fold(&chunk, &mut self.mean[start..end]);
    }
}

/// Reads all contributions once, each chunk verified before the rule gets it.
async fn pass(
    setup: &Setup,
    domains: &[Domain],
    spoilt: &Spoilt,
    mut bench: Bench,
    step: fn(&mut Bench, usize, usize),
) -> Result<Bench, Trouble> {
    let mut sources = sources(setup, domains, spoilt).await?;
    let elements = setup.layout.len();
    for (index, start) in (0..elements).step_by(CHUNK_ELEMENTS).enumerate() {
        let end = (start + CHUNK_ELEMENTS).min(elements);
        let from = domains.iter().zip(&mut sources);
        read(setup, from, spoilt, &mut bench, index, end - start).await?;
        let bytes = (end - start) * 4 * bench.updates.len();
        (bench, ()) = run(setup, bytes, bench, move |bench| step(bench, start, end)).await?;
    }
    tell(setup, domains, &sources);
    Ok(bench)
}

async fn read<'a>(
    setup: &Setup,
    from: impl Iterator<Item = (&'a Domain, &'a mut Source)>,
    spoilt: &Spoilt,
    bench: &mut Bench,
    index: usize,
    elements: usize,
) -> Result<(), Trouble> {
    let mut updates = bench.updates.iter_mut();
    for ((contribution, _), source) in from {
        let tensors = tensors(setup, contribution);
        for (member, update) in (0..tensors).zip(updates.by_ref()) {
            let index = index * tensors + member;
            let pieces = chunk_of(setup, contribution, source, index, elements * 4, spoilt).await?;
            let target = &mut update[..elements];
            let blame =
                |error: tombolo_core::fold::FoldError| wrong(contribution, error.to_string());
            // Times one: bytes become numbers, and nothing is changed.
            let mut term = ByteFold::first(1.0);
            for piece in &pieces {
                term.push(target, piece).map_err(blame)?;
            }
            term.finish(target).map_err(blame)?;
        }
    }
    Ok(())
}

/// Runs a rule's code off the arbiters: it may be a user's, and take its time.
async fn run<R: Send + 'static>(
    setup: &Setup,
    bytes: usize,
    mut bench: Bench,
    job: impl FnOnce(&mut Bench) -> R + Send + 'static,
) -> Result<(Bench, R), Trouble> {
    let done = work(
        setup.stage.env.as_ref(),
        Work::Bytes(bytes as u64),
        move || {
            let result = job(&mut bench);
            (bench, result)
        },
    );
    done.await
        .map_err(|panicked| unusable(format!("the rule failed: {panicked}")))
}
