//! Tests on a GPU (`make test-gpu`): [`CudaDevice`] itself, and sessions over it whose "engine" is a few kernels of ours in
//! the place of TensorRT's. Each takes the GPU for itself, since free memory is compared.
#![allow(unsafe_code)]

mod device_tests;
mod kernels;
mod measure;
mod sessions;

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys;

use super::device::{Address, CudaDevice, Device, Stream};

/// Adds one to each of `count` numbers. For compute capability 7.2, the oldest of a supported JetPack; newer GPUs compile
/// it when it is loaded.
const ADD_ONE: &std::ffi::CStr = c"
.version 7.0
.target sm_72
.address_size 64
.visible .entry add_one(.param .u64 source, .param .u64 target, .param .u32 count)
{
    .reg .pred %outside;
    .reg .b32 %block, %width, %thread, %index, %many;
    .reg .b64 %in, %out, %offset;
    .reg .f32 %value;
    ld.param.u64 %in, [source];
    ld.param.u64 %out, [target];
    ld.param.u32 %many, [count];
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %block, %width, %thread;
    setp.ge.u32 %outside, %index, %many;
    @%outside bra done;
    cvta.to.global.u64 %in, %in;
    cvta.to.global.u64 %out, %out;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %in, %in, %offset;
    add.u64 %out, %out, %offset;
    ld.global.f32 %value, [%in];
    add.f32 %value, %value, 0f3F800000;
    st.global.f32 [%out], %value;
done:
    ret;
}
";

/// What free memory may differ by: the driver keeps pools of its own.
const POOLS: u64 = 4 << 20;

/// The GPU, and a kernel on it.
struct Gpu {
    /// As it is: H200 and the like copy.
    device: Arc<CudaDevice>,
    /// The same as if it shared its memory with the host.
    mapped: Arc<CudaDevice>,
    add_one: usize,
    alone: Mutex<()>,
}

/// The GPU, opened once; the tests are only run where there is one.
fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| {
        let device = CudaDevice::open().expect("these tests need a GPU");
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        device.make_current().unwrap();
        // SAFETY: text that ends with a zero byte; the module stays for the rest of the process.
        unsafe {
            ok(sys::cuModuleLoadData(&mut module, ADD_ONE.as_ptr().cast()));
            ok(sys::cuModuleGetFunction(
                &mut function,
                module,
                c"add_one".as_ptr(),
            ));
        }
        Gpu {
            mapped: Arc::new(device.mapped()),
            device: Arc::new(device),
            add_one: function as usize,
            alone: Mutex::default(),
        }
    })
}

impl Gpu {
    /// Keeps other tests from running at the same time.
    fn alone(&self) -> MutexGuard<'_, ()> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues `to[i] = from[i] + 1` for `count` numbers.
    fn add_one(&self, from: Address, to: Address, count: usize, stream: &Stream) -> sys::CUresult {
        launch(self.add_one, from, to, count, stream.raw())
    }

    fn free_bytes(&self) -> u64 {
        self.device.memory().unwrap().0.0
    }
}

/// Enqueues the kernel on a raw stream.
fn launch(kernel: usize, from: Address, to: Address, count: usize, stream: *mut c_void) -> sys::CUresult {
    if count == 0 {
        return sys::CUresult::CUDA_SUCCESS;
    }
    const WIDTH: u32 = 256;
    let (mut from, mut to, mut count) = (from, to, u32::try_from(count).unwrap());
    let mut arguments: [*mut c_void; 3] = [
        (&raw mut from).cast(),
        (&raw mut to).cast(),
        (&raw mut count).cast(),
    ];
    // SAFETY: three arguments as the kernel declares them, read before the call returns.
    unsafe {
        sys::cuLaunchKernel(
            kernel as sys::CUfunction,
            count.div_ceil(WIDTH),
            1,
            1,
            WIDTH,
            1,
            1,
            0,
            stream.cast(),
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }
}

fn ok(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}
