//! Collectives that go on while the rank computes: each layer's gradients are on their way while those of the next are still being made.
//!
//! They are carried out one after the other, in the order in which they were started, by a thread of their own. All ranks must start the same ones in
//! the same order. The thread sleeps while it waits for others, for the processors belong to those who compute.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use tombolo_core::collective::Element;

use super::{Reduction, Shared, Step, StepError};

/// Collectives that are started and not done; who starts more waits. More than a model has layers whose gradients are worth a start of their own.
const STARTED_MAX: usize = 256;

type Job = Box<dyn FnOnce(&mut Step) + Send>;

/// One rank's collectives, carried out in the background.
///
/// ```
/// use std::time::Duration;
/// use tombolo_actors::step::{Background, Reduction, Step};
/// use tombolo_fabric::group::Founding;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let place = tempfile::tempdir()?;
/// # let folder = place.path().join("fabric");
/// let founding = Founding::new(&folder, &["hq/a"])?;
/// let mut step = Step::new(founding.found(Duration::from_secs(10))?);
/// let (mut last, first) = (step.allocate::<f32>(1000)?, step.allocate::<f32>(500)?);
/// let background = Background::new(step)?;
///
/// // The gradients of the last layer are there first.
/// last.values_mut()?.fill(0.5);
/// let last = background.start(last, Reduction::MEAN);
/// // Meanwhile those of the first layer are computed ...
/// let first = background.start(first, Reduction::MEAN);
/// let (last, first) = (last.wait()?, first.wait()?);
/// assert_eq!((last.values()?[0], first.values()?[0]), (0.5, 0.0));
/// # Ok(())
/// # }
/// ```
pub struct Background {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<Step>>,
}

impl Background {
    /// From now on in the background.
    ///
    /// # Errors
    ///
    /// The system has no thread to give.
    #[expect(
        clippy::disallowed_methods,
        reason = "step mode is in the real world only, where another processor computes meanwhile"
    )]
    pub fn new(mut step: Step) -> io::Result<Background> {
        step.group.rest_while_waiting();
        let (jobs, queue) = sync_channel::<Job>(STARTED_MAX);
        let thread = std::thread::Builder::new()
            .name("step".to_owned())
            .spawn(move || {
                for job in queue {
                    job(&mut step);
                }
                step
            })?;
        Ok(Background {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Starts [`Step::all_reduce`], which takes the buffer along.
    pub fn start<T: Element>(
        &self,
        mut shared: Shared<T>,
        reduction: Reduction,
    ) -> InFlight<Shared<T>> {
        self.push(move |step| {
            let done = step.all_reduce(&mut shared, reduction);
            done.map(|()| shared)
        })
    }

    /// Starts [`Step::all_reduce_own`], which takes the values along.
    pub fn start_own<T: Element>(
        &self,
        mut values: Vec<T>,
        reduction: Reduction,
    ) -> InFlight<Vec<T>> {
        self.push(move |step| {
            let done = step.all_reduce_own(&mut values, reduction);
            done.map(|()| values)
        })
    }

    /// Waits for all that is started, and goes on in the foreground.
    pub fn finish(mut self) -> Step {
        self.jobs = None;
        let thread = self.thread.take().expect("it is taken once");
        thread.join().expect("collectives answer with errors")
    }

    fn push<M: Send + 'static>(
        &self,
        run: impl FnOnce(&mut Step) -> Result<M, StepError> + Send + 'static,
    ) -> InFlight<M> {
        let (tell, answer) = sync_channel(1);
        let job = move |step: &mut Step| {
            // Nobody may be waiting for it.
            let _ = tell.send(run(step));
        };
        if let Some(jobs) = &self.jobs {
            // Were the thread gone, whoever waits would learn it.
            let _ = jobs.send(Box::new(job));
        }
        InFlight(answer)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been printed where it happened.
            let _ = thread.join();
        }
    }
}

/// A collective that was started.
#[must_use = "its memory comes back from `wait`"]
pub struct InFlight<M>(Receiver<Result<M, StepError>>);

impl<M> InFlight<M> {
    /// Waits for its end; gives its memory back.
    ///
    /// # Errors
    ///
    /// As for the collective. One after it fails, too.
    pub fn wait(self) -> Result<M, StepError> {
        self.0.recv().unwrap_or(Err(StepError::Ended))
    }
}
