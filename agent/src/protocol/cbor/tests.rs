use edgeopt_models::Tensor;
use edgeopt_runtime::pipeline::detection::{Bounds, Object};
use edgeopt_runtime::pipeline::postprocess::Prediction as Found;
use minicbor::Encoder;
use serde_json::{Value, json};

use super::to_json;
use super::write::write_value;
use crate::protocol::{Encoding, Prediction, RawOutput, ResultMessage};

fn message(prediction: Prediction) -> ResultMessage<Prediction> {
    ResultMessage {
        id: "5f0c2a9e61b7d384-42".into(),
        stream: "mqtt".into(),
        model: "net".into(),
        version: "2".into(),
        wall_ms: Some(1_789_000_000_123),
        monotonic_us: 81_234_567,
        sequence: Some(7),
        latency_ms: 12.5,
        prediction,
    }
}

fn raw(tensors: Vec<Tensor>) -> Prediction {
    let output = |tensor: Tensor| RawOutput {
        name: "y".into(),
        dtype: tensor.dtype(),
        dims: tensor.dims().to_vec(),
        values: Some(tensor),
    };
    Prediction::Raw(tensors.into_iter().map(output).collect())
}

fn objects(count: usize) -> Prediction {
    let object = |index: usize| {
        let at = index as f32 * 17.3;
        Object {
            class: index % 80,
            label: Some("traffic light".into()),
            score: 0.9375 - at / 1000.0,
            bounds: Bounds {
                left: at,
                top: at + 0.1,
                right: at + 40.7,
                bottom: at + 80.9,
            },
        }
    };
    Prediction::Read(Found::Objects {
        objects: (0..count).map(object).collect(),
    })
}

#[test]
fn both_encodings_say_the_same() {
    let numbers = raw(vec![
        Tensor::new(&[2, 2], &[0.1f32, -1.5, 1e-30, 3e38]).unwrap(),
        Tensor::vector(&[1i64, -7]),
        Tensor::vector(&[1u8, 255]),
        Tensor::bools(&[2], &[true, false]).unwrap(),
        Tensor::vector(&[half::f16::from_f32(0.5)]),
        Tensor::vector(&[half::bf16::from_f32(-2.0)]),
    ]);
    let vector = Found::Embedding {
        vector: vec![0.6, -0.8],
    };
    for prediction in [numbers, objects(3), Prediction::Read(vector)] {
        for wall_ms in [Some(1), None] {
            let message = ResultMessage {
                wall_ms,
                sequence: wall_ms,
                ..message(prediction.clone())
            };
            let written = [Encoding::Json, Encoding::Cbor].map(|encoding| message.encode(encoding).unwrap());
            assert_eq!((written[0][0], written[1][0] & 0xe0), (b'{', 0xa0));
            // Integers of raw outputs are floats in JSON, and floats have as many digits as 32 bits need.
            let mut read = written.map(|bytes| ResultMessage::decode(&bytes).unwrap());
            for message in &mut read {
                floats(&mut message.prediction);
            }
            assert_eq!(read[0], read[1]);
        }
    }
}

fn floats(value: &mut Value) {
    match value {
        Value::Number(number) => *value = json!(number.as_f64().map(|number| number as f32)),
        Value::Array(items) => items.iter_mut().for_each(floats),
        Value::Object(fields) => fields.values_mut().for_each(floats),
        _ => {}
    }
}

#[test]
fn every_json_comes_back() {
    let mixed = json!({
        "list": [1, -1, 0.1, 0.5, null, true, "ä"], "none": {}, "large": u64::MAX, "small": i64::MIN, "empty": [],
    });
    let mut bytes = Vec::new();
    write_value(&mut Encoder::new(&mut bytes), &mixed).unwrap();
    assert_eq!(to_json(&bytes).unwrap(), mixed);
}

#[test]
fn a_raw_output_is_a_typed_array_in_its_own_type() {
    let values = [1.0f32, f32::NAN, f32::NEG_INFINITY];
    let bytes = message(raw(vec![Tensor::vector(&values), Tensor::vector(&[i64::MAX])]))
        .encode(Encoding::Cbor)
        .unwrap();
    // Tag 85, 12 bytes; tag 79, 8 bytes.
    let expected: Vec<u8> = [0xd8, 85, 0x4c]
        .into_iter()
        .chain(values.iter().flat_map(|value| value.to_le_bytes()))
        .collect();
    assert!(bytes.windows(expected.len()).any(|part| part == expected));
    let read = ResultMessage::decode(&bytes).unwrap();
    assert_eq!(read.prediction["outputs"][0]["values"], json!([1.0, null, null]));
    assert_eq!(
        read.prediction["outputs"][1]["values"],
        json!([i64::MAX]),
        "exact, unlike JSON"
    );
}

#[test]
fn what_is_no_result_is_refused_with_the_place() {
    let good = message(objects(1)).encode(Encoding::Cbor).unwrap();
    for end in 1..good.len() {
        assert!(ResultMessage::decode(&good[..end]).is_err(), "{end}");
    }
    let deep: Vec<u8> = [0xa1, 0x61, b'a'].repeat(1000);
    for (bytes, part) in [
        ([good.clone(), vec![0]].concat(), "something stands behind"),
        (deep, "deep in each other"),
        (b"\xa1\x61a\x41b".to_vec(), "byte 3"),
        (b"\xa1\x61a\xc0\x61b".to_vec(), "tag 0 has no place"),
        // Three bytes are no array of 32-bit numbers; a list of 2^63 items ends at once.
        (b"\xa1\x61a\xd8\x55\x43abc".to_vec(), "float32"),
        (
            b"\xa1\x61a\x9b\x7f\xff\xff\xff\xff\xff\xff\xff".to_vec(),
            "end of input",
        ),
        (b"\xa0".to_vec(), "missing field"),
    ] {
        let error = ResultMessage::decode(&bytes).unwrap_err().to_string();
        assert!(error.contains(part), "{bytes:x?}: {error}");
    }
    // Others may write lists of unknown length and half-precision numbers.
    let indefinite = b"\xbf\x61a\x9f\xf9\x3c\x00\x7f\x61b\x61c\xff\xff\xff";
    assert_eq!(
        ResultMessage::json_of(indefinite).unwrap(),
        json!({ "a": [1.0, "bc"] })
    );
}

/// The sizes in `docs/mqtt.md`.
#[test]
fn cbor_is_smaller() {
    let thousand: Vec<f32> = (0..1000).map(|index| (index as f32 * 0.37).sin()).collect();
    let sizes = |prediction: Prediction| {
        let message = message(prediction);
        [Encoding::Json, Encoding::Cbor].map(|encoding| message.encode(encoding).unwrap().len())
    };
    let (few, numbers) = (sizes(objects(10)), sizes(raw(vec![Tensor::vector(&thousand)])));
    println!("10 objects: {few:?} bytes; 1000 numbers: {numbers:?} bytes");
    assert!(few[1] * 4 < few[0] * 3, "{few:?}");
    assert!(
        numbers[1] < 4000 + 200 && numbers[1] * 2 < numbers[0],
        "{numbers:?}"
    );
}
