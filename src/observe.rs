//! Seeing a federation: one picture of it, made of events and of nothing else, and what is shown of that picture.
//!
//! [`Picture`] takes past facts, from a running federation or from `events.jsonl`, and keeps how domains, nodes, links and rounds stand. It
//! knows no clock and does no IO, is bounded, and equal events give equal pictures. [`metrics`] writes it as OpenMetrics, [`Dashboard`] serves
//! it over HTTP, [`report`] puts it into a page that needs neither a server nor a network, [`tensorboard()`] writes its rounds for
//! TensorBoard, and [`trace()`] writes its rounds for a
//! viewer of traces.

mod fold;
mod follow;
mod metrics;
mod page;
mod picture;
mod server;
mod tensorboard;
mod trace;

pub use follow::Follower;
pub use metrics::metrics;
pub use page::report;
pub use picture::{
    Bounds, ClockPicture, DomainPicture, LinkPicture, Mark, NodePicture, Notice, Phase, Picture,
    RecordPicture, RoundPicture, Span, Totals, VitalsPicture, WayPicture,
};
pub use server::{Dashboard, DashboardError, Feed, TOKEN_VARIABLE};
pub use tensorboard::tensorboard;
pub use trace::trace;
