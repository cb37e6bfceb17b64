//! What a service manager is to a daemon: the socket that it tells its state to.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// No step of a test takes longer, however loaded the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A datagram, with its lines.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) at: Instant,
    pub(crate) lines: Vec<String>,
}

impl Told {
    pub(crate) fn says(&self, line: &str) -> bool {
        self.lines.iter().any(|one| one == line)
    }

    /// What follows `NAME=`.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.lines
            .iter()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }
}

/// A socket and all that came in there.
pub(crate) struct Manager {
    pub(crate) socket: PathBuf,
    told: Arc<Mutex<Vec<Told>>>,
}

impl Manager {
    pub(crate) fn bind(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                heard.lock().unwrap().push(Told {
                    at: Instant::now(),
                    lines: text.lines().map(str::to_owned).collect(),
                });
            }
        });
        Self {
            socket: path.into(),
            told,
        }
    }

    pub(crate) fn all(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }

    /// Datagrams that say exactly this line.
    pub(crate) fn saying(&self, line: &str) -> Vec<Told> {
        self.all().into_iter().filter(|told| told.says(line)).collect()
    }

    /// Datagrams with a line `NAME=…`.
    pub(crate) fn with(&self, name: &str) -> Vec<Told> {
        self.all()
            .into_iter()
            .filter(|told| told.value(name).is_some())
            .collect()
    }

    /// Waits until `line` was said `count` times in all; returns the last of them.
    pub(crate) fn wait(&self, line: &str, count: usize) -> Told {
        let begun = Instant::now();
        loop {
            let said = self.saying(line);
            if said.len() >= count {
                return said.into_iter().next_back().unwrap();
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{line} was said {} times, not {count}: {:#?}",
                said.len(),
                self.all()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The longest time between two datagrams that say `line`, from `since` until now.
    pub(crate) fn longest_gap(&self, line: &str, since: Instant) -> Duration {
        let mut moments = vec![since];
        moments.extend(
            self.saying(line)
                .iter()
                .map(|told| told.at)
                .filter(|at| *at > since),
        );
        moments.push(Instant::now());
        moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    }
}
