//! The candidates of each precision: what is calibrated, what is converted, and what of it the user should know.

use std::borrow::Cow;

use edgeopt_models::Model;
use edgeopt_models::bundle::Precision;
use edgeopt_runtime::Backend;

use super::{BuildError, BuildOptions, Candidate, Data, Prepared, Progress};
use crate::accuracy::compare_parts;
use crate::calibrate::{CalibrationTable, Watched, extremes};
use crate::precision::fp16::{Fp16Report, simulate, to_fp16, values_to_watch};
use crate::precision::int8::{Int8Options, KeptNode, Target, quantize, quantize_to_target};

pub(super) fn fp16(
    prepared: &Prepared,
    options: &BuildOptions,
    data: &Data<'_>,
    backend: &dyn Backend,
    progress: &dyn Progress,
) -> Result<Candidate, BuildError> {
    let ranges = ranges(&prepared.model, options, None, data, backend, progress)?;
    let mut candidate = Candidate::new(Precision::Fp16, prepared.model.clone());
    let report = to_fp16(&mut candidate.model, &options.fp16, ranges.as_deref())?;
    candidate.notes = notes(&report);
    candidate.kept = report.kept;
    Ok(candidate)
}

pub(super) fn int8(
    prepared: &Prepared,
    options: &BuildOptions,
    table: &CalibrationTable,
    data: &Data<'_>,
    backend: &dyn Backend,
    progress: &dyn Progress,
) -> Result<Candidate, BuildError> {
    let int8 = Int8Options {
        half_scales: options.int8.half_scales || options.half_rest,
        ..options.int8.clone()
    };
    let half_rest =
        |quantized: &Model| half_rest(quantized, prepared, options, table, data, backend, progress);
    let Some((min_sqnr_db, samples)) = options.min_sqnr_db.zip(data.evaluation) else {
        let mut candidate = Candidate::new(Precision::Int8, prepared.model.clone());
        let report = quantize(&mut candidate.model, table, &int8)?;
        candidate.kept = report.kept;
        candidate.notes = report.notes;
        if options.half_rest {
            let (model, report) = half_rest(&candidate.model)?;
            take_half(&mut candidate, model, report);
        }
        return Ok(candidate);
    };
    let target = Target {
        min_sqnr_db,
        parts: data.postprocessing.parts(),
    };
    progress.stage("finding sensitive layers", None);
    let found = quantize_to_target(
        &prepared.model,
        table,
        &int8,
        samples,
        backend,
        &target,
        options.max_tries,
    )?;
    let mut candidate = Candidate::new(Precision::Int8, found.model);
    candidate.kept = found.report.kept;
    candidate.notes = found.report.notes;
    candidate.sensitive = found.excluded;
    if !found.met {
        candidate.notes.push(format!(
            "no combination of {} tried reaches {min_sqnr_db} dB",
            found.tries
        ));
    }
    if options.half_rest {
        let (model, report) = half_rest(&candidate.model)?;
        // The target was met with the rest in float32: half must not be what misses it.
        let reached = || -> Result<f64, BuildError> {
            let judged = simulate(&model)?;
            let mut unseen = |_: usize, _: &[_], _: &[_]| ();
            let parts = &target.parts;
            let found = compare_parts(&prepared.model, &judged, samples, backend, 0, parts, &mut unseen)?;
            Ok(found.min_sqnr_db())
        };
        let db = if found.met { reached()? } else { min_sqnr_db };
        if db >= min_sqnr_db {
            take_half(&mut candidate, model, report);
        } else {
            candidate.notes.push(format!(
                "layers that are not quantized stay in float32: in FP16 the model reaches only {db:.1} dB"
            ));
        }
    }
    Ok(candidate)
}

/// The quantized model with the rest in half where that is safe.
fn half_rest(
    quantized: &Model,
    prepared: &Prepared,
    options: &BuildOptions,
    table: &CalibrationTable,
    data: &Data<'_>,
    backend: &dyn Backend,
    progress: &dyn Progress,
) -> Result<(Model, Fp16Report), BuildError> {
    // Quantization keeps the names of the values it does not replace.
    let ranges = ranges(&prepared.model, options, Some(table), data, backend, progress)?;
    let mut model = quantized.clone();
    let report = to_fp16(&mut model, &options.fp16, ranges.as_deref())?;
    Ok((model, report))
}

fn take_half(candidate: &mut Candidate, model: Model, report: Fp16Report) {
    candidate.notes.extend(notes(&report));
    candidate
        .kept
        .extend(report.kept.into_iter().map(|kept| KeptNode {
            reason: format!("float32 and not FP16: {}", kept.reason),
            ..kept
        }));
    candidate.model = model;
}

/// Ranges of what would become half, if there is data; a table that has them all is taken as it is.
fn ranges<'a>(
    model: &Model,
    options: &BuildOptions,
    table: Option<&'a CalibrationTable>,
    data: &Data<'_>,
    backend: &dyn Backend,
    progress: &dyn Progress,
) -> Result<Option<Cow<'a, CalibrationTable>>, BuildError> {
    let Some(samples) = data.calibration else {
        return Ok(None);
    };
    let values = values_to_watch(model, &options.fp16)?;
    if let Some(table) = table
        && values.iter().all(|name| table.get(name.as_str()).is_some())
    {
        return Ok(Some(Cow::Borrowed(table)));
    }
    progress.stage("watching ranges for FP16", Some(data.calibration_len as u64));
    let mut at = |sample: usize| progress.at(sample as u64 + 1);
    let watched = Watched {
        calibrated: &[],
        others: &values,
    };
    let table = extremes(model, watched, samples, backend, options.threads, &mut at)?;
    Ok(Some(Cow::Owned(table)))
}

fn notes(report: &Fp16Report) -> Vec<String> {
    let mut notes = Vec::new();
    if report.flushed_weights > 0 {
        notes.push(format!(
            "{} weights are too small for half and became 0",
            report.flushed_weights
        ));
    }
    if report.clamped_masks > 0 {
        notes.push(format!(
            "{} masks were raised to the lowest half, -65504",
            report.clamped_masks
        ));
    }
    notes
}
