//! Requests to the local interface, one connection each.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use edgeopt_agent::protocol::ResultMessage;
use serde_json::Value;

use crate::bundles::input;
use crate::support::PATIENCE;

/// Where a daemon listens.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    /// The body as it came.
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }

    /// The answer's first number.
    pub(crate) fn number(&self) -> f64 {
        let message: ResultMessage = serde_json::from_str(&self.body).unwrap();
        first(&message)
    }
}

/// The first number of a raw prediction; not a number is said as `null`.
pub(crate) fn first(message: &ResultMessage) -> f64 {
    message.prediction["outputs"][0]["values"][0]
        .as_f64()
        .unwrap_or(f64::NAN)
}

impl Address {
    pub(crate) fn get(&self, path: &str) -> io::Result<Reply> {
        self.ask("GET", path, &[])
    }

    /// Four times the same number to slot `main`.
    pub(crate) fn predict(&self, value: f32) -> io::Result<Reply> {
        self.predict_in("main", &input([value; 4]))
    }

    pub(crate) fn predict_in(&self, slot: &str, body: &[u8]) -> io::Result<Reply> {
        self.ask("POST", &format!("/v1/slots/{slot}/predict"), body)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &[u8]) -> io::Result<Reply> {
        self.ask_with(method, path, "", body)
    }

    /// With more lines of the head, each ended.
    pub(crate) fn ask_with(&self, method: &str, path: &str, lines: &str, body: &[u8]) -> io::Result<Reply> {
        match self {
            Self::Unix(socket) => {
                let stream = UnixStream::connect(socket)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                ask(stream, method, path, lines, body)
            }
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                ask(stream, method, path, lines, body)
            }
        }
    }
}

fn ask(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    lines: &str,
    body: &[u8],
) -> io::Result<Reply> {
    let length = body.len();
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: d\r\nConnection: close\r\nContent-Length: {length}\r\n{lines}\r\n"
    )
    .into_bytes();
    request.extend_from_slice(body);
    stream.write_all(&request)?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    let end = all
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "no whole answer"))?;
    let (head, bytes) = (String::from_utf8_lossy(&all[..end]), all[end + 4..].to_vec());
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok(Reply {
        status: status.ok_or_else(|| io::Error::other("no status"))?,
        head: head.to_ascii_lowercase(),
        body: String::from_utf8_lossy(&bytes).into_owned(),
        bytes,
    })
}
