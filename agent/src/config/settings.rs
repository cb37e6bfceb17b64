use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use edgeopt_models::Bytes;
use serde::Deserialize;

use super::size;
use crate::hardware::HardwareSettings;
use crate::inputs::camera::CameraSettings;
use crate::protocol::{DeviceId, Encoding, SlotName};

/// Everything `agent.toml` may contain. `systemd/agent.toml` shows each field with its default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// This device's name in the fleet: the third level of each of its topics.
    pub device: DeviceId,
    /// Where the broker is and who we are to it.
    pub broker: Broker,
    /// What is kept on disk while the broker is out of reach.
    #[serde(default)]
    pub spool: Spool,
    /// Where bundles and the state of slots are kept.
    #[serde(default)]
    pub store: Store,
    /// Whose bundles may run here.
    #[serde(default)]
    pub trust: Trust,
    /// How much memory models may take.
    #[serde(default)]
    pub memory: Memory,
    /// What executes models.
    #[serde(default)]
    pub engine: Engine,
    /// When a new model is trusted.
    #[serde(default)]
    pub watch: Watch,
    /// Places for models, and what feeds them.
    #[serde(default)]
    pub slots: BTreeMap<SlotName, Slot>,
    /// Measurements of the device itself.
    #[serde(default)]
    pub telemetry: Telemetry,
    /// The local interface; absent: none is opened.
    pub http: Option<Http>,
    /// Sensors, outputs and what slows inference down.
    #[serde(default)]
    pub hardware: HardwareSettings,
}

/// The broker, and how to log in there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Broker {
    /// Name or address, without a scheme.
    pub host: String,
    /// TCP port; 8883 with TLS and 1883 without, unless given.
    pub port: Option<u16>,
    /// Encryption and certificates; absent: plain TCP.
    pub tls: Option<Tls>,
    /// User name.
    pub username: Option<String>,
    /// File whose first line is the password: not in this file, so that this one can be shown around.
    pub password_file: Option<PathBuf>,
    /// Seconds without traffic after which each side checks that the other is there.
    #[serde(default = "defaults::keep_alive_s")]
    pub keep_alive_s: u16,
    /// MQTT client id; the device's name unless given. It must stay the same, for the broker keeps what it could not
    /// deliver under this name.
    pub client_id: Option<String>,
    /// Largest MQTT packet sent or taken.
    #[serde(default = "defaults::max_packet", deserialize_with = "size::read")]
    pub max_packet: Bytes,
}

impl Broker {
    /// The port in use.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(if self.tls.is_some() { 8883 } else { 1883 })
    }
}

/// Encryption of the connection to the broker. Files are read at each connect, so that renewed certificates are used
/// without a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM file of the authorities that the broker's certificate must come from; absent: the system's.
    pub ca: Option<PathBuf>,
    /// PEM file of this device's certificate, with its chain.
    pub certificate: Option<PathBuf>,
    /// PEM file of the certificate's private key.
    pub key: Option<PathBuf>,
    /// Protocols offered by ALPN, such as `mqtt` or AWS's `x-amzn-mqtt-ca`.
    #[serde(default)]
    pub alpn: Vec<String>,
}

/// The spool: results and telemetry that the broker has not acknowledged yet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spool {
    /// Its directory.
    pub directory: PathBuf,
    /// Most bytes on disk.
    #[serde(deserialize_with = "size::read")]
    pub max: Bytes,
    /// Bytes after which a new file is begun; space is freed in these steps.
    #[serde(deserialize_with = "size::read")]
    pub segment: Bytes,
    /// What gives way when it is full.
    pub drop: DropPolicy,
    /// When records reach the disk.
    pub sync: Sync,
}

impl Default for Spool {
    fn default() -> Self {
        Self {
            directory: "/var/lib/edgeopt/spool".into(),
            max: Bytes::mib(256),
            segment: Bytes::mib(4),
            drop: DropPolicy::Oldest,
            sync: Sync::Batch,
        }
    }
}

/// Which of too many items is given up. Each one that is, is counted and reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropPolicy {
    /// The oldest, so that what remains is recent.
    #[default]
    Oldest,
    /// The one that just came, so that nothing taken is ever lost.
    Newest,
}

/// When a spooled record is safe from a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sync {
    /// Before its producer goes on: slow storage slows inference down.
    Record,
    /// Within a second, several at once.
    #[default]
    Batch,
}

/// The store of bundles.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// Its directory.
    pub directory: PathBuf,
    /// Bytes of the file system that downloads leave free.
    #[serde(deserialize_with = "size::read")]
    pub keep_free: Bytes,
    /// PEM file of the authorities that HTTPS servers' certificates must come from; absent: the system's.
    pub ca: Option<PathBuf>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            directory: "/var/lib/edgeopt/store".into(),
            keep_free: Bytes::mib(64),
            ca: None,
        }
    }
}

/// Signatures that a bundle needs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trust {
    /// Refuse what none of the keys signed.
    pub require_signature: bool,
    /// minisign public keys (the base64 line).
    pub keys: Vec<String>,
    /// Files with one minisign public key each.
    pub key_files: Vec<PathBuf>,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            require_signature: true,
            keys: Vec::new(),
            key_files: Vec::new(),
        }
    }
}

/// Memory for models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// The most all models together may take; absent: what the system and the control group leave.
    #[serde(deserialize_with = "size::read_optional")]
    pub limit: Option<Bytes>,
}

/// What executes models.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Engine {
    /// Which library.
    pub backend: BackendChoice,
    /// What answers while an engine is built.
    pub while_building: WhileBuilding,
    /// Where TensorRT engines that were built on this device are kept.
    pub cache: PathBuf,
    /// Most bytes of them.
    #[serde(deserialize_with = "size::read")]
    pub cache_max: Bytes,
    /// Inferences that run at the same time on the whole device; who waits goes by the slots' priorities. Absent: no
    /// bound but the workers of the slots.
    pub concurrent: Option<u32>,
    /// Seconds after which one inference counts as hanging: the service manager's watchdog is not fed until it ends.
    pub hang_after_s: u32,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            backend: BackendChoice::default(),
            while_building: WhileBuilding::default(),
            cache: "/var/cache/edgeopt".into(),
            cache_max: Bytes::mib(2048),
            concurrent: None,
            hang_after_s: 60,
        }
    }
}

/// Libraries that execute models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendChoice {
    /// TensorRT where it and a GPU are found, the CPU otherwise; the log says which.
    #[default]
    Auto,
    /// ONNX Runtime on the CPU.
    Cpu,
    /// TensorRT, or nothing.
    Tensorrt,
}

/// What answers for a model whose engine has to be built first, where no other model does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhileBuilding {
    /// The same model on the CPU, if there is memory for it beside the build.
    #[default]
    Cpu,
    /// Nothing: inputs are refused, or wait in their folder.
    None,
}

/// When a new model is trusted, and when the one before it comes back.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Watch {
    /// It is watched until it has given so many answers …
    pub answers: u64,
    /// … or for so many seconds, whatever comes first.
    pub longest_s: u32,
    /// Share of inputs that may fail, besides the share that failed before.
    pub failures: f64,
    /// How many times as slow (median latency) as the model before it may be.
    pub slowdown: f64,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            answers: 50,
            longest_s: 60,
            failures: 0.1,
            slowdown: 10.0,
        }
    }
}

/// A place for one model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// Where its inputs come from; may be absent where a camera or a sensor feeds the slot.
    #[serde(default)]
    pub inputs: Vec<Input>,
    /// A camera whose newest frame is an input.
    pub camera: Option<CameraSettings>,
    /// Inputs that may wait.
    #[serde(default = "defaults::queue")]
    pub queue: u32,
    /// Which one gives way when more come.
    #[serde(default)]
    pub drop: DropPolicy,
    /// Inferences of this slot that run at the same time.
    #[serde(default = "defaults::workers")]
    pub workers: u32,
    /// CPU threads of each of them; absent: the cores shared among the workers.
    pub threads: Option<u32>,
    /// Milliseconds an input may wait for others to be run together with it, where the model takes several.
    #[serde(default)]
    pub batch_wait_ms: u32,
    /// Who goes first when `engine.concurrent` inferences run already.
    #[serde(default)]
    pub priority: Priority,
    /// How results are published.
    #[serde(default)]
    pub results: Encoding,
}

/// How important a slot's inferences are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// When nobody else waits.
    Low,
    /// In the order in which they came.
    #[default]
    Normal,
    /// Before the others.
    High,
}

/// A source of inputs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Input {
    /// The slot's topic `models/<slot>/input`.
    Mqtt {},
    /// Files that appear in a folder. A file is taken once it is complete: renamed into place, or closed.
    Folder {
        /// The folder.
        path: PathBuf,
        /// Keep files that were taken, in `done/` beside them.
        #[serde(default)]
        keep: bool,
    },
    /// Requests to the local interface.
    Http {},
}

/// Measurements of the device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// Seconds between two reports.
    pub interval_s: u32,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { interval_s: 60 }
    }
}

impl Telemetry {
    /// Time between two reports.
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_s.into())
    }
}

/// The local interface.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Where it listens.
    pub listen: Listen,
}

/// An address only this machine can reach: the interface has no log-in.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    /// `unix:<path>`: a socket whose file mode says who may use it.
    Unix(PathBuf),
    /// A loopback address with port.
    Tcp(SocketAddr),
}

/// Why a text is not a [`Listen`] address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} {problem}; write `unix:/run/edgeopt/http.sock` or a loopback address such as `127.0.0.1:8080`"
)]
pub struct InvalidListen {
    text: String,
    problem: &'static str,
}

impl FromStr for Listen {
    type Err = InvalidListen;
    fn from_str(text: &str) -> Result<Self, InvalidListen> {
        let wrong = |problem| InvalidListen {
            text: text.to_owned(),
            problem,
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err(wrong("is not an absolute path")),
            };
        }
        let address: SocketAddr = text
            .parse()
            .map_err(|_| wrong("is neither a socket nor an address"))?;
        match address.ip().is_loopback() {
            true => Ok(Self::Tcp(address)),
            false => Err(wrong(
                "can be reached from other machines, and the interface has no log-in",
            )),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = InvalidListen;
    fn try_from(text: String) -> Result<Self, InvalidListen> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

mod defaults {
    use super::Bytes;

    pub(super) fn keep_alive_s() -> u16 {
        30
    }

    pub(super) fn max_packet() -> Bytes {
        Bytes::mib(1)
    }

    pub(super) fn queue() -> u32 {
        8
    }

    pub(super) fn workers() -> u32 {
        1
    }
}
