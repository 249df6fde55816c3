//! What trains: the trainer, the model it starts from, and the region in which its update waits for the domain.

use std::sync::Arc;

use bytes::Bytes;

use super::Setup;
use super::keep::{Diary, Keep, Kept, Made, Order};
use crate::collective::{read_model, region_ref, write_header};
use crate::link::Held;
use crate::slab::copy;
use crate::verbs::{Fabric, Readers};
use tombolo_core::event::Event;
use tombolo_core::ids::Round;
use tombolo_core::member::Export;
use tombolo_core::mutants;
use tombolo_core::outline::{Outline, Outliner};
use tombolo_core::pace::{self, Effort};
use tombolo_core::tensor::{Hash, bytes_of};
use tombolo_core::time::Micros;
use tombolo_core::trainer::{Snapshot, Task, Trained, Trainer};
use tombolo_core::wire::{Exported, ModelRef, REGION_HEADER_BYTES, RegionHeader, RegionRef, Train};
use tombolo_fabric::Region;

/// Elements that are copied and hashed at once: they fit into a core's own cache twice.
const COPY_ELEMENTS: usize = 64 * 1024;

/// After a READ that failed.
const NO_MODEL: &str = "no model is held";

/// What training and reading use; lent to the blocking work.
pub(super) struct Bench {
    trainer: Box<dyn Trainer>,
    /// READ straight into, unless a peer still heals from it; empty after a READ that failed for good.
    model: Arc<Region>,
    /// Of that model; none after a READ that failed.
    outline: Option<Arc<Outline>>,
    local: Vec<f32>,
    export: Option<Region>,
    /// In the asynchronous mode, where the update before the last one lies.
    spare: Option<Region>,
    readers: Readers,
    keep: Keep,
}

/// The model that every node can make.
pub(super) struct Initial {
    pub(super) outline: Arc<Outline>,
    /// On a gateway: a region of it that the domain may READ.
    pub(super) shown: Option<Region>,
    /// The update that an earlier life has made.
    pub(super) export: Option<Export>,
}

/// A model's memory while peers may fetch from it.
struct Lent(Arc<Region>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Makes the trainer and the initial model. Blocks.
pub(super) fn bench(setup: &Setup) -> Result<(Bench, Initial), String> {
    let mut trainer = (setup.trainer)(&setup.stage.node)?;
    if let Some(difference) = setup.layout.difference(&trainer.layout()) {
        return Err(format!("the trainer changed its layout: {difference}"));
    }
    let elements = setup.layout.len();
    let mut local = vec![0.0; elements];
    trainer
        .initialize(setup.stage.plan.seed, &mut local)
        .map_err(|error| error.to_string())?;
    if !setup.trains() {
        // It never needs what may be as large as all the memory there is.
        let outline = Arc::new(Outline::of(&local));
        let (model, local) = (Region::vacant(), Vec::new());
        let (shown, export) = (None, None);
        let initial = Initial {
            outline,
            shown,
            export,
        };
        return Ok((Bench::new(setup, trainer, model, local), initial));
    }
    let mut model = setup.fabric.allocate(elements * 4)?;
    copy(&local, &mut model.f32s_mut());
    let shown = setup
        .seen()
        .is_gateway()
        .then(|| shown(&setup.fabric, 0, &local));
    let outline = Arc::new(Outline::of(&local));
    let mut bench = Bench::new(setup, trainer, model, local);
    bench.outline = Some(outline.clone());
    let initial = Initial {
        outline,
        shown: shown.transpose()?,
        export: bench.restore(setup)?,
    };
    Ok((bench, initial))
}

/// A region with a model that the domain may READ. Blocks.
fn shown(fabric: &Fabric, round: Round, model: &[f32]) -> Result<Region, String> {
    let mut region = fabric.allocate(REGION_HEADER_BYTES + model.len() * 4)?;
    write_header(
        &mut region,
        RegionHeader {
            epoch: 0,
            round,
            attempt: 0,
            token: 0,
        },
    );
    copy(model, &mut region.f32s_mut()[REGION_HEADER_BYTES / 4..]);
    Ok(region)
}

/// When a training began, and after how many steps of a life before.
#[derive(Clone, Copy)]
pub(super) struct Began {
    at: Micros,
    steps: u64,
}

impl Began {
    /// How long it took up to now.
    pub(super) fn effort(self, trained: &Trained, now: Micros) -> Effort {
        let micros = now.since(self.at).as_micros();
        Effort {
            steps: trained.steps.saturating_sub(self.steps),
            micros: u64::try_from(micros).unwrap_or(u64::MAX),
        }
    }
}

/// What came of a training.
pub(super) struct Done {
    pub(super) trained: Trained,
    /// Where the update lies.
    pub(super) region: RegionRef,
    pub(super) began: Began,
}

/// Why nothing was trained.
pub(super) enum Untrained {
    /// The model held has changed since it was READ: it has this hash now.
    Diverged(Hash),
    /// Anything else.
    Failed(String),
}

impl From<String> for Untrained {
    fn from(reason: String) -> Self {
        Untrained::Failed(reason)
    }
}

impl Bench {
    fn new(setup: &Setup, trainer: Box<dyn Trainer>, model: Region, local: Vec<f32>) -> Self {
        Bench {
            trainer,
            model: Arc::new(model),
            outline: None,
            local,
            export: None,
            spare: None,
            readers: setup.fabric.readers(),
            keep: Keep::new(setup.stage.env.files(), setup.configuration),
        }
    }

    /// A region with the model held. Blocks.
    pub(super) fn shown(
        &self,
        fabric: &Fabric,
        round: Round,
    ) -> Result<(Region, Arc<Outline>), String> {
        let outline = self.outline.clone().ok_or(NO_MODEL)?;
        Ok((shown(fabric, round, self.model.f32s())?, outline))
    }

    /// The model held, for peers to heal from; none if it could not be READ.
    pub(super) fn held(&self) -> Option<Held> {
        let outline = self.outline.clone()?;
        let bytes = Bytes::from_owner(Lent(self.model.clone()));
        Some(Held { outline, bytes })
    }

    /// READs a model and holds it. Blocks.
    pub(super) fn adopt(
        &mut self,
        model: &ModelRef,
        fabric: &Fabric,
        elements: usize,
    ) -> Result<(), String> {
        self.outline = None;
        if Arc::get_mut(&mut self.model).is_none_or(|model| model.is_empty()) {
            // A peer that heals from the model before keeps that as long as it is being sent.
            self.model = Arc::new(fabric.allocate(elements * 4)?);
        }
        let into = Arc::get_mut(&mut self.model).ok_or("its memory is in use")?;
        let outline = read_model(&mut self.readers, model, into, elements)?;
        self.outline = Some(Arc::new(outline));
        Ok(())
    }

    /// Copies the model to where it is trained, hashing each piece while it lies in a core's cache: what was READ rightly may have changed since.
    fn copy_model(&mut self) -> Result<(), Untrained> {
        let expected = self.outline.as_ref().ok_or_else(|| NO_MODEL.to_owned())?;
        let mut outliner = Outliner::new(self.local.len());
        let model = self.model.f32s().chunks(COPY_ELEMENTS);
        for (model, local) in model.zip(self.local.chunks_mut(COPY_ELEMENTS)) {
            copy(model, local);
            outliner.push(bytes_of(local));
        }
        let found = outliner.finish().hash();
        if found == expected.hash() || mutants::is("divergence-unseen") {
            return Ok(());
        }
        // Peers should not heal from it either.
        self.outline = None;
        Err(Untrained::Diverged(found))
    }

    /// A fault of a simulation: one bit of the model changes. Who heals from this node goes on with what it was lent before.
    fn flip(&mut self, fabric: &Fabric) -> Result<(), String> {
        let mut model = fabric.allocate(self.model.len())?;
        {
            let mut bytes = model.bytes_mut();
            bytes.copy_from_slice(self.model.bytes());
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        self.model = Arc::new(model);
        Ok(())
    }

    /// Shows the update that an earlier life has made, and gives the trainer its state back. Blocks.
    fn restore(&mut self, setup: &Setup) -> Result<Option<Export>, String> {
        let Some(kept) = self.keep.last_update(self.local.len()) else {
            return Ok(None);
        };
        let Kept {
            about: made,
            elements,
            state,
        } = kept;
        if made.order.node != setup.stage.node {
            return Ok(None);
        }
        if let Err(error) = self.trainer.restore(&state) {
            tracing::warn!(%error, "the trainer does not take up the state it had");
        }
        let round = made.order.round;
        let mut region = self.region(None, made.epoch, round, &setup.fabric)?;
        copy(&elements, &mut region.f32s_mut()[REGION_HEADER_BYTES / 4..]);
        let exported = Exported {
            round,
            epoch: made.epoch,
            region: region_ref(&setup.stage.node, &region),
            samples: made.samples,
            loss: made.loss,
            steps: made.counts_as.unwrap_or(made.steps),
            learning_rate: made.learning_rate,
            effort: made.effort,
        };
        self.keep_region(region);
        setup.stage.report(Event::UpdateRestored {
            node: setup.stage.node.clone(),
            round,
        });
        Ok(Some(Export {
            run: made.order.run,
            base: made.order.base,
            work: (made.order.sync_every, made.counts_as),
            exported,
        }))
    }

    /// The region for an update, with its header: not the one of that key, which others may still READ.
    fn region(
        &mut self,
        held: Option<u64>,
        epoch: u64,
        round: Round,
        fabric: &Fabric,
    ) -> Result<Region, String> {
        let is_free = |region: &mut Region| Some(region.remote().key) != held;
        let last = self.export.take_if(is_free);
        let mut region = match last.or_else(|| self.spare.take_if(is_free)) {
            Some(region) => region,
            None => fabric.allocate(REGION_HEADER_BYTES + self.local.len() * 4)?,
        };
        let header = RegionHeader {
            epoch,
            round,
            attempt: 0,
            token: 0,
        };
        write_header(&mut region, header);
        Ok(region)
    }

    /// The last update lies there now.
    fn keep_region(&mut self, region: Region) {
        if let Some(before) = self.export.replace(region) {
            self.spare = Some(before);
        }
    }

    /// Trains from the model, from where an earlier life was interrupted if it was; leaves local minus global in the region that the domain
    /// may READ, and on disk. Blocks.
    pub(super) fn train(
        &mut self,
        setup: &Setup,
        order: &Train,
        held: Option<u64>,
    ) -> Result<Done, Untrained> {
        if setup.stage.env.model_flips() {
            self.flip(&setup.fabric)?;
        }
        let task = Task {
            node: setup.stage.node.clone(),
            round: order.round,
            seed: order.seed,
            sync_every: order.sync_every,
            domain: setup.together(order.round, order.epoch),
        };
        self.copy_model()?;
        let about = Order::new(&task, order.run, order.model.hash);
        let from = self.keep.training(&about, self.local.len());
        let from = from.as_ref().map(|(steps, kept)| Snapshot {
            steps: *steps,
            parameters: &kept.elements,
            state: &kept.state,
        });
        if let Some(Snapshot { steps, .. }) = from {
            let (node, round) = (task.node.clone(), task.round);
            setup
                .stage
                .report(Event::TrainingResumed { node, round, steps });
        }
        let (env, every) = (&setup.stage.env, setup.stage.plan.checkpoint.snapshot);
        let began = Began {
            at: env.now(),
            steps: from.map_or(0, |from| from.steps),
        };
        let mut diary = Diary::new(&self.keep, env.as_ref(), every, about.clone());
        let trained = self
            .trainer
            .train_from(&task, from, &mut self.local, &mut diary)
            .map_err(|error| error.to_string())?;
        let given = order
            .sync_every
            .steps()
            .filter(|_| order.counts_as.is_some());
        if let Some(given) = given.filter(|given| *given != trained.steps) {
            return Err(format!(
                "the trainer has made {} local steps where {given} were asked for: with balance_steps its update is weighed by them, so it must make exactly those",
                trained.steps
            )
            .into());
        }
        let mut region = self.region(held, order.epoch, task.round, &setup.fabric)?;
        {
            let mut elements = region.f32s_mut();
            let update = &mut elements[REGION_HEADER_BYTES / 4..];
            let global = self.model.f32s();
            for ((update, local), global) in update.iter_mut().zip(&self.local).zip(global) {
                *update = local - global;
            }
            // Of fewer steps than others it says as much as theirs.
            pace::stretch(update, order.counts_as, trained.steps);
        }
        let effort = began.effort(&trained, env.now());
        let made = Made {
            counts_as: order.counts_as,
            effort,
            ..Made::new(about, order.epoch, &trained)
        };
        let update = &region.f32s()[REGION_HEADER_BYTES / 4..];
        if let Err(error) = self.keep.update(made, update, &self.trainer.state()) {
            tracing::warn!(%error, "the update is not on disk: a node that is killed now trains again");
        }
        let reference = region_ref(&task.node, &region);
        self.keep_region(region);
        Ok(Done {
            trained,
            region: reference,
            began,
        })
    }
}
