//! Ctrl-C and SIGTERM: the first asks for a clean end, the second ends the process at once. SIGHUP ends nothing, so that a terminal that goes away
//! takes no run with it; it makes a node look at its files.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use tokio::signal::unix::{Signal, SignalKind, signal};

use tombolo::federation::Interrupt;

/// Listens from its making on.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    look: Option<Box<dyn Fn()>>,
}

impl Signals {
    /// Begins to listen. Once a process.
    pub fn listen() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for (signal, status) in [(SIGINT, 130), (SIGTERM, 143)] {
            // They act in the order of their registration: the first signal finds the flag unset.
            signal_hook::flag::register_conditional_shutdown(signal, status, asked.clone())?;
            signal_hook::flag::register(signal, asked.clone())?;
        }
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            look: None,
        })
    }

    /// From now on SIGHUP does that.
    pub fn on_hangup(&mut self, look: impl Fn() + 'static) {
        self.look = Some(Box::new(look));
    }

    /// The next signal.
    pub async fn next(&mut self) -> Interrupt {
        loop {
            tokio::select! {
                biased;
                Some(()) = self.interrupt.recv() => return Interrupt::Interrupted,
                Some(()) = self.terminate.recv() => return Interrupt::Terminated,
                Some(()) = self.hangup.recv() => {
                    tracing::info!("a hangup: the run goes on");
                    if let Some(look) = &self.look {
                        look();
                    }
                }
                else => return std::future::pending().await,
            }
        }
    }
}
