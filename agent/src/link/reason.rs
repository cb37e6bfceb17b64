use std::io;

use rumqttc::mqttbytes::Error as PacketError;
use rumqttc::{ConnectReturnCode, ConnectionError, StateError};
use rustls::CertificateError;

use super::clock::{self, WallClock};

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// No way to the broker.
    #[error("the broker cannot be reached: {0}")]
    Unreachable(String),
    /// The broker, or another client with this id, ended the connection.
    #[error("the broker closed the connection")]
    ClosedByPeer,
    /// Silence.
    #[error("timeout: {0}")]
    Timeout(&'static str),
    /// The broker said no.
    #[error("the broker refuses this device: {0}")]
    Refused(&'static str),
    /// A file that the configuration names cannot be used.
    #[error("configuration: {0}")]
    Configuration(String),
    /// This machine's clock stands before this software existed, so that no certificate is valid yet. The link goes on
    /// as soon as the clock is set.
    #[error("waiting for this machine's clock to be set: by it, no certificate is valid yet")]
    ClockNotSet,
    /// The broker's certificate begins in the future. The link looks again when the clock jumps.
    #[error("the broker's certificate is not valid yet: {0}; check this machine's clock")]
    CertificateNotYetValid(String),
    /// The broker's certificate has expired.
    #[error("the broker's certificate has expired: {0}; renew it, or check this machine's clock")]
    CertificateExpired(String),
    /// Other failures of encryption.
    #[error("TLS: {0}")]
    Tls(String),
    /// A message from the broker is larger than allowed.
    #[error("the broker sent a packet of {size} bytes; `broker.max_packet` allows {limit}")]
    OversizeInbound {
        /// Bytes of the packet.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A message was not acknowledged.
    #[error("the broker did not acknowledge a message for {0} s")]
    Unacknowledged(u64),
    /// The daemon does not take what comes in.
    #[error("inbound messages are not taken: the daemon's queue has been full for {0} s")]
    ConsumerStalled(u64),
    /// The two sides do not understand each other.
    #[error("protocol: {0}")]
    Protocol(String),
    /// The link itself: a connection to make the broker forget the session is over.
    #[error("the broker's queue for this device was emptied")]
    Purged,
    /// The link itself: the time without subscriptions is over.
    #[error("subscribing again after a hold")]
    HoldOver,
    /// The link was asked to stop.
    #[error("stopped")]
    Stopped,
}

impl DisconnectReason {
    /// Whether setting the clock may cure it.
    pub fn awaits_clock(&self) -> bool {
        matches!(
            self,
            Self::ClockNotSet | Self::CertificateNotYetValid(_) | Self::CertificateExpired(_)
        )
    }

    /// Whether the link itself ended the connection, to go on at once.
    pub(super) fn is_planned(&self) -> bool {
        matches!(self, Self::Purged | Self::HoldOver | Self::Stopped)
    }
}

/// What an error of the client means.
pub(super) fn classify(error: &ConnectionError, limit: usize, wall: &dyn WallClock) -> DisconnectReason {
    use DisconnectReason as Reason;
    match error {
        ConnectionError::MqttState(state) => match state {
            StateError::Deserialization(PacketError::PayloadSizeLimitExceeded(size)) => {
                Reason::OversizeInbound { size: *size, limit }
            }
            StateError::Deserialization(PacketError::Io(error)) | StateError::Io(error) => {
                from_io(error, wall)
            }
            StateError::ConnectionAborted => Reason::ClosedByPeer,
            StateError::AwaitPingResp => Reason::Timeout("the broker did not answer a ping"),
            other => Reason::Protocol(other.to_string()),
        },
        ConnectionError::NetworkTimeout => Reason::Timeout("no connection within the time limit"),
        ConnectionError::FlushTimeout => Reason::Timeout("the broker does not take what is sent"),
        ConnectionError::Tls(rumqttc::TlsError::Io(error)) | ConnectionError::Io(error) => {
            from_io(error, wall)
        }
        ConnectionError::Tls(rumqttc::TlsError::TLS(error)) => from_tls(error, wall),
        ConnectionError::Tls(error) => Reason::Tls(error.to_string()),
        ConnectionError::ConnectionRefused(code) => Reason::Refused(match code {
            ConnectReturnCode::Success => "it says success",
            ConnectReturnCode::RefusedProtocolVersion => "it does not speak MQTT 3.1.1",
            ConnectReturnCode::BadClientId => "it does not accept the client id",
            ConnectReturnCode::ServiceUnavailable => "it is not available",
            ConnectReturnCode::BadUserNamePassword => "wrong user name or password",
            ConnectReturnCode::NotAuthorized => "not authorized",
        }),
        other => Reason::Protocol(other.to_string()),
    }
}

fn from_io(error: &io::Error, wall: &dyn WallClock) -> DisconnectReason {
    if let Some(tls) = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    {
        return from_tls(tls, wall);
    }
    match error.kind() {
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => DisconnectReason::ClosedByPeer,
        _ => DisconnectReason::Unreachable(error.to_string()),
    }
}

fn from_tls(error: &rustls::Error, wall: &dyn WallClock) -> DisconnectReason {
    let text = error.to_string();
    match error {
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => match clock::is_set(wall) {
            false => DisconnectReason::ClockNotSet,
            true => DisconnectReason::CertificateNotYetValid(text),
        },
        rustls::Error::FailedToGetCurrentTime => DisconnectReason::ClockNotSet,
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => DisconnectReason::CertificateExpired(text),
        _ => DisconnectReason::Tls(text),
    }
}
