//! Heartbeats on one connection, and what they tell of the peer's clock: as the actors do it, without the actors.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use quinn::Connection;
use tokio::sync::watch;

use tombolo::actors::env::Env;
use tombolo_core::clock::Filter;
use tombolo_core::heartbeat::{self, Effect, Heartbeat};
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::plan::Plan;
use tombolo_core::time::Micros;
use tombolo_core::wire::{self, Exchange};

/// Looks that are kept: more than a run at the shortest period makes.
const LOOKS_MAX: usize = 1 << 20;

/// One end.
pub struct Beats {
    env: Arc<dyn Env>,
    connection: Connection,
    machine: Heartbeat,
    every: std::time::Duration,
    filter: Filter,
    /// The peer's clock less ours, in microseconds, if that is known.
    truth_us: Option<f64>,
    report: Report,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    pub sent: u64,
    pub looks: Vec<Look>,
    pub resets: u64,
    /// What the filter said last.
    pub bound_us: f64,
    pub rate_ppm: f64,
}

/// After one exchange: how far the filter is from the truth, how far the exchange alone is, and what the filter states.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub error_us: f64,
    pub raw_us: f64,
    pub bound_us: f64,
    pub round_trip_us: f64,
}

impl Beats {
    pub fn new(
        plan: &Plan,
        env: &Arc<dyn Env>,
        connection: Connection,
        truth_us: Option<f64>,
    ) -> Beats {
        Beats {
            machine: Heartbeat::new(&plan.heartbeat, env.rng("heartbeat")),
            every: plan.heartbeat.every,
            env: env.clone(),
            connection,
            filter: Filter::new(),
            truth_us,
            report: Report::default(),
        }
    }

    /// Beats until it is stopped, or the connection ends.
    pub async fn run(mut self, mut stopped: watch::Receiver<()>) -> io::Result<Report> {
        let every = self.every;
        let mut message = Some(heartbeat::Message::Connected { every });
        loop {
            let wake = self.step(message.take());
            let sleep = self.env.sleep(wake.since(self.env.now()));
            tokio::select! {
                biased;
                // Its other half is dropped.
                _ = stopped.changed() => break,
                datagram = self.connection.read_datagram() => match datagram {
                    Ok(datagram) => message = Some(decode(&datagram)?),
                    Err(_) => break,
                },
                () = sleep => {}
            }
        }
        self.report.resets = self.filter.resets();
        Ok(self.report)
    }

    /// Gives the machine what has come up, and does what it wants; gives when it wants to be woken.
    fn step(&mut self, message: Option<heartbeat::Message>) -> Micros {
        let now = self.env.now();
        let mut out = Outcome::default();
        if let Some(message) = message {
            self.machine
                .handle(message, &mut Context::new(now, &mut out));
        }
        self.machine.on_wake(&mut Context::new(now, &mut out));
        for effect in out.effects {
            match effect {
                Effect::Send(heartbeat) => {
                    let bytes = Bytes::copy_from_slice(&heartbeat.to_bytes());
                    // One that cannot be sent is as good as lost: the next one follows.
                    self.report.sent += u64::from(self.connection.send_datagram(bytes).is_ok());
                }
                Effect::Crossed(exchange) => self.learn(exchange, now),
                // Nobody else is there to tell.
                Effect::Redial | Effect::Verdict(_) => {}
            }
        }
        out.wake_at.unwrap_or(Micros::NEVER)
    }

    fn learn(&mut self, exchange: Exchange, now: Micros) {
        self.filter.on_exchange(exchange);
        let Some(estimate) = self.filter.estimate(now) else {
            return;
        };
        self.report.bound_us = estimate.bound.as_secs_f64() * 1e6;
        self.report.rate_ppm = estimate.rate_ppm;
        let Some(truth_us) = self
            .truth_us
            .filter(|_| self.report.looks.len() < LOOKS_MAX)
        else {
            return;
        };
        let Exchange { t1, t2, t3, t4 } = exchange;
        let signed = |a: Micros, b: Micros| a.0.wrapping_sub(b.0).cast_signed() as f64;
        let raw = f64::midpoint(signed(t2, t1), signed(t3, t4));
        self.report.looks.push(Look {
            error_us: (estimate.offset_us as f64 - truth_us).abs(),
            raw_us: (raw - truth_us).abs(),
            bound_us: self.report.bound_us,
            round_trip_us: exchange.round_trip().as_secs_f64() * 1e6,
        });
    }
}

fn decode(datagram: &[u8]) -> io::Result<heartbeat::Message> {
    let heartbeat = wire::Heartbeat::from_bytes(datagram).map_err(io::Error::other)?;
    Ok(heartbeat::Message::Beat(heartbeat))
}
