//! The root future of a simulation and the guards that end it.
//!
//! All tasks live below this one future. So it sees every step that any of them makes: when virtual time passes the limit it gives up, and
//! when it is polled again and again while the clock stands still, it knows that tasks wake each other for nothing.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

use super::network::Network;
use super::socket::Timer;
use super::{SimError, SimWorld, nanos};
use crate::world::scope::Runner;

/// Polls of the root at one instant that mean a standstill. While there is work, each stands for 61 steps of tasks or more; a minute of twenty
/// busy nodes never takes a hundredth of it.
const POLLS_PER_INSTANT_MAX: u32 = 10_000;

/// Something to be called whenever the clock has taken so many steps.
pub type Watch = Option<(u64, Box<dyn FnMut()>)>;

pub fn run<F, T>(
    world: &SimWorld,
    scenario: impl FnOnce(SimWorld) -> F,
    watch: Watch,
) -> Result<T, SimError>
where
    F: Future<Output = T> + 'static,
    T: 'static,
{
    let shared = &world.shared;
    let network = &shared.network;
    let seed = shared.seed;
    let hook = network.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_park(move || hook.on_idle())
        .build()
        .map_err(|error| SimError::Runtime(error.to_string()))?;
    let entered = runtime.enter();
    if !network.start() {
        return Err(SimError::AlreadyRan { seed });
    }
    let limit = shared.lock().limit;
    let runner = shared.root.runner();
    let scenario = runner.set().spawn_local(scenario(world.clone()));
    let mut root = Root {
        start: Instant::now(),
        network: network.clone(),
        runner,
        scenario,
        limit: Timer::new(network.clone(), nanos(limit)),
        armed: None,
        sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
        instant: 0,
        polls: 0,
        steps: 0,
        watch,
    };
    let outcome = runtime.block_on(&mut root);
    // Nodes first: what a task does while it is dropped must not reach disk or network any more.
    let envs: Vec<_> = shared
        .lock()
        .nodes
        .values()
        .map(|node| node.env.clone())
        .collect();
    envs.iter().for_each(|env| {
        env.kill();
    });
    drop(envs);
    shared.lock().mourners.clear();
    network.end();
    let events = || shared.last_events();
    match outcome {
        Outcome::Ended(Ok(output)) => Ok(output),
        Outcome::Ended(Err(failed)) => {
            eprintln!(
                "the simulation with seed {seed} failed at {:?}; the last events were\n{}",
                world.now(),
                events()
            );
            drop(root);
            drop(entered);
            match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(SimError::Runtime(error.to_string())),
            }
        }
        Outcome::Limit => Err(SimError::Limit {
            seed,
            limit,
            events: events(),
        }),
        Outcome::Stalled => Err(SimError::Stalled {
            seed,
            at: Duration::from_nanos(network.now()),
            events: events(),
        }),
    }
}

enum Outcome<T> {
    Ended(Result<T, tokio::task::JoinError>),
    Limit,
    Stalled,
}

struct Root<T> {
    start: Instant,
    network: Network,
    runner: Runner,
    scenario: JoinHandle<T>,
    limit: Timer,
    /// The nanosecond that `sleep` waits for.
    armed: Option<u64>,
    sleep: Pin<Box<Sleep>>,
    instant: u64,
    polls: u32,
    steps: u64,
    watch: Watch,
}

impl<T> Root<T> {
    fn stands_still(&mut self) -> bool {
        let now = self.network.now();
        if now != self.instant {
            self.instant = now;
            self.polls = 0;
            self.step();
        }
        self.polls += 1;
        self.polls > POLLS_PER_INSTANT_MAX
    }

    /// The clock has moved.
    fn step(&mut self) {
        self.steps += 1;
        if let Some((every, look)) = &mut self.watch
            && self.steps.is_multiple_of(*every)
        {
            look();
        }
    }

    /// Keeps the timer that lets tokio move the clock towards the network's next event.
    fn keep_timer(&mut self, context: &mut Context<'_>) {
        let awaited = self.network.root_waits(context.waker());
        if awaited != self.armed {
            self.armed = awaited;
            if let Some(at) = awaited {
                let deadline = self.start + Duration::from_nanos(at);
                self.sleep.as_mut().reset(deadline);
            }
        }
        if self.armed.is_some() {
            // Ready or not: it only has to be there when tokio looks for its next timer.
            let _ = self.sleep.as_mut().poll(context);
        }
    }
}

impl<T> Future for Root<T> {
    type Output = Outcome<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<T>> {
        self.keep_timer(context);
        if self.stands_still() {
            return Poll::Ready(Outcome::Stalled);
        }
        let _ = Pin::new(&mut self.runner).poll(context);
        if let Poll::Ready(ended) = Pin::new(&mut self.scenario).poll(context) {
            return Poll::Ready(Outcome::Ended(ended));
        }
        if Pin::new(&mut self.limit).poll(context).is_ready() {
            return Poll::Ready(Outcome::Limit);
        }
        Poll::Pending
    }
}
