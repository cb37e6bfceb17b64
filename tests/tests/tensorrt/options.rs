//! Options of a build, and what TensorRT-RTX makes of them on a CPU.

use super::*;

/// What loading could not deal with is refused before anything is built, and named.
#[test]
fn options_that_loading_cannot_deal_with_are_refused_by_name() {
    let Some(library) = library() else { return };
    let (onnx, plain) = digits();
    type Set = fn(&mut EngineOptions);
    let cases: [(&str, Set); 4] = [
        ("stripped", |options| options.stripped = true),
        ("refittable", |options| options.refittable = true),
        ("version_compatible", |options| options.version_compatible = true),
        ("weight_streaming", |options| options.weight_streaming = true),
    ];
    for (name, set) in cases {
        let mut options = plain.clone();
        set(&mut options);
        let counting = Counting {
            steps: AtomicU32::new(0),
            cancel_at: u32::MAX,
            open: Mutex::default(),
        };
        let stoppable = Stoppable::new(&counting, StopRequest::default());
        let error = build_engine(&library, &onnx, &options, &stoppable)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(&format!("the option {name}: ")), "{error}");
        assert_eq!(counting.steps.load(Ordering::Relaxed), 0, "{name}");
    }
}

#[test]
fn rtx_has_no_dla_and_says_so() {
    let Some(library) = library() else { return };
    let (onnx, options) = digits();
    let options = EngineOptions {
        dla_core: Some(0),
        ..options
    };
    let error = build(&library, &onnx, &options).unwrap_err().to_string();
    assert!(error.contains("TensorRT-RTX has no DLA"), "{error}");
}

/// A model whose weights have two zeros in every four, and one whose weights have none: whether the first becomes faster
/// shows on a GPU only, that both build shows here.
#[test]
fn a_search_for_sparsity_builds_dense_and_sparse_models() {
    let Some(library) = library() else { return };
    let weights = |sparse: bool| {
        let mut values: Vec<f32> = noise(&[64, 64, 3, 3], 5).to_f32().unwrap().to_vec();
        for (index, value) in values.iter_mut().enumerate().filter(|_| sparse) {
            // Along the input channels, as the library wants it.
            if (index / 9) % 4 < 2 {
                *value = 0.0;
            }
        }
        Tensor::new(&[64, 64, 3, 3], &values).unwrap()
    };
    let options = EngineOptions {
        sparse: true,
        detailed: true,
        ..EngineOptions::default()
    };
    for sparse in [false, true] {
        let dims = [1, 64, 32, 32];
        let mut node = Node::new("Conv", "conv", ["x", "w"], ["y"]);
        node.attributes
            .insert("pads".into(), edgeopt_models::Attribute::Ints(vec![1; 4]));
        let mut graph = Graph {
            name: "sparse".into(),
            inputs: vec![value("x", &dims)],
            outputs: vec![value("y", &dims)],
            nodes: vec![node],
            ..Graph::default()
        };
        graph.add_initializer("w".into(), weights(sparse));
        let onnx = built(Model::new(graph, 17), Precision::Fp16, &dims);
        let built = build(&library, &onnx, &options).unwrap();
        assert!(!built.plan.is_empty() && built.layers.iter().any(|layer| layer.multiplies()));
    }
}
