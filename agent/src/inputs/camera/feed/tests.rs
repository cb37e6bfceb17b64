use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::colour::{Colour, Matrix};
use super::super::format::PixelFormat;
use super::super::pixels::Layout;
use super::super::source::Mode;
use super::*;
use crate::clock::ManualClock;
use crate::protocol::{Camera, CameraState};

const MS: Duration = Duration::from_millis(1);

/// What a scripted camera does next.
#[derive(Clone, Debug)]
enum Act {
    /// A frame of this number comes after so many milliseconds.
    Frame(u32, u64),
    /// One is there already, captured so many milliseconds ago.
    Waiting(u32, u64),
    Damaged(u32),
    /// A frame whose bytes are too few.
    Short(u32),
    /// It fails.
    Gone,
    /// Opening works, or says why not. Without one it works.
    Opens,
    Refused(fn() -> CameraError),
}

/// A camera of one grey pixel, whose value is the frame's number.
struct Scripted {
    acts: Rc<RefCell<VecDeque<Act>>>,
    clock: Rc<ManualClock>,
    out: Arc<AtomicUsize>,
    most_out: Rc<Cell<usize>>,
    opened: Rc<Cell<u32>>,
}

// Everything stays on the test's thread; `Source` asks for it because the daemon's does not.
struct OnThread<T>(T);
#[allow(unsafe_code)]
// SAFETY: tests use it on one thread only.
unsafe impl<T> Send for OnThread<T> {}

struct Playing {
    acts: Rc<RefCell<VecDeque<Act>>>,
    clock: Rc<ManualClock>,
    mode: Mode,
    out: Arc<AtomicUsize>,
    most_out: Rc<Cell<usize>>,
}

struct Grey {
    layout: Layout,
    bytes: Vec<u8>,
    sequence: u32,
    age: Duration,
    out: Arc<AtomicUsize>,
}

impl Drop for Grey {
    fn drop(&mut self) {
        self.out.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Frame for Grey {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    fn layout(&self) -> &Layout {
        &self.layout
    }
    fn sequence(&self) -> u32 {
        self.sequence
    }
    fn age(&self) -> Duration {
        self.age
    }
}

impl Playing {
    fn frame(&self, sequence: u32, bytes: Vec<u8>, age: Duration) -> Grey {
        let out = self.out.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_out.set(self.most_out.get().max(out));
        Grey {
            layout: Layout {
                format: PixelFormat::Grey,
                width: 1,
                height: 1,
                stride: 1,
                colour: Colour {
                    matrix: Matrix::Bt601,
                    full_range: true,
                },
            },
            bytes,
            sequence,
            age,
            out: Arc::clone(&self.out),
        }
    }
}

impl Stream for Playing {
    type Frame = Grey;

    fn next(&mut self, wait: Duration) -> Result<Next<Grey>, CameraError> {
        let mut acts = self.acts.borrow_mut();
        let Some(act) = acts.front_mut() else {
            self.clock.advance(wait);
            return Ok(Next::Nothing);
        };
        if let Act::Frame(sequence, after) = act {
            let step = MS * u32::try_from(*after).unwrap();
            if step > wait {
                *after -= u64::try_from(wait.as_millis()).unwrap();
                self.clock.advance(wait);
                return Ok(Next::Nothing);
            }
            let sequence = *sequence;
            self.clock.advance(step);
            acts.pop_front();
            return Ok(Next::Frame(self.frame(
                sequence,
                vec![sequence as u8],
                Duration::ZERO,
            )));
        }
        match acts.pop_front().unwrap() {
            Act::Waiting(sequence, age) => {
                let age = MS * u32::try_from(age).unwrap();
                Ok(Next::Frame(self.frame(sequence, vec![sequence as u8], age)))
            }
            Act::Damaged(sequence) => Ok(Next::Damaged { sequence }),
            Act::Short(sequence) => Ok(Next::Frame(self.frame(sequence, Vec::new(), Duration::ZERO))),
            Act::Gone => Err(CameraError::Gone),
            act => panic!("{act:?} while it is open"),
        }
    }

    fn mode(&self) -> &Mode {
        &self.mode
    }
}

impl Source for OnThread<Scripted> {
    type Stream = Playing;

    fn open(&mut self) -> Result<Playing, CameraError> {
        let scripted = &self.0;
        scripted.opened.set(scripted.opened.get() + 1);
        let mut acts = scripted.acts.borrow_mut();
        match acts.front() {
            Some(Act::Refused(why)) => {
                let error = why();
                acts.pop_front();
                return Err(error);
            }
            Some(Act::Opens) => drop(acts.pop_front()),
            _ => {}
        }
        Ok(Playing {
            acts: Rc::clone(&scripted.acts),
            clock: Rc::clone(&scripted.clock),
            mode: Mode {
                format: PixelFormat::Grey,
                width: 1,
                height: 1,
                fps: Some(30.0),
                differs: Vec::new(),
            },
            out: Arc::clone(&scripted.out),
            most_out: Rc::clone(&scripted.most_out),
        })
    }
}

/// A slot with a queue of one place.
#[derive(Clone, Default)]
struct Slot {
    waiting: Rc<RefCell<Option<Arc<Newest<Grey>>>>>,
    closed: Rc<Cell<bool>>,
    asked: Rc<Cell<u32>>,
    lost: Rc<Cell<u32>>,
    /// Its model answers at once.
    idle: Rc<Cell<bool>>,
    seen: Rc<RefCell<Vec<u64>>>,
}

impl Demand<Grey> for Slot {
    fn is_closed(&self) -> bool {
        self.closed.get()
    }
    fn ask(&self, newest: &Arc<Newest<Grey>>) {
        assert!(self.waiting.borrow().is_none(), "more than one input waits");
        self.asked.set(self.asked.get() + 1);
        *self.waiting.borrow_mut() = Some(Arc::clone(newest));
        if self.idle.get() {
            self.turn();
        }
    }
    fn lost(&self) {
        self.lost.set(self.lost.get() + 1);
    }
}

impl Slot {
    /// The input's turn comes. Says which frame it got; the pixel says the same.
    fn turn(&self) -> Option<u64> {
        let newest = self.waiting.borrow_mut().take().expect("nothing waits");
        let live = newest.take(Vec::new())?;
        assert_eq!(u64::from(live.image.get_pixel(0, 0).0[0]), live.sequence & 0xFF);
        self.seen.borrow_mut().push(live.sequence);
        Some(live.sequence)
    }
}

struct Bench {
    feed: Feed<OnThread<Scripted>, Slot>,
    slot: Slot,
    clock: Rc<ManualClock>,
    acts: Rc<RefCell<VecDeque<Act>>>,
    monitor: Arc<Monitor>,
    out: Arc<AtomicUsize>,
    most_out: Rc<Cell<usize>>,
    opened: Rc<Cell<u32>>,
}

impl Bench {
    fn new(rate: Option<f64>, idle: bool) -> Self {
        let clock = Rc::new(ManualClock::default());
        let acts: Rc<RefCell<VecDeque<Act>>> = Rc::default();
        let (out, most_out, opened) = (Arc::default(), Rc::default(), Rc::default());
        let source = Scripted {
            acts: Rc::clone(&acts),
            clock: Rc::clone(&clock),
            out: Arc::clone(&out),
            most_out: Rc::clone(&most_out),
            opened: Rc::clone(&opened),
        };
        let slot = Slot::default();
        slot.idle.set(idle);
        let monitor = Arc::new(Monitor::new("/dev/video9".into()));
        let feed = Feed::new(
            OnThread(source),
            slot.clone(),
            "/dev/video9".into(),
            rate,
            Arc::clone(&monitor),
        );
        Self {
            feed,
            slot,
            clock,
            acts,
            monitor,
            out,
            most_out,
            opened,
        }
    }

    /// Plays, until all of it has happened.
    fn play(&mut self, acts: impl IntoIterator<Item = Act>) {
        self.acts.borrow_mut().extend(acts);
        let begun = self.clock.elapsed();
        while !self.acts.borrow().is_empty() {
            let before = self.clock.elapsed();
            self.feed.turn(&*self.clock);
            assert!(self.clock.elapsed() - before <= WAIT * 2, "a step is bounded");
            assert!(
                self.clock.elapsed() - begun < Duration::from_secs(600),
                "it does not end"
            );
        }
    }

    fn for_time(&mut self, time: Duration) {
        let end = self.clock.elapsed() + time;
        while self.clock.elapsed() < end {
            self.feed.turn(&*self.clock);
        }
    }

    fn camera(&self) -> Camera {
        self.monitor.view().camera
    }

    /// Frames taken, skipped, bad and lost.
    fn counts(&self) -> [u64; 4] {
        let camera = self.camera();
        [camera.taken, camera.skipped, camera.bad, camera.lost]
    }
}

fn frames(numbers: std::ops::Range<u32>) -> impl Iterator<Item = Act> {
    numbers.map(|number| Act::Frame(number, 33))
}

#[test]
fn a_fast_model_sees_every_frame() {
    let mut bench = Bench::new(None, true);
    bench.play(frames(0..50));
    assert_eq!(*bench.slot.seen.borrow(), (0..50).collect::<Vec<u64>>());
    assert_eq!(bench.counts(), [50, 0, 0, 0]);
    let view = bench.monitor.view();
    assert_eq!(
        (view.camera.state, view.size),
        (CameraState::Streaming, Some((1, 1)))
    );
    assert_eq!(
        bench.out.load(Ordering::Relaxed),
        0,
        "the driver has all buffers back"
    );
}

#[test]
fn a_slow_model_gets_the_newest_and_no_old_frame_is_kept() {
    let mut bench = Bench::new(None, false);
    for round in 0..5 {
        bench.play(frames(round * 10..round * 10 + 10));
        assert_eq!(bench.slot.turn(), Some(u64::from(round * 10 + 9)));
    }
    assert_eq!(bench.slot.asked.get(), 5);
    assert_eq!(bench.counts(), [5, 45, 0, 0]);
    assert!(bench.most_out.get() <= 2, "one waits, one comes");
}

#[test]
fn of_frames_that_wait_in_the_driver_only_the_newest_is_taken() {
    let mut bench = Bench::new(None, true);
    bench.play([
        Act::Waiting(0, 300),
        Act::Waiting(1, 200),
        Act::Waiting(2, 100),
        Act::Frame(3, 33),
    ]);
    assert_eq!(*bench.slot.seen.borrow(), [2, 3]);
    assert_eq!(bench.counts(), [2, 2, 0, 0]);
    let age = bench.monitor.view().age_ms.unwrap();
    assert!(age < 100, "{age}");
    bench.play([Act::Waiting(4, 400)]);
    let age = bench.monitor.view().age_ms.unwrap();
    assert!((400..500).contains(&age), "the capture counts: {age}");
}

#[test]
fn a_rate_passes_over_frames_before_they_are_decoded() {
    let mut bench = Bench::new(Some(10.0), true);
    bench.play(frames(0..300));
    let taken = bench.slot.seen.borrow().len();
    // 300 frames of 33 ms: 9.9 s.
    assert!((98..=100).contains(&taken), "{taken}");
    assert_eq!(bench.counts(), [taken as u64, 300 - taken as u64, 0, 0]);
}

#[test]
fn nothing_is_asked_of_a_slot_that_is_closed() {
    let mut bench = Bench::new(None, true);
    bench.slot.closed.set(true);
    bench.play(frames(0..20));
    assert_eq!((bench.slot.asked.get(), bench.counts()), (0, [0, 20, 0, 0]));
    bench.slot.closed.set(false);
    bench.play(frames(20..22));
    assert_eq!(*bench.slot.seen.borrow(), [20, 21]);
}

#[test]
fn an_input_that_is_given_up_makes_room_for_the_next() {
    let mut bench = Bench::new(None, false);
    bench.play(frames(0..2));
    let given_up = bench.slot.waiting.borrow_mut().take().unwrap();
    given_up.withdraw();
    assert_eq!(
        bench.out.load(Ordering::Relaxed),
        0,
        "its frame is the driver's again"
    );
    bench.play(frames(2..3));
    assert_eq!(bench.slot.turn(), Some(2));
    assert_eq!(bench.counts(), [1, 2, 0, 0]);
}

#[test]
fn gaps_and_bad_frames_are_counted_and_no_model_sees_them() {
    let mut bench = Bench::new(Some(1.0), true);
    bench.play([
        Act::Frame(7, 33),
        Act::Frame(10, 33),
        Act::Damaged(11),
        Act::Short(12),
        Act::Frame(13, 1000),
        Act::Frame(u32::MAX, 33),
        Act::Frame(0, 33),
    ]);
    assert_eq!(*bench.slot.seen.borrow(), [7, 13]);
    let [taken, skipped, bad, lost] = bench.counts();
    assert_eq!([taken, skipped, bad], [2, 3, 2]);
    // 8 and 9. The driver's count then jumps back, which says nothing, and goes round, which loses nothing.
    assert_eq!(lost, 2);
}

#[test]
fn a_frame_that_cannot_be_decoded_does_not_use_up_the_rate() {
    let mut bench = Bench::new(Some(1.0), false);
    bench.play(frames(0..1));
    // Broken in a way that only decoding finds.
    let newest = bench.slot.waiting.borrow().clone().unwrap();
    let mut broken = bench.acts.borrow_mut();
    broken.clear();
    drop(broken);
    let out = Arc::clone(&bench.out);
    out.fetch_add(1, Ordering::Relaxed);
    let jpeg = Grey {
        layout: Layout {
            format: PixelFormat::Mjpeg,
            width: 1,
            height: 1,
            stride: 0,
            colour: Colour {
                matrix: Matrix::Bt601,
                full_range: true,
            },
        },
        bytes: vec![0xFF, 0xD8, 1, 2, 3, 4, 0xFF, 0xD9],
        sequence: 1,
        age: Duration::ZERO,
        out,
    };
    assert!(newest.renew(jpeg, Instant::now()).is_none());
    assert_eq!(bench.slot.turn(), None);
    assert_eq!(bench.counts(), [0, 1, 1, 0]);
    bench.play(frames(2..3));
    assert_eq!(bench.slot.turn(), Some(2), "33 ms later, not a second");
}

#[test]
fn a_camera_that_is_not_there_is_tried_again_ever_less_often_and_told_of_once() {
    let mut bench = Bench::new(None, true);
    let absent = Act::Refused(|| CameraError::Absent);
    bench.play(std::iter::repeat_n(absent, 8));
    // 0.5 + 1 + 2 + 4 + 8 + 10 + 10 s between the eight.
    let waited = bench.clock.elapsed();
    assert_eq!(waited, Duration::from_millis(35_500));
    let camera = bench.camera();
    assert_eq!(camera.state, CameraState::Failed);
    assert!(camera.problem.unwrap().contains("plugged in"));
    assert_eq!(bench.slot.lost.get(), 8);
    assert!(bench.feed.told.is_some());
    bench.play(frames(0..3));
    assert_eq!(*bench.slot.seen.borrow(), [0, 1, 2]);
    let camera = bench.camera();
    assert_eq!((camera.state, camera.problem), (CameraState::Streaming, None));
    assert!(bench.feed.told.is_none(), "the next problem is told again");
}

#[test]
fn each_other_problem_is_told_and_none_ends_the_feed() {
    let mut bench = Bench::new(None, true);
    for (act, words) in [
        (Act::Refused(|| CameraError::Permission), "group `video`"),
        (Act::Refused(|| CameraError::Busy), "something else uses it"),
        (
            Act::Refused(|| CameraError::NoCapture("a radio".into())),
            "a radio",
        ),
        (
            Act::Refused(|| CameraError::System {
                action: "mapping a buffer",
                source: io::Error::other("no memory"),
            }),
            "mapping a buffer: no memory",
        ),
    ] {
        bench.play([act]);
        let told = bench.feed.told.clone().unwrap();
        assert!(told.contains(words), "{told}");
        assert_eq!(bench.camera().problem, Some(told));
    }
    bench.play(frames(0..1));
    assert_eq!(*bench.slot.seen.borrow(), [0]);
}

#[test]
fn unplugged_it_leaves_no_old_frame_and_comes_back() {
    let mut bench = Bench::new(None, false);
    bench.play(frames(0..400).chain([Act::Gone]));
    assert_eq!(bench.out.load(Ordering::Relaxed), 0, "nothing of it is held");
    assert_eq!(
        bench.slot.turn(),
        None,
        "a frame of a camera that is gone is no answer"
    );
    assert_eq!((bench.slot.lost.get(), bench.opened.get()), (1, 1));
    let gone = bench.clock.elapsed();
    bench.play([Act::Opens]);
    // It worked for 13 s: the wait is the first one.
    assert_eq!(bench.clock.elapsed() - gone, FIRST);
    bench.play(frames(0..1));
    assert_eq!(bench.slot.turn(), Some(0));
    assert_eq!(bench.counts()[3], 0, "a driver that counts anew has lost nothing");
}

const FIRST: Duration = Duration::from_millis(500);

#[test]
fn a_camera_that_falls_silent_is_opened_anew() {
    let mut bench = Bench::new(None, true);
    bench.play(frames(0..10));
    let begun = bench.clock.elapsed();
    while bench.opened.get() == 1 {
        bench.feed.turn(&*bench.clock);
    }
    let waited = bench.clock.elapsed() - begun;
    assert!(
        waited >= STALL && waited < STALL + Duration::from_secs(1),
        "{waited:?}"
    );
    assert_eq!(bench.feed.told.as_deref(), Some("no frame came for 5 s"));
    // It stays silent: the pauses grow, and it is told of once.
    bench.for_time(Duration::from_secs(120));
    assert!(bench.opened.get() < 14, "{}", bench.opened.get());
    assert_eq!(bench.feed.told.as_deref(), Some("no frame came for 5 s"));
    assert_eq!(bench.camera().fps, 0.0);
}

#[test]
fn bad_frames_without_end_open_it_anew_and_one_good_frame_forgives() {
    let mut bench = Bench::new(None, true);
    let bad = |count| (0..count).map(Act::Short);
    bench.play(
        bad(MOST_BAD - 1)
            .chain([Act::Frame(50, 33)])
            .chain(bad(MOST_BAD - 1)),
    );
    assert_eq!(
        (bench.opened.get(), bench.counts()[2]),
        (1, u64::from(MOST_BAD - 1) * 2)
    );
    bench.play(bad(1));
    let told = bench.feed.told.clone().unwrap();
    assert_eq!(told, "30 frames in a row were bad: it has 0 of 1 bytes");
    bench.play(frames(0..1));
    assert_eq!(bench.opened.get(), 2);
}

#[test]
fn ending_gives_everything_back() {
    let mut bench = Bench::new(None, false);
    bench.play(frames(0..3));
    assert_eq!(bench.out.load(Ordering::Relaxed), 1);
    bench.feed.end();
    assert_eq!(bench.out.load(Ordering::Relaxed), 0);
    assert_eq!(bench.slot.turn(), None);
}
