use anyhow::Context;
use edgeopt_models::Bytes;
use edgeopt_models::bundle::{MemoryPlan, Precision};
use edgeopt_optimizer::build::Candidate;
use edgeopt_optimizer::calibrate::SampleInputs;
use edgeopt_runtime::MemoryUse;
use edgeopt_runtime::memory::Budget;

use crate::screen::Screen;

/// What a plan takes in all.
pub(super) fn total(plan: &MemoryPlan) -> Bytes {
    plan.weights + plan.activations + plan.io
}

/// Plans the candidate's memory. Without a limit, a model whose sizes cannot be known is only said to be so.
pub(super) fn plan(
    candidate: &mut Candidate,
    batch: usize,
    sample: Option<&SampleInputs>,
    limit: Option<Bytes>,
    screen: &Screen,
) -> anyhow::Result<()> {
    match candidate.plan(batch, sample) {
        Ok(_) => Ok(()),
        Err(error) if limit.is_none() => {
            screen.warning(&format!(
                "memory of {} is not planned: {error}",
                candidate.precision
            ));
            Ok(())
        }
        Err(error) => Err(error).context(
            "the memory limit cannot be checked; give --evaluation-data, or fix open dimensions with --dim",
        ),
    }
}

/// Refuses what does not fit, with what would.
pub(super) fn check(
    name: &str,
    chosen: &mut Candidate,
    batch: usize,
    sample: Option<&SampleInputs>,
    limit: Bytes,
    half_rest: bool,
) -> anyhow::Result<()> {
    let Some(plan) = chosen.memory.clone() else {
        return Ok(());
    };
    let needs = MemoryUse {
        weights: plan.weights,
        activations: plan.activations,
        io: plan.io,
        ..MemoryUse::default()
    };
    let Err(error) = Budget::new(limit).reserve(&format!("{name} {}", chosen.precision), needs) else {
        return Ok(());
    };
    let mut fits = Vec::new();
    if batch > 1 && chosen.plan(1, sample).is_ok_and(|plan| total(&plan) <= limit) {
        fits.push("batch 1".to_owned());
    }
    // What narrower types would take. INT8 is reckoned with the activations of the layers around it, since some stay.
    let halved = |bytes: Bytes| Bytes(bytes.0 / 2);
    let narrower = match chosen.precision {
        Precision::Fp32 => {
            let rest = if half_rest {
                halved(plan.activations)
            } else {
                plan.activations
            };
            vec![
                (Precision::Fp16, halved(plan.weights + plan.activations) + plan.io),
                (Precision::Int8, Bytes(plan.weights.0 / 4) + rest + plan.io),
            ]
        }
        Precision::Fp16 => {
            let rest = if half_rest {
                plan.activations
            } else {
                plan.activations + plan.activations
            };
            vec![(Precision::Int8, halved(plan.weights) + rest + plan.io)]
        }
        Precision::Int8 => Vec::new(),
    };
    if let Some((precision, estimate)) = narrower.into_iter().find(|(_, estimate)| *estimate <= limit) {
        fits.push(format!("--precision {precision} (about {estimate})"));
    }
    Err(if fits.is_empty() {
        error
    } else {
        error.with_would_fit(fits.join(", or "))
    }
    .into())
}
