//! The real broker, on a port of its own.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::eventually;

pub(crate) struct Mosquitto {
    child: Child,
    config: PathBuf,
    pub(crate) port: u16,
}

impl Mosquitto {
    /// Starts with these lines of configuration besides the listener; state is kept in `folder`.
    pub(crate) fn start(folder: &Path, lines: &str) -> Self {
        // Another process may take the port between our look and the broker's bind; then try another.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let config = folder.join("mosquitto.conf");
            let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
            let text = format!(
                "listener {port} 127.0.0.1\nuser {user}\npersistence true\npersistence_location {}/\n\
                 max_queued_messages 0\n{lines}\n",
                folder.display()
            );
            std::fs::write(&config, text).unwrap();
            let mut broker = Self {
                child: spawn(&config),
                config,
                port,
            };
            if broker.wait_until_it_listens() {
                return broker;
            }
        }
        panic!("mosquitto does not start; is its configuration valid?\n{lines}");
    }

    fn wait_until_it_listens(&mut self) -> bool {
        let mut listens = false;
        eventually("mosquitto listens or ends", || {
            listens = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            listens || self.child.try_wait().unwrap().is_some()
        });
        listens
    }

    /// Ends it as an administrator would: it writes its state to disk.
    pub(crate) fn stop(&mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").arg(&id).status().unwrap().success());
        eventually("mosquitto ends", || self.child.try_wait().unwrap().is_some());
    }

    /// Starts it again with the same configuration and state.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&self.config);
        assert!(self.wait_until_it_listens(), "mosquitto does not start again");
    }
}

fn spawn(config: &Path) -> Child {
    let program = [
        "/usr/sbin/mosquitto",
        "/usr/local/sbin/mosquitto",
        "/usr/bin/mosquitto",
    ]
    .into_iter()
    .find(|path| Path::new(path).exists())
    .expect("these tests need mosquitto: apt-get install mosquitto");
    Command::new(program)
        .arg("-c")
        .arg(config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
