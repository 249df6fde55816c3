//! Stores of clouds by URL. Credentials, region and endpoint come from the environment, as the crate `object_store` reads it: `AWS_*`,
//! `GOOGLE_*`, `AZURE_*`. A URL holds none of them, so that a topology can be shown to anybody.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, RetryConfig};

/// How long the crate itself repeats a request; `ObjectFiles` goes on from there, and says so in the log.
const RETRY_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the store of that URL.
///
/// # Errors
/// As [`super::open`].
pub fn open(url: &str) -> io::Result<Arc<dyn ObjectStore>> {
    let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
    let (_, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let retry = RetryConfig {
        max_retries: 2,
        retry_timeout: RETRY_TIMEOUT,
        ..RetryConfig::default()
    };
    let (environment, built) = match scheme {
        "s3" | "s3a" => {
            let builder = AmazonS3Builder::from_env().with_url(url).with_retry(retry);
            ("AWS", builder.build().map(erased))
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env();
            let builder = builder.with_url(url).with_retry(retry);
            ("GOOGLE", builder.build().map(erased))
        }
        _ => {
            let builder = MicrosoftAzureBuilder::from_env();
            let builder = builder.with_url(url).with_retry(retry);
            ("AZURE", builder.build().map(erased))
        }
    };
    let store = built.map_err(|error| {
        let why =
            format!("{url}: {error}; credentials, region and endpoint are the environment's: see {environment}_*");
        io::Error::new(ErrorKind::InvalidInput, why)
    })?;
    match prefix.trim_matches('/') {
        "" => Ok(store),
        prefix => Ok(Arc::new(PrefixStore::new(store, Path::from(prefix)))),
    }
}

fn erased(store: impl ObjectStore) -> Arc<dyn ObjectStore> {
    Arc::new(store)
}
