//! A small MQTT 3.1.1 broker in this process: a fleet to try out on one machine, with nothing to install.
//!
//! It knows QoS 0 and 1, retained messages, sessions that outlive a connection, wills, and `+` and `#`. It has no log-in
//! and no encryption, and keeps everything in memory, so it listens on loopback addresses only. For anything that
//! matters use a real broker. (rumqttd would have been the choice, but brings some seventy crates, two HTTP stacks among
//! them, which all of this project's users would have to fetch and audit.)

mod connection;
mod hub;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use hub::Hub;

/// The broker could not be started.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The address can be reached from other machines.
    #[error("the embedded broker has no log-in: {0} is not a loopback address such as 127.0.0.1:1883")]
    NotLoopback(SocketAddr),
    /// The system refuses the address.
    #[error("the embedded broker cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// A running broker; ends when dropped.
#[derive(Debug)]
pub struct EmbeddedBroker {
    address: SocketAddr,
    ending: Arc<AtomicBool>,
    hub: Shared,
    thread: Option<JoinHandle<()>>,
}

impl EmbeddedBroker {
    /// Listens on a loopback address; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address is none, or the system refuses it.
    pub fn start(address: SocketAddr) -> Result<Self, BrokerError> {
        if !address.ip().is_loopback() {
            return Err(BrokerError::NotLoopback(address));
        }
        let failed = |source| BrokerError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (ending, hub) = (Arc::new(AtomicBool::new(false)), Shared::default());
        let (seen, clients) = (Arc::clone(&ending), hub.clone());
        let thread = thread::Builder::new()
            .name("broker".into())
            .spawn(move || accept(&listener, &seen, &clients))
            .map_err(failed)?;
        Ok(Self {
            address: bound,
            ending,
            hub,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Messages given up because a session's queue was full.
    pub fn dropped_count(&self) -> u64 {
        self.hub.lock().dropped()
    }
}

impl Drop for EmbeddedBroker {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts. Should that fail, the thread stays, and with it only the port.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic there has been reported by its thread already.
            drop(thread.join());
        }
        self.hub.lock().close_all();
    }
}

fn accept(listener: &TcpListener, ending: &AtomicBool, hub: &Shared) {
    for stream in listener.incoming() {
        if ending.load(Ordering::SeqCst) {
            return;
        }
        // A client that is gone already, or one that the system has no thread for: it comes again.
        let Ok(stream) = stream else { continue };
        let hub = hub.clone();
        let served = thread::Builder::new()
            .name("broker-client".into())
            .spawn(move || {
                if let Err(error) = connection::serve(&stream, &hub) {
                    tracing::debug!("broker: {error}");
                }
            });
        if let Err(error) = served {
            tracing::warn!("broker: no thread for a client: {error}");
        }
    }
}

/// The state that all connections share.
#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<Hub>>);

impl Shared {
    // Each change is one call, so a panic elsewhere leaves no half-made one.
    fn lock(&self) -> MutexGuard<'_, Hub> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
