//! What trains: the trainer, the model it starts from, and the region in which its update waits for the domain.

use super::Setup;
use super::keep::{Diary, Keep, Kept, Made, Order};
use crate::collective::{read_model, region_ref, write_header};
use crate::slab::copy;
use crate::verbs::{Fabric, Readers};
use tombolo_core::event::Event;
use tombolo_core::ids::Round;
use tombolo_core::member::Export;
use tombolo_core::tensor::Hash;
use tombolo_core::trainer::{Snapshot, Task, Trained, Trainer};
use tombolo_core::wire::{Exported, ModelRef, REGION_HEADER_BYTES, RegionHeader, RegionRef, Train};
use tombolo_fabric::Region;

/// What training and reading use; lent to the blocking work.
pub(super) struct Bench {
    trainer: Box<dyn Trainer>,
    /// READ straight into; empty after a READ that failed for good.
    model: Region,
    local: Vec<f32>,
    export: Option<Region>,
    /// In the asynchronous mode, where the update before the last one lies.
    spare: Option<Region>,
    readers: Readers,
    keep: Keep,
}

/// The model that every node can make.
pub(super) struct Initial {
    pub(super) hash: Hash,
    /// On a gateway: a region of it that the domain may READ.
    pub(super) shown: Option<Region>,
    /// The update that an earlier life has made.
    pub(super) export: Option<Export>,
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
    let mut model = setup.fabric.allocate(elements * 4)?;
    copy(&local, &mut model.f32s_mut());
    let shown = setup
        .seen()
        .is_gateway()
        .then(|| shown(&setup.fabric, 0, &local));
    let keep = Keep::new(setup.stage.env.files(), setup.configuration);
    let mut bench = Bench {
        trainer,
        model,
        export: None,
        spare: None,
        readers: setup.fabric.readers(),
        keep,
        local,
    };
    let initial = Initial {
        hash: Hash::of(&bench.local),
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

impl Bench {
    /// A region with the model held. Blocks.
    pub(super) fn shown(&self, fabric: &Fabric, round: Round) -> Result<Region, String> {
        if self.model.is_empty() {
            return Err("no model is held".into());
        }
        shown(fabric, round, self.model.f32s())
    }

    /// READs a model and holds it. Blocks.
    pub(super) fn adopt(
        &mut self,
        model: &ModelRef,
        fabric: &Fabric,
        elements: usize,
    ) -> Result<(), String> {
        if self.model.is_empty() {
            self.model = fabric.allocate(elements * 4)?;
        }
        read_model(&mut self.readers, model, &mut self.model, elements)
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
            steps: made.steps,
            learning_rate: made.learning_rate,
        };
        self.keep_region(region);
        setup.stage.report(Event::UpdateRestored {
            node: setup.stage.node.clone(),
            round,
        });
        Ok(Some(Export {
            run: made.order.run,
            base: made.order.base,
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
    ) -> Result<(Trained, RegionRef), String> {
        if self.model.is_empty() {
            return Err("no model is held".into());
        }
        let task = Task {
            node: setup.stage.node.clone(),
            round: order.round,
            seed: order.seed,
            sync_every: order.sync_every,
        };
        copy(self.model.f32s(), &mut self.local);
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
        let mut diary = Diary::new(&self.keep, env.as_ref(), every, about.clone());
        let trained = self
            .trainer
            .train_from(&task, from, &mut self.local, &mut diary)
            .map_err(|error| error.to_string())?;
        let mut region = self.region(held, order.epoch, task.round, &setup.fabric)?;
        {
            let mut elements = region.f32s_mut();
            let update = &mut elements[REGION_HEADER_BYTES / 4..];
            let global = self.model.f32s();
            for ((update, local), global) in update.iter_mut().zip(&self.local).zip(global) {
                *update = local - global;
            }
        }
        let made = Made::new(about, order.epoch, &trained);
        let update = &region.f32s()[REGION_HEADER_BYTES / 4..];
        if let Err(error) = self.keep.update(made, update, &self.trainer.state()) {
            tracing::warn!(%error, "the update is not on disk: a node that is killed now trains again");
        }
        let reference = region_ref(&task.node, &region);
        self.keep_region(region);
        Ok((trained, reference))
    }
}
