//! What a domain's authority has issued, beside its root: so that a certificate can be called back that lies on another machine, and so that a
//! root is not retired while somebody still has a certificate of it.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt};
use std::path::PathBuf;

use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use tombolo_actors::identity::{IdentityError, MaterialFault};
use tombolo_core::ids::NodeId;

use super::bundle::serial;
use super::files::{DomainFiles, PRIVATE_MODE, files_fault, hex, material, sha256};
use super::validity::Validity;
use crate::bounded;

/// The largest ledger: tens of thousands of certificates.
const LENGTH_MAX: usize = 16 << 20;

/// One certificate that was issued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// For whom.
    pub node: NodeId,
    /// Its serial number, in hexadecimal.
    pub serial: String,
    /// SHA-256 of its DER, in hexadecimal.
    pub sha256: String,
    /// SHA-256 of the root that signed it, in hexadecimal.
    pub root: String,
    /// When it ends: seconds since 1970.
    pub not_after: u64,
}

impl Issued {
    pub(super) fn new(
        node: &NodeId,
        certificate: &CertificateDer<'_>,
        root: &CertificateDer<'_>,
    ) -> Issued {
        Issued {
            node: node.clone(),
            serial: serial(certificate),
            sha256: hex(&sha256(certificate)),
            root: hex(&sha256(root)),
            not_after: Validity::of(certificate).map_or(u64::MAX, |validity| validity.not_after),
        }
    }
}

/// Where a domain's ledger lies.
pub(super) fn path(files: &DomainFiles) -> PathBuf {
    files.root().with_extension("issued.jsonl")
}

/// Notes a certificate durably. Before it is handed out: one that is noted and was never handed out does no harm.
pub(super) fn note(files: &DomainFiles, issued: &Issued) -> Result<(), IdentityError> {
    let path = path(files);
    let fail = |error| files_fault("write", &path, error);
    let mut line = serde_json::to_vec(issued).map_err(|error| fail(error.into()))?;
    line.push(b'\n');
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(PRIVATE_MODE)
        .open(&path)
        .map_err(fail)?;
    // Two may issue at once.
    file.lock().map_err(fail)?;
    // What the power or a full disk has left of a line was of a certificate that was never handed out.
    let length = file.metadata().map_err(fail)?.len();
    let whole = whole_lines(&file, length).map_err(fail)?;
    if whole < length {
        file.set_len(whole).map_err(fail)?;
    }
    file.write_all(&line).map_err(fail)?;
    file.sync_all().map_err(fail)
}

/// How many bytes of a file of that length are whole lines. Only its last line may be none; one takes far less than is looked at.
fn whole_lines(file: &File, length: u64) -> std::io::Result<u64> {
    let mut tail = [0; 4096];
    let from = length.saturating_sub(tail.len() as u64);
    let tail = &mut tail[..(length - from) as usize];
    file.read_exact_at(tail, from)?;
    let end = tail.iter().rposition(|byte| *byte == b'\n');
    Ok(end.map_or(from, |end| from + end as u64 + 1))
}

/// All that was noted, the oldest first.
pub(super) fn read(files: &DomainFiles) -> Result<Vec<Issued>, IdentityError> {
    let path = path(files);
    let file = match bounded::open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|error| files_fault("open", &path, error))?,
    };
    let malformed = |found: String| {
        material(
            &path,
            MaterialFault::Malformed {
                expected: "a line of JSON for each certificate that was issued".into(),
                found,
            },
        )
    };
    let bytes = bounded::read_open(&file, LENGTH_MAX)
        .map_err(|_| malformed(format!("more than {LENGTH_MAX} bytes, or none to be had")))?;
    let lines = bytes.split(|byte| *byte == b'\n');
    let lines: Vec<&[u8]> = lines.filter(|line| !line.is_empty()).collect();
    let whole = bytes.last().is_none_or(|last| *last == b'\n');
    let mut issued = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        match serde_json::from_slice(line) {
            Ok(entry) => issued.push(entry),
            // The power went while it was written, so it was not handed out.
            Err(_) if !whole && number + 1 == lines.len() => {}
            Err(error) => return Err(malformed(format!("line {}: {error}", number + 1))),
        }
    }
    Ok(issued)
}
