//! The kernel's interface for video devices: `linux/videodev2.h`, as far as capturing needs it, for 64-bit systems.
//!
//! Own declarations: of the crates that were looked at, `v4l` and `v4l2r` use bindings that bindgen generates, and
//! linuxvideo 0.3.5 needs no bindgen, but hides timestamps and sequence numbers. A test compares them with the system's
//! header.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::slice;

use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `V4L2_BUF_TYPE_VIDEO_CAPTURE`
pub(super) const CAPTURE: u32 = 1;
/// `V4L2_MEMORY_MMAP`
pub(super) const MEMORY_MMAP: u32 = 1;
/// `V4L2_FIELD_NONE`: whole frames.
pub(super) const FIELD_NONE: u32 = 1;
/// `V4L2_PIX_FMT_PRIV_MAGIC`: the fields after `priv` are meant.
pub(super) const PRIV_MAGIC: u32 = 0xfeed_cafe;

/// `V4L2_CAP_…`
pub(super) mod capability {
    pub(in super::super) const CAPTURE: u32 = 0x1;
    pub(in super::super) const CAPTURE_MPLANE: u32 = 0x1000;
    pub(in super::super) const M2M: u32 = 0x8000 | 0x4000;
    pub(in super::super) const META_CAPTURE: u32 = 0x0080_0000;
    pub(in super::super) const STREAMING: u32 = 0x0400_0000;
    pub(in super::super) const DEVICE_CAPS: u32 = 0x8000_0000;
    /// `V4L2_CAP_TIMEPERFRAME`, of `v4l2_captureparm`.
    pub(in super::super) const TIME_PER_FRAME: u32 = 0x1000;
}

/// `V4L2_BUF_FLAG_…`
pub(super) mod flag {
    pub(in super::super) const ERROR: u32 = 0x40;
    pub(in super::super) const TIMESTAMP_MASK: u32 = 0xe000;
    pub(in super::super) const TIMESTAMP_MONOTONIC: u32 = 0x2000;
}

/// `v4l2_capability`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Capability {
    pub(super) driver: [u8; 16],
    pub(super) card: [u8; 32],
    pub(super) bus_info: [u8; 32],
    pub(super) version: u32,
    pub(super) capabilities: u32,
    pub(super) device_caps: u32,
    pub(super) reserved: [u32; 3],
}

/// `v4l2_fmtdesc`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct FormatDescription {
    pub(super) index: u32,
    pub(super) kind: u32,
    pub(super) flags: u32,
    pub(super) description: [u8; 32],
    pub(super) pixel_format: u32,
    pub(super) mbus_code: u32,
    pub(super) reserved: [u32; 3],
}

/// `v4l2_format` with `v4l2_pix_format` as its content.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Format {
    pub(super) kind: u32,
    pub(super) padding: u32,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) pixel_format: u32,
    pub(super) field: u32,
    pub(super) bytes_per_line: u32,
    pub(super) size_image: u32,
    pub(super) colorspace: u32,
    pub(super) private: u32,
    pub(super) flags: u32,
    pub(super) ycbcr_encoding: u32,
    pub(super) quantization: u32,
    pub(super) transfer: u32,
    pub(super) rest: [u64; 19],
}

/// `v4l2_streamparm` with `v4l2_captureparm` as its content.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct StreamParameters {
    pub(super) kind: u32,
    pub(super) capability: u32,
    pub(super) capture_mode: u32,
    pub(super) numerator: u32,
    pub(super) denominator: u32,
    pub(super) extended_mode: u32,
    pub(super) read_buffers: u32,
    pub(super) rest: [u32; 44],
}

/// `v4l2_frmsizeenum`. `sizes`: width and height; or the least, the most and the step of width, then of height.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct FrameSize {
    pub(super) index: u32,
    pub(super) pixel_format: u32,
    pub(super) kind: u32,
    pub(super) sizes: [u32; 6],
    pub(super) reserved: [u32; 2],
}

/// `v4l2_frmivalenum`. `intervals`: a fraction of a second; or the least, the most and the step.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct FrameInterval {
    pub(super) index: u32,
    pub(super) pixel_format: u32,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) kind: u32,
    pub(super) intervals: [[u32; 2]; 3],
    pub(super) reserved: [u32; 2],
}

/// `V4L2_FRMSIZE_TYPE_DISCRETE` and `V4L2_FRMIVAL_TYPE_DISCRETE`
pub(super) const DISCRETE: u32 = 1;

/// `v4l2_requestbuffers`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct RequestBuffers {
    pub(super) count: u32,
    pub(super) kind: u32,
    pub(super) memory: u32,
    pub(super) capabilities: u32,
    pub(super) flags: u32,
}

/// `v4l2_buffer` of a 64-bit system.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Buffer {
    pub(super) index: u32,
    pub(super) kind: u32,
    pub(super) used: u32,
    pub(super) flags: u32,
    pub(super) field: u32,
    pub(super) padding: u32,
    pub(super) seconds: i64,
    pub(super) microseconds: i64,
    pub(super) timecode: [u32; 4],
    pub(super) sequence: u32,
    pub(super) memory: u32,
    /// Where `mmap` finds it. The union's other members are not used with this kind of memory.
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) reserved: u32,
    pub(super) request: i32,
    pub(super) padding_at_end: u32,
}

impl Buffer {
    pub(super) fn of(index: u32) -> Self {
        Self {
            index,
            kind: CAPTURE,
            memory: MEMORY_MMAP,
            ..Self::default()
        }
    }
}

const fn read_write<T>(number: u8) -> Opcode {
    opcode::read_write::<T>(b'V', number)
}

const QUERYCAP: Opcode = opcode::read::<Capability>(b'V', 0);
const ENUM_FMT: Opcode = read_write::<FormatDescription>(2);
const G_FMT: Opcode = read_write::<Format>(4);
const S_FMT: Opcode = read_write::<Format>(5);
const REQBUFS: Opcode = read_write::<RequestBuffers>(8);
const QUERYBUF: Opcode = read_write::<Buffer>(9);
const QBUF: Opcode = read_write::<Buffer>(15);
const DQBUF: Opcode = read_write::<Buffer>(17);
const STREAMON: Opcode = opcode::write::<i32>(b'V', 18);
const STREAMOFF: Opcode = opcode::write::<i32>(b'V', 19);
const G_PARM: Opcode = read_write::<StreamParameters>(21);
const S_PARM: Opcode = read_write::<StreamParameters>(22);
const ENUM_FRAMESIZES: Opcode = read_write::<FrameSize>(74);
const ENUM_FRAMEINTERVALS: Opcode = read_write::<FrameInterval>(75);

/// A request with a structure that the kernel reads and writes.
///
/// # Safety
/// `T` is the structure of the request `OPCODE`, and holds no pointers.
unsafe fn call<const OPCODE: Opcode, T>(fd: BorrowedFd<'_>, value: &mut T) -> Result<(), Errno> {
    retry_on_intr(|| {
        // SAFETY: the caller's promise; the reference is valid for the call.
        unsafe { ioctl(fd, Updater::<OPCODE, T>::new(value)) }
    })
}

macro_rules! requests {
    ($($name:ident: $opcode:ident, $value:ty;)*) => {$(
        pub(super) fn $name(fd: BorrowedFd<'_>, value: &mut $value) -> Result<(), Errno> {
            // SAFETY: the opcode was made for this structure; the ones used here hold no pointers.
            unsafe { call::<$opcode, $value>(fd, value) }
        }
    )*};
}

requests! {
    query_capability: QUERYCAP, Capability;
    enumerate_formats: ENUM_FMT, FormatDescription;
    get_format: G_FMT, Format;
    set_format: S_FMT, Format;
    get_parameters: G_PARM, StreamParameters;
    set_parameters: S_PARM, StreamParameters;
    enumerate_sizes: ENUM_FRAMESIZES, FrameSize;
    enumerate_intervals: ENUM_FRAMEINTERVALS, FrameInterval;
    request_buffers: REQBUFS, RequestBuffers;
    query_buffer: QUERYBUF, Buffer;
    queue_buffer: QBUF, Buffer;
    dequeue_buffer: DQBUF, Buffer;
}

pub(super) fn stream_on(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the request takes a pointer to the buffers' type, an int.
    retry_on_intr(|| unsafe { ioctl(fd, Setter::<STREAMON, i32>::new(CAPTURE as i32)) })
}

pub(super) fn stream_off(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: as for `stream_on`.
    retry_on_intr(|| unsafe { ioctl(fd, Setter::<STREAMOFF, i32>::new(CAPTURE as i32)) })
}

/// A driver's buffer in our address space.
pub(super) struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: the memory belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: it is only read, and `bytes` says when.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(fd: BorrowedFd<'_>, buffer: &Buffer) -> Result<Self, Errno> {
        let length = buffer.length as usize;
        // The driver may look at the permissions: with writing, as everybody maps them.
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe { mmap(null_mut(), length, access, MapFlags::SHARED, fd, buffer.offset) }?;
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        Ok(Self { start, length })
    }

    /// Its first bytes, at most as many as there are.
    ///
    /// # Safety
    /// The buffer has been dequeued, and is not queued again while the bytes are in use: its driver does not write to it.
    pub(super) unsafe fn bytes(&self, used: usize) -> &[u8] {
        // SAFETY: the mapping is this long and readable, and nobody writes to it, as the caller promises. It stays valid
        // after the device has gone.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), used.min(self.length)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what `new` has mapped; no reference into it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr(), self.length) };
    }
}

const _: () = {
    assert!(size_of::<Capability>() == 104);
    assert!(size_of::<FormatDescription>() == 64);
    assert!(size_of::<Format>() == 208);
    assert!(size_of::<StreamParameters>() == 204);
    assert!(size_of::<FrameSize>() == 44);
    assert!(size_of::<FrameInterval>() == 52);
    assert!(size_of::<RequestBuffers>() == 20);
    assert!(size_of::<Buffer>() == 88);
};

#[cfg(test)]
mod tests;
