//! Engines looked for and built into the cache by the real builder.

use std::sync::Arc;

use edgeopt_runtime::backends::tensorrt::{EngineCache, EngineMaker, Found, Wanted};
use edgeopt_runtime::{Cancel, OnStep};

use super::*;

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|other| other == extension))
        .collect()
}

#[test]
fn an_engine_is_built_into_the_cache_and_found_there() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = EngineCache::new(folder.path(), Bytes::mib(64));
    let maker = EngineMaker::new(library, "sm_87", Some(cache));
    let (onnx, options) = digits();
    let wanted = Wanted {
        onnx: &onnx,
        options: &options,
        shipped: None,
    };
    let before = maker.look_up(&wanted).unwrap();
    assert!(before.missing.unwrap().contains("none was built"));
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    let on_step = OnStep::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let plan = maker.make(&wanted, Some(&on_step), None).unwrap();
    let told = steps.load(Ordering::Relaxed);
    assert!(told > 10, "{told} steps");
    let after = maker.look_up(&wanted).unwrap();
    assert_eq!((after.missing, after.key), (None, before.key));
    assert!(matches!(maker.find(&wanted).unwrap(), Found::Engine(found) if found == plan));
    // At hand, nothing is built.
    assert_eq!(maker.make(&wanted, Some(&on_step), None).unwrap(), plan);
    assert_eq!(steps.load(Ordering::Relaxed), told);
    // With other ranges it is another engine.
    let mut other = options.clone();
    other.ranges[0].max[0] = 2;
    let wanted = Wanted {
        options: &other,
        ..wanted
    };
    assert!(maker.look_up(&wanted).unwrap().missing.is_some());
}

#[test]
fn a_build_that_is_cancelled_at_any_step_leaves_nothing() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = EngineCache::new(folder.path(), Bytes::mib(64));
    let maker = EngineMaker::new(library, "sm_87", Some(cache));
    let (onnx, options) = digits();
    let wanted = Wanted {
        onnx: &onnx,
        options: &options,
        shipped: None,
    };
    for at in [0, 1, 2, 5, 9, 14, 20] {
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
        assert_eq!(
            std::fs::read_dir(folder.path()).map_or(0, Iterator::count),
            0,
            "cancelled at {at}"
        );
    }
    maker.make(&wanted, None, None).unwrap();
    assert_eq!(files(folder.path(), "plan").len(), 1);
}

#[test]
fn a_stale_engine_is_named_and_replaced() {
    let Some(library) = library() else { return };
    let folder = tempfile::tempdir().unwrap();
    let here = library.identity.to_string();
    let cache = EngineCache::new(folder.path(), Bytes::mib(64));
    let (onnx, options) = digits();
    let target = "portable".to_owned();
    let key = plan_file::EngineKey::for_build(&onnx, "TensorRT 10.3.0".into(), target, &options).unwrap();
    cache.put(&key, b"an engine of JetPack 6").unwrap();
    let maker = EngineMaker::new(library, "sm_87", Some(cache));
    let wanted = Wanted {
        onnx: &onnx,
        options: &options,
        shipped: None,
    };
    let why = maker.look_up(&wanted).unwrap().missing.unwrap();
    assert!(
        why.contains(&format!("built by TensorRT 10.3.0, here {here}")),
        "{why}"
    );
    let stale = files(folder.path(), "plan");
    let failing = EngineOptions {
        limits: BuildLimits {
            workspace: Some(Bytes(1)),
            tactic_memory: None,
        },
        ..options.clone()
    };
    let error = maker
        .make(
            &Wanted {
                options: &failing,
                ..wanted
            },
            None,
            None,
        )
        .unwrap_err();
    assert!(matches!(error, TensorRtError::Workspace { .. }), "{error}");
    assert_eq!(
        files(folder.path(), "plan"),
        stale,
        "it stays until there is another"
    );
    maker.make(&wanted, None, None).unwrap();
    let now = files(folder.path(), "plan");
    assert!(now.len() == 1 && now != stale, "{now:?}");
}
