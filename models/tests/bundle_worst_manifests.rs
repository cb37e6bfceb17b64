//! Manifests made to take as much memory as possible stay within what the reader promises.

#![allow(clippy::unwrap_used)] // helpers of tests, too

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use edgeopt_models::bundle::{BundleError, Limits, Trust, verify};

struct Counting;
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code)]
// SAFETY: forwards to the system allocator unchanged; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A bundle of this manifest and an empty `model.onnx`.
fn bundle(manifest: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in [("manifest.json", manifest), ("model.onnx", "")] {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).unwrap();
        header.set_size(content.len() as u64);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        archive.append(&header, content.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

fn manifest(inputs: &str, options: &str, labels: &str) -> String {
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    // The tag of `postprocessing` stands last, so that the parser has to keep everything before it.
    format!(
        r#"{{"format":"1.0","name":"digits","version":"1","precision":"int8","inputs":[{inputs}],"outputs":[],
        "postprocessing":{{"labels":[{labels}],"top_k":1,"softmax":true,"task":"classification"}},"memory":[],
        "provenance":{{"source":"x","source_sha256":"00","tool":"x","options":{{{options}}}}},
        "members":{{"model.onnx":{{"sha256":"{empty}","size":0}}}}}}"#
    )
}

fn list(item: &str, count: usize) -> String {
    vec![item; count].join(",")
}

/// Memory at the peak of reading, beyond what was held before.
fn peak_of_reading(bytes: &[u8]) -> (Result<(), BundleError>, usize) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = verify(bytes, &Limits::default(), &Trust::Unchecked).map(drop);
    (result, PEAK.load(Relaxed).saturating_sub(before))
}

// One test function: the allocator counts for the whole process.
#[test]
fn the_worst_manifests_stay_within_the_bound() {
    let dims = |count| {
        format!(
            r#"{{"name":"x","dtype":"float32","shape":[{}]}}"#,
            list("1", count)
        )
    };
    let options: Vec<String> = (0..32_000).map(|i| format!("\"{i}\":\"\"")).collect();
    let scalar = r#"{"name":"x","dtype":"float32","shape":[]}"#;
    for (case, text) in [
        ("dimensions", manifest(&dims(65_000), "", "")),
        ("inputs", manifest(&list(scalar, 7_000), "", "")),
        ("options", manifest("", &options.join(","), "")),
        ("labels", manifest("", "", &list("\"a\"", 65_000))),
        (
            "longer labels",
            manifest("", "", &list("\"aaaaaaaaaaaa\"", 65_000)),
        ),
        (
            "escaped labels",
            manifest("", "", &list("\"\\u00e4\\u00e4\"", 65_000)),
        ),
    ] {
        let (result, peak) = peak_of_reading(&bundle(&text));
        println!("{case}: {} bytes of text, {peak} bytes of memory", text.len());
        result.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(peak < 12 << 20, "{case}: {peak}");
    }
    // Nearly 1 MiB of the densest values: refused before they are parsed.
    let (result, peak) = peak_of_reading(&bundle(&manifest(&dims(500_000), "", "")));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("more than 65536 values"), "{error}");
    assert!(peak < 4 << 20, "{peak}");
}
