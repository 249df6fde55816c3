//! How much may be on its way to a peer: the congestion laws of a link.
//!
//! Cubic and BBR are quinn's own. [`delay_gradient`] is ours: it watches how long packets wait in the path's queue, not how many are lost.

pub mod delay_gradient;

use std::fmt;

use delay_gradient::Settings;

/// The law of a link's connections.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Law {
    /// Fills the queue until packets are lost, and slows down for each loss.
    #[default]
    Cubic,
    /// Keeps as much on the way as it has measured the path to carry.
    Bbr,
    /// Keeps the queue short: [`delay_gradient`].
    DelayGradient(Settings),
}

/// As the topology spells it.
impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Law::Cubic => "cubic",
            Law::Bbr => "bbr",
            Law::DelayGradient(_) => "delay-gradient",
        })
    }
}
