//! The connection to the broker.
//!
//! One thread with a single-threaded runtime owns the network; the rest of the daemon is ordinary threads that talk to
//! it over bounded queues. What is to be sent lies in an [`Outbox`] (the spool), and a record leaves it only when the
//! broker has acknowledged that very record. Inbound messages are acknowledged only after the daemon has taken them.
//!
//! The MQTT client underneath is treated as something that lives for one connection: it forgets unacknowledged messages
//! when the broker has lost the session, and it cannot recover from acknowledgements out of order once it runs out of
//! packet ids. So on *any* error it is thrown away with all its state, and a new one is filled from the outbox. What
//! this costs is repetition: receivers drop a message whose id they know.
//!
//! ```text
//!  spool ──▶ Outbox ──next──▶ Session ──▶ rumqttc ──▶ broker        supervisor: back off, rebuild, raise alarms
//!              ▲─acknowledged──┘  │  ◀── acknowledgement
//!  daemon ◀──── bounded queue ◀───┘  ◀── inbound                    LinkView: what anyone may watch
//! ```

mod backoff;
mod clock;
mod handle;
mod inbound;
mod options;
mod outbox;
mod packet;
mod poller;
mod quarantine;
mod reason;
mod session;
mod supervisor;
mod takeover;
mod tls;
mod view;
mod watch;
mod window;

pub use backoff::{Backoff, BackoffPolicy};
pub(crate) use clock::is_set;
pub use clock::{Environment, SystemClock, WallClock};
pub use handle::{Link, LinkError, Nudge, Stopped};
pub use inbound::Inbound;
pub use options::LinkOptions;
pub use outbox::{MemoryOutbox, Outbox, OutboxError, Outgoing};
pub use packet::{PacketLimit, Refusal};
pub use quarantine::QuarantinePolicy;
pub use reason::DisconnectReason;
pub use tls::TlsError;
pub(crate) use tls::{check_tls, client_config};
pub use view::{Alarm, Counters, LinkState, LinkView};
pub use watch::Watch;
