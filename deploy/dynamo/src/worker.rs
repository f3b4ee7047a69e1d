//! The thread that runs the model's steps: takes jobs between two steps, and ticks the scheduler.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use dynamo_backend_common::{ComponentSnapshot, DynamoError, SnapshotPublisher};
use unicorn_runtime::Model;
use unicorn_runtime::scheduler::{Request, Scheduler};

use crate::error::shut_down;
use crate::sequence::Sequence;

/// A request for the scheduler.
pub(crate) type Job = Request<Sequence>;

/// What is sent to the thread.
enum Command {
    Generate(Box<Job>),
    /// End at once, whatever is being generated.
    Stop,
}

/// The handle of the thread. Dropping it ends the thread as well, once its requests have ended.
pub(crate) struct Worker {
    commands: Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    /// Starts the thread, which has the model from now on.
    ///
    /// # Errors
    /// When the model has no program for several sequences, or there can be no thread.
    pub(crate) fn start(model: Model, publisher: Arc<OnceLock<Arc<SnapshotPublisher>>>) -> io::Result<Worker> {
        let scheduler = model.scheduler().map_err(io::Error::other)?;
        let (commands, received) = mpsc::channel();
        let steps = Steps { load: Load { total_pages: model.kv_pages().1, published: None, publisher }, scheduler };
        let thread = thread::Builder::new().name("steps".into()).spawn(move || steps.run(&received))?;
        Ok(Worker { commands, thread: Mutex::new(Some(thread)) })
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// When the thread has ended.
    pub(crate) fn submit(&self, job: Job) -> Result<(), DynamoError> {
        let sent = self.commands.send(Command::Generate(Box::new(job)));
        sent.map_err(|_| shut_down("engine has stopped: the thread of the model's steps has ended"))
    }

    /// Returns once the thread has ended and the model is gone. Streams that have not ended get an error.
    pub(crate) fn stop(&self) {
        // A thread that has ended already is what is wanted.
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Steps {
    scheduler: Scheduler<Sequence>,
    load: Load,
}

impl Steps {
    fn run(mut self, commands: &Receiver<Command>) {
        let mut received = VecDeque::new();
        loop {
            self.load.publish(self.scheduler.running_pages());
            if self.scheduler.is_idle() && received.is_empty() {
                let Ok(command) = commands.recv() else { return };
                received.push_back(command);
            }
            received.extend(commands.try_iter());
            for command in received.drain(..) {
                match command {
                    Command::Generate(job) => self.scheduler.submit(*job),
                    Command::Stop => return,
                }
            }
            self.scheduler.tick(&mut |_n_tokens| {
                received.extend(commands.try_iter());
                if received.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
    }
}

/// The KV cache in use, by which Dynamo's router sees how busy this worker is.
struct Load {
    total_pages: u32,
    published: Option<u32>,
    publisher: Arc<OnceLock<Arc<SnapshotPublisher>>>,
}

impl Load {
    /// Publishes the pages that running sequences hold, if their number has changed. What idle sessions keep is free for others.
    fn publish(&mut self, used_pages: u32) {
        let Some(publisher) = self.publisher.get().filter(|_| self.published != Some(used_pages)) else { return };
        self.published = Some(used_pages);
        publisher.publish(
            0,
            ComponentSnapshot {
                kv_used_blocks: used_pages.into(),
                kv_total_blocks: self.total_pages.into(),
                gpu_cache_usage: used_pages as f32 / self.total_pages.max(1) as f32,
                ..ComponentSnapshot::default()
            },
        );
    }
}
