use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use edgeopt_models::Bytes;
use edgeopt_models::bundle::PublicKey;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{Config, Input, Listen, Tls};
use crate::download::HttpClient;
use crate::inputs::camera;
use crate::link;

/// How bad a [`Problem`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The daemon cannot work like this.
    Error,
    /// It can, and someone should know.
    Warning,
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, as a dotted path.
    pub field: String,
    /// What is wrong and what to do.
    pub message: String,
    /// How bad it is.
    pub severity: Severity,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.severity == Severity::Warning {
            "warning: "
        } else {
            ""
        };
        write!(f, "{kind}{}: {}", self.field, self.message)
    }
}

/// Smallest packet limit: a chunk of a bundle (128 KiB) with its header must pass.
const MIN_PACKET: Bytes = Bytes::kib(160);
/// Largest packet MQTT can express.
const MAX_PACKET: Bytes = Bytes::mib(256);
/// Less than this holds no model with its runtime.
const MIN_MEMORY: Bytes = Bytes::mib(16);

#[derive(Default)]
struct Findings(Vec<Problem>);

impl Findings {
    fn add(&mut self, severity: Severity, field: &str, message: impl Into<String>) {
        self.0.push(Problem {
            field: field.to_owned(),
            message: message.into(),
            severity,
        });
    }

    fn error(&mut self, field: &str, message: impl Into<String>) {
        self.add(Severity::Error, field, message);
    }

    fn warning(&mut self, field: &str, message: impl Into<String>) {
        self.add(Severity::Warning, field, message);
    }

    fn range<T: PartialOrd + fmt::Display>(&mut self, field: &str, value: T, low: T, high: T, unit: &str) {
        if value < low || value > high {
            self.error(
                field,
                format!("{value}{unit} is out of range: {low} to {high}{unit}"),
            );
        }
    }

    fn absolute(&mut self, field: &str, path: &Path) {
        if !path.is_absolute() {
            let path = path.display();
            self.error(
                field,
                format!("`{path}` is relative, and the daemon has no fixed place: write it from /"),
            );
        }
    }

    fn file(&mut self, field: &str, path: &Path) -> Option<Vec<u8>> {
        match fs::read(path) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                let path = path.display();
                self.error(
                    field,
                    format!("cannot read {path}: {error}; the daemon's user must be able to"),
                );
                None
            }
        }
    }
}

impl Config {
    /// Everything that is wrong, the files this configuration names included.
    pub fn check(&self) -> Vec<Problem> {
        let mut findings = Findings(self.contradictions());
        if let Some(tls) = &self.broker.tls {
            let before = findings.0.len();
            check_tls_files(tls, &mut findings);
            // Each file is fine; do they fit together?
            if findings.0.len() == before
                && let Err(error) = link::check_tls(tls)
            {
                findings.error("broker.tls", error.to_string());
            }
        }
        if let Some(path) = &self.broker.password_file
            && let Some(text) = findings.file("broker.password_file", path)
            && text
                .split(|byte| matches!(byte, b'\n' | b'\r'))
                .next()
                .is_none_or(<[u8]>::is_empty)
        {
            findings.error(
                "broker.password_file",
                format!("the first line of {} is empty", path.display()),
            );
        }
        for (index, path) in self.trust.key_files.iter().enumerate() {
            let field = format!("trust.key_files[{index}]");
            if let Some(bytes) = findings.file(&field, path)
                && let Err(error) = PublicKey::parse(&String::from_utf8_lossy(&bytes))
            {
                findings.error(&field, format!("{}: {error}", path.display()));
            }
        }
        if let Some(path) = &self.store.ca
            && let Err(error) = HttpClient::new(Some(path))
        {
            findings.error("store.ca", error.to_string());
        }
        for (field, directory) in [
            ("spool.directory", &self.spool.directory),
            ("store.directory", &self.store.directory),
        ] {
            check_directory(field, directory, &mut findings);
        }
        for (slot, settings) in &self.slots {
            for (index, input) in settings.inputs.iter().enumerate() {
                if let Input::Folder { path, .. } = input
                    && !path.is_dir()
                {
                    let field = format!("slots.{slot}.inputs[{index}].path");
                    findings.error(&field, format!("{} is not a folder: create it", path.display()));
                }
            }
        }
        for (slot, settings) in &self.slots {
            if let Some(problem) = settings.camera.as_ref().and_then(camera::problem) {
                findings.error(&format!("slots.{slot}.camera"), problem);
            }
        }
        findings.0.extend(self.hardware.absent_devices());
        findings.0
    }

    /// What is wrong without looking at any file.
    pub(super) fn contradictions(&self) -> Vec<Problem> {
        let mut findings = Findings::default();
        self.check_broker(&mut findings);
        self.check_storage(&mut findings);
        if let Some(limit) = self.memory.limit
            && limit < MIN_MEMORY
        {
            findings.error(
                "memory.limit",
                format!("{limit} holds no model: give at least {MIN_MEMORY}"),
            );
        }
        self.check_trust(&mut findings);
        self.check_engine(&mut findings);
        self.check_slots(&mut findings);
        findings.range("telemetry.interval_s", self.telemetry.interval_s, 1, 86_400, " s");
        findings.0.extend(self.hardware.problems(self.slots.keys()));
        findings.0
    }

    fn check_broker(&self, findings: &mut Findings) {
        let broker = &self.broker;
        let host = &broker.host;
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/') {
            findings.error(
                "broker.host",
                format!("{host:?} is not a name or address: no scheme, port or path here"),
            );
        } else if host.contains(':') {
            if host.parse::<Ipv6Addr>().is_err() {
                findings.error(
                    "broker.host",
                    format!("{host:?}: the port belongs in broker.port"),
                );
            } else if broker.tls.is_some() {
                findings.error(
                    "broker.host",
                    format!("{host}: with TLS give a name, not an IPv6 address"),
                );
            }
        }
        if broker.port == Some(0) {
            findings.error(
                "broker.port",
                "0 is not a port: 8883 with TLS or 1883 without are usual",
            );
        }
        findings.range("broker.keep_alive_s", broker.keep_alive_s, 5, 3600, " s");
        findings.range("broker.max_packet", broker.max_packet, MIN_PACKET, MAX_PACKET, "");
        if let Some(id) = &broker.client_id
            && (id.is_empty() || id.len() > 128 || !id.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            findings.error(
                "broker.client_id",
                format!("{id:?} is not 1 to 128 visible ASCII characters"),
            );
        }
        if broker.password_file.is_some() && broker.username.is_none() {
            findings.error(
                "broker.password_file",
                "MQTT sends no password without a user name: set broker.username",
            );
        }
        if broker.username.is_some() && broker.tls.is_none() {
            findings.warning(
                "broker.username",
                "without [broker.tls] the password can be read on its way",
            );
        }
        if let Some(tls) = &broker.tls {
            if tls.certificate.is_some() != tls.key.is_some() {
                findings.error(
                    "broker.tls",
                    "`certificate` and `key` belong together: set both or neither",
                );
            }
            for (index, name) in tls.alpn.iter().enumerate() {
                if name.is_empty() || name.len() > 255 {
                    findings.error(
                        &format!("broker.tls.alpn[{index}]"),
                        "a protocol's name has 1 to 255 bytes",
                    );
                }
            }
        }
    }

    fn check_storage(&self, findings: &mut Findings) {
        findings.absolute("spool.directory", &self.spool.directory);
        findings.absolute("store.directory", &self.store.directory);
        if let Some(ca) = &self.store.ca {
            findings.absolute("store.ca", ca);
        }
        let (segment, max) = (self.spool.segment, self.spool.max);
        if segment < self.broker.max_packet {
            let packet = self.broker.max_packet;
            findings.error(
                "spool.segment",
                format!("{segment} does not hold one packet (broker.max_packet {packet})"),
            );
        }
        if max.0 / 2 < segment.0 {
            findings.error(
                "spool.max",
                format!("{max} is less than two segments of {segment}: nothing could be freed"),
            );
        }
        if self.spool.directory == self.store.directory {
            findings.error(
                "spool.directory",
                "is the store's directory too: give each its own",
            );
        }
    }

    fn check_trust(&self, findings: &mut Findings) {
        let trust = &self.trust;
        if trust.require_signature && trust.keys.is_empty() && trust.key_files.is_empty() {
            findings.error(
                "trust.keys",
                "no key, while require_signature is on: no bundle could ever run. Add a minisign public key, or set \
                 require_signature = false where digests are enough",
            );
        }
        for (index, key) in trust.keys.iter().enumerate() {
            if let Err(error) = PublicKey::parse(key) {
                findings.error(&format!("trust.keys[{index}]"), error.to_string());
            }
        }
        if !trust.require_signature {
            findings.warning(
                "trust.require_signature",
                "is off: whoever can write to the broker chooses what runs here",
            );
        }
    }

    fn check_engine(&self, findings: &mut Findings) {
        findings.absolute("engine.cache", &self.engine.cache);
        findings.range(
            "engine.concurrent",
            self.engine.concurrent.unwrap_or(1),
            1,
            1024,
            "",
        );
        findings.range("engine.hang_after_s", self.engine.hang_after_s, 1, 86_400, " s");
        let watch = &self.watch;
        findings.range("watch.answers", watch.answers, 1, 1_000_000, "");
        findings.range("watch.longest_s", watch.longest_s, 1, 86_400, " s");
        findings.range("watch.failures", watch.failures, 0.0, 1.0, "");
        findings.range("watch.slowdown", watch.slowdown, 1.0, 1e6, "");
    }

    fn check_slots(&self, findings: &mut Findings) {
        if self.slots.is_empty() {
            findings.warning(
                "slots",
                "there is none, so no model can be deployed: add [slots.<name>]",
            );
        }
        let mut watched: BTreeMap<&PathBuf, String> = BTreeMap::new();
        let mut cameras: BTreeMap<&PathBuf, String> = BTreeMap::new();
        for (slot, settings) in &self.slots {
            findings.range(&format!("slots.{slot}.queue"), settings.queue, 1, 4096, "");
            findings.range(&format!("slots.{slot}.workers"), settings.workers, 1, 64, "");
            findings.range(
                &format!("slots.{slot}.threads"),
                settings.threads.unwrap_or(1),
                1,
                256,
                "",
            );
            findings.range(
                &format!("slots.{slot}.batch_wait_ms"),
                settings.batch_wait_ms,
                0,
                60_000,
                " ms",
            );
            let has_sensor = self.hardware.sensors.values().any(|sensor| sensor.slot == *slot);
            if settings.inputs.is_empty() && settings.camera.is_none() && !has_sensor {
                findings.error(
                    &format!("slots.{slot}.inputs"),
                    "is empty, and neither a camera nor a sensor of [hardware] feeds the slot: name at least one source",
                );
            }
            if let Some(camera) = &settings.camera {
                let field = format!("slots.{slot}.camera");
                for (inner, problem) in camera.problems() {
                    findings.error(&format!("{field}.{inner}"), problem);
                }
                if let Some(other) = cameras.insert(&camera.device, field.clone()) {
                    let device = camera.device.display();
                    let problem = format!("{device} is {other}'s too: a camera has one reader");
                    findings.error(&format!("{field}.device"), problem);
                }
            }
            for (index, input) in settings.inputs.iter().enumerate() {
                let field = format!("slots.{slot}.inputs[{index}]");
                match input {
                    Input::Mqtt {} => {}
                    Input::Http {} if self.http.is_none() => {
                        findings.error(
                            &field,
                            "wants requests, and there is no [http] section to take them",
                        );
                    }
                    Input::Http {} => {}
                    Input::Folder { path, .. } => {
                        findings.absolute(&format!("{field}.path"), path);
                        if let Some(other) = watched.insert(path, field.clone()) {
                            let path = path.display();
                            findings.error(
                                &field,
                                format!("{path} is watched by {other} too: files go to one slot"),
                            );
                        }
                    }
                }
            }
        }
        if let Some(Listen::Unix(path)) = self.http.as_ref().map(|http| &http.listen)
            && path.as_os_str().len() > 107
        {
            findings.error(
                "http.listen",
                "the system allows 107 bytes for a socket's path: use a shorter one",
            );
        }
    }
}

fn check_tls_files(tls: &Tls, findings: &mut Findings) {
    for (field, path) in [
        ("broker.tls.ca", &tls.ca),
        ("broker.tls.certificate", &tls.certificate),
    ] {
        let Some(path) = path else { continue };
        let Some(bytes) = findings.file(field, path) else {
            continue;
        };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        match certificates {
            Ok(found) if found.is_empty() => {
                findings.error(
                    field,
                    format!("{} has no PEM block `CERTIFICATE`", path.display()),
                );
            }
            Ok(_) => {}
            Err(error) => findings.error(field, format!("{} is damaged PEM: {error}", path.display())),
        }
    }
    if let Some(path) = &tls.key
        && let Some(bytes) = findings.file("broker.tls.key", path)
        && PrivateKeyDer::from_pem_slice(&bytes).is_err()
    {
        findings.error(
            "broker.tls.key",
            format!(
                "{} has no private key in PEM that is readable without a password",
                path.display()
            ),
        );
    }
}

/// The directory may not exist yet, but then it must be possible to make it.
fn check_directory(field: &str, directory: &Path, findings: &mut Findings) {
    if directory.exists() && !directory.is_dir() {
        findings.error(field, format!("{} is not a directory", directory.display()));
        return;
    }
    let nearest = directory.ancestors().find(|ancestor| ancestor.exists());
    if let Some(nearest) = nearest
        && fs::metadata(nearest).is_ok_and(|metadata| metadata.permissions().readonly())
    {
        findings.error(field, format!("{} cannot be written", nearest.display()));
    }
}
