//! The memory budget of a device or process.

mod budget;
mod system;

pub use budget::{Budget, BudgetError, Reservation};
