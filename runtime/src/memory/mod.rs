//! The memory budget of a device or process.

mod budget;
pub(crate) mod free;
mod system;

pub use budget::{Budget, BudgetError, Reservation};
pub use system::available;
