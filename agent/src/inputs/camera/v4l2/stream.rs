//! Frames of an open device, in buffers that it shares with us.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::super::pixels::Layout;
use super::super::source::{CameraError, Frame, Mode, Next, Stream};
use super::abi::{self, Buffer, Mapping, RequestBuffers, flag};
use super::refused;

/// A capture time further back than this is of another clock.
const OLDEST: Duration = Duration::from_secs(10);

/// The device while it streams. Frames that are still in use keep it open, and their memory mapped.
struct Device {
    buffers: Vec<Mapping>,
    /// After the buffers: they are unmapped before it is closed.
    fd: OwnedFd,
    layout: Layout,
}

impl Device {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A camera that streams.
pub(in super::super) struct Capture {
    device: Arc<Device>,
    mode: Mode,
}

impl Drop for Capture {
    fn drop(&mut self) {
        // The device may have gone.
        let _ = abi::stream_off(self.device.fd());
    }
}

impl Capture {
    pub(super) fn start(fd: OwnedFd, layout: Layout, mode: Mode, count: u32) -> Result<Self, CameraError> {
        let mut request = RequestBuffers {
            count,
            kind: abi::CAPTURE,
            memory: abi::MEMORY_MMAP,
            ..RequestBuffers::default()
        };
        abi::request_buffers(fd.as_fd(), &mut request).map_err(refused("asking for buffers"))?;
        let mut device = Device {
            buffers: Vec::new(),
            fd,
            layout,
        };
        for index in 0..request.count {
            let mut buffer = Buffer::of(index);
            abi::query_buffer(device.fd(), &mut buffer).map_err(refused("asking where a buffer is"))?;
            let mapping = Mapping::new(device.fd(), &buffer).map_err(refused("mapping a buffer"))?;
            device.buffers.push(mapping);
            abi::queue_buffer(device.fd(), &mut Buffer::of(index)).map_err(refused("queueing a buffer"))?;
        }
        abi::stream_on(device.fd()).map_err(refused("starting the stream"))?;
        Ok(Self {
            device: Arc::new(device),
            mode,
        })
    }
}

impl Stream for Capture {
    type Frame = Captured;

    fn next(&mut self, wait: Duration) -> Result<Next<Captured>, CameraError> {
        let fd = self.device.fd();
        let mut broken = false;
        if !wait.is_zero() {
            let mut polled = [PollFd::new(&fd, PollFlags::IN)];
            let ready = poll(&mut polled, Timespec::try_from(wait).ok().as_ref());
            match ready {
                Ok(0) | Err(Errno::INTR) => return Ok(Next::Nothing),
                Ok(_) => {}
                Err(error) => return Err(refused("waiting for a frame")(error)),
            }
            broken = polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP);
        }
        let mut buffer = Buffer::of(0);
        match abi::dequeue_buffer(fd, &mut buffer) {
            // With an error and without a frame, waiting again would not wait.
            Err(Errno::AGAIN) if broken => return Err(refused("waiting for a frame")(Errno::IO)),
            Err(Errno::AGAIN) => return Ok(Next::Nothing),
            Err(error) => return Err(refused("taking a frame")(error)),
            Ok(()) => {}
        }
        if buffer.index as usize >= self.device.buffers.len() {
            return Err(refused(
                "taking a frame: the driver gave a buffer that there is not",
            )(Errno::IO));
        }
        let frame = Captured {
            device: Arc::clone(&self.device),
            age: age(&buffer),
            index: buffer.index,
            used: buffer.used as usize,
            sequence: buffer.sequence,
        };
        if buffer.flags & flag::ERROR != 0 {
            return Ok(Next::Damaged {
                sequence: buffer.sequence,
            });
        }
        Ok(Next::Frame(frame))
    }

    fn mode(&self) -> &Mode {
        &self.mode
    }
}

/// Time since the capture; zero where the driver's clock is another one than ours.
fn age(buffer: &Buffer) -> Duration {
    if buffer.flags & flag::TIMESTAMP_MASK != flag::TIMESTAMP_MONOTONIC {
        return Duration::ZERO;
    }
    let now = clock_gettime(ClockId::Monotonic);
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    let age = nanoseconds(now.tv_sec, now.tv_nsec)
        - nanoseconds(buffer.seconds, buffer.microseconds.saturating_mul(1000));
    match u64::try_from(age).map(Duration::from_nanos) {
        Ok(age) if age <= OLDEST => age,
        _ => Duration::ZERO,
    }
}

/// A frame in a buffer, which the driver gets back when this is dropped.
pub(in super::super) struct Captured {
    device: Arc<Device>,
    index: u32,
    used: usize,
    sequence: u32,
    age: Duration,
}

impl Frame for Captured {
    fn bytes(&self) -> &[u8] {
        let buffer = &self.device.buffers[self.index as usize];
        // SAFETY: `self` stands for a dequeued buffer, and queues it only when it is dropped.
        unsafe { buffer.bytes(self.used) }
    }

    fn layout(&self) -> &Layout {
        &self.device.layout
    }

    fn sequence(&self) -> u32 {
        self.sequence
    }

    fn age(&self) -> Duration {
        self.age
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // Without the device there is nobody to give it to. A buffer that is lost otherwise is missed by the stream,
        // which is opened anew when none is left.
        let _ = abi::queue_buffer(self.device.fd(), &mut Buffer::of(self.index));
    }
}
