//! Debian's RabbitMQ with its MQTT plugin, in the foreground and in a folder of its own; a service that runs on this machine
//! is left alone.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// It starts a virtual machine, and a database in it.
const STARTING: Duration = Duration::from_secs(120);

const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

pub(crate) struct RabbitMq {
    folder: tempfile::TempDir,
    child: Child,
    /// Of Erlang's name server, and of the node.
    erlang: [u16; 2],
    pub(crate) port: u16,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

impl RabbitMq {
    pub(crate) fn start() -> Self {
        assert!(
            Path::new(PROGRAM).exists(),
            "this test needs {PROGRAM}: apt-get install rabbitmq-server"
        );
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let text = format!(
            "listeners.tcp = none\nmqtt.listeners.tcp.1 = 127.0.0.1:{port}\nmqtt.allow_anonymous = true\n\
             mqtt.retained_message_store = rabbit_mqtt_retained_msg_store_dets\n\
             disk_free_limit.absolute = 10MB\nlog.console = true\nlog.file = false\n"
        );
        fs::write(folder.path().join("rabbitmq.conf"), text).unwrap();
        fs::write(folder.path().join("enabled_plugins"), "[rabbitmq_mqtt].\n").unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        let erlang = [free_port(), free_port()];
        let child = spawn(folder.path(), erlang);
        let mut broker = Self {
            folder,
            child,
            erlang,
            port,
        };
        broker.wait_until_it_listens();
        broker
    }

    fn wait_until_it_listens(&mut self) {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < STARTING,
                "RabbitMQ does not start: {ended:?}\n{}",
                fs::read_to_string(self.folder.path().join("out")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// As an administrator would: it keeps sessions and retained messages on disk.
    pub(crate) fn stop(&mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").arg(id).status().unwrap().success());
        let begun = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < STARTING, "RabbitMQ does not end");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn start_again(&mut self) {
        self.child = spawn(self.folder.path(), self.erlang);
        self.wait_until_it_listens();
    }
}

fn spawn(folder: &Path, [names, node]: [u16; 2]) -> Child {
    let output = File::options()
        .create(true)
        .append(true)
        .open(folder.join("out"))
        .unwrap();
    Command::new(PROGRAM)
        .env("HOME", folder.join("home"))
        .env("RABBITMQ_NODENAME", format!("edgeopt{node}@localhost"))
        .env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"))
        .env("RABBITMQ_LOG_BASE", folder.join("log"))
        .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("enabled_plugins"))
        .env("RABBITMQ_PID_FILE", folder.join("pid"))
        .env("ERL_EPMD_PORT", names.to_string())
        .env("RABBITMQ_DIST_PORT", node.to_string())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap()
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        // The script may have left the virtual machine behind: asked to end, both do.
        let id = self.child.id().to_string();
        drop(Command::new("kill").arg(id).status());
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(self.child.kill());
        drop(self.child.wait());
        let names = self.erlang[0].to_string();
        drop(
            Command::new("epmd")
                .arg("-kill")
                .env("ERL_EPMD_PORT", names)
                .status(),
        );
    }
}
