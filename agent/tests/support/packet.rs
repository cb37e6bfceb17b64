//! MQTT 3.1.1 packets as a broker reads and writes them (OASIS standard, chapter 3). Independent of the client's codec.

use std::io::{self, Read};

/// A message in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publish {
    pub(crate) topic: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) id: u16,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    pub(crate) dup: bool,
}

/// The last will in a CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Will {
    pub(crate) topic: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
}

/// What a client sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Connect {
        client_id: String,
        clean_session: bool,
        keep_alive: u16,
        will: Option<Will>,
        username: Option<String>,
        password: Option<String>,
    },
    Publish(Publish),
    PubAck(u16),
    Subscribe {
        id: u16,
        filters: Vec<(String, u8)>,
    },
    PingReq,
    Disconnect,
}

/// Reads one packet.
pub(crate) fn read(stream: &mut impl Read) -> io::Result<Packet> {
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    let header = byte[0];
    let (mut length, mut shift) = (0usize, 0);
    loop {
        stream.read_exact(&mut byte)?;
        length |= usize::from(byte[0] & 127) << shift;
        shift += 7;
        if byte[0] < 128 {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let mut fields = Fields(&body);
    Ok(match header >> 4 {
        1 => connect(&mut fields),
        3 => {
            let (qos, topic) = ((header >> 1) & 3, fields.text());
            let id = if qos > 0 { fields.number() } else { 0 };
            Packet::Publish(Publish {
                topic,
                id,
                qos,
                payload: fields.0.to_vec(),
                retain: header & 1 == 1,
                dup: header & 8 == 8,
            })
        }
        4 => Packet::PubAck(fields.number()),
        8 => {
            let id = fields.number();
            let mut filters = Vec::new();
            while !fields.0.is_empty() {
                filters.push((fields.text(), fields.take(1)[0]));
            }
            Packet::Subscribe { id, filters }
        }
        12 => Packet::PingReq,
        14 => Packet::Disconnect,
        other => panic!("a client must not send packets of type {other}"),
    })
}

fn connect(fields: &mut Fields<'_>) -> Packet {
    assert_eq!(fields.text(), "MQTT");
    assert_eq!(fields.take(1), [4], "protocol level of 3.1.1");
    let flags = fields.take(1)[0];
    let keep_alive = fields.number();
    let client_id = fields.text();
    let will = (flags & 4 == 4).then(|| Will {
        topic: fields.text(),
        payload: fields.bytes().to_vec(),
        qos: (flags >> 3) & 3,
        retain: flags & 32 == 32,
    });
    let username = (flags & 128 == 128).then(|| fields.text());
    let password = (flags & 64 == 64).then(|| fields.text());
    Packet::Connect {
        client_id,
        clean_session: flags & 2 == 2,
        keep_alive,
        will,
        username,
        password,
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn bytes(&mut self) -> &'a [u8] {
        let length = self.number();
        self.take(length.into())
    }

    fn text(&mut self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }
}

fn frame(header: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![header];
    let mut length = body.len();
    loop {
        let more = length > 127;
        packet.push((length & 127) as u8 | if more { 128 } else { 0 });
        length >>= 7;
        if !more {
            break;
        }
    }
    packet.extend_from_slice(body);
    packet
}

pub(crate) fn connack(session_present: bool, code: u8) -> Vec<u8> {
    frame(0x20, &[session_present.into(), code])
}

pub(crate) fn puback(id: u16) -> Vec<u8> {
    frame(0x40, &id.to_be_bytes())
}

pub(crate) fn suback(id: u16, codes: &[u8]) -> Vec<u8> {
    frame(0x90, &[&id.to_be_bytes(), codes].concat())
}

pub(crate) fn pingresp() -> Vec<u8> {
    frame(0xd0, &[])
}

pub(crate) fn publish(publish: &Publish) -> Vec<u8> {
    let header = 0x30 | u8::from(publish.retain) | publish.qos << 1 | u8::from(publish.dup) << 3;
    let topic = publish.topic.as_bytes();
    let length = u16::try_from(topic.len()).unwrap().to_be_bytes();
    let id = publish.id.to_be_bytes();
    let id: &[u8] = if publish.qos > 0 { &id } else { &[] };
    frame(header, &[&length, topic, id, &publish.payload].concat())
}
