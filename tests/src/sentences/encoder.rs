use std::path::Path;

use edgeopt_models::{Attribute, DataType, Model, Tensor, ValueName};

use super::safetensors::Weights;
use crate::nets::builder::{Builder, batched};

const HIDDEN: usize = 384;
const HEADS: usize = 12;
const INNER: usize = 1536;
const LAYERS: usize = 6;
const VOCABULARY: usize = 30522;
/// Longest input there are positions for.
const POSITIONS: usize = 512;

/// all-MiniLM-L6-v2 (Reimers and Gurevych 2019; Wang et al. 2020) with the trained weights of a safetensors file:
/// `input_ids` and `attention_mask`, int64 `[N, length]`, to `sentence_embedding`, float `[N, 384]` of length 1.
///
/// # Errors
/// When the file is not that model's, or the length is 0 or more than 512.
pub fn encoder(weights: &Path, length: usize) -> anyhow::Result<Model> {
    anyhow::ensure!(
        (1..=POSITIONS).contains(&length),
        "the length is {length}; 1 to {POSITIONS} tokens are possible"
    );
    let mut net = Net {
        b: Builder::new("all-MiniLM-L6-v2", 1),
        weights: Weights::read(weights)?,
        length,
    };
    let tokens = net.b.input("input_ids", DataType::Int64, batched(&[length]));
    let mask = net.b.input("attention_mask", DataType::Int64, batched(&[length]));
    let mask = net.b.op("Cast", &[&mask], &[("to", 1i64.into())]);

    let mut x = net.embeddings(&tokens)?;
    let bias = net.attention_bias(&mask);
    for layer in 0..LAYERS {
        x = net.layer(layer, &x, &bias)?;
    }
    let embedding = net.pooled(&x, &mask);
    Ok(net
        .b
        .finish(&[(&embedding, "sentence_embedding", batched(&[HIDDEN]))]))
}

struct Net {
    b: Builder,
    weights: Weights,
    length: usize,
}

impl Net {
    fn embeddings(&mut self, tokens: &ValueName) -> anyhow::Result<ValueName> {
        let table = self
            .weights
            .get("embeddings.word_embeddings.weight", &[VOCABULARY, HIDDEN])?;
        let table = self.b.constant("word_embeddings", table);
        let positions = self
            .weights
            .get("embeddings.position_embeddings.weight", &[POSITIONS, HIDDEN])?;
        let types = self
            .weights
            .get("embeddings.token_type_embeddings.weight", &[2, HIDDEN])?;
        // Every token is of the first type, so its vector is part of each position's.
        let (positions, types) = (positions.view::<f32>()?, types.view::<f32>()?);
        let sums: Vec<f32> = positions
            .chunks_exact(HIDDEN)
            .take(self.length)
            .flat_map(|position| position.iter().zip(types.iter()).map(|(a, b)| a + b))
            .collect();
        let places = Tensor::new(&[1, self.length, HIDDEN], &sums)?;
        let places = self.b.constant("positions", places);
        let words = self.b.op("Gather", &[&table, tokens], &[("axis", 0i64.into())]);
        let x = self.b.op("Add", &[&words, &places], &[]);
        self.layer_norm("embeddings.LayerNorm", &x)
    }

    /// 0 for tokens, a number so low that softmax gives 0 for padding; `[N, 1, 1, length]`. Not the lowest float: this
    /// one survives half precision.
    fn attention_bias(&mut self, mask: &ValueName) -> ValueName {
        let axes = self.b.ints("axes", &[1, 2]);
        let mask = self.b.op("Unsqueeze", &[mask, &axes], &[]);
        let one = self.b.scalar("one", 1.0);
        let padding = self.b.op("Sub", &[&one, &mask], &[]);
        let low = self.b.scalar("low", -10_000.0);
        self.b.op("Mul", &[&padding, &low], &[])
    }

    fn layer(&mut self, layer: usize, x: &ValueName, bias: &ValueName) -> anyhow::Result<ValueName> {
        let at = |part: &str| format!("encoder.layer.{layer}.{part}");
        let query = self.heads(&at("attention.self.query"), x, [0, 2, 1, 3])?;
        let key = self.heads(&at("attention.self.key"), x, [0, 2, 3, 1])?;
        let value = self.heads(&at("attention.self.value"), x, [0, 2, 1, 3])?;
        let scores = self.b.op("MatMul", &[&query, &key], &[]);
        let root = self.b.scalar("root", ((HIDDEN / HEADS) as f32).sqrt());
        let scores = self.b.op("Div", &[&scores, &root], &[]);
        let scores = self.b.op("Add", &[&scores, bias], &[]);
        let shares = self.b.op("Softmax", &[&scores], &[("axis", (-1i64).into())]);
        let context = self.b.op("MatMul", &[&shares, &value], &[]);
        let context = self
            .b
            .op("Transpose", &[&context], &[("perm", [0, 2, 1, 3].into())]);
        let shape = self.b.ints("shape", &[0, self.length as i64, HIDDEN as i64]);
        let context = self.b.op("Reshape", &[&context, &shape], &[]);
        let attended = self.linear(&at("attention.output.dense"), &context, HIDDEN, HIDDEN)?;
        let sum = self.b.op("Add", &[x, &attended], &[]);
        let x = self.layer_norm(&at("attention.output.LayerNorm"), &sum)?;

        let inner = self.linear(&at("intermediate.dense"), &x, HIDDEN, INNER)?;
        let activated = self.gelu(&inner);
        let outer = self.linear(&at("output.dense"), &activated, INNER, HIDDEN)?;
        let sum = self.b.op("Add", &[&x, &outer], &[]);
        self.layer_norm(&at("output.LayerNorm"), &sum)
    }

    fn layer_norm(&mut self, name: &str, x: &ValueName) -> anyhow::Result<ValueName> {
        let gain = self.weights.get(&format!("{name}.weight"), &[HIDDEN])?;
        let bias = self.weights.get(&format!("{name}.bias"), &[HIDDEN])?;
        let gain = self.b.constant("ln_gain", gain);
        let bias = self.b.constant("ln_bias", bias);
        let attributes: [(&str, Attribute); 2] = [("axis", (-1i64).into()), ("epsilon", 1e-12f32.into())];
        Ok(self.b.op("LayerNormalization", &[x, &gain, &bias], &attributes))
    }

    fn linear(
        &mut self,
        name: &str,
        x: &ValueName,
        input: usize,
        output: usize,
    ) -> anyhow::Result<ValueName> {
        let weight = self
            .weights
            .transposed(&format!("{name}.weight"), output, input)?;
        let bias = self.weights.get(&format!("{name}.bias"), &[output])?;
        let weight = self.b.constant("weight", weight);
        let bias = self.b.constant("bias", bias);
        let y = self.b.op("MatMul", &[x, &weight], &[]);
        Ok(self.b.op("Add", &[&y, &bias], &[]))
    }

    fn heads(&mut self, name: &str, x: &ValueName, perm: [i64; 4]) -> anyhow::Result<ValueName> {
        let x = self.linear(name, x, HIDDEN, HIDDEN)?;
        let shape = [0, self.length, HEADS, HIDDEN / HEADS].map(|length| length as i64);
        let shape = self.b.ints("shape", &shape);
        let x = self.b.op("Reshape", &[&x, &shape], &[]);
        Ok(self.b.op("Transpose", &[&x], &[("perm", perm.into())]))
    }

    /// x · (1 + erf(x ÷ √2)) ÷ 2, operator by operator as exporters write it.
    fn gelu(&mut self, x: &ValueName) -> ValueName {
        let root = self.b.scalar("sqrt2", std::f32::consts::SQRT_2);
        let erf = self.b.op("Div", &[x, &root], &[]);
        let erf = self.b.op("Erf", &[&erf], &[]);
        let one = self.b.scalar("one", 1.0);
        let gate = self.b.op("Add", &[&erf, &one], &[]);
        let gated = self.b.op("Mul", &[x, &gate], &[]);
        let half = self.b.scalar("half", 0.5);
        self.b.op("Mul", &[&gated, &half], &[])
    }

    /// The mean over the tokens that are no padding, brought to length 1.
    fn pooled(&mut self, x: &ValueName, mask: &ValueName) -> ValueName {
        let last = self.b.ints("axes", &[2]);
        let mask = self.b.op("Unsqueeze", &[mask, &last], &[]);
        let kept = self.b.op("Mul", &[x, &mask], &[]);
        let along = self.b.ints("axes", &[1]);
        let keep = [("keepdims", 0i64.into())];
        let sum = self.b.op("ReduceSum", &[&kept, &along], &keep);
        let count = self.b.op("ReduceSum", &[&mask, &along], &keep);
        let mean = self.b.op("Div", &[&sum, &count], &[]);
        let norm = self.b.op("ReduceL2", &[&mean], &[("axes", [1].into())]);
        self.b.op("Div", &[&mean, &norm], &[])
    }
}
