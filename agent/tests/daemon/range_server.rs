//! An HTTP server that hands out one folder, by ranges if asked, as slowly as the test wants.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// First byte, if only a part was asked for.
    pub(crate) from: Option<u64>,
    pub(crate) if_range: Option<String>,
}

#[derive(Clone)]
pub(crate) struct RangeServer {
    address: SocketAddr,
    folder: PathBuf,
    /// Milliseconds before each piece of [`PIECE`] bytes.
    pause: Arc<AtomicU64>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

const PIECE: usize = 16 << 10;

impl RangeServer {
    pub(crate) fn start(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            folder: folder.into(),
            pause: Arc::default(),
            asked: Arc::default(),
        };
        let own = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (server, stream) = (own.clone(), stream.unwrap());
                // Killed clients break connections; that is what they are here for.
                thread::spawn(move || drop(server.serve(&stream)));
            }
        });
        server
    }

    pub(crate) fn url(&self, file: &Path) -> String {
        let name = file.file_name().unwrap().to_str().unwrap();
        format!("http://{}/{name}", self.address)
    }

    pub(crate) fn pause(&self, milliseconds: u64) {
        self.pause.store(milliseconds, Ordering::Relaxed);
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        loop {
            let Some(first) = lines.next().transpose()? else {
                return Ok(());
            };
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            let mut asked = Asked {
                path,
                from: None,
                if_range: None,
            };
            for line in lines.by_ref() {
                let line = line?;
                let Some((name, value)) = line.split_once(':') else {
                    break;
                };
                match name.to_ascii_lowercase().as_str() {
                    "range" => {
                        let range = value.trim().strip_prefix("bytes=");
                        asked.from = range.and_then(|range| range.strip_suffix('-')?.parse().ok());
                    }
                    "if-range" => asked.if_range = Some(value.trim().to_owned()),
                    _ => {}
                }
            }
            self.asked.lock().unwrap().push(asked.clone());
            self.answer(stream, &asked)?;
        }
    }

    fn answer(&self, mut stream: &TcpStream, asked: &Asked) -> io::Result<()> {
        let Ok(bytes) = std::fs::read(self.folder.join(asked.path.trim_start_matches('/'))) else {
            return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        };
        let etag = format!("\"{}\"", bytes.len());
        let changed = asked.if_range.as_ref().is_some_and(|given| *given != etag);
        let from = asked.from.filter(|_| !changed).unwrap_or(0) as usize;
        let (size, rest) = (bytes.len(), bytes.get(from..).unwrap_or_default());
        let (status, range) = match (rest.is_empty(), from) {
            (true, _) => ("416 Range Not Satisfiable", String::new()),
            (_, 0) => ("200 OK", String::new()),
            _ => (
                "206 Partial Content",
                format!("Content-Range: bytes {from}-{}/{size}\r\n", size - 1),
            ),
        };
        let length = rest.len();
        stream.write_all(
            format!("HTTP/1.1 {status}\r\nETag: {etag}\r\n{range}Content-Length: {length}\r\n\r\n")
                .as_bytes(),
        )?;
        for piece in rest.chunks(PIECE) {
            thread::sleep(Duration::from_millis(self.pause.load(Ordering::Relaxed)));
            stream.write_all(piece)?;
        }
        Ok(())
    }
}
