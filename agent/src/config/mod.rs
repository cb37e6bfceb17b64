//! The daemon's configuration, `agent.toml`: what it may contain, how environment variables override it, and a check
//! that lists everything that is wrong at once.
//!
//! Reading has three steps, each with its own errors: [`Config::load`] parses and refuses unknown or ill-typed fields
//! with file and line; it then refuses values that contradict each other (all of them in one error); and
//! [`Config::check`], which `edgeopt-agent check` runs, also looks at the files the configuration names.

mod check;
mod environment;
mod load;
mod settings;
mod size;

pub use check::{Problem, Severity};
pub use environment::PREFIX;
pub use load::ConfigError;
pub use settings::{
    BackendChoice, Broker, Config, DropPolicy, Engine, Http, Input, Listen, Memory, Priority, Slot, Spool,
    Store, Sync, Telemetry, Tls, Trust, Watch, WhileBuilding,
};
