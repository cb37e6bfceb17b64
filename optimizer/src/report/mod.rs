//! The report of a build for people: one HTML file without scripts or outside resources.

mod charts;
mod svg;

use edgeopt_models::Bytes;
use edgeopt_models::bundle::OutputAccuracy;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::{Deserialize, Serialize};

use crate::accuracy::{LayerSqnr, rank, worst_output};
use crate::build::{Latency, PassCount, Score};
use crate::precision::int8::KeptNode;

/// Everything the report shows. Nothing is computed here but the pictures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name and version of the model.
    pub title: String,
    /// Facts about the build, in order: label and value.
    pub facts: Vec<(String, String)>,
    /// The memory limit asked for.
    pub memory_limit: Option<Bytes>,
    /// The batch size that memory was planned for.
    pub batch: usize,
    /// Inputs and outputs of the last candidate at that batch, held all the time.
    pub io: Bytes,
    /// One row for each precision that was built; the last is the one in the bundle.
    pub candidates: Vec<CandidateReport>,
    /// SQNR per layer of the last candidate, in the network's order.
    pub layers: Vec<LayerSqnr>,
    /// Bytes alive while each node runs, in order.
    pub timeline: Vec<(String, Bytes)>,
    /// What the passes did.
    pub passes: Vec<PassCount>,
    /// Layers of the last candidate that stay in a wider type, and why.
    pub kept: Vec<KeptNode>,
    /// What must not be overlooked.
    pub warnings: Vec<String>,
}

/// One precision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CandidateReport {
    /// Its name.
    pub precision: String,
    /// Bytes of all constants.
    pub weights: Bytes,
    /// Weights, activations, inputs and outputs together at the planned batch.
    pub memory: Option<Bytes>,
    /// Nodes of the graph.
    pub nodes: usize,
    /// Time of one run where it was built.
    pub latency: Option<Latency>,
    /// Difference from the original, per output.
    pub outputs: Vec<OutputAccuracy>,
    /// The task's metric.
    pub score: Option<Score>,
}

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6570; --line: #d8dee4; --back: #ffffff; --panel: #f6f8fa;
  --one: #2f6fb0; --two: #9db8d4; --bad: #b3452c; --warn: #fff4e0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa5b1; --line: #353c44; --back: #14171a;
  --panel: #1c2126; --one: #6aa7e0; --two: #3d5f80; --bad: #e58a70; --warn: #33291a; } }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.25rem 0 .6rem; }
p.note, figcaption { color: var(--soft); font-size: .875rem; margin: .25rem 0 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .925rem; }
th, td { padding: .4rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 500; } td.n, th.n { text-align: right; white-space: nowrap; }
tr.chosen td { font-weight: 600; background: var(--panel); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .75rem 0 0; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
ul.warnings { background: var(--warn); padding: .75rem 1rem .75rem 2rem; border-radius: .4rem; }
figure { margin: 0; background: var(--panel); padding: 1rem; border-radius: .4rem; overflow-x: auto; }
svg { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--soft); } svg .strong { fill: var(--ink); } svg .grid { stroke: var(--line); } svg .lead { stroke: var(--bad); stroke-width: .6; }
svg .one { fill: var(--one); } svg .two { fill: var(--two); } svg .io { fill: var(--soft); } svg .bad { fill: var(--bad); }
svg .limit { stroke: var(--bad); stroke-dasharray: 5 3; } svg .area { fill: var(--one); fill-opacity: .35; stroke: var(--one); }
code { overflow-wrap: anywhere; } details { margin-top: .5rem; }
@media print { body { max-width: none; padding: 0; } figure { break-inside: avoid; } }
";

/// Renders the report. Names from the model are escaped.
pub fn render_html(report: &Report) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (report.title) " – edgeopt report" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (report.title) }
                dl { @for (label, value) in &report.facts { dt { (label) } dd { (value) } } }
                @if !report.warnings.is_empty() {
                    h2 { "To look at" }
                    ul.warnings { @for warning in &report.warnings { li { (warning) } } }
                }
                h2 { "Precisions side by side" }
                (comparison(report))
                @if let Some(chart) = charts::latency(&report.candidates) {
                    h2 { "Latency where it was built" }
                    figure { (chart) figcaption { "Milliseconds for one run: median, and the ninth of ten runs." } }
                }
                @if let Some(chart) = charts::layers(&report.layers) {
                    h2 { "Where the error comes from" }
                    figure {
                        (chart)
                        figcaption {
                            "Signal to quantization noise ratio of each layer's output in dB, errors of the layers before \
                             it included; higher is better. The lowest five are named."
                        }
                    }
                    (worst_layers(&report.layers))
                }
                @if let Some(chart) = charts::memory(&report.timeline, report.memory_limit, weights(report), report.io) {
                    h2 { "Memory over one run" }
                    figure { (chart) figcaption {
                        "Weights, inputs and outputs, and the tensors alive while each node runs, batch " (report.batch) "."
                    } }
                }
                @if !report.kept.is_empty() {
                    h2 { "Layers in a wider type" }
                    (kept(&report.kept))
                }
                @if report.passes.iter().any(|pass| pass.changes > 0) {
                    h2 { "Rewrites" }
                    table {
                        tr { th { "Pass" } th.n { "Places changed" } }
                        @for pass in report.passes.iter().filter(|pass| pass.changes > 0) {
                            tr { td { (pass.pass) } td.n { (pass.changes) } }
                        }
                    }
                }
            }
        }
    };
    page.into_string()
}

fn weights(report: &Report) -> Bytes {
    report
        .candidates
        .last()
        .map_or(Bytes::ZERO, |candidate| candidate.weights)
}

fn comparison(report: &Report) -> Markup {
    let metric = report
        .candidates
        .iter()
        .find_map(|candidate| candidate.score.as_ref());
    let has_memory = report
        .candidates
        .iter()
        .any(|candidate| candidate.memory.is_some());
    html! {
        table {
            tr {
                th { "Precision" } th.n { "Weights" }
                @if has_memory { th.n { "Memory" } }
                th.n { "Nodes" } th.n { "SQNR dB" } th.n { "Cosine" } th.n { "Largest difference" }
                @for (metric, _) in metric.iter().flat_map(|score| score.all()) { th.n { (metric) } }
                th.n { "Median ms" } th.n { "p90 ms" }
            }
            @for (index, candidate) in report.candidates.iter().enumerate() {
                @let worst = worst_output(&candidate.outputs);
                tr.chosen[index + 1 == report.candidates.len()] {
                    td { (candidate.precision) }
                    td.n { (candidate.weights) }
                    @if has_memory { td.n { (candidate.memory.map_or("–".into(), |memory| memory.to_string())) } }
                    td.n { (candidate.nodes) }
                    td.n { (worst.map_or("–".into(), |output| format!("{:.1}", output.sqnr_db))) }
                    td.n { (worst.map_or("–".into(), |output| format!("{:.6}", output.cosine))) }
                    td.n { (worst.map_or("–".into(), |output| format!("{:.2e}", output.max_abs))) }
                    @for (metric, _) in metric.iter().flat_map(|score| score.all()) {
                        td.n { (candidate.score.as_ref().map_or("–".into(), |score| score.shown(metric))) }
                    }
                    td.n { (candidate.latency.map_or("–".into(), |latency| format!("{:.2}", latency.median_ms))) }
                    td.n { (candidate.latency.map_or("–".into(), |latency| format!("{:.2}", latency.p90_ms))) }
                }
            }
        }
        p.note {
            "SQNR, cosine and largest difference are against the original float model on the evaluation data, for the \
             output that differs most."
            @if report.candidates.iter().any(|candidate| candidate.outputs.iter().any(|output| output.sqnr_db.is_nan())) {
                " NaN: there is no number, which counts as the worst of all."
            }
            @if let Some(limit) = report.memory_limit { " The memory limit is " (limit) "." }
        }
    }
}

fn worst_layers(layers: &[LayerSqnr]) -> Markup {
    let mut sorted: Vec<&LayerSqnr> = layers.iter().collect();
    sorted.sort_by(|a, b| rank(a.sqnr_db).total_cmp(&rank(b.sqnr_db)));
    html! {
        details {
            summary { "The twenty layers with the lowest SQNR" }
            table {
                tr { th { "Layer" } th { "Operator" } th.n { "SQNR dB" } }
                @for layer in sorted.iter().take(20) {
                    tr { td { code { (layer.node) } } td { (layer.op) } td.n { (format!("{:.1}", layer.sqnr_db)) } }
                }
            }
        }
    }
}

fn kept(nodes: &[KeptNode]) -> Markup {
    html! {
        details open[nodes.len() <= 10] {
            summary { (nodes.len()) " nodes, with the reason for each" }
            table {
                tr { th { "Node" } th { "Operator" } th { "Why" } }
                @for node in nodes { tr { td { code { (node.node) } } td { (node.op) } td { (node.reason) } } }
            }
        }
    }
}

#[cfg(test)]
mod tests;
