//! What a gateway sent of its domain, kept for whoever wants to compute a round's model again.
//!
//! ```text
//! retained/000012-000000   a line of JSON that says what it is, then the bytes as they were hashed and sent
//! ```
//!
//! Only so many rounds are kept. What cannot be written costs the round nothing: that is logged, no more.

use std::io;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::env::Files;
use tombolo_core::ids::{Attempt, Round};
use tombolo_core::wire::Contribution;

/// The folder.
pub const FOLDER: &str = "retained";

const FORMAT: u32 = 1;

/// Starts of one round's fold that are kept: the last one counts, unless it came too late.
const ATTEMPTS_KEPT: usize = 4;

/// The first line of a file: the hashes of a million chunks are as long.
const HEAD_BYTES_MAX: usize = 80 << 20;

#[derive(Serialize, Deserialize)]
struct Head {
    format: u32,
    contribution: Contribution,
}

/// A contribution that was retained.
#[derive(Debug)]
pub struct Retained {
    /// What was announced.
    pub contribution: Contribution,
    /// What was sent.
    pub bytes: Bytes,
}

fn name(round: Round, attempt: Attempt) -> String {
    format!("{round:06}-{attempt:06}")
}

/// Round and attempt in a file's name.
fn of_name(name: &str) -> Option<(Round, Attempt)> {
    let (round, attempt) = name.split_once('-')?;
    Some((round.parse().ok()?, attempt.parse().ok()?))
}

/// Keeps a contribution, and of those before it what lies within the last `rounds` rounds. Blocks.
///
/// # Errors
/// The file system says no.
pub fn keep(
    files: &dyn Files,
    contribution: &Contribution,
    bytes: &[u8],
    rounds: u64,
) -> io::Result<()> {
    let (round, attempt) = (contribution.round, contribution.attempt);
    let mut head = serde_json::to_vec(&Head {
        format: FORMAT,
        contribution: contribution.clone(),
    })?;
    head.push(b'\n');
    let path = format!("{FOLDER}/{}", name(round, attempt));
    files.replace(&path, &[&head, bytes])?;
    let mut of_round = Vec::new();
    for name in files.list(FOLDER)? {
        match of_name(&name) {
            Some((of, _)) if of.saturating_add(rounds) <= round => {
                files.remove(&format!("{FOLDER}/{name}"))?;
            }
            Some((of, attempt)) if of == round => of_round.push((attempt, name)),
            _ => {}
        }
    }
    of_round.sort();
    let surplus = of_round.len().saturating_sub(ATTEMPTS_KEPT);
    for (_, name) in &of_round[..surplus] {
        files.remove(&format!("{FOLDER}/{name}"))?;
    }
    Ok(())
}

/// What is retained of a round, the last attempt first; of each file that cannot be used why. Blocks.
pub fn of_round(files: &dyn Files, round: Round) -> Vec<Result<Retained, String>> {
    let mut names = files.list(FOLDER).unwrap_or_default();
    names.retain(|name| of_name(name).is_some_and(|(of, _)| of == round));
    names.sort();
    let each = names.iter().rev().map(|name| {
        let path = format!("{FOLDER}/{name}");
        read(files, &path).map_err(|reason| format!("{}: {reason}", files.locate(&path)))
    });
    each.collect()
}

fn read(files: &dyn Files, path: &str) -> Result<Retained, String> {
    let bytes = Bytes::from(files.read(path).map_err(|error| error.to_string())?);
    let head = bytes.iter().take(HEAD_BYTES_MAX);
    let end = head.into_iter().position(|byte| *byte == b'\n');
    let end = end.ok_or("it does not begin with a line that says what it is")?;
    let head: Head = serde_json::from_slice(&bytes[..end]).map_err(|error| error.to_string())?;
    if head.format != FORMAT {
        return Err(format!(
            "it is of format {}, this version reads {FORMAT}",
            head.format
        ));
    }
    Ok(Retained {
        contribution: head.contribution,
        bytes: bytes.slice(end + 1..),
    })
}
