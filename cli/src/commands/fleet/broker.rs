use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc;

use edgeopt_agent::broker::EmbeddedBroker;
use serde::Serialize;

use crate::screen::{Screen, WARN};

/// Runs a small broker on this machine, for trying things out: no log-in, no encryption, nothing kept on disk.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A loopback address; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:1883", value_name = "ADDRESS")]
    listen: SocketAddr,
}

#[derive(Serialize)]
struct Listening {
    address: SocketAddr,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let broker = EmbeddedBroker::start(arguments.listen)?;
    let (stop, stopped) = mpsc::channel();
    ctrlc::set_handler(move || {
        // The second time nobody may listen any more.
        let _ = stop.send(());
    })?;
    let listening = Listening {
        address: broker.address(),
    };
    screen.line(&listening, |listening| {
        format!(
            "broker at {} until Ctrl-C; {WARN}for trying out only{WARN:#}\n",
            listening.address
        )
    })?;
    stopped.recv()?;
    Ok(ExitCode::SUCCESS)
}
