//! Finding and opening TensorRT and the plugin that may talk to it.
//!
//! A plugin of the wrong family does not fail, it crashes. So the library is identified first (by its file name, its
//! version symbol and the number it reports), and a plugin is asked for nothing but its table's header before the two
//! are known to match.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};

use super::abi::{self, Table};
use super::identity::{Identity, Product, of_plugin_file};
use crate::RuntimeError;

/// The environment variable that names the folder of TensorRT's libraries, before every other place.
pub const LIBRARY_VARIABLE: &str = "EDGEOPT_TENSORRT_LIB";

/// The environment variable that names the folder of the plugins.
pub const PLUGIN_VARIABLE: &str = "EDGEOPT_TENSORRT_PLUGINS";

/// TensorRT, its ONNX parser and a plugin, opened for the rest of the process.
pub struct Library {
    /// What was found.
    pub identity: Identity,
    /// Where TensorRT was found.
    pub path: PathBuf,
    /// The plugin that talks to it.
    pub plugin: PathBuf,
    pub(super) table: &'static Table,
    pub(super) entries: abi::EntryPoints,
    pub(super) _opened: Vec<Opened>,
}

// SAFETY: the entry points and the table are constants of libraries that stay open; contexts made from them are what is
// bound to a thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.identity, self.path.display())
    }
}

/// Names of the pair of libraries of one product, newest first.
struct Names {
    product: Product,
    infer: &'static str,
    parser: &'static str,
}

const PAIRS: [Names; 6] = [
    Names {
        product: Product::TensorRt,
        infer: "libnvinfer.so.11",
        parser: "libnvonnxparser.so.11",
    },
    Names {
        product: Product::TensorRt,
        infer: "libnvinfer.so.10",
        parser: "libnvonnxparser.so.10",
    },
    Names {
        product: Product::TensorRt,
        infer: "libnvinfer.so.8",
        parser: "libnvonnxparser.so.8",
    },
    Names {
        product: Product::TensorRt,
        infer: "libnvinfer.so",
        parser: "libnvonnxparser.so",
    },
    Names {
        product: Product::Rtx,
        infer: "libtensorrt_rtx.so.1",
        parser: "libtensorrt_onnxparser_rtx.so.1",
    },
    Names {
        product: Product::Rtx,
        infer: "libtensorrt_rtx.so",
        parser: "libtensorrt_onnxparser_rtx.so",
    },
];

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Folders of TensorRT's libraries; an empty path leaves the search to the system's loader.
    pub libraries: Vec<PathBuf>,
    /// Folders of plugins.
    pub plugins: Vec<PathBuf>,
}

impl Places {
    /// The usual places: what the environment names (then nothing else), the executable's folder, the checkout's cache,
    /// the system.
    pub fn usual() -> Self {
        let named = |variable| {
            std::env::var_os(variable)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let executable = std::env::current_exe().ok();
        let beside = executable.as_deref().and_then(Path::parent);
        let current = std::env::current_dir().ok();
        let checkouts: Vec<&Path> = [beside, current.as_deref()]
            .into_iter()
            .flatten()
            .filter_map(|start| {
                start
                    .ancestors()
                    .find(|folder| folder.join("Cargo.lock").is_file())
            })
            .collect();
        let folders = |variable, inside: &str, system: &[&str]| match named(variable) {
            Some(folder) => vec![folder],
            None => {
                let mut folders: Vec<PathBuf> = beside.map(Path::to_owned).into_iter().collect();
                folders.extend(checkouts.iter().map(|checkout| checkout.join(inside)));
                folders.extend(system.iter().map(PathBuf::from));
                folders.dedup();
                folders
            }
        };
        Self {
            libraries: folders(LIBRARY_VARIABLE, ".cache/tensorrt/lib", &[""]),
            plugins: folders(PLUGIN_VARIABLE, ".cache/tensorrt/plugins", &["/usr/lib/edgeopt"]),
        }
    }
}

impl Library {
    /// Opens the first TensorRT that works, of `product` if that is given.
    ///
    /// # Errors
    /// With every place that was tried and what was wrong there.
    pub fn find(product: Option<Product>, places: &Places) -> Result<Self, RuntimeError> {
        let mut tried = Vec::new();
        for folder in &places.libraries {
            for names in PAIRS
                .iter()
                .filter(|names| product.is_none_or(|wanted| wanted == names.product))
            {
                let path = folder.join(names.infer);
                let infer = match open(&path) {
                    Ok(library) => library,
                    Err(problem) => {
                        // A folder without the file needs no line for each of its possible names.
                        if folder.as_os_str().is_empty() || path.exists() {
                            tried.push(format!("{}: {problem}", path.display()));
                        }
                        continue;
                    }
                };
                match Self::complete(infer, names, folder, places, &mut tried) {
                    Ok(library) => return Ok(library),
                    Err(problem) => tried.push(format!("{}: {problem}", path.display())),
                }
            }
            if !folder.as_os_str().is_empty() && !PAIRS.iter().any(|names| folder.join(names.infer).exists())
            {
                tried.push(format!(
                    "{}: no libnvinfer or libtensorrt_rtx in it",
                    folder.display()
                ));
            }
        }
        Err(RuntimeError::LibraryNotFound {
            library: "TensorRT with a matching plugin",
            tried,
        })
    }

    fn complete(
        infer: Opened,
        names: &Names,
        folder: &Path,
        places: &Places,
        tried: &mut Vec<String>,
    ) -> Result<Self, String> {
        let identity = identify(&infer, names.product)?;
        if identity.family().is_none() {
            return Err(format!("{identity} is not among the versions this program knows"));
        }
        let parser_path = folder.join(names.parser);
        let parser = open(&parser_path)?;
        let entries = abi::EntryPoints {
            size: size_of::<abi::EntryPoints>() as u32,
            create_builder: symbol(&infer, "createInferBuilder_INTERNAL")?,
            create_runtime: symbol(&infer, "createInferRuntime_INTERNAL")?,
            create_parser: symbol(&parser, "createNvOnnxParser_INTERNAL")?,
        };
        let (plugin, opened, table) = find_plugin(identity, &places.plugins, tried)?;
        Ok(Self {
            identity,
            path: folder.join(names.infer),
            plugin,
            table,
            entries,
            _opened: vec![infer, parser, opened],
        })
    }
}

fn open(path: &Path) -> Result<Opened, String> {
    // SAFETY: TensorRT's and our own libraries have initializers that may run at any time.
    unsafe { Opened::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        // libloading's text repeats the path.
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })
}

fn symbol(library: &Opened, name: &str) -> Result<*mut c_void, String> {
    // SAFETY: only the address is taken; who calls it knows its type.
    let found = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
    found
        .map(libloading::os::unix::Symbol::into_raw)
        .map_err(|_| format!("it has no {name}"))
}

/// Which TensorRT an opened library is. A file may be renamed, so its name is believed only if the library agrees:
/// TensorRT-RTX 1.x reports numbers below 20000, TensorRT none between 10000 and 79999.
fn identify(library: &Opened, product: Product) -> Result<Identity, String> {
    let address = symbol(library, "getInferLibVersion")?;
    // SAFETY: every version declares it so: no arguments, a 32-bit number.
    let version: extern "C" fn() -> i32 = unsafe { std::mem::transmute(address) };
    let number = version();
    let says = if (10_000..80_000).contains(&number) {
        Product::Rtx
    } else {
        Product::TensorRt
    };
    if says != product {
        return Err(format!(
            "named as {product}, but its version number {number} is one of {says}"
        ));
    }
    Identity::from_number(product, number).ok_or_else(|| format!("version number {number} is not known"))
}

/// The plugin for `identity`: the one compiled for the newest headers that it accepts.
fn find_plugin(
    identity: Identity,
    folders: &[PathBuf],
    tried: &mut Vec<String>,
) -> Result<(PathBuf, Opened, &'static Table), String> {
    let mut candidates = Vec::new();
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(folder) else {
            tried.push(format!("{}: not a folder that can be read", folder.display()));
            continue;
        };
        let files = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let named =
            files.filter_map(|path| Some((of_plugin_file(&path.file_name()?.to_string_lossy())?, path)));
        let before = candidates.len();
        candidates.extend(named);
        if candidates.len() == before {
            tried.push(format!(
                "{}: no plugin (libedgeopt_tensorrt_*.so) in it",
                folder.display()
            ));
        }
    }
    candidates.sort_by_key(|(headers, _)| std::cmp::Reverse(*headers));
    for (headers, path) in candidates {
        match identity
            .accepts(headers)
            .and_then(|()| open_plugin(&path, identity))
        {
            Ok((opened, table)) => return Ok((path, opened, table)),
            Err(problem) => tried.push(format!("plugin {}: {problem}", path.display())),
        }
    }
    Err(format!(
        "there is no plugin for {identity}; compile one with runtime/tensorrt-plugin/build.sh (docs/tensorrt.md)"
    ))
}

/// Opens a plugin and checks what it says about itself before anything else of it is used.
fn open_plugin(path: &Path, identity: Identity) -> Result<(Opened, &'static Table), String> {
    let opened = open(path)?;
    let address = symbol(&opened, "edgeopt_tensorrt")?;
    // SAFETY: the plugin's one function; it returns a constant of the library, which stays open as long as the table is
    // used. Its first two fields have been the same in every version.
    let table: &'static Table = unsafe {
        let table: extern "C" fn() -> *const Table = std::mem::transmute(address);
        table().as_ref().ok_or("it has no table")?
    };
    if table.abi != abi::ABI || table.size as usize != size_of::<Table>() {
        return Err(format!(
            "its interface is version {} of {} bytes, this program needs {} of {}; compile it again",
            table.abi,
            table.size,
            abi::ABI,
            size_of::<Table>()
        ));
    }
    identity.accepts(Identity::of_headers(table.is_rtx != 0, table.header_version))?;
    Ok((opened, table))
}
