use edgeopt_models::{Attribute, Model, Tensor, ValueName};

use super::builder::{Builder, batched};

const HIDDEN: usize = 384;
const HEADS: usize = 12;
const INNER: usize = 1536;
const LAYERS: usize = 6;
const VOCABULARY: usize = 30522;
const LENGTH: usize = 128;

/// The encoder of MiniLM-L6-H384 (Wang et al. 2020) at a fixed length of 128 tokens, as exporters write it: erf-GELU
/// decomposed, LayerNormalization as one operator.
pub(super) fn build() -> Model {
    let mut b = Builder::new("minilm", 6);
    let tokens = b.token_input("input_ids", LENGTH);
    let table = b.weights("word_embeddings", &[VOCABULARY, HIDDEN], 0.05);
    let words = b.op("Gather", &[&table, &tokens], &[("axis", 0i64.into())]);
    let positions = b.weights("position_embeddings", &[1, LENGTH, HIDDEN], 0.05);
    let x = b.op("Add", &[&words, &positions], &[]);
    let mut x = layer_norm(&mut b, &x);
    for _ in 0..LAYERS {
        x = encoder_layer(&mut b, &x);
    }
    b.finish(&[(&x, "last_hidden_state", batched(&[LENGTH, HIDDEN]))])
}

fn layer_norm(b: &mut Builder, x: &ValueName) -> ValueName {
    let gain = b.constant("ln_gain", Tensor::vector(&[1f32; HIDDEN]));
    let bias = b.constant("ln_bias", Tensor::vector(&[0f32; HIDDEN]));
    let attributes: [(&str, Attribute); 2] = [("axis", (-1i64).into()), ("epsilon", 1e-12f32.into())];
    b.op("LayerNormalization", &[x, &gain, &bias], &attributes)
}

fn linear(b: &mut Builder, x: &ValueName, input: usize, output: usize) -> ValueName {
    let weight = b.weights("weight", &[input, output], (1.0 / input as f32).sqrt());
    let bias = b.weights("bias", &[output], 0.02);
    let y = b.op("MatMul", &[x, &weight], &[]);
    b.op("Add", &[&y, &bias], &[])
}

fn heads(b: &mut Builder, x: &ValueName, perm: [i64; 4]) -> ValueName {
    let x = linear(b, x, HIDDEN, HIDDEN);
    let shape = b.ints(
        "shape",
        &[0, LENGTH as i64, HEADS as i64, (HIDDEN / HEADS) as i64],
    );
    let x = b.op("Reshape", &[&x, &shape], &[]);
    b.op("Transpose", &[&x], &[("perm", perm.into())])
}

fn encoder_layer(b: &mut Builder, x: &ValueName) -> ValueName {
    let query = heads(b, x, [0, 2, 1, 3]);
    let key = heads(b, x, [0, 2, 3, 1]);
    let value = heads(b, x, [0, 2, 1, 3]);
    let scores = b.op("MatMul", &[&query, &key], &[]);
    let scale = b.scalar("scale", (HEADS as f32 / HIDDEN as f32).sqrt());
    let scores = b.op("Mul", &[&scores, &scale], &[]);
    let weights = b.op("Softmax", &[&scores], &[("axis", (-1i64).into())]);
    let context = b.op("MatMul", &[&weights, &value], &[]);
    let context = b.op("Transpose", &[&context], &[("perm", [0, 2, 1, 3].into())]);
    let shape = b.ints("shape", &[0, LENGTH as i64, HIDDEN as i64]);
    let context = b.op("Reshape", &[&context, &shape], &[]);
    let attended = linear(b, &context, HIDDEN, HIDDEN);
    let sum = b.op("Add", &[x, &attended], &[]);
    let x = layer_norm(b, &sum);

    let inner = linear(b, &x, HIDDEN, INNER);
    let root = b.scalar("sqrt2", std::f32::consts::SQRT_2);
    let erf = b.op("Div", &[&inner, &root], &[]);
    let erf = b.op("Erf", &[&erf], &[]);
    let one = b.scalar("one", 1.0);
    let gate = b.op("Add", &[&erf, &one], &[]);
    let gated = b.op("Mul", &[&inner, &gate], &[]);
    let half = b.scalar("half", 0.5);
    let activated = b.op("Mul", &[&gated, &half], &[]);
    let outer = linear(b, &activated, INNER, HIDDEN);
    let sum = b.op("Add", &[&x, &outer], &[]);
    layer_norm(b, &sum)
}
