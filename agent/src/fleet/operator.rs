//! A short connection to the broker. Unlike a device's link it is not built again: a command that cannot finish says so.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rumqttc::{
    Client, ConnectReturnCode, ConnectionError, Event, MqttOptions, Packet, QoS, SubscribeReasonCode,
    TlsConfiguration, Transport,
};

use crate::config::Tls;
use crate::link::{SystemClock, TlsError, client_config};

/// How long the broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The largest packet either way: nothing of the protocol comes near it.
const LARGEST: usize = 64 << 20;

/// The broker, and who we are to it.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Name or address.
    pub host: String,
    /// TCP port; 8883 with TLS and 1883 without, unless given.
    pub port: Option<u16>,
    /// Encryption and certificates; absent: plain TCP.
    pub tls: Option<Tls>,
    /// User name.
    pub username: Option<String>,
    /// File whose first line is the password.
    pub password_file: Option<PathBuf>,
}

impl Access {
    fn port(&self) -> u16 {
        self.port.unwrap_or(if self.tls.is_some() { 8883 } else { 1883 })
    }
}

/// Why something did not work.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The password's file cannot be read.
    #[error("cannot read the password in {}: {source}", .path.display())]
    Password {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no connection (any more).
    #[error("broker {broker}: {problem}")]
    Broker {
        /// Which.
        broker: String,
        /// What is wrong.
        problem: String,
    },
    /// The broker did not answer in time.
    #[error("broker {broker}: no answer within {} s", PATIENCE.as_secs())]
    Silent {
        /// Which.
        broker: String,
    },
    /// The broker refuses to let us read.
    #[error("broker {broker} refuses the subscription to {filter}: allow this user to read there")]
    Refused {
        /// Which.
        broker: String,
        /// What was asked for.
        filter: String,
    },
    /// A message has no JSON form.
    #[error("cannot write a message: {0}")]
    Encode(#[from] serde_json::Error),
}

/// A message that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Its topic.
    pub topic: String,
    /// Its content.
    pub payload: Vec<u8>,
    /// Kept by the broker from earlier.
    pub retained: bool,
}

enum Happened {
    Connected,
    Subscribed(bool),
    Acknowledged,
    Heard(Heard),
    Ended(String),
}

/// A connection to the broker.
pub struct Operator {
    client: Client,
    events: Receiver<Happened>,
    broker: String,
    /// Messages that came while something else was waited for.
    pending: std::collections::VecDeque<Heard>,
    unacknowledged: usize,
}

impl Operator {
    /// Connects, under a client id of its own.
    ///
    /// # Errors
    /// When it cannot, or the broker refuses.
    pub fn connect(access: &Access) -> Result<Self, OperatorError> {
        let broker = format!("{}:{}", access.host, access.port());
        let id = format!("edgeopt-{:08x}", fastrand::u32(..));
        // Asking for a session of its own: an operator is not missed when it is away.
        let mut options = MqttOptions::new(id, access.host.clone(), access.port());
        options
            .set_clean_session(true)
            .set_keep_alive(Duration::from_secs(30))
            .set_max_packet_size(LARGEST, LARGEST);
        if let Some(username) = &access.username {
            let password = match &access.password_file {
                None => String::new(),
                Some(path) => {
                    let text = fs::read_to_string(path).map_err(|source| OperatorError::Password {
                        path: path.clone(),
                        source,
                    })?;
                    text.lines().next().unwrap_or_default().to_owned()
                }
            };
            options.set_credentials(username, password);
        }
        if let Some(tls) = &access.tls {
            let config = client_config(tls, Arc::new(SystemClock))?;
            options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(Arc::new(
                config,
            ))));
        }
        let (client, mut connection) = Client::new(options, 64);
        connection
            .eventloop
            .network_options
            .set_connection_timeout(PATIENCE.as_secs());
        connection.eventloop.network_options.set_tcp_nodelay(true);
        let (happened, events) = mpsc::channel();
        let started = thread::Builder::new().name("operator".into()).spawn(move || {
            for event in connection.iter() {
                if !tell(&happened, event) {
                    return;
                }
            }
        });
        let mut operator = Self {
            client,
            events,
            broker,
            pending: std::collections::VecDeque::new(),
            unacknowledged: 0,
        };
        if let Err(error) = started {
            return Err(operator.failed(&error));
        }
        let until = Instant::now() + PATIENCE;
        operator.until(until, |happened| matches!(happened, Happened::Connected))?;
        Ok(operator)
    }

    fn failed(&self, problem: &impl ToString) -> OperatorError {
        OperatorError::Broker {
            broker: self.broker.clone(),
            problem: problem.to_string(),
        }
    }

    /// Takes events until one is `wanted`; messages are put aside.
    fn until(
        &mut self,
        until: Instant,
        wanted: impl Fn(&Happened) -> bool,
    ) -> Result<Happened, OperatorError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(Happened::Ended(problem)) => return Err(self.failed(&problem)),
                Ok(happened) => {
                    if matches!(happened, Happened::Acknowledged) {
                        self.unacknowledged = self.unacknowledged.saturating_sub(1);
                    }
                    if wanted(&happened) {
                        return Ok(happened);
                    }
                    if let Happened::Heard(heard) = happened {
                        self.pending.push_back(heard);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(OperatorError::Silent {
                        broker: self.broker.clone(),
                    });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.failed(&"the connection ended")),
            }
        }
    }

    /// Subscribes; retained messages come first.
    ///
    /// # Errors
    /// When the broker refuses, or is gone.
    pub fn subscribe(&mut self, filter: &str) -> Result<(), OperatorError> {
        self.client
            .subscribe(filter, QoS::AtLeastOnce)
            .map_err(|error| self.failed(&error))?;
        let until = Instant::now() + PATIENCE;
        match self.until(until, |happened| matches!(happened, Happened::Subscribed(_)))? {
            Happened::Subscribed(false) => Err(OperatorError::Refused {
                broker: self.broker.clone(),
                filter: filter.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Publishes; the broker has it when [`Operator::settle`] returns.
    ///
    /// # Errors
    /// When there is no connection.
    pub fn publish(
        &mut self,
        topic: &str,
        payload: impl Into<Vec<u8>>,
        retain: bool,
    ) -> Result<(), OperatorError> {
        self.client
            .publish(topic, QoS::AtLeastOnce, retain, payload)
            .map_err(|error| self.failed(&error))?;
        self.unacknowledged += 1;
        Ok(())
    }

    /// Waits until the broker has everything that was published.
    ///
    /// # Errors
    /// When the broker is silent or gone.
    pub fn settle(&mut self) -> Result<(), OperatorError> {
        let until = Instant::now() + PATIENCE;
        while self.unacknowledged > 0 {
            self.until(until, |happened| matches!(happened, Happened::Acknowledged))?;
        }
        Ok(())
    }

    /// The next message; `None` when none comes for so long.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Heard>, OperatorError> {
        if let Some(heard) = self.pending.pop_front() {
            return Ok(Some(heard));
        }
        let until = Instant::now() + wait;
        match self.until(until, |happened| matches!(happened, Happened::Heard(_))) {
            Ok(Happened::Heard(heard)) => Ok(Some(heard)),
            Ok(_) | Err(OperatorError::Silent { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // Says goodbye; the thread ends with the connection. Gone already: so much the better.
        let _ = self.client.disconnect();
    }
}

/// Passes on what matters; `false` when nothing more will come.
fn tell(happened: &Sender<Happened>, event: Result<Event, ConnectionError>) -> bool {
    let (message, more) = match event {
        Ok(Event::Incoming(Packet::ConnAck(_))) => (Happened::Connected, true),
        Ok(Event::Incoming(Packet::SubAck(ack))) => {
            let accepted = ack
                .return_codes
                .iter()
                .all(|code| matches!(code, SubscribeReasonCode::Success(_)));
            (Happened::Subscribed(accepted), true)
        }
        Ok(Event::Incoming(Packet::PubAck(_))) => (Happened::Acknowledged, true),
        Ok(Event::Incoming(Packet::Publish(publish))) => (
            Happened::Heard(Heard {
                topic: publish.topic,
                payload: publish.payload.to_vec(),
                retained: publish.retain,
            }),
            true,
        ),
        Ok(_) => return true,
        Err(ConnectionError::ConnectionRefused(code)) => (Happened::Ended(refusal(code)), false),
        Err(error) => (Happened::Ended(error.to_string()), false),
    };
    happened.send(message).is_ok() && more
}

fn refusal(code: ConnectReturnCode) -> String {
    match code {
        ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized => {
            "it refuses this user or password".into()
        }
        other => format!("it refuses the connection: {other:?}"),
    }
}
