//! The plugin's C interface, as `tensorrt-plugin/include/edgeopt_tensorrt.h` declares it.
//!
//! Both sides must agree to the byte: the table says its size and version, and a test compares the constants and field
//! names with the header.

use std::ffi::{c_char, c_void};

/// `EDGEOPT_TENSORRT_ABI`.
pub(super) const ABI: u32 = 1;
/// `EDGEOPT_TENSORRT_MAX_RANK`.
pub(super) const MAX_RANK: usize = 8;

/// Results of functions, `EDGEOPT_…`.
pub(super) mod status {
    pub(in super::super) const OK: i32 = 0;
    pub(in super::super) const PARSE: i32 = 2;
    pub(in super::super) const PROFILE: i32 = 3;
    pub(in super::super) const UNSUPPORTED: i32 = 7;
}

/// Who reports an error, `EDGEOPT_FROM_…`.
pub(super) mod source {
    pub(in super::super) const PARSER: i32 = 1;
    pub(in super::super) const PLUGIN: i32 = 2;
}

/// What happens in a build.
pub(super) mod event {
    pub(in super::super) const PHASE_BEGINS: i32 = 0;
    pub(in super::super) const STEP_DONE: i32 = 1;
}

/// What a family can do, `EDGEOPT_HAS_…`.
pub(super) mod ability {
    pub(in super::super) const WEAK_TYPES: u32 = 1 << 6;
    pub(in super::super) const STRONG_TYPES: u32 = 1 << 7;
}

/// How to build, `EDGEOPT_…`.
pub(super) mod flag {
    pub(in super::super) const STRONGLY_TYPED: u32 = 1 << 0;
    pub(in super::super) const ALLOW_FP16: u32 = 1 << 1;
    pub(in super::super) const ALLOW_INT8: u32 = 1 << 2;
    pub(in super::super) const VERSION_COMPATIBLE: u32 = 1 << 3;
    pub(in super::super) const STRIPPED: u32 = 1 << 4;
    pub(in super::super) const REFITTABLE: u32 = 1 << 5;
    pub(in super::super) const WEIGHT_STREAMING: u32 = 1 << 6;
    pub(in super::super) const SPARSE: u32 = 1 << 7;
    pub(in super::super) const DETAILED: u32 = 1 << 8;
    pub(in super::super) const GPU_FALLBACK: u32 = 1 << 9;
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct EntryPoints {
    pub(super) size: u32,
    pub(super) create_builder: *mut c_void,
    pub(super) create_runtime: *mut c_void,
    pub(super) create_parser: *mut c_void,
}

#[repr(C)]
pub(super) struct Callbacks {
    pub(super) size: u32,
    pub(super) user: *mut c_void,
    pub(super) log: Option<unsafe extern "C" fn(*mut c_void, i32, *const c_char)>,
    pub(super) progress:
        Option<unsafe extern "C" fn(*mut c_void, i32, *const c_char, *const c_char, i32) -> i32>,
    pub(super) allocate: Option<unsafe extern "C" fn(*mut c_void, u64, u64, *mut c_void) -> *mut c_void>,
    pub(super) deallocate: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> i32>,
    pub(super) error:
        Option<unsafe extern "C" fn(*mut c_void, i32, i32, *const c_char, *const c_char, *const c_char)>,
    pub(super) tensor: Option<unsafe extern "C" fn(*mut c_void, i32, *const c_char, i32, i32, *const i64)>,
}

#[repr(C)]
pub(super) struct ShapeRange {
    pub(super) input: *const c_char,
    pub(super) rank: i32,
    pub(super) min: [i64; MAX_RANK],
    pub(super) opt: [i64; MAX_RANK],
    pub(super) max: [i64; MAX_RANK],
}

#[repr(C)]
pub(super) struct BuildOptions {
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) workspace: u64,
    pub(super) tactic_memory: u64,
    pub(super) optimization_level: i32,
    pub(super) max_tactics: i32,
    pub(super) auxiliary_streams: i32,
    pub(super) threads: i32,
    pub(super) dla_core: i32,
    pub(super) shape_count: i32,
    pub(super) shapes: *const ShapeRange,
    pub(super) timing_cache: *const c_void,
    pub(super) timing_cache_bytes: u64,
}

pub(super) type Sink = unsafe extern "C" fn(*mut c_void, *const c_void, u64);

/// Opaque objects of the plugin.
pub(super) type Context = c_void;
pub(super) type PluginEngine = c_void;
pub(super) type Execution = c_void;

#[repr(C)]
pub(super) struct Table {
    pub(super) size: u32,
    pub(super) abi: u32,
    pub(super) header_version: u32,
    pub(super) is_rtx: u32,
    pub(super) abilities: u32,
    pub(super) open: unsafe extern "C" fn(*const EntryPoints, *const Callbacks) -> *mut Context,
    pub(super) close: unsafe extern "C" fn(*mut Context),
    #[allow(clippy::type_complexity)]
    pub(super) build: unsafe extern "C" fn(
        *mut Context,
        *const c_void,
        u64,
        *const c_char,
        *const BuildOptions,
        Sink,
        Option<Sink>,
        *mut c_void,
    ) -> i32,
    pub(super) load: unsafe extern "C" fn(*mut Context, *const c_void, u64, *mut *mut PluginEngine) -> i32,
    pub(super) unload: unsafe extern "C" fn(*mut PluginEngine),
    pub(super) describe: unsafe extern "C" fn(*mut PluginEngine) -> i32,
    pub(super) context_memory: unsafe extern "C" fn(*mut PluginEngine) -> i64,
    pub(super) inspect: unsafe extern "C" fn(*mut PluginEngine, Sink, *mut c_void) -> i32,
    pub(super) new_execution: unsafe extern "C" fn(*mut PluginEngine, *mut *mut Execution) -> i32,
    pub(super) free_execution: unsafe extern "C" fn(*mut Execution),
    pub(super) select_profile: unsafe extern "C" fn(*mut Execution, i32, *mut c_void) -> i32,
    pub(super) set_shape: unsafe extern "C" fn(*mut Execution, *const c_char, i32, *const i64) -> i32,
    pub(super) shape: unsafe extern "C" fn(*mut Execution, *const c_char, *mut i32, *mut i64) -> i32,
    pub(super) needed_memory: unsafe extern "C" fn(*mut Execution) -> i64,
    pub(super) set_memory: unsafe extern "C" fn(*mut Execution, *mut c_void, i64) -> i32,
    pub(super) set_address: unsafe extern "C" fn(*mut Execution, *const c_char, *mut c_void) -> i32,
    pub(super) enqueue: unsafe extern "C" fn(*mut Execution, *mut c_void) -> i32,
}

#[cfg(test)]
mod tests {
    //! The header is the truth; these find a constant or a field that was changed on one side alone.

    const HEADER: &str = include_str!("../../../tensorrt-plugin/include/edgeopt_tensorrt.h");
    const SOURCE: &str = include_str!("abi.rs");

    /// Field and parameter-carrying names of a structure, in order.
    fn fields(text: &str, from: &str, to: &str, name_of: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let start = text.find(from).unwrap_or_else(|| panic!("no {from}"));
        let end = text[start..].find(to).unwrap() + start;
        text[start..end].lines().skip(1).filter_map(name_of).collect()
    }

    #[test]
    fn constants_match_the_header() {
        for (name, value) in [
            ("ABI 1u", super::ABI == 1),
            ("MAX_RANK 8", super::MAX_RANK == 8),
            ("PARSE = 2", super::status::PARSE == 2),
            ("PROFILE = 3", super::status::PROFILE == 3),
            ("UNSUPPORTED = 7", super::status::UNSUPPORTED == 7),
            ("FROM_PARSER = 1", super::source::PARSER == 1),
            ("FROM_PLUGIN = 2", super::source::PLUGIN == 2),
            ("HAS_WEAK_TYPES = 1 << 6", super::ability::WEAK_TYPES == 1 << 6),
            (
                "HAS_STRONG_TYPES = 1 << 7",
                super::ability::STRONG_TYPES == 1 << 7,
            ),
            ("STRONGLY_TYPED = 1 << 0", super::flag::STRONGLY_TYPED == 1),
            ("DETAILED = 1 << 8", super::flag::DETAILED == 1 << 8),
            ("GPU_FALLBACK = 1 << 9", super::flag::GPU_FALLBACK == 1 << 9),
        ] {
            assert!(value && HEADER.contains(name), "{name}");
        }
    }

    #[test]
    fn fields_match_the_header_in_order() {
        let rust = |line: &str| {
            let name = line.trim().strip_prefix("pub(super) ")?.split_once(':')?.0;
            Some(name.to_owned())
        };
        let c = |line: &str| {
            let line = line.trim().split("/*").next()?.trim();
            if let Some(at) = line.find("(*") {
                return Some(line[at + 2..].split(')').next()?.to_owned());
            }
            let name = line.strip_suffix(';')?.rsplit([' ', '*']).next()?;
            (!name.contains(')')).then(|| name.split('[').next().unwrap_or(name).to_owned())
        };
        for (rust_name, c_end) in [
            ("EntryPoints", "} edgeopt_entry_points;"),
            ("Callbacks", "} edgeopt_callbacks;"),
            ("ShapeRange", "} edgeopt_shape_range;"),
            ("BuildOptions", "} edgeopt_build_options;"),
            ("Table", "} edgeopt_tensorrt_table;"),
        ] {
            let end = HEADER.find(c_end).unwrap();
            let start = HEADER[..end].rfind("typedef struct {").unwrap();
            let in_header = fields(&HEADER[start..end + 1], "typedef struct {", "}", c);
            let in_rust = fields(SOURCE, &format!("struct {rust_name} {{"), "\n}", rust);
            assert_eq!(in_rust, in_header, "{rust_name}");
        }
    }
}
