//! Giving freed memory back to the system.
#![allow(unsafe_code)]

/// Blocks from this size on (in bytes) are mapped on their own, and unmapped when freed.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: libc::c_int = 256 << 10;

/// Above any activation of an image model of ordinary size.
#[cfg(target_env = "gnu")]
const KEPT_TO: libc::c_int = 32 << 20;

/// Tells the C allocator to return large blocks to the system as soon as they are freed. Left alone, glibc raises its
/// threshold to the largest block it has seen freed, up to 32 MiB, and a library that rearranges weights while
/// loading leaves the process with the holes: 154 MiB of them for a ResNet-50 of 98 MiB. To be called before
/// weights are loaded; does nothing with other C libraries.
pub(crate) fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets one number of the allocator, under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MAPPED_FROM);
    }
}

/// The opposite, for what is allocated and freed over and over again: blocks below `KEPT_TO` bytes stay with the process.
/// Mapping them anew each time means clearing their pages each time, which doubles the time of an inference whose library
/// keeps no memory of its own from one run to the next.
pub(crate) fn keep_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets numbers of the allocator, under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_TO);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_TO);
    }
}

/// Returns what is free in the C allocator's heaps to the system; does nothing with other C libraries.
pub(crate) fn return_holes() {
    #[cfg(target_env = "gnu")]
    // SAFETY: releases unused pages, under the allocator's own lock.
    unsafe {
        libc::malloc_trim(0);
    }
}
