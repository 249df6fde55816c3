//! `tombolo readmit NODE [FILE]`.

use std::path::PathBuf;

use clap::Args;

use super::output::{fail, print_line, refuse};
use super::status::state_folder;
use super::{Common, Exit, Format};
use tombolo::control::{ReadmitError, readmit};
use tombolo_core::ids::NodeId;
use tombolo_core::membership::NotLifted;

/// Arguments of `readmit`.
#[derive(Debug, Args)]
pub struct Readmit {
    /// The evicted node, as `domain/name`.
    node: NodeId,
    /// The topology whose state folder the coordinator's process runs in; default: ./state.
    file: Option<PathBuf>,
}

impl Readmit {
    /// Asks the coordinator to let the node in again as soon as it is heard.
    pub fn run(&self, common: &Common) -> Exit {
        let folder = match state_folder(common, self.file.as_deref()) {
            Ok(folder) => folder,
            Err(error) => return refuse(common, error),
        };
        let node = &self.node;
        let error = match readmit(&folder, node) {
            Ok(left_s) => {
                match common.format {
                    Format::Json => print_line(&serde_json::json!({
                        "event": "readmitted",
                        "node": node,
                        "left_s": left_s,
                    })),
                    Format::Text => say!(
                        "the cool-down of {node} is lifted, {left_s:.0} s before its end; it is let in as soon as it is heard"
                    ),
                }
                return Exit::Done;
            }
            Err(error) => error,
        };
        let (exit, advice) = match &error {
            ReadmitError::NotLifted(NotLifted::Unknown(_)) => {
                (Exit::Usage, "; `tombolo check` lists them")
            }
            ReadmitError::NoCoordinator { .. } => (
                Exit::Failed,
                "; run this where it runs, or name its state folder with --state",
            ),
            _ => (Exit::Failed, ""),
        };
        fail(common, &format!("{error}{advice}"));
        exit
    }
}
