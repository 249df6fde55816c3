//! `tombolo bench WHAT`: what this machine does, measured here and now.
//!
//! Each measurement is checked for its result and stands beside a limit or a plain way to move the same bytes, taken in the same run: a
//! ratio is good only within one run.

mod allreduce;
mod child;
mod clock;
mod codec;
mod compress;
mod congestion;
mod copy;
mod fabric;
mod handshake;
mod learn;
mod link;
mod mailbox;
mod measure;
mod pool;
mod round;
mod train;

use clap::{Args, Subcommand};

use super::{Common, Exit};

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Rounds of a federation that does no training, over loopback QUIC and TLS.
    Round(round::Round),
    /// Collectives of step mode among processes of this machine, beside plain loops over one memory.
    #[command(name = "allreduce")]
    AllReduce(allreduce::AllReduce),
    /// A federation that trains: samples a second beside plain loops, and where the time of a round goes.
    Train(train::Train),
    /// Codecs of contributions: encoding, decoding, error feedback.
    Codec(codec::Codecs),
    /// Lossless methods on updates as they are, in half precision and sparse: ratio and speed.
    Compress(compress::Compress),
    /// One large object over loopback QUIC, beside TCP with TLS and plain TCP.
    Link(link::Link),
    /// What congestion laws make of simulated paths, in virtual time: how full, how long the queue, how fair.
    Congestion(congestion::Congestion),
    /// What a node knows of a peer's clock, beside the truth, and what that costs.
    Clock(clock::Clock),
    /// A small message and a buffer from process to process: over shared memory, sockets and QUIC.
    Fabric(fabric::Fabric),
    /// A file into a socket, by every way that the system has; and queues from thread to thread.
    Copy(copy::Copy),
    /// Fresh memory for tensors beside memory that was used before, and how much of it rounds need.
    Pool(pool::Pool),
    /// How two nodes come to trust each other: time, processor time and bytes of a handshake, beside TCP with TLS.
    Handshake(handshake::Handshake),
    /// What it costs to tell an actor something and to ask it, beside actix alone and a bare channel.
    Mailbox(mailbox::Mailbox),
    /// What rules, codecs and retries do for a model: a study in virtual time.
    Learn(learn::Learn),
}

impl Bench {
    /// Measures.
    pub fn run(&self, common: &Common) -> Exit {
        match &self.what {
            What::Round(round) => round.run(common),
            What::AllReduce(all_reduce) => all_reduce.run(common),
            What::Train(train) => train.run(common),
            What::Codec(codecs) => codecs.run(common),
            What::Compress(compress) => compress.run(common),
            What::Link(link) => link.run(common),
            What::Congestion(congestion) => congestion.run(common),
            What::Clock(clock) => clock.run(common),
            What::Fabric(fabric) => fabric.run(common),
            What::Copy(copy) => copy.run(common),
            What::Pool(pool) => pool.run(common),
            What::Handshake(handshake) => handshake.run(common),
            What::Mailbox(mailbox) => mailbox.run(common),
            What::Learn(learn) => learn.run(common),
        }
    }
}
