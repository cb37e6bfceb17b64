//! Log lines reach the journal with their fields, and standard error where there is no journal.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::device::{AGENT, Daemon, Device};
use crate::manager::PATIENCE;

/// What a process calls its standard error.
const OWN: &str = "/proc/self/fd/2";

/// Starts the daemon where `/run` is the folder `run`: a mount that this process alone sees. The journal's variable names
/// the file `stream`.
fn start_with_run(device: &Device, stream: &str) -> Daemon {
    // The shell and what it becomes have the same standard error.
    let script = "mount --bind \"$0\" /run || exit 99\n\
                  export JOURNAL_STREAM=$(stat -L -c %d:%i \"$1\")\n\
                  shift\n\
                  exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(device.path("run"))
        .arg(stream)
        .arg(AGENT)
        .arg("--config")
        .arg(device.path("agent.toml"));
    device.spawn(&mut command)
}

/// The entries of one datagram: `NAME=value`, or a name, a length and a value of several lines.
fn entries(mut datagram: &[u8]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    while let Some(end) = datagram.iter().position(|byte| *byte == b'\n') {
        let (line, rest) = (&datagram[..end], &datagram[end + 1..]);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        match line.iter().position(|byte| *byte == b'=') {
            Some(at) => {
                found.insert(text(&line[..at]), text(&line[at + 1..]));
                datagram = rest;
            }
            None => {
                let (length, rest) = rest.split_at(8);
                let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
                found.insert(text(line), text(&rest[..length]));
                datagram = &rest[length + 1..];
            }
        }
    }
    found
}

#[test]
fn the_journal_gets_fields() {
    let device = Device::new();
    device.configure(&["main"], "");
    fs::create_dir_all(device.path("run/systemd/journal")).unwrap();
    let journal = UnixDatagram::bind(device.path("run/systemd/journal/socket")).unwrap();
    journal.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut daemon = start_with_run(&device, OWN);
    let mut seen = Vec::new();
    let said = |seen: &[BTreeMap<String, String>], message: &str| {
        let said = |entry: &&BTreeMap<String, String>| entry["MESSAGE"] == message;
        seen.iter().find(said).cloned()
    };
    while said(&seen, "ready").is_none() || said(&seen, "connected to the broker").is_none() {
        let mut buffer = [0; 1 << 16];
        let length = journal.recv(&mut buffer).unwrap_or_else(|error| {
            panic!(
                "nothing more comes to the journal ({error}); it needs a user namespace of its own: {}\n{seen:#?}",
                daemon.log()
            )
        });
        // The first is empty: it only finds out whether there is a journal.
        if length > 0 {
            seen.push(entries(&buffer[..length]));
        }
    }
    let ready = said(&seen, "ready").unwrap();
    // 6 is `info`.
    assert_eq!(ready["PRIORITY"], "6");
    assert_eq!(ready["SYSLOG_IDENTIFIER"], "edgeopt-agent");
    assert!(ready["CODE_FILE"].ends_with("service.rs"));
    let connected = said(&seen, "connected to the broker").unwrap();
    assert_eq!(connected["EDGEOPT_SESSION_PRESENT"], "false");
    // The configuration's warning.
    assert!(
        seen.iter()
            .any(|entry| entry.get("PRIORITY").is_some_and(|priority| priority == "4")),
        "{seen:#?}"
    );
    assert_eq!(daemon.log(), "", "the same twice");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended_within(Duration::from_secs(10)).code(), Some(0));
}

#[test]
fn without_a_journal_lines_go_to_standard_error() {
    let device = Device::new();
    device.configure(&["main"], "");
    fs::create_dir_all(device.path("run")).unwrap();
    let mut daemon = start_with_run(&device, OWN);
    daemon.logs("ready");
    daemon.signal(Signal::TERM);
    assert_eq!(
        daemon.ended_within(Duration::from_secs(10)).code(),
        Some(0),
        "{}",
        daemon.log()
    );
}

/// A process that a service has started, whose output goes elsewhere.
#[test]
fn an_inherited_variable_does_not_send_lines_to_the_journal() {
    let device = Device::new();
    device.configure(&["main"], "");
    fs::create_dir_all(device.path("run/systemd/journal")).unwrap();
    let journal = UnixDatagram::bind(device.path("run/systemd/journal/socket")).unwrap();
    journal.set_nonblocking(true).unwrap();
    let daemon = start_with_run(&device, "/");
    daemon.logs("ready");
    let mut buffer = [0; 1 << 16];
    let sent = journal.recv(&mut buffer);
    assert!(sent.is_err(), "{:?}", entries(&buffer[..sent.unwrap()]));
}
