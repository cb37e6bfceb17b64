use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rumqttc::{LastWill, MqttOptions, QoS, TlsConfiguration, Transport};

use super::clock::{Environment, WallClock};
use super::{BackoffPolicy, PacketLimit, QuarantinePolicy, tls};
use crate::config::{Broker, Config};
use crate::protocol::{DeviceId, Status, Topic};

/// Packet ids the client may use. Far more than any window, so that ids never meet (see `window.rs`).
const PACKET_IDS: u16 = 1024;

/// Room that the client gets above our own limit: ours is exact and comes first.
const CLIENT_MARGIN: usize = 64;

/// What a link needs to know.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// This device.
    pub device: DeviceId,
    /// Where the broker is and how to log in.
    pub broker: Broker,
    /// Version of the daemon, told in `status`.
    pub agent_version: String,
    /// Drawn anew at each start, told in `status`.
    pub instance: String,
    /// What is subscribed to at each connect.
    pub filters: Vec<String>,
    /// Messages between publishing and acknowledgement, at most; from the oldest to the newest. At most 256.
    pub window: usize,
    /// Inbound messages that may wait for the daemon.
    pub inbound: usize,
    /// Waits between attempts.
    pub backoff: BackoffPolicy,
    /// What to do about inbound messages that are too large.
    pub quarantine: QuarantinePolicy,
    /// How long connecting may take, and sending one packet.
    pub network_timeout: Duration,
    /// How long an acknowledgement may take before the connection is rebuilt.
    pub ack_timeout: Duration,
    /// How long inbound messages may find the daemon's queue full before the connection is rebuilt. Until then the
    /// broker is held back.
    pub stall_timeout: Duration,
}

impl LinkOptions {
    /// Options from a configuration, with defaults for what it does not say.
    pub fn new(config: &Config, agent_version: &str) -> Self {
        let mut random = Environment::default().random;
        let keep_alive = Duration::from_secs(config.broker.keep_alive_s.into());
        Self {
            device: config.device.clone(),
            broker: config.broker.clone(),
            agent_version: agent_version.to_owned(),
            instance: format!("{:013x}", (random() * (1u64 << 52) as f64) as u64),
            filters: Topic::device_filters(&config.device),
            window: 16,
            inbound: 64,
            backoff: BackoffPolicy::default(),
            quarantine: QuarantinePolicy::default(),
            network_timeout: Duration::from_secs(20),
            ack_timeout: Duration::from_secs(30),
            stall_timeout: keep_alive / 2,
        }
    }

    /// The client id in use.
    pub fn client_id(&self) -> &str {
        self.broker.client_id.as_deref().unwrap_or(self.device.as_str())
    }

    /// The limit for packets in both directions.
    pub fn packet_limit(&self) -> PacketLimit {
        PacketLimit::new(usize::try_from(self.broker.max_packet.0).unwrap_or(usize::MAX))
    }

    /// The window in use.
    pub(super) fn width(&self) -> usize {
        self.window.clamp(1, usize::from(PACKET_IDS / 4))
    }

    pub(super) fn status_topic(&self) -> String {
        Topic::Status.of(&self.device)
    }

    pub(super) fn status(&self, online: bool) -> Vec<u8> {
        let (agent_version, instance) = (self.agent_version.clone(), self.instance.clone());
        let status = Status {
            online,
            agent_version,
            instance,
        };
        // A struct of a truth value and two texts always has a JSON form; an empty message would clear the topic.
        serde_json::to_vec(&status).unwrap_or_default()
    }

    /// The client's options for one connection; reads the files that the configuration names. The error says which
    /// cannot be used.
    pub(super) fn client(
        &self,
        clean_session: bool,
        wall: &Arc<dyn WallClock>,
    ) -> Result<MqttOptions, String> {
        let broker = &self.broker;
        let host = match broker.host.contains(':') && broker.tls.is_none() {
            true => format!("[{}]", broker.host), // the client joins host and port with a colon
            false => broker.host.clone(),
        };
        let mut options = MqttOptions::new(self.client_id(), host, broker.port());
        let limit = self.packet_limit().bytes();
        options
            .set_clean_session(clean_session)
            .set_keep_alive(Duration::from_secs(broker.keep_alive_s.max(1).into()))
            .set_max_packet_size(limit, limit.saturating_add(CLIENT_MARGIN))
            .set_inflight(PACKET_IDS)
            .set_manual_acks(true)
            .set_last_will(LastWill::new(
                self.status_topic(),
                self.status(false),
                QoS::AtLeastOnce,
                true,
            ));
        if let Some(username) = &broker.username {
            let password = match &broker.password_file {
                None => String::new(),
                Some(path) => {
                    let text = fs::read_to_string(path).map_err(|error| {
                        format!("broker.password_file: cannot read {}: {error}", path.display())
                    })?;
                    text.lines().next().unwrap_or_default().to_owned()
                }
            };
            options.set_credentials(username, password);
        }
        if let Some(files) = &broker.tls {
            let config = tls::client_config(files, Arc::clone(wall)).map_err(|error| error.to_string())?;
            options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(Arc::new(
                config,
            ))));
        }
        Ok(options)
    }
}
