use edgeopt_models::bundle::{Color, Layout, Preprocessing, Resize};
use edgeopt_models::{DataType, Shape};

use super::*;

fn spec(name: &str, dims: &[usize]) -> TensorSpec {
    let shape: Shape = std::iter::once(Dim::from("N"))
        .chain(dims.iter().copied().map(Dim::Known))
        .collect();
    TensorSpec {
        name: name.into(),
        dtype: DataType::Float32,
        shape,
        ranked: true,
    }
}

fn npz(path: &Path, tensors: &[(&str, &Tensor)]) {
    write_npz(File::create(path).unwrap(), tensors).unwrap();
}

/// An `.npy` is an `.npz` member.
fn npy(path: &Path, tensor: &Tensor) {
    let packed = path.with_extension("tmp");
    npz(&packed, &[("x", tensor)]);
    let mut archive = zip::ZipArchive::new(File::open(&packed).unwrap()).unwrap();
    std::io::copy(
        &mut archive.by_name("x.npy").unwrap(),
        &mut File::create(path).unwrap(),
    )
    .unwrap();
    std::fs::remove_file(packed).unwrap();
}

fn numbers(dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    Tensor::new(dims, &(0..count).map(|i| i as f32).collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_stacked_array_gives_its_rows_and_a_limit_spreads_over_them() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = [spec("x", &[2])];
    npy(&folder.path().join("all.npy"), &numbers(&[10, 2]));
    npz(&folder.path().join("all.npz"), &[("x", &numbers(&[10, 2]))]);
    for file in ["all.npy", "all.npz"] {
        let data = Dataset::open(&folder.path().join(file), &inputs, None, None).unwrap();
        assert_eq!(data.len(), 10);
        let sample = data.sample(3).unwrap();
        assert_eq!(
            (sample.id.as_str(), &sample.inputs[0]),
            ("3", &Tensor::new(&[1, 2], &[6f32, 7.0]).unwrap())
        );
        let some = Dataset::open(&folder.path().join(file), &inputs, None, Some(4)).unwrap();
        let ids: Vec<String> = some.iter().map(|sample| sample.unwrap().id).collect();
        assert_eq!(ids, ["0", "2", "5", "7"]);
    }
}

#[test]
fn a_folder_of_arrays_gives_one_sample_a_file_and_counts_the_others() {
    let folder = tempfile::tempdir().unwrap();
    npz(
        &folder.path().join("b.npz"),
        &[("x", &numbers(&[2])), ("y", &numbers(&[1, 3]))],
    );
    npz(
        &folder.path().join("a.npz"),
        &[("y", &numbers(&[3])), ("x", &numbers(&[1, 2]))],
    );
    std::fs::write(
        folder.path().join("labels.csv"),
        "a.npz,1\nb.npz two words, and more\nc.npz\tx y,z\n",
    )
    .unwrap();
    let data = Dataset::open(folder.path(), &[spec("x", &[2]), spec("y", &[3])], None, None).unwrap();
    assert_eq!((data.len(), data.ignored()), (2, 1));
    let sample = data.sample(0).unwrap();
    assert_eq!(sample.id, "a.npz");
    assert_eq!(sample.inputs, [numbers(&[1, 2]), numbers(&[1, 3])]);
    let labels = Labels::read(&folder.path().join("labels.csv")).unwrap();
    assert_eq!(
        (labels.len(), labels.get("b.npz")),
        (3, Some("two words, and more"))
    );
    assert_eq!(labels.get("c.npz"), Some("x y,z"));
}

#[test]
fn images_become_normalized_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let image = image::RgbImage::from_fn(2, 2, |x, _| image::Rgb([255 * x as u8, 51, 0]));
    image.save(folder.path().join("i.png")).unwrap();
    let preprocessing = Preprocessing {
        color: Color::Bgr,
        resize: Resize::Stretch { width: 2, height: 2 },
        scale: 1.0 / 255.0,
        mean: vec![0.0, 0.2, 0.0],
        std: vec![1.0, 1.0, 0.5],
        layout: Layout::Nchw,
    };
    let data = Dataset::open(
        folder.path(),
        &[spec("x", &[3, 2, 2])],
        Some(&preprocessing),
        None,
    )
    .unwrap();
    let tensor = &data.sample(0).unwrap().inputs[0];
    let expected = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 2.0];
    for (actual, expected) in tensor.view::<f32>().unwrap().iter().zip(expected) {
        assert!((actual - expected).abs() < 1e-6, "{tensor:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    npy(&path("a.npy"), &numbers(&[4, 3]));
    npz(&path("a.npz"), &[("z", &numbers(&[4, 2]))]);
    npz(&path("b.npz"), &[("x", &Tensor::vector(&[1u8, 2]))]);
    std::fs::write(path("broken.npy"), b"\x93NUMPY\x01\x00\xff\xff{").unwrap();
    std::fs::write(path("image.png"), b"not an image").unwrap();
    std::fs::create_dir(path("empty")).unwrap();
    let open = |name: &str, inputs: &[TensorSpec]| {
        Dataset::open(&path(name), inputs, None, None)
            .and_then(|data| data.sample(0).map(drop))
            .unwrap_err()
            .to_string()
    };
    let one = [spec("x", &[2])];
    for (name, inputs, expected) in [
        ("a.npy", &one[..], "[1, 3]"),
        ("a.npz", &one[..], "there are: z"),
        ("b.npz", &one[..], "uint8"),
        ("broken.npy", &one[..], "broken.npy"),
        ("image.png", &one[..], "no preprocessing"),
        ("empty", &one[..], "no samples"),
        ("missing", &one[..], "missing"),
        ("a.npy", &[spec("x", &[3]), spec("y", &[3])][..], "x, y"),
    ] {
        let error = open(name, inputs);
        assert!(error.contains(expected), "{name}: {error}");
    }
}
