//! Finding ONNX Runtime's shared library.

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use ort_sys::{OrtApi, OrtApiBase};

use crate::RuntimeError;

/// The environment variable that names the library, before every other place.
pub const LIBRARY_VARIABLE: &str = "EDGEOPT_ORT_DYLIB";

/// ONNX Runtime's minor version whose interface this build uses; later ones carry it too.
const OLDEST_MINOR: u32 = ort_sys::ORT_API_VERSION;

/// Where a release of ONNX Runtime keeps its name on Linux, with or without a version behind it.
const FILE_NAME: &str = "libonnxruntime.so";

/// The library, opened for the rest of the process.
pub(super) struct Library {
    pub(super) api: &'static OrtApi,
    pub(super) version: String,
    pub(super) path: PathBuf,
}

/// Opens the first library that works.
///
/// Looked at in this order: the file that [`LIBRARY_VARIABLE`] names (when it is set, nothing else is tried, so
/// that a typing mistake never picks another library silently), the executable's folder, `.cache/onnxruntime` of
/// the checkout around the executable or the current folder, and what the system's loader finds.
///
/// # Errors
/// With every place and what was wrong there.
pub(super) fn find() -> Result<Library, RuntimeError> {
    let named = std::env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty());
    let executable = std::env::current_exe().ok();
    let executable_folder = executable.as_deref().and_then(Path::parent);
    let current = std::env::current_dir().ok();
    let mut tried = Vec::new();
    for place in places(named.map(PathBuf::from), executable_folder, current.as_deref()) {
        for file in place.files(&mut tried) {
            match open(&file) {
                Ok(library) => return Ok(library),
                Err(problem) => tried.push(format!("{}: {problem}", file.display())),
            }
        }
    }
    Err(RuntimeError::LibraryNotFound {
        library: "ONNX Runtime (libonnxruntime.so, 1.24 or later)",
        tried,
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Exactly this file, or a bare name for the system's loader.
    File(PathBuf),
    /// Any `libonnxruntime.so*` in this folder, the latest first.
    Folder(PathBuf),
}

fn places(named: Option<PathBuf>, executable: Option<&Path>, current: Option<&Path>) -> Vec<Place> {
    if let Some(file) = named {
        return vec![Place::File(file)];
    }
    let mut places = Vec::new();
    let mut add = |place: Place| {
        if !places.contains(&place) {
            places.push(place);
        }
    };
    if let Some(folder) = executable {
        add(Place::Folder(folder.into()));
    }
    for start in [executable, current].into_iter().flatten() {
        let checkout = start
            .ancestors()
            .find(|folder| folder.join("Cargo.lock").is_file());
        if let Some(checkout) = checkout {
            add(Place::Folder(checkout.join(".cache/onnxruntime")));
        }
    }
    add(Place::File(FILE_NAME.into()));
    add(Place::File(format!("{FILE_NAME}.1").into()));
    places
}

impl Place {
    /// The files to open; says in `tried` when a folder has none.
    fn files(self, tried: &mut Vec<String>) -> Vec<PathBuf> {
        let folder = match self {
            Self::File(file) => return vec![file],
            Self::Folder(folder) => folder,
        };
        let mut files: Vec<PathBuf> = match std::fs::read_dir(&folder) {
            Ok(entries) => entries
                .filter_map(|entry| entry.ok().map(|entry| entry.path()))
                .filter(|path| {
                    path.file_name()
                        .is_some_and(|name| name.to_string_lossy().starts_with(FILE_NAME))
                })
                .collect(),
            Err(error) => {
                tried.push(format!("{}: {error}", folder.display()));
                return Vec::new();
            }
        };
        if files.is_empty() {
            tried.push(format!("{}: no {FILE_NAME} in it", folder.display()));
        }
        files.sort_by_key(|path| std::cmp::Reverse(version_in_name(path)));
        files
    }
}

/// The numbers behind `libonnxruntime.so.`, so that 1.24 sorts after 1.9.
fn version_in_name(path: &Path) -> Vec<u32> {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    name.trim_start_matches(FILE_NAME)
        .split('.')
        .filter_map(|part| part.parse().ok())
        .collect()
}

/// Opens one library and takes its interface, or says why not.
#[allow(unsafe_code)]
fn open(file: &Path) -> Result<Library, String> {
    let bare = file.components().count() == 1;
    if !bare && !file.exists() {
        return Err("no such file".into());
    }
    // SAFETY: loading a library runs its initialisers. The file is one the user named or installed as ONNX
    // Runtime, whose initialisers have no preconditions.
    let library = unsafe { libloading::Library::new(file) }.map_err(|error| loader_message(&error))?;
    // SAFETY: every ONNX Runtime since 1.0 exports this symbol with this signature.
    let base = unsafe {
        library
            .get::<unsafe extern "C" fn() -> *const OrtApiBase>(c"OrtGetApiBase".to_bytes_with_nul())
            .map_err(|_| "it is not ONNX Runtime (it has no symbol OrtGetApiBase)".to_owned())?()
    };
    // SAFETY: the pointer is to a static of the library, or null.
    let base = unsafe { base.as_ref() }.ok_or("its OrtGetApiBase returned nothing")?;
    // SAFETY: the function takes nothing and returns a static C string.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) }
        .to_string_lossy()
        .into_owned();
    check_version(&version)?;
    // SAFETY: any number is a valid argument; the result is a static of the library, or null.
    let api = unsafe { (base.GetApi)(OLDEST_MINOR).as_ref() }
        .ok_or_else(|| format!("version {version} does not carry the interface of 1.{OLDEST_MINOR}"))?;
    // Unloading would leave `api` dangling; the library stays for the rest of the process.
    std::mem::forget(library);
    Ok(Library {
        api,
        version,
        path: file.into(),
    })
}

fn loader_message(error: &libloading::Error) -> String {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = cause.to_string();
        source = cause.source();
    }
    message
}

fn check_version(version: &str) -> Result<(), String> {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(1), Some(minor)) if minor >= OLDEST_MINOR => Ok(()),
        _ => Err(format!("version {version} is not 1.{OLDEST_MINOR} or later")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_library_is_the_only_place() {
        let named = places(Some("/a/lib.so".into()), Some(Path::new("/bin")), None);
        assert_eq!(named, [Place::File("/a/lib.so".into())]);
    }

    #[test]
    fn the_checkout_around_the_executable_comes_before_the_system() {
        let checkout = tempfile::tempdir().unwrap();
        std::fs::write(checkout.path().join("Cargo.lock"), "").unwrap();
        let folder = checkout.path().join("target/debug");
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(
            places(None, Some(&folder), Some(checkout.path())),
            [
                Place::Folder(folder.clone()),
                Place::Folder(checkout.path().join(".cache/onnxruntime")),
                Place::File("libonnxruntime.so".into()),
                Place::File("libonnxruntime.so.1".into()),
            ]
        );
    }

    #[test]
    fn the_latest_of_several_versions_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "libonnxruntime.so.1.9.0",
            "libonnxruntime.so.1.24.4",
            "libother.so",
        ] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let files = Place::Folder(folder.path().into()).files(&mut Vec::new());
        assert_eq!(
            files,
            ["libonnxruntime.so.1.24.4", "libonnxruntime.so.1.9.0"].map(|name| folder.path().join(name))
        );
    }

    #[test]
    fn says_what_is_wrong_with_each_place() {
        let folder = tempfile::tempdir().unwrap();
        let problem = |file: &Path| open(file).err().unwrap();
        assert_eq!(problem(&folder.path().join("absent.so")), "no such file");
        let text = folder.path().join("libonnxruntime.so");
        std::fs::write(&text, "not a library").unwrap();
        assert!(problem(&text).contains("libonnxruntime.so"), "{}", problem(&text));
        let other = open(Path::new("libc.so.6")).err().unwrap();
        assert_eq!(other, "it is not ONNX Runtime (it has no symbol OrtGetApiBase)");
        assert_eq!(
            check_version("1.19.2").unwrap_err(),
            "version 1.19.2 is not 1.24 or later"
        );
        assert!(check_version("1.31.0").is_ok());
    }
}
