//! The device daemon's parts, and the fleet protocol that devices and operators share.
//!
//! ```text
//! config     agent.toml                      daemon    the parts put together; the program is `edgeopt-agent`
//! protocol   topics and messages             deploy    from the model a slot has to the one it should have
//! link       the connection to the broker    serve     queues, batches, switches
//! spool      results that wait for it        inputs    folders; http: the local interface
//! store      bundles by digest               hardware  sensors, rails, outputs, throttling
//! download   the ways into it                fleet     the operator's side
//! disk       files that tests can cut from power
//! ```
//!
//! Start with [`daemon`], then [`protocol`] and [`link`]. [`broker`] is a small broker for trying things out.

pub mod broker;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod deploy;
pub mod disk;
pub mod download;
pub mod durable;
pub mod fleet;
pub mod hardware;
pub mod http;
pub mod inputs;
pub mod link;
pub mod protocol;
pub mod pulse;
pub mod serve;
pub mod spool;
pub mod store;
