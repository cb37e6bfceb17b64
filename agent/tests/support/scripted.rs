//! A broker that does what the test says, one packet at a time.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::packet::{self, Packet, Publish};
use super::{PATIENCE, eventually};

pub(crate) struct ScriptedBroker {
    listener: TcpListener,
}

impl ScriptedBroker {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// The next client.
    pub(crate) fn accept(&self) -> Peer {
        let mut accepted = None;
        eventually("a client connects", || {
            accepted = self.try_accept();
            accepted.is_some()
        });
        accepted.unwrap()
    }

    pub(crate) fn try_accept(&self) -> Option<Peer> {
        let (stream, _) = self.listener.accept().ok()?;
        stream.set_nonblocking(false).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(Peer { stream })
    }

    /// The next client, accepted.
    pub(crate) fn accept_session(&self, session_present: bool) -> Peer {
        let mut peer = self.accept();
        peer.connect();
        peer.send(&packet::connack(session_present, 0));
        peer
    }
}

/// One client's connection. Dropped, it is closed without a word.
pub(crate) struct Peer {
    stream: TcpStream,
}

impl Peer {
    pub(crate) fn read(&mut self) -> io::Result<Packet> {
        packet::read(&mut self.stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends what the other side may already refuse to take.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The CONNECT.
    pub(crate) fn connect(&mut self) -> Packet {
        match self.read().unwrap() {
            connect @ Packet::Connect { .. } => connect,
            other => panic!("expected CONNECT, got {other:?}"),
        }
    }

    /// The next message on a topic other than `status`. Subscriptions, pings and `status` are answered on the way.
    pub(crate) fn message(&mut self) -> io::Result<Publish> {
        loop {
            match self.read()? {
                Packet::Publish(publish) if publish.topic.ends_with("/status") => {
                    self.try_send(&packet::puback(publish.id))?;
                }
                Packet::Publish(publish) => return Ok(publish),
                Packet::Subscribe { id, filters } => {
                    self.try_send(&packet::suback(id, &vec![1; filters.len()]))?
                }
                Packet::PingReq => self.try_send(&packet::pingresp())?,
                Packet::PubAck(_) => {}
                other => panic!("expected a message, got {other:?}"),
            }
        }
    }

    /// As many messages.
    pub(crate) fn messages(&mut self, count: usize) -> Vec<Publish> {
        (0..count).map(|_| self.message().unwrap()).collect()
    }

    /// The acknowledgement of a message sent to the client; what else comes first is answered.
    pub(crate) fn acknowledgement(&mut self) -> io::Result<u16> {
        loop {
            match self.read()? {
                Packet::PubAck(id) => return Ok(id),
                Packet::Publish(publish) => self.try_send(&packet::puback(publish.id))?,
                Packet::Subscribe { id, filters } => {
                    self.try_send(&packet::suback(id, &vec![1; filters.len()]))?
                }
                Packet::PingReq => self.try_send(&packet::pingresp())?,
                other => panic!("expected an acknowledgement, got {other:?}"),
            }
        }
    }

    /// Gives the client time to take what was sent, before the connection is cut.
    pub(crate) fn settle(&mut self) {
        self.stays_silent(Duration::from_millis(50));
    }

    /// Nothing but the protocol's own comes for that long.
    pub(crate) fn stays_silent(&mut self, time: Duration) {
        self.stream.set_read_timeout(Some(time)).unwrap();
        if let Ok(message) = self.message() {
            panic!("unexpected {message:?}");
        }
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    /// Answers everything until the client ends the connection.
    pub(crate) fn until_closed(&mut self) {
        while self
            .message()
            .and_then(|message| self.try_send(&packet::puback(message.id)))
            .is_ok()
        {}
    }
}
