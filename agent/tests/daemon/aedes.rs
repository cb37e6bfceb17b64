//! The broker aedes in a process of its own, on a port of its own.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::eventually;

pub(crate) struct Aedes {
    child: Child,
    module: PathBuf,
    pub(crate) port: u16,
}

impl Aedes {
    /// `None`, with the reason on standard error, where Node or the package is missing.
    pub(crate) fn start() -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let module = root.join("../.cache/aedes/node_modules/aedes/aedes.js");
        let version = Command::new("node").arg("--version").output();
        let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let major = version.ok().and_then(|text| {
            text.trim_start_matches('v')
                .split('.')
                .next()?
                .parse::<u32>()
                .ok()
        });
        match major {
            None => eprintln!("not run: there is no Node; install nodejs 20 or newer"),
            Some(..20) => eprintln!(
                "not run: aedes needs Node 20, this is {}",
                major.unwrap_or_default()
            ),
            Some(_) if !module.exists() => {
                eprintln!("not run: aedes is not installed; `make fetch-brokers` does that")
            }
            Some(_) => {
                let port = TcpListener::bind("127.0.0.1:0")
                    .unwrap()
                    .local_addr()
                    .unwrap()
                    .port();
                let child = spawn(&module, port);
                return Some(Self { child, module, port });
            }
        }
        None
    }

    fn say(&mut self, word: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{word}").unwrap();
    }

    fn listens(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }

    /// Cuts every connection and takes no new one; what it keeps stays in its memory.
    pub(crate) fn stop(&mut self) {
        self.say("close");
        eventually("aedes is closed", || !self.listens());
    }

    pub(crate) fn start_again(&mut self) {
        self.say("open");
        eventually("aedes listens again", || self.listens());
    }

    /// Sessions and retained messages are lost.
    pub(crate) fn kill_and_start_again(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(&self.module, self.port);
    }
}

fn spawn(module: &Path, port: u16) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/brokers/aedes.mjs");
    let mut child = Command::new("node")
        .arg(script)
        .arg(module)
        .arg(port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("aedes listens", || {
        assert!(child.try_wait().unwrap().is_none(), "aedes ends at once");
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    child
}

impl Drop for Aedes {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
