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
use rustix::io::Errno;

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

/// Opens a file of our own, as asked for; what is none (a pipe, a device, a folder) is refused, and nothing is waited for.
///
/// # Errors
/// `IsADirectory`, `InvalidInput` if it is something else than a regular file, or what the system says.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let kind = match options.custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => match file.metadata()?.file_type() {
            found if found.is_file() => return Ok(file),
            found if found.is_dir() => ErrorKind::IsADirectory,
            _ => ErrorKind::InvalidInput,
        },
        // A pipe that nobody reads, or a socket.
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
            ErrorKind::InvalidInput
        }
        Err(error) => return Err(error),
    };
    Err(io::Error::new(kind, "it is no regular file; move it away"))
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
        match poll(&mut source, Some(&limit)) {
            Ok(0) => return Err(ReadError::Silent(silence)),
            // A signal is no reason to give a file up: whoever handles it says what becomes of the process.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
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
    fn what_is_no_regular_file_is_refused_however_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), kind, mode, 0).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("zeros")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let mut reading = OpenOptions::new();
        let mut writing = OpenOptions::new();
        let mut adding = OpenOptions::new();
        reading.read(true);
        writing.write(true).create(true).truncate(true);
        adding.append(true).create(true);
        for options in [&mut reading, &mut writing, &mut adding] {
            for name in ["pipe", "zeros", "socket"] {
                let refused = open_regular(&path(name), options).unwrap_err().to_string();
                assert!(refused.contains("no regular file"), "{name}: {refused}");
            }
        }
        let held = writing.read(true).open(path("pipe")).unwrap();
        assert!(open_regular(&path("pipe"), &mut adding).is_err());
        drop(held);
        assert!(open_regular(&path("new"), &mut adding).is_ok());
        let absent = open_regular(&path("absent"), &mut reading).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
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
