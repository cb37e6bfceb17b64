use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::mpsc::SyncSender;

use rumqttc::{ConnAck, Connect, ConnectReturnCode, LastWill, Packet, Publish, QoS};

/// Messages to one client between sending and acknowledgement.
const IN_FLIGHT: usize = 20;
/// Messages that wait for one client; beyond it the oldest gives way.
const WAITING: usize = 10_000;

/// Sessions and retained messages: everything the broker knows, without a socket in sight.
#[derive(Debug, Default)]
pub(super) struct Hub {
    sessions: HashMap<String, Session>,
    retained: BTreeMap<String, Publish>,
    connections: u64,
    dropped: u64,
}

/// The way to a connected client.
pub(super) struct Line {
    /// Takes packets; the hub never waits for it.
    pub(super) packets: SyncSender<Packet>,
    /// Ends the connection.
    pub(super) close: Box<dyn Fn() + Send>,
}

#[derive(Default)]
struct Session {
    clean: bool,
    filters: Vec<(String, QoS)>,
    waiting: VecDeque<Publish>,
    in_flight: VecDeque<Publish>,
    last_id: u16,
    will: Option<LastWill>,
    /// With the number of the connection.
    line: Option<(u64, Line)>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("connected", &self.line.is_some())
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// A client logs in. Another connection with its id is ended. Returns the connection's number.
    pub(super) fn connect(&mut self, connect: &Connect, line: Line) -> u64 {
        self.connections += 1;
        let number = self.connections;
        let old = self.sessions.remove(&connect.client_id);
        let mut will = None;
        let kept = old.and_then(|mut old| {
            if let Some((_, line)) = old.line.take() {
                (line.close)();
                will = old.will.take();
            }
            (!connect.clean_session && !old.clean).then_some(old)
        });
        if let Some(will) = will {
            self.publish(from_will(will));
        }
        let accepted = ConnAck::new(ConnectReturnCode::Success, kept.is_some());
        let mut session = kept.unwrap_or_default();
        session.clean = connect.clean_session;
        session.will = connect.last_will.clone();
        session.line = Some((number, line));
        session.send(Packet::ConnAck(accepted));
        for message in session.in_flight.clone() {
            session.send(Packet::Publish(Publish { dup: true, ..message }));
        }
        session.pump();
        self.sessions.insert(connect.client_id.clone(), session);
        number
    }

    /// A connection is over; `farewell` if the client said so, and its will is void.
    pub(super) fn disconnected(&mut self, client: &str, number: u64, farewell: bool) {
        let Some(session) = self.sessions.get_mut(client) else {
            return;
        };
        if session
            .line
            .as_ref()
            .is_none_or(|(current, _)| *current != number)
        {
            return; // taken over
        }
        session.line = None;
        let will = session.will.take().filter(|_| !farewell);
        if session.clean {
            self.sessions.remove(client);
        }
        if let Some(will) = will {
            self.publish(from_will(will));
        }
    }

    /// Hands a message to all who subscribed, and keeps it if it is to be retained.
    pub(super) fn publish(&mut self, message: Publish) {
        if message.retain {
            match message.payload.is_empty() {
                true => self.retained.remove(&message.topic),
                false => self.retained.insert(message.topic.clone(), message.clone()),
            };
        }
        for session in self.sessions.values_mut() {
            let granted = session
                .filters
                .iter()
                .filter(|(filter, _)| rumqttc::matches(&message.topic, filter));
            if let Some(qos) = granted.map(|(_, qos)| *qos).max_by_key(|qos| *qos as u8) {
                self.dropped += session.enqueue(
                    Publish {
                        retain: false,
                        ..message.clone()
                    },
                    qos,
                );
            }
        }
    }

    /// Adds filters and sends what is retained under them. Returns whether the client has a session.
    pub(super) fn subscribe(&mut self, client: &str, filters: &[(String, QoS)], answer: Packet) {
        let Some(session) = self.sessions.get_mut(client) else {
            return;
        };
        session.send(answer);
        for (filter, qos) in filters {
            session.filters.retain(|(present, _)| present != filter);
            session.filters.push((filter.clone(), *qos));
            for message in self.retained.values() {
                if rumqttc::matches(&message.topic, filter) {
                    self.dropped += session.enqueue(message.clone(), *qos);
                }
            }
        }
    }

    /// Removes filters.
    pub(super) fn unsubscribe(&mut self, client: &str, filters: &[String], answer: Packet) {
        if let Some(session) = self.sessions.get_mut(client) {
            session.filters.retain(|(present, _)| !filters.contains(present));
            session.send(answer);
        }
    }

    /// The client has this message.
    pub(super) fn acknowledged(&mut self, client: &str, id: u16) {
        if let Some(session) = self.sessions.get_mut(client) {
            session.in_flight.retain(|message| message.pkid != id);
            session.pump();
        }
    }

    /// Sends something to a client.
    pub(super) fn answer(&mut self, client: &str, packet: Packet) {
        if let Some(session) = self.sessions.get_mut(client) {
            session.send(packet);
        }
    }

    /// Ends all connections.
    pub(super) fn close_all(&mut self) {
        for session in self.sessions.values_mut() {
            session.hang_up();
        }
    }

    /// Messages given up because a queue was full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Session {
    /// Returns how many messages had to give way.
    fn enqueue(&mut self, message: Publish, granted: QoS) -> u64 {
        let qos = if message.qos == QoS::AtMostOnce {
            QoS::AtMostOnce
        } else {
            granted
        };
        if qos == QoS::AtMostOnce && self.line.is_none() {
            return 0; // nobody promised to keep it
        }
        self.waiting.push_back(Publish {
            qos,
            dup: false,
            pkid: 0,
            ..message
        });
        self.pump();
        match self.waiting.len() > WAITING {
            true => {
                self.waiting.pop_front();
                1
            }
            false => 0,
        }
    }

    fn pump(&mut self) {
        while self.line.is_some() && self.in_flight.len() < IN_FLIGHT {
            let Some(mut message) = self.waiting.pop_front() else {
                return;
            };
            if message.qos != QoS::AtMostOnce {
                message.pkid = self.free_id();
                self.in_flight.push_back(message.clone());
            }
            self.send(Packet::Publish(message));
        }
    }

    fn free_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if self.in_flight.iter().all(|message| message.pkid != self.last_id) {
                return self.last_id;
            }
        }
    }

    /// A client that does not read what it is sent loses the connection, and nothing else.
    fn send(&mut self, packet: Packet) {
        if let Some((_, line)) = &self.line
            && line.packets.try_send(packet).is_err()
        {
            self.hang_up();
        }
    }

    /// The connection's own thread notices, and reports the end.
    fn hang_up(&self) {
        if let Some((_, line)) = &self.line {
            (line.close)();
        }
    }
}

fn from_will(will: LastWill) -> Publish {
    let mut message = Publish::from_bytes(will.topic, will.qos, will.message);
    message.retain = will.retain;
    message
}
