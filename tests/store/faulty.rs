//! An object store in memory that does as it is told.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::time::Instant;

/// What is asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Put,
    Create,
    Get,
    List,
}

/// What it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Do,
    /// "Not now": it may pass.
    Refuse,
    /// "Not you."
    Deny,
    /// "I cannot."
    Unable,
    /// It is done, and the answer is lost.
    DoInSilence,
    /// No answer at all.
    Hang,
    /// A create replaces.
    Replace,
}

type Rule = dyn FnMut(Request, &str, Duration) -> Answer + Send;

pub struct Faulty {
    inner: InMemory,
    rule: Mutex<(Option<Instant>, Box<Rule>)>,
}

impl Faulty {
    pub fn new() -> Arc<Self> {
        Arc::new(Faulty {
            inner: InMemory::new(),
            rule: Mutex::new((None, Box::new(|_, _, _| Answer::Do))),
        })
    }

    /// Answers by `rule`, which is told what is asked, of which object, and how long after the first time.
    pub fn answers(&self, rule: impl FnMut(Request, &str, Duration) -> Answer + Send + 'static) {
        *self.rule.lock().unwrap() = (None, Box::new(rule));
    }

    pub fn heals(&self) {
        self.answers(|_, _, _| Answer::Do);
    }

    async fn ask(&self, request: Request, path: &Path) -> Result<Answer> {
        let answer = {
            let now = Instant::now();
            let mut rule = self.rule.lock().unwrap();
            let since = now - *rule.0.get_or_insert(now);
            (rule.1)(request, path.as_ref(), since)
        };
        let (path, source) = (path.to_string(), "told to".into());
        match answer {
            Answer::Refuse => Err(Error::Generic {
                store: "faulty",
                source: "503 Slow Down".into(),
            }),
            Answer::Deny => Err(Error::PermissionDenied { path, source }),
            Answer::Unable => Err(Error::NotImplemented {
                operation: "`put_opts` with `PutMode::Create`".into(),
                implementer: "faulty".into(),
            }),
            Answer::Hang => std::future::pending().await,
            Answer::Do | Answer::DoInSilence | Answer::Replace => Ok(answer),
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        let request = match options.mode {
            PutMode::Create => Request::Create,
            _ => Request::Put,
        };
        let answer = self.ask(request, location).await?;
        if answer == Answer::Replace {
            options.mode = PutMode::Overwrite;
        }
        let put = self.inner.put_opts(location, payload, options).await;
        match answer {
            Answer::DoInSilence => Err(Error::Generic {
                store: "faulty",
                source: "connection reset".into(),
            }),
            _ => put,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.ask(Request::Put, location).await?;
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.ask(Request::Get, location).await?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let root = Path::default();
        self.ask(Request::List, prefix.unwrap_or(&root)).await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
