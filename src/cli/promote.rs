//! `tombolo promote NODE [FILE]`.

use std::path::PathBuf;

use clap::Args;

use super::output::{fail, print_line, refuse};
use super::status::state_folder;
use super::{Common, Exit, Format};
use tombolo::control::{NotPromoted, PromoteError, Promoted, promote};
use tombolo_core::ids::NodeId;

/// Arguments of `promote`.
#[derive(Debug, Args)]
pub struct Promote {
    /// One of the topology's `standby`, as `domain/name`, or the coordinator that it names.
    node: NodeId,
    /// The topology whose state folder the node's process runs in; default: ./state.
    file: Option<PathBuf>,
}

impl Promote {
    /// Makes a running standby the coordinator.
    pub fn run(&self, common: &Common) -> Exit {
        let folder = match state_folder(common, self.file.as_deref()) {
            Ok(folder) => folder,
            Err(error) => return refuse(common, error),
        };
        let node = &self.node;
        let error = match promote(&folder, node) {
            Ok(Promoted { epoch, already }) => {
                match common.format {
                    Format::Json => print_line(&serde_json::json!({
                        "event": "promoted",
                        "node": node,
                        "epoch": epoch,
                        "already": already,
                    })),
                    Format::Text if already => {
                        say!("{node} was the coordinator before; nothing is changed");
                    }
                    Format::Text => say!(
                        "{node} is the coordinator from membership view {epoch} on; the one before it can commit nothing more"
                    ),
                }
                return Exit::Done;
            }
            Err(error) => error,
        };
        let exit = match &error {
            PromoteError::NotPromoted(NotPromoted::NoStandby { .. }) => Exit::Usage,
            _ => Exit::Failed,
        };
        fail(common, &error.to_string());
        exit
    }
}
