//! Membership views on disk: `views/000002.json`, each created if absent, so that two coordinators cannot both decide what follows a view.

use std::io;

use serde::{Deserialize, Serialize};

use super::{CheckpointError, FORMAT, Store, files_error, json, other_format, sealed};
use tombolo_core::ids::Epoch;
use tombolo_core::tensor::Hash;
use tombolo_core::view::View;

/// A view as it is written down.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Written {
    format: u32,
    configuration: Hash,
    view: View,
}

impl Store {
    /// The last view; none in a run whose membership never changed.
    ///
    /// # Errors
    /// It cannot be read, or is not what it should be.
    pub fn last_view(&self) -> Result<Option<View>, CheckpointError> {
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
        Ok(Some(written.view))
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
