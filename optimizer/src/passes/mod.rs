//! Rewrites that keep what a model computes: one ordered list, run until nothing changes.

mod affine;
mod batch_norm;
mod chains;
mod constants;
mod dead_code;
mod duplicates;
mod equal_constants;
mod folding;
mod identities;
mod integers;
mod known_rank;
mod layer_norm;
mod optional_outputs;
mod padding;
mod weighted_affine;

pub use folding::{BackendEvaluator, Evaluator};

use edgeopt_models::graph::validate::{ValidateError, validate};
use edgeopt_models::{Graph, Model};

/// What the passes may do.
#[derive(Clone, Copy, Default)]
pub struct Context<'a> {
    /// Computes constant parts of the graph; without it they stay.
    pub evaluator: Option<&'a dyn Evaluator>,
    /// Treat initializers that are also graph inputs (IR 4 and later) as constants. The inputs disappear, so
    /// callers can no longer override them.
    pub fold_overridable: bool,
}

/// How many places a pass changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes(pub usize);

/// Why the passes stopped.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// A pass left a broken model behind: a defect of the pass, not of the model.
    #[error(
        "the pass {pass:?} left a model that is not valid any more: {source}. This is a defect of the pass; \
         please report it together with the model, and do not use the model as it is now"
    )]
    Broken {
        /// The pass.
        pass: &'static str,
        /// What does not hold.
        source: ValidateError,
    },
}

/// One rewrite, with its name for reports.
pub type Pass = (&'static str, fn(&mut Model, &Context<'_>) -> Changes);

/// Every pass in the order they run.
pub const PIPELINE: &[Pass] = &[
    ("fixed-initializers", constants::fix_initializers),
    ("constant-nodes", constants::constant_nodes),
    ("constant-folding", folding::fold),
    ("optional-outputs", optional_outputs::drop_unread),
    ("identities", identities::remove),
    ("chains", chains::merge),
    ("padding", padding::into_convolutions),
    ("weighted-affine", weighted_affine::fold),
    ("batch-norm", batch_norm::split),
    ("layer-norm", layer_norm::fuse),
    ("equal-constants", equal_constants::merge),
    ("duplicates", duplicates::merge),
    ("dead-code", dead_code::remove),
];

/// Rounds over the pipeline after which it stops even if passes still find something.
const MAX_ROUNDS: usize = 16;

/// Runs the pipeline until no pass changes anything, and says how much each changed in all.
///
/// # Errors
/// When, in builds with debug assertions, a pass leaves an invalid model.
pub fn run_pipeline(
    model: &mut Model,
    context: &Context<'_>,
) -> Result<Vec<(&'static str, Changes)>, PassError> {
    let mut totals: Vec<_> = PIPELINE.iter().map(|(name, _)| (*name, Changes(0))).collect();
    // An invalid input is not a pass's fault.
    let check = cfg!(debug_assertions) && validate(model).is_ok();
    for round in 1..=MAX_ROUNDS {
        let mut changed = false;
        for ((pass, run), (_, total)) in PIPELINE.iter().zip(&mut totals) {
            let changes = run(model, context);
            total.0 += changes.0;
            changed |= changes.0 > 0;
            if check && changes.0 > 0 {
                validate(model).map_err(|source| PassError::Broken { pass, source })?;
            }
        }
        if !changed {
            break;
        }
        if round == MAX_ROUNDS {
            tracing::warn!(
                "the passes still found something to do after {MAX_ROUNDS} rounds; more may be gained"
            );
        }
    }
    Ok(totals)
}

/// Operators that may give another result each time.
const RANDOM: [&str; 7] = [
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
    "Dropout",
];

/// Applies `edit` to the graph and all its subgraphs, and adds up the changes.
fn every_graph(graph: &mut Graph, edit: &mut impl FnMut(&mut Graph) -> usize) -> usize {
    let mut changes = edit(graph);
    for node in &mut graph.nodes {
        for subgraph in node.subgraphs_mut() {
            changes += every_graph(subgraph, edit);
        }
    }
    changes
}

#[cfg(test)]
mod tests;
