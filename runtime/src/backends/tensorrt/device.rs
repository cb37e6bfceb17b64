//! What execution needs of CUDA: memory, a stream, graphs. A trait, so that the order of calls can be tested without a
//! GPU; the real one goes through the driver, loaded at run time.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;
use edgeopt_models::Bytes;

/// An address on the device.
pub(super) type Address = u64;

/// A stream of work.
pub(super) type Stream = *mut c_void;

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
pub(super) type Graph = *mut c_void;

/// A GPU.
pub(super) trait Device: Send + Sync {
    fn new_stream(&self) -> Result<Stream, String>;
    fn free_stream(&self, stream: Stream);
    fn allocate(&self, bytes: usize) -> Result<Address, String>;
    fn free(&self, memory: Address);
    fn allocate_shared(&self, bytes: usize) -> Result<Shared, String>;
    fn free_shared(&self, memory: Shared);
    /// Enqueues a copy to the device; does nothing on integrated GPUs.
    fn to_device(&self, memory: &Shared, stream: Stream) -> Result<(), String>;
    /// Enqueues a copy to the host; does nothing on integrated GPUs.
    fn to_host(&self, memory: &Shared, stream: Stream) -> Result<(), String>;
    fn synchronize(&self, stream: Stream) -> Result<(), String>;
    /// Records what is enqueued until `end_capture`.
    fn begin_capture(&self, stream: Stream) -> Result<(), String>;
    fn end_capture(&self, stream: Stream) -> Result<Graph, String>;
    fn launch(&self, graph: Graph, stream: Stream) -> Result<(), String>;
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
        error => Err(format!("{what}: {error:?}")),
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
        let failed = |error: cudarc::driver::DriverError| format!("CUDA: {error:?}");
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
        let (free, total) = cudarc::driver::result::mem_get_info().map_err(|error| format!("{error:?}"))?;
        Ok((Bytes::from(free), Bytes::from(total)))
    }

    /// Makes the GPU's context the calling thread's.
    fn bind(&self) -> Result<(), String> {
        self.context
            .bind_to_thread()
            .map_err(|error| format!("CUDA: {error:?}"))
    }
}

impl Device for CudaDevice {
    fn new_stream(&self) -> Result<Stream, String> {
        self.bind()?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: the place is live; the context is this thread's.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32)
        })?;
        Ok(stream.cast())
    }

    fn free_stream(&self, stream: Stream) {
        // SAFETY: made by `new_stream`; the caller gives it up. Errors of tearing down have nobody to go to.
        let _ = self
            .bind()
            .map(|()| unsafe { sys::cuStreamDestroy_v2(stream.cast()) });
    }

    fn allocate(&self, bytes: usize) -> Result<Address, String> {
        self.bind()?;
        let mut memory = 0;
        // SAFETY: the place is live.
        check("cuMemAlloc", unsafe {
            sys::cuMemAlloc_v2(&mut memory, bytes.max(1))
        })?;
        Ok(memory)
    }

    fn free(&self, memory: Address) {
        // SAFETY: made by `allocate`; the caller gives it up.
        let _ = self.bind().map(|()| unsafe { sys::cuMemFree_v2(memory) });
    }

    fn allocate_shared(&self, bytes: usize) -> Result<Shared, String> {
        self.bind()?;
        let mut host = std::ptr::null_mut();
        // SAFETY: the place is live.
        check("cuMemHostAlloc", unsafe {
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
            self.allocate(bytes).map(|memory| shared.device = memory)
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
            self.free(memory.device);
        }
        // SAFETY: made by `allocate_shared`; the caller gives it up.
        let _ = unsafe { sys::cuMemFreeHost(memory.host.cast()) };
    }

    fn to_device(&self, memory: &Shared, stream: Stream) -> Result<(), String> {
        if self.integrated {
            return Ok(());
        }
        // SAFETY: both sides are `bytes` long and stay until the stream was synchronized.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(memory.device, memory.host.cast(), memory.bytes, stream.cast())
        })
    }

    fn to_host(&self, memory: &Shared, stream: Stream) -> Result<(), String> {
        if self.integrated {
            return Ok(());
        }
        // SAFETY: both sides are `bytes` long and stay until the stream was synchronized.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(memory.host.cast(), memory.device, memory.bytes, stream.cast())
        })
    }

    fn synchronize(&self, stream: Stream) -> Result<(), String> {
        // SAFETY: a live stream.
        check("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(stream.cast())
        })
    }

    fn begin_capture(&self, stream: Stream) -> Result<(), String> {
        self.bind()?;
        // SAFETY: a live stream.
        check("cuStreamBeginCapture", unsafe {
            sys::cuStreamBeginCapture_v2(
                stream.cast(),
                sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            )
        })
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph, String> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: a live stream that is being captured.
        check("cuStreamEndCapture", unsafe {
            sys::cuStreamEndCapture(stream.cast(), &mut graph)
        })?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph came from the capture; it is not needed once it is instantiated.
        let instantiated = check("cuGraphInstantiate", unsafe {
            sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
        });
        // SAFETY: as above.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
        instantiated.map(|()| executable.cast())
    }

    fn launch(&self, graph: Graph, stream: Stream) -> Result<(), String> {
        self.bind()?;
        // SAFETY: an instantiated graph and a live stream.
        check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(graph.cast(), stream.cast())
        })
    }

    fn free_graph(&self, graph: Graph) {
        // SAFETY: made by `end_capture`; the caller gives it up.
        let _ = self
            .bind()
            .map(|()| unsafe { sys::cuGraphExecDestroy(graph.cast()) });
    }
}

/// The compute capability of the first GPU, `sm_87`.
///
/// # Errors
/// When there is no driver or no GPU.
pub fn gpu() -> Result<String, String> {
    Ok(CudaDevice::open()?.target().to_owned())
}
