use edgeopt_models::Model;
use edgeopt_models::bundle::OutputPart;
use edgeopt_runtime::Backend;

use super::{Int8Error, Int8Options, Int8Report, quantize, sensitivity};
use crate::accuracy::{CompareError, Comparison, LayerSqnr, compare_parts};
use crate::calibrate::{CalibrationTable, Samples};

/// Why the search failed.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The model cannot be quantized.
    #[error(transparent)]
    Int8(#[from] Int8Error),
    /// A model cannot be compared.
    #[error(transparent)]
    Compare(#[from] CompareError),
}

/// What [`quantize_to_target`] is to reach.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Least SQNR of every output in dB.
    pub min_sqnr_db: f64,
    /// Parts of the first output that must reach it each by itself; none if the whole must.
    pub parts: Vec<OutputPart>,
}

/// The outcome of [`quantize_to_target`].
#[derive(Debug)]
pub struct SearchResult {
    /// The quantized model.
    pub model: Model,
    /// What was quantized.
    pub report: Int8Report,
    /// Its accuracy.
    pub comparison: Comparison,
    /// Layers left in float because of their sensitivity, worst first.
    pub excluded: Vec<LayerSqnr>,
    /// Whether the target was met.
    pub met: bool,
    /// How many models were tried.
    pub tries: usize,
}

/// Quantizes; while an output's SQNR is below the target, leaves the most sensitive layers in float: one, then
/// two, four and so on, then as few as the target allows, in at most `max_tries` models (at least one). Returns
/// the best model met, with `met` false when no try reached the target.
///
/// # Errors
/// When the model cannot be quantized or run.
pub fn quantize_to_target(
    float: &Model,
    table: &CalibrationTable,
    options: &Int8Options,
    samples: &dyn Samples,
    backend: &dyn Backend,
    target: &Target,
    max_tries: usize,
) -> Result<SearchResult, SearchError> {
    let attempt = |excluded: &[LayerSqnr], tries: usize| -> Result<SearchResult, SearchError> {
        let mut options = options.clone();
        options
            .exclude_nodes
            .extend(excluded.iter().map(|layer| layer.node.clone()));
        let mut model = float.clone();
        let report = quantize(&mut model, table, &options)?;
        let comparison = compare_parts(
            float,
            &model,
            samples,
            backend,
            0,
            &target.parts,
            &mut |_, _, _| (),
        )?;
        let met = comparison.min_sqnr_db() >= target.min_sqnr_db;
        Ok(SearchResult {
            model,
            report,
            comparison,
            excluded: excluded.to_vec(),
            met,
            tries,
        })
    };
    let mut best = attempt(&[], 1)?;
    if best.met || max_tries <= 1 {
        return Ok(best);
    }
    let ranking = sensitivity(float, &best.model, samples, backend)?;
    let mut tries = 1;
    // Below `failed` excluded layers the target is missed, from `reached` on it is met.
    let (mut failed, mut reached) = (0, None);
    let mut next = 1;
    while tries < max_tries && next <= ranking.len() {
        tries += 1;
        let found = attempt(&ranking[..next], tries)?;
        let better = found.comparison.min_sqnr_db() > best.comparison.min_sqnr_db();
        if found.met {
            reached = Some(next);
            best = found;
        } else {
            failed = next;
            if reached.is_none() && better {
                best = found;
            }
        }
        next = match reached {
            Some(reached) if reached - failed <= 1 => break,
            Some(reached) => failed + (reached - failed) / 2,
            None if failed == ranking.len() => break,
            None => (failed * 2).min(ranking.len()),
        };
    }
    best.tries = tries;
    Ok(best)
}
