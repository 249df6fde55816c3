//! The record on disk, asked from outside: where copies are, whether they are one record, whether the models that they tell are the models that
//! are kept. What is decided is in [`tombolo_core::record::audit`].

pub mod recompute;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tombolo_actors::checkpoint::MODEL;
use tombolo_actors::identity::IdentityError;
use tombolo_actors::record::log;
use tombolo_core::ids::Round;
use tombolo_core::plan::Plan;
use tombolo_core::record::Note;
use tombolo_core::record::audit::{Finding, Report, audit};
use tombolo_core::tensor::Hash;

use crate::files::FolderFiles;
use crate::identity::bundle::Bundle;
use crate::identity::files::{hex, sha256};
use crate::identity::notary::Notary;
use crate::world::files;

/// A node's folder that holds a copy of the record.
pub struct Place {
    folder: PathBuf,
    files: FolderFiles,
}

impl Place {
    fn new(folder: PathBuf) -> Place {
        Place {
            files: files::look(&folder),
            folder,
        }
    }

    /// The folder, for people.
    pub fn name(&self) -> String {
        self.folder.display().to_string()
    }

    /// The leaves that count: up to the head that the node has signed.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn signed(&self) -> Result<Vec<String>, String> {
        let copy = log::copy(&self.files, self.name()).map_err(|error| error.to_string())?;
        let note = Note::parse(copy.checkpoint.as_deref().unwrap_or_default())?;
        let size = usize::try_from(note.head.size).unwrap_or(usize::MAX);
        copy.lines.take(size).collect()
    }
}

/// The copies in a folder: its own, or those of the nodes in it.
///
/// # Errors
/// It cannot be read.
pub fn places(dir: &Path) -> io::Result<Vec<Place>> {
    let holds = |folder: &Path| folder.join(log::FOLDER).is_dir();
    if holds(dir) {
        return Ok(vec![Place::new(dir.to_owned())]);
    }
    let nodes = match dir.join("nodes") {
        nodes if nodes.is_dir() => nodes,
        _ => dir.to_owned(),
    };
    let mut found = Vec::new();
    for entry in nodes.read_dir()? {
        let folder = entry?.path();
        if holds(&folder) {
            found.push(folder);
        }
    }
    found.sort();
    Ok(found.into_iter().map(Place::new).collect())
}

/// Audits copies together.
///
/// # Errors
/// A folder cannot be listed.
pub fn verify(places: &[Place]) -> Result<Report, String> {
    let copies = places
        .iter()
        .map(|place| log::copy(&place.files, place.name()));
    let copies: io::Result<Vec<_>> = copies.collect();
    let copies = copies.map_err(|error| error.to_string())?;
    Ok(audit(copies, &Notary))
}

/// Holds the states that are kept beside a copy against the models that it tells: how many there are, and which are other ones.
pub fn states(place: &Place, models: &BTreeMap<Round, Hash>) -> (usize, Vec<Finding>) {
    let (mut checked, mut found) = (0, Vec::new());
    let folder = place.folder.join("states");
    let mut names: Vec<String> = folder
        .read_dir()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    for name in names {
        let round = name.split('-').next().and_then(|round| round.parse().ok());
        let Some((round, told)) = round.and_then(|round: Round| Some((round, models.get(&round)?)))
        else {
            continue;
        };
        let path = folder.join(&name).join(MODEL);
        let reason = match model(&path) {
            Ok(hash) if hash == *told => {
                checked += 1;
                continue;
            }
            Ok(hash) => format!("it holds model {hash}, the record tells {told} of round {round}"),
            Err(error) => format!("it cannot be read: {error}"),
        };
        found.push(Finding {
            copy: place.name(),
            place: path.display().to_string(),
            reason,
        });
    }
    (checked, found)
}

/// The hash of the elements in a safetensors file: of all that is behind its header.
fn model(path: &Path) -> io::Result<Hash> {
    let mut file = File::open(path)?;
    let mut header = [0; 8];
    file.read_exact(&mut header)?;
    let behind = u64::from_le_bytes(header).saturating_add(8);
    file.seek(SeekFrom::Start(behind))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file)?;
    Ok(Hash(*hasher.finalize().as_bytes()))
}

/// Roots that a copy tells and the topology does not pin.
///
/// # Errors
/// The pinned roots cannot be read.
pub fn unpinned(plan: &Plan, report: &Report) -> Result<Vec<Finding>, IdentityError> {
    let bundle = Bundle::load(plan)?;
    let mut found = Vec::new();
    for copy in &report.copies {
        if copy.account.size() > 0 && copy.account.federation() != plan.name {
            found.push(Finding {
                copy: copy.name.clone(),
                place: "leaf 0".into(),
                reason: format!(
                    "it is of federation {:?}, the topology is of {:?}",
                    copy.account.federation(),
                    plan.name
                ),
            });
        }
        for (domain, roots) in copy.account.roots() {
            let foreign = roots.iter().filter(|root| !bundle.pins(domain, root));
            found.extend(foreign.map(|root| Finding {
                copy: copy.name.clone(),
                place: format!("root of {domain}"),
                reason: format!("sha256 {} is not pinned by the topology", fingerprint(root)),
            }));
        }
    }
    Ok(found)
}

/// SHA-256 in hexadecimal, as roots are pinned.
pub fn fingerprint(certificate: &[u8]) -> String {
    hex(&sha256(certificate))
}
