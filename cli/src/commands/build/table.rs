use std::path::{Path, PathBuf};

use comfy_table::{CellAlignment, Table, presets};
use edgeopt_models::Bytes;
use edgeopt_models::bundle::OutputAccuracy;
use edgeopt_optimizer::accuracy::worst_output;
use edgeopt_optimizer::build::{Candidate, Latency, Score};
use serde::Serialize;

use super::{memory, nodes};
use crate::screen::GOOD;

/// What a build shows at its end.
#[derive(Serialize)]
pub(super) struct Summary {
    bundle: PathBuf,
    size: Bytes,
    candidates: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    precision: String,
    nodes: usize,
    weights: Bytes,
    memory: Option<Bytes>,
    outputs: Vec<OutputAccuracy>,
    score: Option<Score>,
    latency: Option<Latency>,
    float_layers: Vec<String>,
}

impl Summary {
    pub(super) fn new(bundle: &Path, candidates: &[Candidate]) -> anyhow::Result<Self> {
        Ok(Self {
            bundle: bundle.into(),
            size: Bytes(std::fs::metadata(bundle)?.len()),
            candidates: candidates
                .iter()
                .map(|candidate| Row {
                    precision: candidate.precision.to_string(),
                    nodes: nodes(&candidate.model.graph),
                    weights: candidate.weights(),
                    memory: candidate.memory.as_ref().map(memory::total),
                    outputs: candidate.outputs.clone(),
                    score: candidate.score.clone(),
                    latency: candidate.latency,
                    float_layers: candidate
                        .kept
                        .iter()
                        .map(|kept| format!("{} {:?}: {}", kept.op, kept.node, kept.reason))
                        .collect(),
                })
                .collect(),
        })
    }
}

pub(super) fn show(summary: &Summary) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    let metrics: Vec<&str> = summary
        .candidates
        .iter()
        .find_map(|row| row.score.as_ref())
        .map(|score| score.all().map(|(metric, _)| metric).collect())
        .unwrap_or_default();
    let mut header = vec![
        "".to_owned(),
        "weights".into(),
        "memory".into(),
        "nodes".into(),
        "SQNR dB".into(),
        "cosine".into(),
    ];
    header.extend(metrics.iter().map(|metric| (*metric).to_owned()));
    header.extend(["median ms".to_owned(), "p90 ms".into()]);
    table.set_header(header);
    for row in &summary.candidates {
        let worst = worst_output(&row.outputs);
        let mut cells = vec![
            row.precision.clone(),
            row.weights.to_string(),
            row.memory.map_or("–".into(), |memory| memory.to_string()),
            row.nodes.to_string(),
            worst.map_or("–".into(), |output| format!("{:.1}", output.sqnr_db)),
            worst.map_or("–".into(), |output| format!("{:.6}", output.cosine)),
        ];
        let score = row.score.as_ref();
        cells.extend(
            metrics
                .iter()
                .map(|metric| score.map_or("–".into(), |score| score.shown(metric))),
        );
        cells.push(
            row.latency
                .map_or("–".into(), |latency| format!("{:.2}", latency.median_ms)),
        );
        cells.push(
            row.latency
                .map_or("–".into(), |latency| format!("{:.2}", latency.p90_ms)),
        );
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\n");
    if let Some(row) = summary.candidates.last()
        && !row.float_layers.is_empty()
    {
        text.push_str(&format!(
            "{} layers stay in float (all of them: --json)\n",
            row.float_layers.len()
        ));
    }
    text.push_str(&format!(
        "{GOOD}wrote{GOOD:#} {} ({})\n",
        summary.bundle.display(),
        summary.size
    ));
    text
}

/// What a user must not overlook.
pub(super) fn warnings(candidates: &[Candidate]) -> Vec<String> {
    let mut warnings = Vec::new();
    let (Some(float), Some(chosen)) = (candidates.first(), candidates.last()) else {
        return warnings;
    };
    warnings.extend(chosen.notes.iter().cloned());
    let unknown = chosen.outputs.iter().filter(|output| output.sqnr_db.is_nan());
    warnings.extend(unknown.map(|output| {
        format!(
            "the difference of output {:?} is not a number: take it for the worst there is",
            output.name
        )
    }));
    if chosen.samples == 0 {
        warnings.push("nothing was compared: the accuracy of this bundle is unknown".into());
    }
    if let (Some(before), Some(after)) = (float.latency, chosen.latency)
        && candidates.len() > 1
        && after.median_ms > before.median_ms
    {
        warnings.push(format!(
            "on this machine {} is slower than {}: {:.2} against {:.2} ms; measure on the device before choosing it",
            chosen.precision, float.precision, after.median_ms, before.median_ms
        ));
    }
    if let (Some(own), Some(original)) = (&chosen.score, &chosen.original_score) {
        let drop = (original.value - own.value) * 100.0;
        if drop > 1.0 {
            warnings.push(format!(
                "{} dropped by {drop:.2} points; see --min-sqnr",
                own.metric
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_shows_the_output_that_is_no_number() {
        let output = |name: &str, sqnr_db: f64, cosine: f64| OutputAccuracy {
            name: name.to_owned(),
            sqnr_db,
            cosine,
            max_abs: 0.0,
        };
        let row = Row {
            precision: "fp16".into(),
            nodes: 1,
            weights: Bytes::kib(1),
            memory: None,
            outputs: vec![output("good", 40.0, 0.5), output("broken", f64::NAN, 0.25)],
            score: None,
            latency: None,
            float_layers: Vec::new(),
        };
        let summary = Summary {
            bundle: "out.edge".into(),
            size: Bytes::kib(1),
            candidates: vec![row],
        };
        let text = show(&summary);
        assert!(text.contains("NaN") && text.contains("0.250000"), "{text}");
        assert!(!text.contains("40.0"), "{text}");
    }
}
