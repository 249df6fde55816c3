//! [`Files`] over an object store: each file is an object, a folder is what object names begin with.
//!
//! What an object store answers is durable, and an object is whole or not there, so there is nothing to synchronize. A folder is not removed
//! in one step: its objects go in the order of their names, so that of a state the manifest goes first and nobody takes the rest for whole.
//!
//! The requests run on a thread of their own; whoever calls waits for them, off the arbiters. Each try has a limit, what may pass is tried
//! again with growing waits, and in the end the error says how often and what the store said last. A create whose answer was lost finds its
//! own object when it is tried again: that is `AlreadyExists`, and callers compare what is there, as they do for a file.

use std::io::{self, ErrorKind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use tombolo_actors::env::{Files, too_large};

/// How long one request may take: [`PART`] at a megabyte a second, and some to begin.
const TRY_LIMIT: Duration = Duration::from_secs(30);

/// The wait before the second try; it doubles up to [`WAIT_MOST`].
const WAIT_FIRST: Duration = Duration::from_millis(200);
const WAIT_MOST: Duration = Duration::from_secs(5);

/// What is sent and fetched in one request: what fits is an object in one piece.
const PART: usize = 16 << 20;

/// Parts of one object on their way at a time.
const PARTS_AT_ONCE: usize = 4;

/// See the module.
pub struct ObjectFiles {
    store: Arc<dyn ObjectStore>,
    root: String,
    patience: Duration,
    reactor: Reactor,
}

impl ObjectFiles {
    /// The objects of `store`, which people find at `root`. One change with all its retries takes at most `patience` and one request.
    ///
    /// # Errors
    /// The system grants no thread.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        root: impl Into<String>,
        patience: Duration,
    ) -> io::Result<Self> {
        Self::on(store, root, patience, Reactor::start(false)?)
    }

    fn on(
        store: Arc<dyn ObjectStore>,
        root: impl Into<String>,
        patience: Duration,
        reactor: Reactor,
    ) -> io::Result<Self> {
        let root = root.into().trim_end_matches('/').to_owned();
        Ok(ObjectFiles {
            store,
            root,
            patience,
            reactor,
        })
    }

    /// As [`ObjectFiles::new`], on a clock that jumps when everybody waits: for tests.
    ///
    /// # Errors
    /// As there.
    pub fn in_virtual_time(store: Arc<dyn ObjectStore>, patience: Duration) -> io::Result<Self> {
        Self::on(store, "memory:", patience, Reactor::start(true)?)
    }

    /// Tries until it succeeds, cannot, or has taken too long.
    fn patiently<T, R>(
        &self,
        doing: &str,
        path: &str,
        mut attempt: impl FnMut(Arc<dyn ObjectStore>) -> R,
    ) -> io::Result<T>
    where
        T: Send + 'static,
        R: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let place = self.locate(path);
        let begun = self.reactor.wait(async { Instant::now() })?;
        let mut wait = WAIT_FIRST;
        for tries in 1.. {
            let request = attempt(self.store.clone());
            let answer = async { (timeout(TRY_LIMIT, request).await, Instant::now()) };
            let (answer, now) = self.reactor.wait(answer)?;
            let reason = match answer {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(error)) if !may_pass(&error) => return Err(refused(doing, &place, &error)),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {TRY_LIMIT:?}"),
            };
            if now + wait > begun + self.patience {
                let why = format!(
                    "failed to {doing} {place}: tried {tries} times in {:?}, at last: {reason}; is the store reachable from here?",
                    now - begun
                );
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            }
            tracing::warn!(
                object = place,
                doing,
                reason,
                tries,
                "the store is asked again"
            );
            self.pause(wait)?;
            wait = (wait * 2).min(WAIT_MOST);
        }
        unreachable!("tries are not counted to their end")
    }

    fn pause(&self, span: Duration) -> io::Result<()> {
        self.reactor.wait(async move { sleep(span).await })
    }

    fn put(&self, doing: &str, path: &str, parts: &[&[u8]], mode: PutMode) -> io::Result<()> {
        let location = located(path)?;
        let whole = Bytes::from(parts.concat());
        self.patiently(doing, path, move |store| {
            let (location, payload) = (location.clone(), whole.clone().into());
            let options = PutOptions::from(mode.clone());
            async move {
                let put = store.put_opts(&location, payload, options).await;
                put.map(drop)
            }
        })
    }

    /// An object of many parts appears once they are all there, as a whole.
    fn put_parts(&self, path: &str, parts: &[&[u8]]) -> io::Result<()> {
        let location = located(path)?;
        let begin = |store: Arc<dyn ObjectStore>| {
            let location = location.clone();
            async move { store.put_multipart(&location).await }
        };
        let begun = self.reactor.wait(async { Instant::now() })?;
        loop {
            let upload = self.patiently("begin to write", path, begin)?;
            match self.upload(upload, parts)? {
                Ok(()) => return Ok(()),
                Err(error) if !may_pass(&error) => {
                    return Err(refused("write", &self.locate(path), &error));
                }
                Err(error) => {
                    let now = self.reactor.wait(async { Instant::now() })?;
                    let place = self.locate(path);
                    if now + WAIT_MOST > begun + self.patience {
                        let why = format!(
                            "failed to write {place}: it took {:?}, at last: {error}; is the store reachable from here?",
                            now - begun
                        );
                        return Err(io::Error::new(ErrorKind::TimedOut, why));
                    }
                    tracing::warn!(object = place, %error, "the object is sent anew");
                    self.pause(WAIT_MOST)?;
                }
            }
        }
    }

    /// Sends all parts, a few at a time.
    fn upload(
        &self,
        mut upload: Box<dyn MultipartUpload>,
        parts: &[&[u8]],
    ) -> io::Result<Result<(), Error>> {
        let mut pieces = pieces(parts);
        loop {
            let mut sent = JoinSet::new();
            for piece in pieces.by_ref().take(PARTS_AT_ONCE) {
                let part = upload.put_part(piece.into());
                sent.spawn_on(
                    async { timeout(TRY_LIMIT, part).await },
                    &self.reactor.handle,
                );
            }
            if sent.is_empty() {
                break;
            }
            let answer = self.reactor.wait(async move {
                while let Some(part) = sent.join_next().await {
                    let part = part.map_err(|panicked| generic(panicked.to_string()))?;
                    settled(part)?;
                }
                Ok(())
            })?;
            if let Err(error) = answer {
                // Its parts cost money as long as they are kept, and nobody else will ask for that.
                let aborted = async move { timeout(TRY_LIMIT, upload.abort()).await };
                if !matches!(self.reactor.wait(aborted)?, Ok(Ok(()))) {
                    tracing::warn!("parts of an upload that failed are left in the store");
                }
                return Ok(Err(error));
            }
        }
        let completed = async move { settled(timeout(TRY_LIMIT, upload.complete()).await) };
        Ok(self.reactor.wait(completed)?.map(drop))
    }

    /// The objects in a folder and in those below it, in the order of their names.
    fn below(&self, folder: &str) -> io::Result<Vec<String>> {
        let (mut folders, mut objects) = (vec![folder.to_owned()], Vec::new());
        while let Some(folder) = folders.pop() {
            let (mut within, below) = self.look(&folder)?;
            objects.append(&mut within);
            folders.extend(below);
        }
        objects.sort();
        Ok(objects)
    }

    /// Objects and folders directly in a folder, by their whole paths.
    fn look(&self, folder: &str) -> io::Result<(Vec<String>, Vec<String>)> {
        let prefix = (!folder.is_empty()).then(|| located(folder)).transpose()?;
        let listed = self.patiently("list", folder, |store| {
            let prefix = prefix.clone();
            async move { store.list_with_delimiter(prefix.as_ref()).await }
        })?;
        let objects = listed.objects.into_iter();
        let objects = objects.map(|object| object.location.to_string());
        let folders = listed.common_prefixes.into_iter();
        let folders = folders.map(|folder| folder.to_string());
        Ok((objects.collect(), folders.collect()))
    }
}

impl Files for ObjectFiles {
    fn locate(&self, path: &str) -> String {
        format!("{}/{path}", self.root)
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.read_small(path, usize::MAX)
    }

    fn read_small(&self, path: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
        let location = located(path)?;
        let (mut whole, mut version): (Vec<u8>, Option<String>) = (Vec::new(), None);
        loop {
            let from = whole.len() as u64;
            // No more than that is fetched of what is too large.
            let part = PART.min(bytes_max - whole.len()).max(1) as u64;
            let (part, size, tag) = self.patiently("read", path, |store| {
                let (location, version) = (location.clone(), version.clone());
                async move {
                    let options = GetOptions {
                        range: Some(GetRange::Bounded(from..from + part)),
                        // All parts are of one object, whoever replaces it meanwhile.
                        if_match: version,
                        ..GetOptions::default()
                    };
                    let found = store.get_opts(&location, options).await?;
                    let (size, tag) = (found.meta.size, found.meta.e_tag.clone());
                    Ok((found.bytes().await?, size, tag))
                }
            })?;
            if size > bytes_max as u64 {
                let why = too_large(size, bytes_max);
                let why = format!("failed to read {}: {why}", self.locate(path));
                return Err(io::Error::new(ErrorKind::FileTooLarge, why));
            }
            whole.extend_from_slice(&part);
            if part.is_empty() || whole.len() as u64 >= size {
                return Ok(whole);
            }
            version = tag;
        }
    }

    fn replace(&self, path: &str, parts: &[&[u8]]) -> io::Result<()> {
        match parts.iter().map(|part| part.len()).sum::<usize>() {
            ..=PART => self.put("write", path, parts, PutMode::Overwrite),
            _ => self.put_parts(path, parts),
        }
    }

    fn create(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.put("create", path, &[contents], PutMode::Create)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let (objects, folders) = self.look(folder)?;
        let last = |path: &String| {
            Some(
                path.rsplit_once('/')
                    .map_or(&**path, |(_, last)| last)
                    .to_owned(),
            )
        };
        let mut names: Vec<String> = objects.iter().chain(&folders).filter_map(last).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let mut objects = self.below(path)?;
        objects.push(path.to_owned());
        for object in objects {
            let location = located(&object)?;
            let removed = self.patiently("remove", &object, |store| {
                let location = location.clone();
                async move { store.delete(&location).await }
            });
            match removed {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    fn settle(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

fn located(path: &str) -> io::Result<Path> {
    Path::parse(path).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error.to_string()))
}

/// The bytes of `parts` in pieces of [`PART`]: some stores want all but the last of one size.
fn pieces<'a>(parts: &'a [&'a [u8]]) -> impl Iterator<Item = Bytes> + 'a {
    let mut rest = parts.iter().copied();
    let mut part: &[u8] = &[];
    std::iter::from_fn(move || {
        let mut piece = BytesMut::with_capacity(PART);
        while piece.len() < PART {
            if part.is_empty() {
                match rest.next() {
                    Some(next) => part = next,
                    None => break,
                }
            }
            let taken;
            (taken, part) = part.split_at(part.len().min(PART - piece.len()));
            piece.extend_from_slice(taken);
        }
        (!piece.is_empty()).then(|| piece.freeze())
    })
}

fn settled<T>(answer: Result<Result<T, Error>, tokio::time::error::Elapsed>) -> Result<T, Error> {
    answer.unwrap_or_else(|_| Err(generic(format!("no answer within {TRY_LIMIT:?}"))))
}

fn generic(reason: String) -> Error {
    Error::Generic {
        store: "object store",
        source: reason.into(),
    }
}

/// Whether the same request may succeed later.
fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Generic { .. })
}

fn refused(doing: &str, place: &str, error: &Error) -> io::Error {
    let (kind, advice) = match error {
        Error::NotFound { .. } => (ErrorKind::NotFound, ""),
        Error::AlreadyExists { .. } => (ErrorKind::AlreadyExists, ""),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => (
            ErrorKind::PermissionDenied,
            "; do the credentials in the environment allow to read, write, list and delete there?",
        ),
        Error::NotImplemented { .. } | Error::NotSupported { .. } if doing == "create" => (
            ErrorKind::Unsupported,
            "; this store cannot create an object only if it is absent, so two coordinators could both commit a round: use another store",
        ),
        Error::NotImplemented { .. } | Error::NotSupported { .. } => (ErrorKind::Unsupported, ""),
        Error::Precondition { .. } => (
            ErrorKind::InvalidData,
            "; somebody else has replaced it meanwhile",
        ),
        _ => (ErrorKind::InvalidInput, ""),
    };
    io::Error::new(kind, format!("failed to {doing} {place}: {error}{advice}"))
}

/// A thread that carries requests, until it is dropped.
struct Reactor {
    handle: Handle,
    /// Dropped with it: that is the thread's sign to end.
    _stop: oneshot::Sender<()>,
}

impl Reactor {
    fn start(in_virtual_time: bool) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(in_virtual_time)
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        crate::world::thread("tombolo-store", move || {
            // An error is the sign, too.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Reactor {
            handle,
            _stop: stop,
        })
    }

    /// Waits for a request, on whatever thread this is.
    fn wait<T: Send + 'static>(
        &self,
        request: impl Future<Output = T> + Send + 'static,
    ) -> io::Result<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            // Nobody waits any more only if the caller's thread is gone.
            let _ = sender.send(request.await);
        });
        let answer = receiver.recv();
        answer.map_err(|_| io::Error::other("the store's thread has ended"))
    }
}
