//! What execution needs of CUDA: memory, a stream, graphs. A trait, so that the order of calls can be tested without a
//! GPU; the real one goes through the driver, loaded at run time.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{DriverError, sys};
use edgeopt_models::Bytes;

/// An address on the device.
pub(super) type Address = u64;

/// A stream of work. Handles are not copied: who frees one gives it up.
#[derive(Debug)]
pub(super) struct Stream(*mut c_void);

impl Stream {
    pub(super) fn new(raw: *mut c_void) -> Self {
        Self(raw)
    }

    /// What stays in the place of a stream that was taken to be freed.
    pub(super) fn taken() -> Self {
        Self(std::ptr::null_mut())
    }

    /// The driver's handle, as the library takes it.
    pub(super) fn raw(&self) -> *mut c_void {
        self.0
    }
}

/// Memory of the device alone.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) address: Address,
    pub(super) bytes: usize,
}

/// Memory for inputs and outputs, seen by host and device.
#[derive(Debug)]
pub(super) struct Shared {
    /// Where the host sees it.
    pub(super) host: *mut u8,
    /// Where the device sees it. Equal memory on integrated GPUs; a copy of its own on discrete ones.
    pub(super) device: Address,
    pub(super) bytes: usize,
}

/// A recorded run.
#[derive(Debug)]
pub(super) struct Graph(*mut c_void);

impl Graph {
    pub(super) fn new(raw: *mut c_void) -> Self {
        Self(raw)
    }
}

/// A GPU.
pub(super) trait Device: Send + Sync {
    /// Makes the GPU the calling thread's, for what the library does on it next. The other functions see to it alone.
    fn make_current(&self) -> Result<(), String>;
    fn new_stream(&self) -> Result<Stream, String>;
    fn free_stream(&self, stream: Stream);
    fn allocate(&self, bytes: usize) -> Result<Memory, String>;
    fn free(&self, memory: Memory);
    fn allocate_shared(&self, bytes: usize) -> Result<Shared, String>;
    fn free_shared(&self, memory: Shared);
    /// Enqueues a copy to the device; does nothing on integrated GPUs.
    fn to_device(&self, memory: &Shared, stream: &Stream) -> Result<(), String>;
    /// Enqueues a copy to the host; does nothing on integrated GPUs.
    fn to_host(&self, memory: &Shared, stream: &Stream) -> Result<(), String>;
    /// Waits for everything enqueued; an error of any of it may be told here.
    fn synchronize(&self, stream: &Stream) -> Result<(), String>;
    /// Records what this thread enqueues until `end_capture`, which must be called on the same thread.
    fn begin_capture(&self, stream: &Stream) -> Result<(), String>;
    fn end_capture(&self, stream: &Stream) -> Result<Graph, String>;
    fn launch(&self, graph: &Graph, stream: &Stream) -> Result<(), String>;
    fn free_graph(&self, graph: Graph);
}

/// The first GPU, through the CUDA driver.
pub(super) struct CudaDevice {
    context: Arc<cudarc::driver::CudaContext>,
    /// Whether host and device share their memory, so that nothing has to be copied.
    integrated: bool,
    target: String,
    name: String,
}

fn check(what: &str, result: sys::CUresult) -> Result<(), String> {
    match result {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(format!("{what}: {}", explained(DriverError(error)))),
    }
}

/// The driver's name of an error, and what it says about it.
fn explained(error: DriverError) -> String {
    match error.error_string() {
        Ok(text) => format!("{:?} ({})", error.0, text.to_string_lossy()),
        Err(_) => format!("{:?}", error.0),
    }
}

impl CudaDevice {
    /// Opens the first GPU.
    ///
    /// # Errors
    /// When there is no driver or no GPU.
    pub(super) fn open() -> Result<Self, String> {
        // SAFETY: only looks whether the library is there.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcuda.so, the NVIDIA driver, was not found".into());
        }
        let failed = |error| format!("CUDA: {}", explained(error));
        let context = cudarc::driver::CudaContext::new(0).map_err(failed)?;
        let attribute = |attribute| context.attribute(attribute).map_err(failed);
        use sys::CUdevice_attribute as Attribute;
        let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let name = context.name().map_err(failed)?;
        Ok(Self {
            context,
            integrated,
            target: format!("sm_{major}{minor}"),
            name,
        })
    }

    /// The compute capability, `sm_87`.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// The GPU's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Memory that is free, and all there is.
    pub(super) fn memory(&self) -> Result<(Bytes, Bytes), String> {
        self.bind()?;
        let (free, total) = cudarc::driver::result::mem_get_info().map_err(explained)?;
        Ok((Bytes::from(free), Bytes::from(total)))
    }

    /// Makes the GPU's context the calling thread's.
    fn bind(&self) -> Result<(), String> {
        self.context
            .bind_to_thread()
            .map_err(|error| format!("CUDA: {}", explained(error)))
    }

    /// The same GPU as if it shared its memory with the host: tests the way of integrated GPUs on a discrete one.
    #[cfg(test)]
    pub(super) fn mapped(&self) -> Self {
        Self {
            context: Arc::clone(&self.context),
            integrated: true,
            target: self.target.clone(),
            name: self.name.clone(),
        }
    }

    /// `check` for what takes memory: says how much was asked for and how much there is.
    fn check_memory(&self, what: &str, bytes: usize, result: sys::CUresult) -> Result<(), String> {
        check(what, result).map_err(|error| {
            let free = self.memory().map_or_else(
                |error| error,
                |(free, total)| format!("{free} of the GPU's {total} are free"),
            );
            format!("{error}: {} were asked for, {free}", Bytes::from(bytes))
        })
    }
}

impl Device for CudaDevice {
    fn make_current(&self) -> Result<(), String> {
        self.bind()
    }

    fn new_stream(&self) -> Result<Stream, String> {
        self.bind()?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the place is live; the context is this thread's.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32)
        })?;
        Ok(Stream::new(stream.cast()))
    }

    fn free_stream(&self, stream: Stream) {
        // SAFETY: made by `new_stream`; the caller gives it up. Errors of tearing down have nobody to go to.
        let _ = self
            .bind()
            .map(|()| unsafe { sys::cuStreamDestroy_v2(stream.raw().cast()) });
    }

    fn allocate(&self, bytes: usize) -> Result<Memory, String> {
        self.bind()?;
        let mut address = 0;
        // SAFETY: the place is live. The driver aligns to at least the 256 bytes that TensorRT wants.
        self.check_memory("cuMemAlloc", bytes, unsafe {
            sys::cuMemAlloc_v2(&mut address, bytes.max(1))
        })?;
        Ok(Memory { address, bytes })
    }

    fn free(&self, memory: Memory) {
        // SAFETY: made by `allocate`; the caller gives it up.
        let _ = self.bind().map(|()| unsafe { sys::cuMemFree_v2(memory.address) });
    }

    fn allocate_shared(&self, bytes: usize) -> Result<Shared, String> {
        self.bind()?;
        let mut host = std::ptr::null_mut();
        // SAFETY: the place is live.
        self.check_memory("cuMemHostAlloc", bytes, unsafe {
            sys::cuMemHostAlloc(&mut host, bytes.max(1), sys::CU_MEMHOSTALLOC_DEVICEMAP)
        })?;
        let mut shared = Shared {
            host: host.cast(),
            device: 0,
            bytes,
        };
        let device = if self.integrated {
            // SAFETY: the memory was allocated as mapped.
            check("cuMemHostGetDevicePointer", unsafe {
                sys::cuMemHostGetDevicePointer_v2(&mut shared.device, host, 0)
            })
        } else {
            self.allocate(bytes).map(|memory| shared.device = memory.address)
        };
        if let Err(error) = device {
            // SAFETY: allocated above and given to nobody.
            let _ = unsafe { sys::cuMemFreeHost(host) };
            return Err(error);
        }
        Ok(shared)
    }

    fn free_shared(&self, memory: Shared) {
        if self.bind().is_err() {
            return;
        }
        if !self.integrated {
            self.free(Memory {
                address: memory.device,
                bytes: memory.bytes,
            });
        }
        // SAFETY: made by `allocate_shared`; the caller gives it up.
        let _ = unsafe { sys::cuMemFreeHost(memory.host.cast()) };
    }

    fn to_device(&self, memory: &Shared, stream: &Stream) -> Result<(), String> {
        if self.integrated || memory.bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: both sides are `bytes` long and stay until the stream was synchronized.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(
                memory.device,
                memory.host.cast(),
                memory.bytes,
                stream.raw().cast(),
            )
        })
    }

    fn to_host(&self, memory: &Shared, stream: &Stream) -> Result<(), String> {
        if self.integrated || memory.bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: both sides are `bytes` long and stay until the stream was synchronized.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(
                memory.host.cast(),
                memory.device,
                memory.bytes,
                stream.raw().cast(),
            )
        })
    }

    fn synchronize(&self, stream: &Stream) -> Result<(), String> {
        self.bind()?;
        // SAFETY: a live stream.
        check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(stream.raw().cast())
        })
    }

    fn begin_capture(&self, stream: &Stream) -> Result<(), String> {
        self.bind()?;
        // SAFETY: a live stream. Other threads may allocate while this one records.
        check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(
                stream.raw().cast(),
                sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            )
        })
    }

    fn end_capture(&self, stream: &Stream) -> Result<Graph, String> {
        self.bind()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: a live stream that is being captured.
        check("cuStreamEndCapture", unsafe {
            sys::cuStreamEndCapture(stream.raw().cast(), &mut graph)
        })?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph came from the capture; it is not needed once it is instantiated.
        let instantiated = check("cuGraphInstantiate", unsafe {
            sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
        });
        // SAFETY: as above.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        instantiated.map(|()| Graph::new(executable.cast()))
    }

    fn launch(&self, graph: &Graph, stream: &Stream) -> Result<(), String> {
        self.bind()?;
        // SAFETY: an instantiated graph and a live stream.
        check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(graph.0.cast(), stream.raw().cast())
        })
    }

    fn free_graph(&self, graph: Graph) {
        // SAFETY: made by `end_capture`; the caller gives it up.
        let _ = self
            .bind()
            .map(|()| unsafe { sys::cuGraphExecDestroy(graph.0.cast()) });
    }
}

/// The compute capability of the first GPU, `sm_87`.
///
/// # Errors
/// When there is no driver or no GPU.
pub fn gpu() -> Result<String, String> {
    Ok(CudaDevice::open()?.target().to_owned())
}
