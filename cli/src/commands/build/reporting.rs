use edgeopt_models::Bytes;
use edgeopt_models::bundle::{Manifest, Precision};
use edgeopt_optimizer::accuracy::{LayerSqnr, layer_sqnr};
use edgeopt_optimizer::build::{Candidate, Prepared};
use edgeopt_optimizer::report::{CandidateReport, Report, render_html};
use edgeopt_runtime::Backend;
use edgeopt_runtime::dataset::Dataset;

use super::{Arguments, memory, table};

/// Samples that layers are compared on, and the memory their values may take.
const LAYER_SAMPLES: usize = 8;
const TAP_MEMORY: Bytes = Bytes::mib(64);

/// SQNR of each layer of a candidate; none for the float model, and none without data.
pub(super) fn layers(
    prepared: &Prepared,
    chosen: &Candidate,
    samples: Option<&Dataset>,
    backend: &dyn Backend,
) -> anyhow::Result<Vec<LayerSqnr>> {
    let Some(samples) = samples.filter(|_| chosen.precision != Precision::Fp32) else {
        return Ok(Vec::new());
    };
    let few = (0..samples.len().min(LAYER_SAMPLES))
        .map(|index| Ok(samples.sample(index)?.inputs))
        .collect::<anyhow::Result<Vec<_>>>()?;
    Ok(layer_sqnr(
        &prepared.model,
        &chosen.judged()?,
        &few,
        backend,
        TAP_MEMORY,
    )?)
}

/// The report's page.
pub(super) fn page(
    arguments: &Arguments,
    manifest: &Manifest,
    prepared: &Prepared,
    candidates: &[Candidate],
    layers: Vec<LayerSqnr>,
) -> String {
    let provenance = &manifest.provenance;
    let mut facts = vec![
        ("Source".to_owned(), provenance.source.clone()),
        (
            "SHA-256 of the source".to_owned(),
            provenance.source_sha256.clone(),
        ),
        ("Built by".to_owned(), provenance.tool.clone()),
    ];
    facts.extend(
        provenance
            .options
            .iter()
            .map(|(name, value)| (name.replace('_', " "), value.clone())),
    );
    if let Some(accuracy) = &manifest.accuracy {
        facts.push(("Compared on".to_owned(), format!("{} samples", accuracy.samples)));
    }
    let chosen = candidates.last();
    render_html(&Report {
        title: format!("{} {}", manifest.name, manifest.version),
        facts,
        memory_limit: arguments.memory,
        batch: arguments.batch,
        io: chosen
            .and_then(|chosen| chosen.memory.as_ref())
            .map(|plan| plan.io)
            .unwrap_or_default(),
        candidates: candidates.iter().map(candidate_report).collect(),
        layers,
        timeline: chosen.map(|chosen| chosen.timeline.clone()).unwrap_or_default(),
        passes: prepared.passes.clone(),
        kept: chosen.map(|chosen| chosen.kept.clone()).unwrap_or_default(),
        warnings: table::warnings(candidates),
    })
}

fn candidate_report(candidate: &Candidate) -> CandidateReport {
    CandidateReport {
        precision: candidate.precision.to_string(),
        weights: candidate.weights(),
        memory: candidate.memory.as_ref().map(memory::total),
        nodes: super::nodes(&candidate.model.graph),
        latency: candidate.latency,
        outputs: candidate.outputs.clone(),
        score: candidate.score.clone(),
    }
}
