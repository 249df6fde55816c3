//! Membership views on disk: `views/000002.json`, each created if absent, so that two coordinators cannot both decide what follows a view.

use std::io;

use serde::{Deserialize, Serialize};

use super::{CheckpointError, FORMAT, Store, files_error, json, other_format, sealed};
use tombolo_core::ids::Epoch;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;
use tombolo_core::view::View;

/// A view as it is written down.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Written {
    format: u32,
    configuration: Hash,
    /// Of the topology that it is a view of, if that is not the one with which the run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    topology: Option<Hash>,
    view: View,
}

impl Store {
    /// The last view; none in a run whose membership never changed.
    ///
    /// # Errors
    /// It cannot be read, or is not what it should be.
    pub fn last_view(&self) -> Result<Option<View>, CheckpointError> {
        Ok(self.last_written()?.map(|written| written.view))
    }

    /// The same, and which topology it is of.
    fn last_written(&self) -> Result<Option<Written>, CheckpointError> {
        let names = self.list("views")?;
        // They follow each other from epoch 2 on. What is none may be one that lost its name.
        let names: Result<Vec<(Epoch, String)>, _> = names.into_iter().map(numbered).collect();
        let mut names = names?;
        names.sort_unstable();
        for ((epoch, _), due) in names.iter().zip(2..) {
            if *epoch != due {
                let path = format!("views/{}", file_name(due));
                return Err(CheckpointError::Missing { path });
            }
        }
        let Some((_, name)) = names.last() else {
            return Ok(None);
        };
        // One that a killed process did not live to synchronize counts from here on, so it must stay: no later one may take its number.
        self.settle("views")?;
        let path = format!("views/{name}");
        let written: Written = json(self.files.as_ref(), &path)?;
        let damaged = |reason: String| CheckpointError::Damaged {
            path: path.clone(),
            reason,
        };
        if written.format != FORMAT {
            let reason = other_format(written.format);
            return Err(damaged(reason));
        }
        if written.configuration != self.configuration {
            return Err(CheckpointError::OtherRun {
                expected: self.configuration,
                found: written.configuration,
            });
        }
        let epoch = written.view.epoch;
        if *name != file_name(epoch) {
            return Err(damaged(format!("it is of epoch {epoch}")));
        }
        Ok(Some(written))
    }

    /// The view that the next one follows, as one of the plan, and whether it is that already: else the topology was amended since.
    pub(super) fn standing(&self, plan: &Plan) -> Result<(View, bool), CheckpointError> {
        let last = self.last_written()?;
        let of = last.as_ref().and_then(|written| written.topology);
        let is_current = of.unwrap_or(self.configuration) == self.topology;
        let view = last.map(|written| written.view);
        let mut view = view.unwrap_or_else(|| View::first(plan));
        if !is_current {
            let epoch = view.epoch;
            view = view.amended(plan);
            view.epoch = epoch;
        }
        Ok((view, is_current))
    }

    /// After an amendment: writes down the view in which the run goes on by it, unless that was done. Its number is a new one, so that nobody
    /// takes the members of one topology for those of another.
    pub(super) fn go_on(&self, plan: &Plan) -> Result<(), CheckpointError> {
        self.check_acting()?;
        self.check_topology()?;
        let (mut view, is_current) = self.standing(plan)?;
        if is_current {
            return Ok(());
        }
        view.epoch += 1;
        self.create_view(&view)
    }

    /// Writes a view down. Asked again, it finds its own work done.
    ///
    /// # Errors
    /// [`CheckpointError::TakenView`]: somebody else has written what follows the view before.
    pub fn write_view(&self, view: &View) -> Result<(), CheckpointError> {
        self.check_acting()?;
        self.create_view(view)
    }

    pub(super) fn create_view(&self, view: &View) -> Result<(), CheckpointError> {
        let path = format!("views/{}", file_name(view.epoch));
        let written = Written {
            format: FORMAT,
            configuration: self.configuration,
            topology: (self.topology != self.configuration).then_some(self.topology),
            view: view.clone(),
        };
        let bytes = sealed::seal(&written);
        match self.files.create(&path, &bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if json::<Written>(self.files.as_ref(), &path)? != written {
                    return Err(CheckpointError::TakenView(view.epoch));
                }
                self.settle("views")
            }
            Err(error) => Err(files_error(&path, &error)),
        }
    }
}

/// A view's epoch and name.
fn numbered(name: String) -> Result<(Epoch, String), CheckpointError> {
    let epoch = name.strip_suffix(".json").and_then(|it| it.parse().ok());
    match epoch.filter(|epoch| *epoch > 1 && file_name(*epoch) == name) {
        Some(epoch) => Ok((epoch, name)),
        None => Err(CheckpointError::Stray {
            path: format!("views/{name}"),
        }),
    }
}

fn file_name(epoch: Epoch) -> String {
    format!("{epoch:06}.json")
}
