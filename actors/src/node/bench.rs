//! What trains: the trainer, the model it starts from, and the region in which its update waits for the domain.

use super::Setup;
use crate::collective::{read_model, region_ref, write_header};
use crate::slab::copy;
use crate::verbs::{Fabric, Readers};
use tombolo_core::ids::Round;
use tombolo_core::tensor::Hash;
use tombolo_core::trainer::{Task, Trained, Trainer};
use tombolo_core::wire::{ModelRef, REGION_HEADER_BYTES, RegionHeader, RegionRef};
use tombolo_fabric::Region;

/// What training and reading use; lent to the blocking work.
pub(super) struct Bench {
    trainer: Box<dyn Trainer>,
    /// READ straight into; empty after a READ that failed for good.
    model: Region,
    local: Vec<f32>,
    export: Option<Region>,
    readers: Readers,
}

/// The model that every node can make.
pub(super) struct Initial {
    pub(super) hash: Hash,
    /// On a gateway: a region of it that the domain may READ.
    pub(super) shown: Option<Region>,
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
    let initial = Initial {
        hash: Hash::of(&local),
        shown: shown.transpose()?,
    };
    let readers = setup.fabric.readers();
    let bench = Bench {
        trainer,
        model,
        local,
        export: None,
        readers,
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
        shown(fabric, round, &self.model.f32s())
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

    /// Trains from the model and leaves local minus global in the region that the domain may READ. Blocks.
    pub(super) fn train(
        &mut self,
        task: &Task,
        epoch: u64,
        fabric: &Fabric,
    ) -> Result<(Trained, RegionRef), String> {
        if self.model.is_empty() {
            return Err("no model is held".into());
        }
        copy(self.model.f32s(), &mut self.local);
        let trained = self
            .trainer
            .train(task, &mut self.local)
            .map_err(|error| error.to_string())?;
        let mut region = match self.export.take() {
            Some(region) => region,
            None => fabric.allocate(REGION_HEADER_BYTES + self.local.len() * 4)?,
        };
        write_header(
            &mut region,
            RegionHeader {
                epoch,
                round: task.round,
                attempt: 0,
            },
        );
        {
            let mut elements = region.f32s_mut();
            let update = &mut elements[REGION_HEADER_BYTES / 4..];
            let global = self.model.f32s();
            for ((update, local), global) in update.iter_mut().zip(&self.local).zip(global) {
                *update = local - global;
            }
        }
        let reference = region_ref(&task.node, &region);
        self.export = Some(region);
        Ok((trained, reference))
    }
}
