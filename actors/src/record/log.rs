//! A copy of the record on disk.
//!
//! ```text
//! record/leaves-000000.jsonl    the first 256 leaves, one a line; record/leaves-000001.jsonl the next ones
//! record/checkpoint             how many of them count, their root, who has signed it: a C2SP signed note
//! record/cosigned               an older root with everybody's signatures
//! ```
//!
//! Leaves are written first, then the head over them: what lies behind the head after a crash is written anew. Files are replaced as a whole,
//! so there is nothing torn; a round rewrites 256 lines at most.

use std::io;

use crate::env::Files;
use tombolo_core::ids::NodeId;
use tombolo_core::record::audit::Copy;
use tombolo_core::record::{
    APPEND_BYTES_MAX, Account, Keeper, LEAF_BYTES_MAX, NOTE_BYTES_MAX, Next, Note, Tree, Verifier,
};

/// The folder in a node's state.
pub const FOLDER: &str = "record";

/// The head over the leaves.
pub const CHECKPOINT: &str = "record/checkpoint";

/// An older head with everybody's signatures.
pub const COSIGNED: &str = "record/cosigned";

/// Leaves in one file. Rewriting them for a round is less than a small model, and a million leaves are 4,000 files.
const SEGMENT: usize = 256;

/// The file of the leaves from `segment` times 256 on.
pub fn segment_path(segment: usize) -> String {
    format!("{FOLDER}/leaves-{segment:06}.jsonl")
}

/// What is known of the leaves on disk: enough to go on, and to find any of them.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// The tree in front of each file.
    marks: Vec<Tree>,
    /// The lines of the last file.
    tail: Vec<String>,
}

/// What one append writes, in order.
pub struct Writes {
    files: Vec<(String, String)>,
    log: Log,
}

impl Log {
    /// Reads a node's copy. Blocks.
    ///
    /// # Errors
    /// It cannot be read, or is not what the node has signed.
    pub fn load(
        files: &dyn Files,
        me: &NodeId,
        keys: &dyn Verifier,
    ) -> Result<(Log, Keeper), String> {
        let Some(note) = text(files, CHECKPOINT, NOTE_BYTES_MAX)? else {
            // Leaves that nobody signed are written anew.
            return Ok((Log::default(), Keeper::new(me.clone())));
        };
        let located = |path: &str, reason: &str| format!("{}: {reason}", files.locate(path));
        let note = Note::parse(&note).map_err(|reason| located(CHECKPOINT, &reason))?;
        let (mut log, mut account, mut tree) =
            (Log::default(), Account::default(), Tree::default());
        while tree.size() < note.head.size {
            let path = segment_path(log.marks.len());
            log.marks.push(tree.clone());
            let lines = text(files, &path, SEGMENT * LEAF_BYTES_MAX)?;
            let left = usize::try_from(note.head.size - tree.size()).unwrap_or(usize::MAX);
            let lines = lines.unwrap_or_default();
            log.tail = lines
                .split_terminator('\n')
                .take(left.min(SEGMENT))
                .map(str::to_owned)
                .collect();
            if log.tail.len() < left.min(SEGMENT) {
                return Err(located(&path, "leaves of it are missing"));
            }
            for line in &log.tail {
                account
                    .take(line, keys)
                    .map_err(|flaw| located(&path, &flaw.to_string()))?;
                tree.push(line);
            }
        }
        let keeper = Keeper::restore(me.clone(), account, tree, note, keys);
        let keeper = keeper.map_err(|reason| located(FOLDER, &reason))?;
        Ok((log, keeper))
    }

    /// What is to be written so that the copy goes on with `next`, and what is known of it then.
    pub fn plan(&self, tree: &Tree, next: &Next) -> Writes {
        let (mut log, mut tree, mut files) = (self.clone(), tree.clone(), Vec::new());
        for line in &next.lines {
            if log.marks.is_empty() || log.tail.len() == SEGMENT {
                if !log.marks.is_empty() {
                    files.push(log.file());
                }
                log.marks.push(tree.clone());
                log.tail.clear();
            }
            log.tail.push(line.clone());
            tree.push(line);
        }
        files.push(log.file());
        files.push((CHECKPOINT.to_owned(), next.note.text()));
        if let Some(cosigned) = &next.cosigned {
            files.push((COSIGNED.to_owned(), cosigned.text()));
        }
        Writes { files, log }
    }

    /// The last file.
    fn file(&self) -> (String, String) {
        let mut text = self.tail.join("\n");
        text.push('\n');
        (segment_path(self.marks.len().saturating_sub(1)), text)
    }

    /// The lines from `from` on, to the end of their file or as many as travel at once, and the tree in front of them. Blocks unless they are
    /// in the last file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, files: &dyn Files, from: u64) -> Result<(Tree, Vec<String>), String> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let (segment, offset) = (from / SEGMENT, from % SEGMENT);
        let Some(mark) = self.marks.get(segment) else {
            return Ok((Tree::default(), Vec::new()));
        };
        let lines = match segment + 1 == self.marks.len() {
            true => self.tail.clone(),
            false => {
                let lines = text(files, &segment_path(segment), SEGMENT * LEAF_BYTES_MAX)?;
                lines
                    .unwrap_or_default()
                    .split_terminator('\n')
                    .map(str::to_owned)
                    .collect()
            }
        };
        let mut tree = mark.clone();
        lines.iter().take(offset).for_each(|line| tree.push(line));
        let mut bytes = 0;
        let travels = lines.into_iter().skip(offset).take_while(|line| {
            bytes += line.len();
            bytes <= APPEND_BYTES_MAX
        });
        Ok((tree, travels.collect()))
    }
}

impl Writes {
    /// How much there is to write.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, text)| text.len() as u64).sum()
    }

    /// Writes it. Blocks.
    ///
    /// # Errors
    /// The file system says no; what was written so far counts for nothing.
    pub fn write(self, files: &dyn Files) -> Result<Log, String> {
        for (path, text) in &self.files {
            let written = files.replace(path, &[text.as_bytes()]);
            written.map_err(|error| format!("{}: {error}", files.locate(path)))?;
        }
        Ok(self.log)
    }
}

/// A copy on disk, to be audited. Blocks, then and while its lines are taken.
///
/// # Errors
/// The folder cannot be listed.
pub fn copy<'a>(files: &'a dyn Files, name: String) -> io::Result<Copy<'a>> {
    let mut segments = files.list(FOLDER)?;
    segments.retain(|name| name.starts_with("leaves-"));
    let lines = segments
        .into_iter()
        .enumerate()
        .flat_map(move |(at, name)| {
            let path = segment_path(at);
            if path != format!("{FOLDER}/{name}") {
                return vec![Err(format!("{} is missing", files.locate(&path)))];
            }
            match text(files, &path, SEGMENT * LEAF_BYTES_MAX) {
                Ok(text) => {
                    let text = text.unwrap_or_default();
                    let whole = text.is_empty() || text.ends_with('\n');
                    let lines = text.split_terminator('\n').map(|line| Ok(line.to_owned()));
                    let torn = (!whole)
                        .then(|| Err(format!("{} does not end with a line", files.locate(&path))));
                    lines.chain(torn).collect()
                }
                Err(reason) => vec![Err(reason)],
            }
        });
    let note = |path| text(files, path, NOTE_BYTES_MAX).unwrap_or_else(Some);
    Ok(Copy {
        name,
        lines: Box::new(lines),
        checkpoint: note(CHECKPOINT),
        cosigned: note(COSIGNED),
    })
}

/// A whole file; none if there is none.
fn text(files: &dyn Files, path: &str, bytes_max: usize) -> Result<Option<String>, String> {
    match files.read_small(path, bytes_max) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(format!("{}: it is not UTF-8", files.locate(path))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", files.locate(path))),
    }
}
