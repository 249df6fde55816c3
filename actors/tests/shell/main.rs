//! What every actor has around it: bounded queues however one sends, timers that stay punctual, and lives after a panic.

mod bounds;
mod fairness;
mod stand;
mod supervision;
