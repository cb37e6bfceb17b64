//! The memory budget of a device or process.

mod budget;

pub use budget::{Budget, BudgetError, Reservation};
