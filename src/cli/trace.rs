//! `tombolo trace [DIR...]`.

use std::path::PathBuf;

use clap::Args;

use super::output::{fail, print_line};
use super::report::{picture, run_folders};
use super::{Common, Exit, Format};

/// The file's name in the first folder, unless told otherwise.
const NAME: &str = "trace.json";

/// Arguments of `trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// The state folder of the run, and those of its other sites if they are at hand; default: the one of --state, or ./state.
    folders: Vec<PathBuf>,
    /// Where to write; default: trace.json in the first folder.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Trace {
    /// Reads the records and writes the file.
    pub fn run(&self, common: &Common) -> Exit {
        let folders = run_folders(common, &self.folders);
        let picture = match picture(&folders) {
            Ok(picture) => picture,
            Err(error) => {
                fail(common, &error.to_string());
                return Exit::Failed;
            }
        };
        let out = self.out.clone().unwrap_or_else(|| folders[0].join(NAME));
        if let Err(error) = std::fs::write(&out, tombolo::observe::trace(&picture)) {
            let message = format!(
                "cannot write {}: {error}; name another file with --out",
                out.display()
            );
            fail(common, &message);
            return Exit::Failed;
        }
        let path = std::path::absolute(&out).unwrap_or(out);
        let bounds = picture.nodes.values().filter_map(|node| node.clock);
        let bound = bounds.map(|clock| clock.bound_ms).reduce(f64::max);
        match common.format {
            Format::Json => print_line(&serde_json::json!({
                "event": "trace",
                "file": path,
                "clock_bound_ms": bound,
            })),
            Format::Text => {
                let bound = bound.map(|bound| format!("; clocks are known to {bound:.1} ms"));
                say!(
                    "open {} in Perfetto, https://ui.perfetto.dev, or in chrome://tracing{}",
                    path.display(),
                    bound.unwrap_or_default()
                );
            }
        }
        Exit::Done
    }
}
