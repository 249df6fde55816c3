//! Whole small files from outside: never more of them than a limit, and no wait for ever.
//!
//! What is read may be anything that somebody can name: a file, a pipe whose writer has stopped, a device without an end.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;

/// How long a writer at the other end of a pipe may be silent. Whoever makes a file on the way is quicker.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A file that was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The system says no.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It does not end where such a file should.
    #[error("is larger than {0} bytes")]
    TooLarge(usize),
    /// It is a pipe, and nothing comes.
    #[error("is a pipe out of which nothing came for {0:?}: is its writer stopped?")]
    Silent(Duration),
}

/// Opens a file for reading. Opening a pipe does not wait for its writer.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

/// The whole of a file of at most `bytes_max` bytes.
///
/// # Errors
/// See [`ReadError`].
pub(crate) fn read(path: &Path, bytes_max: usize) -> Result<Vec<u8>, ReadError> {
    read_open(&open(path)?, bytes_max)
}

/// The rest of an open file of at most `bytes_max` bytes.
///
/// # Errors
/// See [`ReadError`].
pub(crate) fn read_open(file: &File, bytes_max: usize) -> Result<Vec<u8>, ReadError> {
    read_within(file, bytes_max, SILENCE_MAX)
}

fn read_within(file: &File, bytes_max: usize, silence: Duration) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    loop {
        let left = (bytes_max - bytes.len()) as u64 + 1;
        match file.take(left).read_to_end(&mut bytes) {
            Ok(_) if bytes.len() > bytes_max => return Err(ReadError::TooLarge(bytes_max)),
            Ok(_) => return Ok(bytes),
            // What had come by then is among the bytes.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let mut source = [PollFd::new(file, PollFlags::IN)];
        let limit = silence.try_into().expect("half a minute is a time");
        if poll(&mut source, Some(&limit)).map_err(io::Error::from)? == 0 {
            return Err(ReadError::Silent(silence));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;

    fn pipe() -> (File, File) {
        let (reader, writer): (OwnedFd, OwnedFd) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        (reader.into(), writer.into())
    }

    #[test]
    fn a_file_up_to_the_limit_is_read_and_a_larger_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 100]).unwrap();
        assert_eq!(read(&path, 100).unwrap(), [7; 100]);
        assert!(matches!(read(&path, 99), Err(ReadError::TooLarge(99))));
        assert!(matches!(read(&path, 0), Err(ReadError::TooLarge(0))));
    }

    #[test]
    fn what_has_no_end_ends_at_the_limit() {
        let zeros = Path::new("/dev/zero");
        assert!(matches!(read(zeros, 4096), Err(ReadError::TooLarge(4096))));
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_a_silent_one_is_given_up() {
        let (reader, mut writer) = pipe();
        writer.write_all(b"half").unwrap();
        let moment = Duration::from_millis(1);
        let silent = read_within(&reader, 100, moment);
        assert!(matches!(silent, Err(ReadError::Silent(_))));
        writer.write_all(b"whole").unwrap();
        drop(writer);
        assert_eq!(read_open(&reader, 100).unwrap(), b"whole");
    }

    #[test]
    fn a_pipe_without_a_writer_is_empty_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        assert_eq!(read(&path, 100).unwrap(), b"");
    }
}
