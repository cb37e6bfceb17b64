//! Against a table that pretends to be a library: its builds tell of steps, and end as the test says.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use edgeopt_models::bundle::{MODEL, Manifest, Member, Precision, pack};

use super::super::abi::{self, BuildOptions, Callbacks, EntryPoints, Sink, Table};
use super::super::engine::tests::TABLE as PRETENDED;
use super::super::identity::Identity;
use super::super::limits::BuildLimits;
use super::*;

const STEPS: u32 = 5;

#[derive(Default)]
struct Script {
    /// Builds begun on this thread.
    builds: u32,
    fails: bool,
    /// The library does not tell what scratch memory the layers take.
    silent: bool,
    /// It tells of no steps, as TensorRT 8; somebody cancels while it builds.
    stepless: Option<Cancel>,
    /// Scratch memory without which no layer can be built.
    least: u64,
    callbacks: Option<usize>,
}

thread_local! {
    static SCRIPT: RefCell<Script> = RefCell::default();
}

unsafe extern "C" fn open(_: *const EntryPoints, callbacks: *const Callbacks) -> *mut c_void {
    // SAFETY: the caller's structure; leaked, as the build reads it later.
    let copy = Box::into_raw(Box::new(unsafe { ptr::read(callbacks) }));
    SCRIPT.with_borrow_mut(|script| script.callbacks = Some(copy as usize));
    ptr::dangling_mut::<c_void>()
}
unsafe extern "C" fn close(_: *mut c_void) {}

/// Tells of its steps and its scratch memory, and gives the model back as the plan.
unsafe extern "C" fn build(
    _: *mut c_void,
    onnx: *const c_void,
    bytes: u64,
    _: *const c_char,
    options: *const BuildOptions,
    plan: Sink,
    _: Option<Sink>,
    user: *mut c_void,
) -> i32 {
    let (callbacks, fails, silent, least, stepless) = SCRIPT.with_borrow_mut(|script| {
        script.builds += 1;
        let callbacks = script.callbacks.unwrap() as *const Callbacks;
        let stepless = script.stepless.clone();
        (callbacks, script.fails, script.silent, script.least, stepless)
    });
    // SAFETY: the copy made in `open`; everything is called as the plugin calls it.
    unsafe {
        let callbacks = &*callbacks;
        for step in (0..STEPS).filter(|_| stepless.is_none()) {
            let told = (callbacks.progress.unwrap())(
                callbacks.user,
                1,
                c"tactics".as_ptr(),
                ptr::null(),
                step as i32,
            );
            if told == 0 {
                return 4;
            }
        }
        stepless.inspect(Cancel::ask);
        let workspace = (*options).workspace;
        if fails || workspace != 0 && workspace < least {
            let words = if fails {
                "no tactic was good enough"
            } else {
                "There are no tactics to implement the operation within workspace limit"
            };
            let words = CString::new(words).unwrap();
            (callbacks.error.unwrap())(callbacks.user, 0, 10, words.as_ptr(), ptr::null(), ptr::null());
            return 4;
        }
        if !silent {
            (callbacks.log.unwrap())(callbacks.user, 3, c"Total Scratch Memory: 1000 bytes".as_ptr());
        }
        plan(user, onnx, bytes);
    }
    0
}

static TABLE: Table = Table {
    open,
    close,
    build,
    ..PRETENDED
};

fn library(product: Product, number: i32) -> Library {
    Library {
        identity: Identity::from_number(product, number).unwrap(),
        path: PathBuf::new(),
        plugin: PathBuf::new(),
        table: &TABLE,
        entries: EntryPoints {
            size: size_of::<abi::EntryPoints>() as u32,
            create_builder: ptr::null_mut(),
            create_runtime: ptr::null_mut(),
            create_parser: ptr::null_mut(),
        },
        _opened: Vec::new(),
    }
}

fn maker(folder: &Path, number: i32, gpu: &str) -> EngineMaker {
    let cache = EngineCache::new(folder.join("engines"), Bytes::mib(1));
    EngineMaker::new(library(Product::TensorRt, number), gpu, Some(cache))
}

fn options(workspace: Option<u64>) -> EngineOptions {
    EngineOptions {
        limits: BuildLimits {
            workspace: workspace.map(Bytes),
            tactic_memory: None,
        },
        ..EngineOptions::default()
    }
}

fn wanted(options: &EngineOptions) -> Wanted<'_> {
    Wanted {
        onnx: b"model",
        options,
        shipped: None,
    }
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("engines")).map_or(0, Iterator::count)
}

fn builds() -> u32 {
    SCRIPT.with_borrow(|script| script.builds)
}

#[test]
fn an_engine_is_built_once_and_is_at_hand_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let (maker, options) = (maker(folder.path(), 100_300, "sm_87"), options(Some(4000)));
    let wanted = wanted(&options);
    let before = maker.look_up(&wanted).unwrap();
    assert_eq!(
        before.missing.as_deref(),
        Some("none was built for it on this device yet")
    );
    assert!(matches!(maker.find(&wanted).unwrap(), Found::Missing(_)));
    assert_eq!(builds(), 0, "looking builds nothing");
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    let on_step = OnStep::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(maker.make(&wanted, Some(&on_step), None).unwrap(), b"model");
    assert_eq!(steps.load(Ordering::Relaxed), STEPS);
    let after = maker.look_up(&wanted).unwrap();
    assert_eq!((after.missing, after.key), (None, before.key));
    assert!(matches!(maker.find(&wanted).unwrap(), Found::Engine(plan) if plan == b"model"));
    assert_eq!(maker.make(&wanted, None, None).unwrap(), b"model");
    assert_eq!(builds(), 1);
}

#[test]
fn an_engine_serves_wherever_its_layers_find_what_they_take() {
    let folder = tempfile::tempdir().unwrap();
    let maker = maker(folder.path(), 100_300, "sm_87");
    maker.make(&wanted(&options(Some(4000))), None, None).unwrap();
    // Its layers take 1000 bytes of scratch memory, whatever they were allowed.
    for (allowed, at_hand) in [(Some(1000), true), (None, true), (Some(999), false)] {
        let missing = maker.look_up(&wanted(&options(allowed))).unwrap().missing;
        assert_eq!(missing.is_none(), at_hand, "{allowed:?}: {missing:?}");
    }
}

/// Free memory is not the same at every start.
#[test]
fn an_engine_of_a_library_that_does_not_tell_serves_where_a_little_less_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let maker = maker(folder.path(), 100_300, "sm_87");
    let missing = |allowed| maker.look_up(&wanted(&options(Some(allowed)))).unwrap().missing;
    SCRIPT.with_borrow_mut(|script| script.silent = true);
    maker.make(&wanted(&options(Some(8000))), None, None).unwrap();
    assert_eq!(missing(7000), None);
    assert!(missing(6999).is_some());
    // Where everything is needed, everything is taken.
    SCRIPT.with_borrow_mut(|script| script.least = 6500);
    maker.make(&wanted(&options(Some(6500))), None, None).unwrap();
    assert_eq!((missing(6500), builds()), (None, 3));
    assert!(missing(6499).is_some());
    let error = maker.make(&wanted(&options(Some(6499))), None, None).unwrap_err();
    assert!(matches!(error, TensorRtError::Workspace { .. }), "{error}");
    assert_eq!(missing(6500), None, "the old one stays");
}

#[test]
fn after_an_upgrade_what_differs_is_said_and_the_old_engine_goes_when_the_new_one_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(None);
    let wanted = wanted(&options);
    maker(folder.path(), 100_300, "sm_87")
        .make(&wanted, None, None)
        .unwrap();
    for (number, gpu, part) in [
        (
            101_600,
            "sm_87",
            "built by TensorRT 10.3.0, here TensorRT 10.16.0",
        ),
        (101_600, "sm_110", "built for sm_87, here sm_110"),
    ] {
        let maker = maker(folder.path(), number, gpu);
        let why = maker.look_up(&wanted).unwrap().missing.unwrap();
        assert!(why.contains(part), "{why}");
        assert_eq!(files(folder.path()), 1, "it stays until there is another");
        maker.make(&wanted, None, None).unwrap();
        assert_eq!(files(folder.path()), 1);
        assert_eq!(maker.look_up(&wanted).unwrap().missing, None);
    }
    // The other way: that one is gone.
    assert!(
        maker(folder.path(), 100_300, "sm_87")
            .look_up(&wanted)
            .unwrap()
            .missing
            .is_some()
    );
}

#[test]
fn a_build_that_is_cancelled_or_fails_leaves_nothing_and_the_next_one_goes() {
    let folder = tempfile::tempdir().unwrap();
    let (maker, options) = (maker(folder.path(), 100_300, "sm_87"), options(None));
    let wanted = wanted(&options);
    for at in 0..STEPS {
        let (cancel, seen) = (Cancel::default(), AtomicU32::new(0));
        let asked = cancel.clone();
        let on_step = OnStep::new(move || {
            if seen.fetch_add(1, Ordering::Relaxed) == at {
                asked.ask();
            }
        });
        let error = maker.make(&wanted, Some(&on_step), Some(&cancel)).unwrap_err();
        assert!(
            matches!(error, TensorRtError::Stopped(Stop::Asked)),
            "{at}: {error}"
        );
        assert_eq!(files(folder.path()), 0, "cancelled at step {at}");
    }
    SCRIPT.with_borrow_mut(|script| script.fails = true);
    let error = maker.make(&wanted, None, None).unwrap_err().to_string();
    assert!(error.contains("no tactic was good enough"), "{error}");
    assert_eq!(files(folder.path()), 0);
    SCRIPT.with_borrow_mut(|script| script.fails = false);
    maker.make(&wanted, None, None).unwrap();
    assert_eq!(files(folder.path()), 1);
}

#[test]
fn what_a_library_builds_that_cannot_be_interrupted_is_thrown_away() {
    let folder = tempfile::tempdir().unwrap();
    let (maker, options) = (maker(folder.path(), 8601, "sm_87"), options(None));
    let cancel = Cancel::default();
    SCRIPT.with_borrow_mut(|script| script.stepless = Some(cancel.clone()));
    let error = maker.make(&wanted(&options), None, Some(&cancel)).unwrap_err();
    assert!(matches!(error, TensorRtError::Stopped(Stop::Asked)), "{error}");
    assert_eq!((builds(), files(folder.path())), (1, 0));
}

/// A slot whose engine is at hand does not wait for the build of another slot.
#[test]
fn a_build_under_way_holds_up_other_builds_only_and_those_can_be_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let (maker, options) = (maker(folder.path(), 100_300, "sm_87"), options(None));
    let other = Wanted {
        onnx: b"other",
        ..wanted(&options)
    };
    let third = Wanted {
        onnx: b"third",
        ..other
    };
    maker.make(&wanted(&options), None, None).unwrap();
    std::thread::scope(|scope| {
        let (begun, has_begun) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let goes_on = Mutex::new(goes_on);
        let maker = &maker;
        let building = scope.spawn(move || {
            let on_step = OnStep::new(move || {
                begun.send(()).unwrap();
                // Fails when the test has ended.
                let _ = goes_on.lock().unwrap().recv();
            });
            maker.make(&other, Some(&on_step), None)
        });
        has_begun.recv().unwrap();
        assert_eq!(maker.make(&wanted(&options), None, None).unwrap(), b"model");
        let cancel = Cancel::default();
        let asked = cancel.clone();
        let on_step = OnStep::new(move || asked.ask());
        let error = maker.make(&third, Some(&on_step), Some(&cancel)).unwrap_err();
        assert!(matches!(error, TensorRtError::Stopped(Stop::Asked)), "{error}");
        drop(go_on);
        assert_eq!(building.join().unwrap().unwrap(), b"other");
    });
}

#[test]
fn a_damaged_engine_is_missing_when_it_is_taken_and_built_again() {
    let folder = tempfile::tempdir().unwrap();
    let (maker, options) = (maker(folder.path(), 100_300, "sm_87"), options(None));
    let wanted = wanted(&options);
    maker.make(&wanted, None, None).unwrap();
    let path = std::fs::read_dir(folder.path().join("engines"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let found = maker.find(&wanted).unwrap();
    assert!(
        matches!(&found, Found::Missing(why) if why.contains("damaged")),
        "{found:?}"
    );
    maker.make(&wanted, None, None).unwrap();
    assert_eq!(builds(), 2);
}

#[test]
fn engines_of_rtx_are_for_every_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, options) = (EngineCache::new(folder.path(), Bytes::mib(1)), options(None));
    let maker = |gpu: &str| EngineMaker::new(library(Product::Rtx, 10_701), gpu, Some(cache.clone()));
    maker("sm_89").make(&wanted(&options), None, None).unwrap();
    assert_eq!(maker("sm_120").look_up(&wanted(&options)).unwrap().missing, None);
}

#[test]
fn an_engine_of_the_bundle_is_taken_if_it_serves() {
    let key = |library: &str| {
        let target = "sm_87".to_owned();
        EngineKey::for_build(b"model", library.into(), target, &EngineOptions::default()).unwrap()
    };
    let ours = key("TensorRT 10.3.0");
    let mut cut = plan_file::encode(&ours, b"cut").unwrap();
    cut.pop();
    let members = BTreeMap::from([
        (MODEL.to_owned(), Member::Data(b"model".to_vec())),
        ("engines/a.plan".to_owned(), Member::Data(cut)),
        (
            "engines/b.plan".to_owned(),
            Member::Data(plan_file::encode(&key("TensorRT 8.5.2"), b"older").unwrap()),
        ),
        (
            "engines/c.plan".to_owned(),
            Member::Data(plan_file::encode(&ours, b"ours").unwrap()),
        ),
    ]);
    let manifest = Manifest::new("m", "1", Precision::Int8);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.edge");
    pack(manifest, &members, None, &path).unwrap();
    let (manifest, _) = edgeopt_models::bundle::verify(
        File::open(&path).unwrap(),
        &edgeopt_models::bundle::Limits::default(),
        &edgeopt_models::bundle::Trust::Unchecked,
    )
    .unwrap();
    let shipped = BundleEngines::of(&path, &manifest);
    assert_eq!(shipped.members.len(), 3);
    assert_eq!(from_bundle(Some(&shipped), &ours).as_deref(), Ok(&b"ours"[..]));
    let refused = from_bundle(Some(&shipped), &key("TensorRT 11.4.0")).unwrap_err();
    assert_eq!(refused.len(), 3);
    assert!(
        refused[1].contains("engines/b.plan") && refused[1].contains("TensorRT 8.5.2"),
        "{refused:?}"
    );
}
