//! Where the coordinator's records lie: commit records, states, notes, views.
//!
//! `file:` is a folder of this machine (`files`, `world`); everything else is an object store, reached through the crate `object_store`.
//! Both are a [`Files`]: read, write whole, create if absent, list, remove. What a node needs for itself (its snapshots, its reset key, its
//! address) stays in its state folder in either case: [decision 12](../docs/decisions/0012-stores-and-promotion.md).
//!
//! - `objects`: [`Files`] over any object store, with bounded retries.
//! - `cloud`: from a URL to one of a cloud's, behind the feature `object-store-cloud`.

#[cfg(feature = "object-store-cloud")]
mod cloud;
mod objects;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tombolo_actors::env::Files;
use tombolo_core::plan::Plan;

pub use object_store::ObjectStore;
pub use objects::ObjectFiles;

/// Schemes of object stores that can create an object only if it is absent, and the feature that builds them in.
pub(crate) const SCHEMES: [&str; 6] = ["s3", "s3a", "gs", "az", "abfs", "abfss"];

/// Whether this build has them.
pub(crate) const HAS_CLOUD: bool = cfg!(feature = "object-store-cloud");

/// How long one change of the store, with all its retries, may take.
///
/// Twice what closing a round may take: a round that waits for it is aborted after `close_limit` and keeps the model, and a record that has
/// been begun outlasts an outage of the store of that length. What still fails then ends the run, and `--resume` goes on from it.
pub(crate) fn patience(plan: &Plan) -> Duration {
    plan.round.close_limit * 2
}

/// Opens the object store of that URL.
///
/// # Errors
/// This build has no such stores, the URL names none, or the environment lacks what it needs; the message says which.
#[cfg_attr(
    not(feature = "object-store-cloud"),
    expect(unused_variables, reason = "nothing to open")
)]
pub(crate) fn open(url: &str, patience: Duration) -> io::Result<Arc<dyn Files>> {
    #[cfg(feature = "object-store-cloud")]
    {
        let store = cloud::open(url)?;
        Ok(Arc::new(ObjectFiles::new(store, url, patience)?))
    }
    #[cfg(not(feature = "object-store-cloud"))]
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        format!(
            "{url}: this build has no object stores; build it with `--features object-store-cloud`"
        ),
    ))
}
