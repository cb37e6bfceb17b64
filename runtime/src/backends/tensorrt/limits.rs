//! What a build may take, from the limit that the finished engine must keep. Pure.

use edgeopt_models::Bytes;
use edgeopt_models::bundle::MemoryPlan;

use crate::MemoryUse;
use crate::memory::{Budget, BudgetError};

/// Limits of a build; `None` leaves a choice to TensorRT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildLimits {
    /// Scratch memory of any one layer.
    pub workspace: Option<Bytes>,
    /// Memory of the device while a tactic is tried. On integrated GPUs TensorRT counts what the process already holds.
    pub tactic_memory: Option<Bytes>,
}

/// Below this no useful tactic of a convolution is left.
const LEAST_WORKSPACE: Bytes = Bytes::mib(1);

impl BuildLimits {
    /// The limits under which a build for a model planned as `plan` stays within `memory`: what weights, activations
    /// and I/O leave is scratch memory. `resident` is what the process holds already, where the GPU shares its memory.
    ///
    /// # Errors
    /// When the plan leaves less than 1 MiB.
    pub fn derive(
        name: &str,
        memory: Bytes,
        plan: &MemoryPlan,
        resident: Option<Bytes>,
    ) -> Result<Self, BudgetError> {
        let needs = MemoryUse {
            weights: plan.weights,
            activations: plan.activations,
            io: plan.io,
            workspace: LEAST_WORKSPACE,
            overhead: Bytes::ZERO,
        };
        Budget::new(memory).reserve(name, needs)?;
        let left = memory.saturating_sub(plan.weights + plan.activations + plan.io);
        Ok(Self {
            workspace: Some(left),
            tactic_memory: Some(memory + resident.unwrap_or(Bytes::ZERO)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> MemoryPlan {
        MemoryPlan {
            batch: 1,
            weights: Bytes::mib(10),
            activations: Bytes::mib(4),
            io: Bytes::mib(1),
        }
    }

    #[test]
    fn what_the_plan_leaves_is_workspace() {
        let limits = BuildLimits::derive("net", Bytes::mib(32), &plan(), Some(Bytes::mib(100))).unwrap();
        assert_eq!(limits.workspace, Some(Bytes::mib(17)));
        assert_eq!(limits.tactic_memory, Some(Bytes::mib(132)));
    }

    #[test]
    fn a_limit_that_the_plan_fills_is_refused_with_the_parts() {
        let error = BuildLimits::derive("net", Bytes::mib(15), &plan(), None)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("needs 16.0 MiB, limit 15.0 MiB") && error.contains("weights 10.0 MiB"),
            "{error}"
        );
    }
}
