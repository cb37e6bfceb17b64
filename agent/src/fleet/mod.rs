//! The operator's side of the fleet protocol: what `edgeopt fleet` does.

mod blob;
mod command;
mod operator;
mod rollout;
mod survey;
#[cfg(test)]
mod tests;
mod way;

pub use blob::BundleFile;
pub use command::{CommandOutcome, command};
pub use operator::{Access, Heard, Operator, OperatorError};
pub use rollout::{Change, DeviceProgress, Failure, Rollout, RolloutEnd, roll_out};
pub use survey::{DeviceView, survey};
