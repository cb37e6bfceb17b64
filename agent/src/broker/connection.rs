use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use bytes::BytesMut;
use rumqttc::mqttbytes::Error as PacketError;
use rumqttc::{
    ConnAck, Connect, ConnectReturnCode, Packet, PubAck, QoS, SubAck, SubscribeReasonCode, UnsubAck,
};

use super::Shared;
use super::hub::Line;

/// Largest packet in either direction.
const MAX_PACKET: usize = 16 << 20;
/// Packets that may wait for a client to read.
const OUTGOING: usize = 1024;
/// How long a client may take to log in, and to take a packet.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a connection ended, other than by the client's wish.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    #[error("packet: {0}")]
    Packet(#[from] PacketError),
    #[error("client {client:?} sent what this broker does not take: {what}")]
    Unsupported { client: String, what: &'static str },
}

/// Serves one client until it leaves or breaks off.
pub(super) fn serve(stream: &TcpStream, hub: &Shared) -> Result<(), ConnectionError> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut packets = Packets {
        stream,
        buffer: BytesMut::new(),
    };
    let Packet::Connect(connect) = packets.next()? else {
        return Err(unsupported("", "a packet before CONNECT"));
    };
    if connect.client_id.is_empty() {
        let refused = Packet::ConnAck(ConnAck::new(ConnectReturnCode::BadClientId, false));
        return write(stream, &refused);
    }
    // One and a half times the client's promise (section 3.1.2.10).
    let silence = Duration::from_secs(connect.keep_alive.into()) * 3 / 2;
    stream.set_read_timeout((!silence.is_zero()).then_some(silence))?;

    let (sender, outgoing) = mpsc::sync_channel(OUTGOING);
    let (writing, closing) = (stream.try_clone()?, stream.try_clone()?);
    thread::Builder::new()
        .name("broker-writer".into())
        .spawn(move || write_all(&writing, &outgoing))?;
    // Fails when it is closed already, which is what was wanted.
    let close = Box::new(move || drop(closing.shutdown(Shutdown::Both)));
    let number = hub.lock().connect(
        &connect,
        Line {
            packets: sender,
            close,
        },
    );
    let ended = converse(&mut packets, &connect, hub);
    hub.lock().disconnected(&connect.client_id, number, ended.is_ok());
    drop(stream.shutdown(Shutdown::Both));
    ended
}

/// Ends well with the client's DISCONNECT.
fn converse(packets: &mut Packets<'_>, connect: &Connect, hub: &Shared) -> Result<(), ConnectionError> {
    let client = connect.client_id.as_str();
    loop {
        match packets.next()? {
            Packet::Publish(message) => {
                let (id, qos) = (message.pkid, message.qos);
                if qos == QoS::ExactlyOnce || !rumqttc::valid_topic(&message.topic) {
                    return Err(unsupported(client, "QoS 2, or a topic with wildcards"));
                }
                let mut hub = hub.lock();
                hub.publish(message);
                if qos == QoS::AtLeastOnce {
                    hub.answer(client, Packet::PubAck(PubAck::new(id)));
                }
            }
            Packet::PubAck(acknowledgement) => hub.lock().acknowledged(client, acknowledgement.pkid),
            Packet::Subscribe(subscribe) => {
                let asked = subscribe.filters.into_iter();
                let asked: Vec<_> = asked
                    .map(|filter| (filter.path, at_most_once_or_at_least(filter.qos)))
                    .collect();
                let code = |(filter, qos): &(String, QoS)| match rumqttc::valid_filter(filter) {
                    true => SubscribeReasonCode::Success(*qos),
                    false => SubscribeReasonCode::Failure,
                };
                let answer = SubAck::new(subscribe.pkid, asked.iter().map(code).collect());
                let granted: Vec<_> = asked
                    .into_iter()
                    .filter(|(filter, _)| rumqttc::valid_filter(filter))
                    .collect();
                hub.lock().subscribe(client, &granted, Packet::SubAck(answer));
            }
            Packet::Unsubscribe(unsubscribe) => {
                let answer = Packet::UnsubAck(UnsubAck::new(unsubscribe.pkid));
                hub.lock().unsubscribe(client, &unsubscribe.topics, answer);
            }
            Packet::PingReq => hub.lock().answer(client, Packet::PingResp),
            Packet::Disconnect => return Ok(()),
            _ => {
                return Err(unsupported(
                    client,
                    "a packet that only brokers send, or one of QoS 2",
                ));
            }
        }
    }
}

fn at_most_once_or_at_least(asked: QoS) -> QoS {
    match asked {
        QoS::AtMostOnce => QoS::AtMostOnce,
        QoS::AtLeastOnce | QoS::ExactlyOnce => QoS::AtLeastOnce,
    }
}

fn unsupported(client: &str, what: &'static str) -> ConnectionError {
    ConnectionError::Unsupported {
        client: client.to_owned(),
        what,
    }
}

struct Packets<'a> {
    stream: &'a TcpStream,
    buffer: BytesMut,
}

impl Packets<'_> {
    fn next(&mut self) -> Result<Packet, ConnectionError> {
        let mut chunk = [0; 8192];
        loop {
            match Packet::read(&mut self.buffer, MAX_PACKET) {
                Ok(packet) => return Ok(packet),
                Err(PacketError::InsufficientBytes(_)) => {}
                Err(error) => return Err(error.into()),
            }
            let read = self.stream.read(&mut chunk)?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.buffer
                .extend_from_slice(chunk.get(..read).unwrap_or_default());
        }
    }
}

/// Writes until the hub lets go of the line or the client does not take more.
fn write_all(stream: &TcpStream, packets: &Receiver<Packet>) {
    for packet in packets {
        if let Err(error) = write(stream, &packet) {
            tracing::debug!("broker: {error}");
            // Wakes the thread that reads. Fails when it is closed already.
            drop(stream.shutdown(Shutdown::Both));
            return;
        }
    }
}

fn write(mut stream: &TcpStream, packet: &Packet) -> Result<(), ConnectionError> {
    let mut bytes = BytesMut::new();
    packet.write(&mut bytes, MAX_PACKET)?;
    Ok(stream.write_all(&bytes)?)
}
