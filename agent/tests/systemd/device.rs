//! A device in a folder: the real daemon with a configuration, a broker, and a manager that listens.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use edgeopt_agent::broker::EmbeddedBroker;
use tempfile::TempDir;

use crate::manager::{Manager, PATIENCE};

pub(crate) const AGENT: &str = env!("CARGO_BIN_EXE_edgeopt-agent");

pub(crate) struct Device {
    pub(crate) folder: TempDir,
    pub(crate) manager: Manager,
    broker: EmbeddedBroker,
}

/// A daemon; killed when dropped.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    log: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Device {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manager = Manager::bind(&folder.path().join("notify"));
        let broker = EmbeddedBroker::start((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        Self {
            folder,
            manager,
            broker,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A configuration with these slots, which take requests; `more` is appended.
    pub(crate) fn configure(&self, slots: &[&str], more: &str) {
        let folder = self.folder.path().display();
        let port = self.broker.address().port();
        let slots: String = slots
            .iter()
            .map(|slot| format!("[slots.{slot}]\ninputs = [{{ kind = \"http\" }}]\n"))
            .collect();
        let text = format!(
            "device = \"bench\"\n\
             [broker]\nhost = \"127.0.0.1\"\nport = {port}\n\
             [spool]\ndirectory = \"{folder}/spool\"\n\
             [store]\ndirectory = \"{folder}/store\"\n\
             [trust]\nrequire_signature = false\n\
             [engine]\nbackend = \"cpu\"\ncache = \"{folder}/cache\"\nhang_after_s = 2\n\
             [http]\nlisten = \"unix:{folder}/http\"\n{slots}{more}"
        );
        std::fs::write(self.path("agent.toml"), text).unwrap();
    }

    /// Starts the daemon as a manager would, with a watchdog of so long, if any.
    pub(crate) fn start(&self, watchdog: Option<Duration>) -> Daemon {
        // The process has the number of the shell that it replaces.
        let mut command = Command::new("sh");
        command.args(["-c", "WATCHDOG_PID=$$ exec \"$0\" \"$@\"", AGENT, "--config"]);
        command.arg(self.path("agent.toml"));
        match watchdog {
            Some(limit) => command.env("WATCHDOG_USEC", limit.as_micros().to_string()),
            None => command.env_remove("WATCHDOG_USEC"),
        };
        self.spawn(&mut command)
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> Daemon {
        let log = self.path("log");
        command
            .env("NOTIFY_SOCKET", &self.manager.socket)
            .env_remove("JOURNAL_STREAM")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        Daemon { child, log }
    }

    /// Asks the local interface; returns the answer's head and body.
    pub(crate) fn ask(&self, head: &str, body: &[u8]) -> String {
        let mut stream = self.send(head, body);
        let mut answer = String::new();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Asks without waiting for the answer.
    pub(crate) fn send(&self, head: &str, body: &[u8]) -> UnixStream {
        let mut stream = UnixStream::connect(self.path("http")).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        )
        .unwrap();
        stream.write_all(body).unwrap();
        stream
    }
}

impl Daemon {
    /// As `kill(1)` does.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, signal).unwrap();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log says `text`.
    pub(crate) fn logs(&self, text: &str) {
        let begun = Instant::now();
        while !self.log().contains(text) {
            assert!(
                begun.elapsed() < PATIENCE,
                "the log never says {text:?}:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn ended_within(&mut self, limit: Duration) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                begun.elapsed() < limit,
                "it runs after {limit:?}:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The unit's folder in the repository.
pub(crate) fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../systemd")
        .join(name)
}
