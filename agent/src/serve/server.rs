//! The queue of a slot and the workers behind it.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use edgeopt_models::Tensor;
use edgeopt_runtime::Session;
use edgeopt_runtime::pipeline::Geometry;
use edgeopt_runtime::pipeline::postprocess::Outputs;
use image::RgbImage;

use super::answer::{Answer, predict};
use super::batch::{split, stack};
use super::health::Health;
use super::model::{Input, LoadedModel};
use super::turns::Turns;
use crate::config::{DropPolicy, Priority};
use crate::pulse::{Pulse, Pulses};

/// How a slot serves.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Inputs that may wait.
    pub queue: usize,
    /// Which one gives way when more come.
    pub drop: DropPolicy,
    /// Sessions that run at the same time.
    pub workers: usize,
    /// How long an input may wait for others to be run together with it.
    pub batch_wait: Duration,
    /// Who goes first when too many want to run.
    pub priority: Priority,
    /// How long one run may take before it counts as hanging.
    pub hang_after: Duration,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// Too many wait.
    #[error("the queue is full")]
    QueueFull,
    /// The slot is empty.
    #[error("no model is active in this slot")]
    NoModel,
    /// The operator has stopped answers.
    #[error("the slot is paused")]
    Paused,
    /// The input makes no sense to the model.
    #[error("{0}")]
    Input(String),
    /// The model failed.
    #[error("{0}")]
    Model(String),
    /// Its source had nothing to show any more when its turn came.
    #[error("there was no frame any more")]
    Withdrawn,
}

/// The longest time between two inferences of a slot that is slowed down.
const SLOWEST: Duration = Duration::from_secs(3600);

/// An input that waits for its answer.
pub struct Job {
    /// For messages.
    pub name: String,
    /// What the model is to see.
    pub content: Content,
    /// When it came in.
    pub received: Instant,
    /// Told the answer, or why there is none.
    pub reply: Reply,
}

/// Takes an answer, or why there is none.
pub type Reply = Box<dyn FnOnce(Result<Answer, ServeError>) + Send>;

/// What an input consists of.
pub enum Content {
    /// An image, `.npy` or `.npz`.
    Encoded(Vec<u8>),
    /// Whatever is there when its turn comes: the newest frame of a camera. `None` gives the input up, which is no
    /// failure of the model's. It is given memory of an image that was used before, or none, for its own.
    Live(Box<dyn FnOnce(Vec<u8>) -> Option<LiveInput> + Send>),
}

/// A frame, taken when its turn came.
#[derive(Clone, Debug)]
pub struct LiveInput {
    /// Its pixels.
    pub image: RgbImage,
    /// When it was captured.
    pub captured: Instant,
    /// Its number, as its source counts.
    pub sequence: u64,
}

/// What became of an input that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It waits.
    Queued,
    /// It waits, and the oldest was given up for it.
    OldestDropped,
    /// It was given up; its reply has been told.
    Refused,
}

struct State {
    queue: VecDeque<Job>,
    model: Option<Arc<LoadedModel>>,
    /// Counts changes of the model.
    epoch: u64,
    /// Inputs wait although there is no model: one is on its way.
    swapping: bool,
    /// The operator has stopped answers.
    paused: bool,
    /// Workers that hold a session.
    holding: usize,
    /// Least time from one inference to the next; zero = none.
    spacing: Duration,
    /// When the next one may begin.
    next_run: Instant,
    stopping: bool,
}

struct Shared {
    /// The slot's.
    name: String,
    options: ServerOptions,
    turns: Turns,
    state: Mutex<State>,
    changed: Condvar,
    health: Mutex<Health>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One slot's queue and workers; stops when the last clone is dropped.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
    _workers: Arc<Workers>,
}

struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.state).stopping = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic there has been reported by its thread already.
            drop(thread.join());
        }
    }
}

impl Server {
    /// Starts the workers.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(name: &str, options: ServerOptions, turns: Turns, pulses: &Pulses) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            options,
            turns,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                model: None,
                epoch: 0,
                swapping: false,
                paused: false,
                holding: 0,
                spacing: Duration::ZERO,
                next_run: Instant::now(),
                stopping: false,
            }),
            changed: Condvar::new(),
            health: Mutex::default(),
        });
        let mut workers = Workers {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        for index in 0..options.workers.max(1) {
            let shared = Arc::clone(&shared);
            let pulse = pulses.join(format!("inference {index} of slot {name}"));
            let thread = thread::Builder::new()
                .name(format!("serve-{name}-{index}"))
                .spawn(move || work(&shared, &pulse))?;
            workers.threads.push(thread);
        }
        Ok(Self {
            shared,
            _workers: Arc::new(workers),
        })
    }

    /// The slot's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Hands an input over. Never blocks.
    pub fn submit(&self, job: Job) -> Submitted {
        let mut state = lock(&self.shared.state);
        let refusal = match (state.paused, state.model.is_some() || state.swapping) {
            (true, _) => Some(ServeError::Paused),
            (_, false) => Some(ServeError::NoModel),
            _ => None,
        };
        if let Some(reason) = refusal {
            drop(state);
            (job.reply)(Err(reason));
            return Submitted::Refused;
        }
        let full = state.queue.len() >= self.shared.options.queue.max(1);
        let given_up = match (full, self.shared.options.drop) {
            (false, _) => {
                state.queue.push_back(job);
                None
            }
            (true, DropPolicy::Oldest) => {
                state.queue.push_back(job);
                state
                    .queue
                    .pop_front()
                    .map(|oldest| (oldest, Submitted::OldestDropped))
            }
            (true, DropPolicy::Newest) => Some((job, Submitted::Refused)),
        };
        drop(state);
        self.shared.changed.notify_one();
        let Some((given_up, result)) = given_up else {
            return Submitted::Queued;
        };
        lock(&self.shared.health).dropped += 1;
        (given_up.reply)(Err(ServeError::QueueFull));
        result
    }

    /// Lets `model` answer from now on. Inputs that wait are answered by it; those being answered end with the old one.
    pub fn switch(&self, model: Arc<LoadedModel>) {
        lock(&self.shared.health).measure(model.backend);
        let mut state = lock(&self.shared.state);
        state.model = Some(model);
        state.swapping = false;
        state.epoch += 1;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Takes the model away and waits until nothing of it is in use; inputs wait until the next [`Server::switch`].
    pub fn release(&self) {
        self.take_away();
        let mut state = lock(&self.shared.state);
        while state.holding > 0 {
            state = self
                .shared
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The same without waiting.
    pub fn take_away(&self) {
        let mut state = lock(&self.shared.state);
        state.model = None;
        state.swapping = true;
        state.epoch += 1;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Takes the model away for good; what waits is refused.
    pub fn empty(&self) {
        let mut state = lock(&self.shared.state);
        state.model = None;
        state.swapping = false;
        state.epoch += 1;
        let waiting = std::mem::take(&mut state.queue);
        drop(state);
        self.shared.changed.notify_all();
        for job in waiting {
            (job.reply)(Err(ServeError::NoModel));
        }
    }

    /// Stops or resumes answering; what comes while paused is refused.
    pub fn pause(&self, paused: bool) {
        lock(&self.shared.state).paused = paused;
        self.shared.changed.notify_all();
    }

    /// Whether inputs would be refused now, whatever they are.
    pub fn is_closed(&self) -> bool {
        let state = lock(&self.shared.state);
        state.paused || state.model.is_none()
    }

    /// Allows at most so many inferences per second from now on; `None` = as many as it can.
    pub fn limit(&self, rate: Option<f64>) {
        let spacing = rate.map_or(Duration::ZERO, |rate| {
            Duration::try_from_secs_f64(1.0 / rate)
                .unwrap_or(SLOWEST)
                .min(SLOWEST)
        });
        let mut state = lock(&self.shared.state);
        if state.spacing != spacing {
            state.spacing = spacing;
            state.next_run = Instant::now();
            drop(state);
            self.shared.changed.notify_all();
        }
    }

    /// The model that answers.
    pub fn model(&self) -> Option<Arc<LoadedModel>> {
        lock(&self.shared.state).model.clone()
    }

    /// Inputs that wait.
    pub fn waiting(&self) -> usize {
        lock(&self.shared.state).queue.len()
    }

    /// Counters and latencies.
    pub fn health(&self) -> Health {
        lock(&self.shared.health).clone()
    }
}

/// What a worker holds: a model with a session of it.
struct Held {
    model: Arc<LoadedModel>,
    session: Result<Box<dyn Session>, ServeError>,
    /// Memory of the last frame, for the next one: megabytes, which the system would have to clear each time.
    spare: Vec<u8>,
}

fn work(shared: &Shared, pulse: &Pulse) {
    let (mut held, mut epoch): (Option<Held>, u64) = (None, 0);
    loop {
        let mut state = lock(&shared.state);
        while !state.stopping
            && state.epoch == epoch
            && (state.queue.is_empty() || state.paused || held.is_none())
        {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stopping {
            return;
        }
        if state.epoch != epoch {
            epoch = state.epoch;
            let model = state.model.clone();
            if held.take().is_some() {
                state.holding -= 1;
            }
            if model.is_some() {
                state.holding += 1;
            }
            drop(state);
            shared.changed.notify_all();
            pulse.beat(shared.options.hang_after);
            held = model.map(|model| {
                let session = Arc::clone(&model.engine)
                    .session()
                    .map_err(|error| ServeError::Model(error.to_string()));
                Held {
                    model,
                    session,
                    spare: Vec::new(),
                }
            });
            pulse.rest();
            continue;
        }
        let Some(current) = &mut held else { continue };
        let most = current.model.largest_batch();
        state = gather(shared, state, most);
        let (left, now) = (
            state.next_run.saturating_duration_since(Instant::now()),
            Instant::now(),
        );
        if !left.is_zero() {
            // Slowed down: meanwhile the queue's policy decides which inputs remain.
            drop(
                shared
                    .changed
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner),
            );
            continue;
        }
        let count = most.min(state.queue.len());
        if !state.spacing.is_zero() {
            let taken = state.spacing * u32::try_from(count).unwrap_or(1);
            state.next_run = now + taken;
        }
        let jobs: Vec<Job> = state.queue.drain(..count).collect();
        drop(state);
        // Others may go first for as long as they like; one that hangs meanwhile is found by its own pulse.
        let _turn = shared.turns.take(shared.options.priority);
        answer(shared, pulse, current, jobs);
        pulse.rest();
    }
}

/// Waits until as many inputs are there as the model takes together, or the oldest has waited long enough.
fn gather<'a>(shared: &'a Shared, mut state: MutexGuard<'a, State>, most: usize) -> MutexGuard<'a, State> {
    let epoch = state.epoch;
    while state.queue.len() < most && !state.stopping && state.epoch == epoch {
        let waited = state.queue.front().map(|job| job.received.elapsed());
        let left = waited.map_or(Duration::ZERO, |waited| {
            shared.options.batch_wait.saturating_sub(waited)
        });
        if left.is_zero() {
            break;
        }
        state = shared
            .changed
            .wait_timeout(state, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    state
}

fn answer(shared: &Shared, pulse: &Pulse, held: &mut Held, jobs: Vec<Job>) {
    let hang_after = shared.options.hang_after;
    pulse.beat(hang_after);
    let waited = jobs.first().map(|job| job.received.elapsed());
    let _span = tracing::debug_span!("inference", slot = shared.name, inputs = jobs.len(), ?waited).entered();
    let mut readable = Vec::with_capacity(jobs.len());
    for job in jobs {
        let mut taken = Taken::of(&job);
        match guarded("reading", || {
            taken.read(&held.model, &job.name, job.content, &mut held.spare)
        }) {
            Ok(Some(input)) => readable.push((taken, job.reply, input)),
            Ok(None) => (job.reply)(Err(ServeError::Withdrawn)),
            Err(problem) => fail(shared, job.reply, ServeError::Input(problem)),
        }
    }
    let session = match &mut held.session {
        Ok(session) => session,
        Err(problem) => {
            for (_, reply, _) in readable {
                fail(shared, reply, problem.clone());
            }
            return;
        }
    };
    let model = &held.model;
    if readable.len() > 1 {
        let tensors: Vec<&[Tensor]> = readable
            .iter()
            .map(|(_, _, input)| input.tensors.as_slice())
            .collect();
        let together = stack(&tensors).and_then(|stacked| {
            pulse.beat(hang_after);
            let _run = tracing::debug_span!("run").entered();
            session
                .run(&stacked)
                .ok()
                .and_then(|outputs| split(outputs, readable.len()))
        });
        if let Some(outputs) = together {
            for ((taken, reply, input), outputs) in readable.into_iter().zip(outputs) {
                succeed(shared, model, taken, reply, &outputs, input.geometry.as_ref());
            }
            return;
        }
        // Their lengths differ, or one of them makes the run fail: each for itself.
    }
    for (taken, reply, input) in readable {
        pulse.beat(hang_after);
        let ran = tracing::debug_span!("run").in_scope(|| session.run(&input.tensors));
        match ran {
            Ok(outputs) => succeed(shared, model, taken, reply, outputs, input.geometry.as_ref()),
            Err(error) => fail(shared, reply, ServeError::Model(error.to_string())),
        }
    }
}

/// When the input came that is being answered, and which it is.
struct Taken {
    received: Instant,
    sequence: Option<u64>,
}

impl Taken {
    fn of(job: &Job) -> Self {
        Self {
            received: job.received,
            sequence: None,
        }
    }

    /// The model's input; `None` if it was withdrawn.
    fn read(
        &mut self,
        model: &LoadedModel,
        name: &str,
        content: Content,
        spare: &mut Vec<u8>,
    ) -> Result<Option<Input>, String> {
        match content {
            Content::Encoded(bytes) => model.read_input(name, &bytes).map(Some),
            Content::Live(take) => {
                let Some(live) = take(std::mem::take(spare)) else {
                    return Ok(None);
                };
                self.received = live.captured;
                self.sequence = Some(live.sequence);
                let input = model.prepare(name, &live.image);
                *spare = live.image.into_raw();
                input.map(Some)
            }
        }
    }
}

fn succeed(
    shared: &Shared,
    model: &LoadedModel,
    taken: Taken,
    reply: Reply,
    outputs: &[Tensor],
    geometry: Option<&Geometry>,
) {
    let named = Outputs {
        names: &model.output_names,
        tensors: outputs,
        geometry,
    };
    let prediction = match guarded("interpreting", || predict(&named, &model.manifest.postprocessing)) {
        Ok(prediction) => prediction,
        Err(problem) => return fail(shared, reply, ServeError::Model(problem)),
    };
    let (latency_ms, unexpected) = (
        taken.received.elapsed().as_secs_f64() * 1e3,
        model.unexpected(outputs),
    );
    lock(&shared.health).answered_in(latency_ms, unexpected.as_deref(), model.backend);
    reply(Ok(Answer {
        prediction,
        model: model.manifest.name.clone(),
        version: model.manifest.version.clone(),
        latency_ms,
        non_finite: unexpected.is_some(),
        received: taken.received,
        sequence: taken.sequence,
    }));
}

/// Runs code that interprets what others sent. A panic in it is an error in that code, and this input's end, not the
/// worker's.
fn guarded<T>(what: &str, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // Nothing that `work` borrows is changed by it.
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(format!(
            "{what} it failed unexpectedly; the log says where: please report this"
        ))
    })
}

fn fail(shared: &Shared, reply: Reply, problem: ServeError) {
    lock(&shared.health).failed += 1;
    reply(Err(problem));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_input_s_error() {
        assert_eq!(guarded("reading", || Ok(1)), Ok(1));
        let error = guarded::<()>("reading", || panic!("for the test")).unwrap_err();
        assert!(error.starts_with("reading it failed unexpectedly"), "{error}");
    }
}
