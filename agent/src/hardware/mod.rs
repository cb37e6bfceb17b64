//! The device's hardware: what it measures of itself, sensors that feed models, and outputs that results switch.
//!
//! Drivers are written against the traits of `embedded-hal` 1.0, policies (rules, throttling) are plain state machines
//! with time as an argument, and the kernel's files are read below a root folder; so all of it is tested without
//! hardware. [`Hardware`] is what the daemon holds; `docs/hardware.md` is the guide.
//!
//! ```text
//!  /sys, nvpmodel ─▶ power · thermal · fan · power_mode ─┬─▶ telemetry          Sample
//!  I²C ───────────▶ ina3221 ─────────────────────────────┴─▶ throttle           rate_limit(slot)
//!  I²C ───────────▶ sensor ─────────────────────────────────────────────────▶   windows (.npy) for a slot
//!  results ───────▶ condition ─▶ rules ─▶ outputs ─▶ GPIO, PWM
//! ```

mod board;
mod check;
mod condition;
mod error;
mod fan;
pub mod ina3221;
mod linux;
mod outputs;
mod power;
mod power_mode;
mod pwm;
mod registers;
mod rules;
mod sensor;
pub mod settings;
mod sysfs;
mod telemetry;
mod thermal;
mod throttle;

pub use board::Hardware;
pub use condition::{Condition, InvalidCondition, Unanswerable};
pub use error::HardwareError;
pub use fan::fans;
pub use linux::{Devices, LinuxDevices};
pub use outputs::{Line, Output};
pub use power::rails;
pub use power_mode::{PowerMode, power_mode};
pub use pwm::SysfsPwm;
pub use registers::Format;
pub use rules::{Rule, Rules};
pub use sensor::{Sensor, Window};
pub use settings::HardwareSettings;
pub use sysfs::Sysfs;
pub use thermal::{Thermal, ThermalReader};
pub use throttle::{Change, Conditions, Throttle};
