//! A device: a folder, a configuration, and the program running with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use edgeopt_agent::config::Config;
use edgeopt_agent::daemon::Overview;
use edgeopt_agent::deploy::SlotRecord;
use edgeopt_agent::fleet::{Access, BundleFile, Change, Failure, Operator, Rollout, RolloutEnd, roll_out};
use edgeopt_agent::protocol::{
    DesiredState, DeviceId, Generation, ModelSource, SlotName, SlotSpec, Topic, TopicName,
};

use crate::bundles::Made;
use crate::http::Address;
use crate::support::{PATIENCE, eventually};

pub(crate) fn device() -> DeviceId {
    "d".parse().unwrap()
}

pub(crate) fn main_slot() -> SlotName {
    "main".parse().unwrap()
}

/// What differs between the tests.
pub(crate) struct Settings {
    pub(crate) broker: u16,
    /// `broker.max_packet`, which bounds the spool's files from below.
    pub(crate) max_packet: &'static str,
    pub(crate) trust: String,
    /// The slots' tables.
    pub(crate) slots: String,
    /// Lines in `[engine]`.
    pub(crate) engine: String,
    /// Lines in `[spool]`.
    pub(crate) spool: String,
    /// Lines in `[watch]`.
    pub(crate) watch: String,
    /// `http.listen`; a socket in the device's folder unless given.
    pub(crate) listen: Option<String>,
    /// Where spool and store are; the device's folder unless given.
    pub(crate) state: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn new(broker: u16) -> Self {
        Self {
            broker,
            max_packet: "1MiB",
            trust: "require_signature = false".into(),
            slots: "[slots.main]\nqueue = 256\nworkers = 2\nthreads = 1\ninputs = [{ kind = \"mqtt\" }, { kind = \"http\" }]\n"
                .into(),
            engine: String::new(),
            spool: String::new(),
            watch: "answers = 5\nlongest_s = 1".into(),
            listen: None,
            state: None,
        }
    }
}

pub(crate) struct Device {
    folder: tempfile::TempDir,
    state: PathBuf,
    child: Option<Child>,
    address: Address,
}

impl Device {
    /// Not running yet.
    pub(crate) fn new(settings: &Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let state = settings.state.clone().unwrap_or_else(|| folder.path().into());
        let listen = settings.listen.clone();
        let listen = listen.unwrap_or_else(|| format!("unix:{at}/http.sock"));
        let address = match listen.strip_prefix("unix:") {
            Some(path) => Address::Unix(path.into()),
            None => Address::Tcp(listen.parse().unwrap()),
        };
        let text = format!(
            "device = \"d\"\n[broker]\nhost = \"127.0.0.1\"\nport = {}\nmax_packet = \"{}\"\n\
             [spool]\ndirectory = \"{state}/spool\"\n{}\n\
             [store]\ndirectory = \"{state}/store\"\nkeep_free = \"0\"\n[trust]\n{}\n\
             [engine]\nbackend = \"cpu\"\ncache = \"{at}/cache\"\n{}\n[watch]\n{}\n\
             [telemetry]\ninterval_s = 1\n[http]\nlisten = \"{listen}\"\n{}",
            settings.broker,
            settings.max_packet,
            settings.spool,
            settings.trust,
            settings.engine,
            settings.watch,
            settings.slots.replace("FOLDER", &at.to_string()),
            state = state.display(),
        );
        fs::write(folder.path().join("agent.toml"), text).unwrap();
        Self {
            folder,
            state,
            child: None,
            address,
        }
    }

    /// Running.
    pub(crate) fn start(settings: &Settings) -> Self {
        let mut device = Self::new(settings);
        device.run();
        device
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn http(&self) -> &Address {
        &self.address
    }

    /// For a daemon in this process.
    pub(crate) fn config(&self) -> Config {
        Config::load(&self.folder().join("agent.toml"), []).unwrap()
    }

    pub(crate) fn run(&mut self) {
        assert!(self.child.is_none());
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder().join("log"))
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_edgeopt-agent"))
            .arg("--config")
            .arg(self.folder().join("agent.toml"))
            .env_remove("JOURNAL_STREAM")
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Asks it to end, and waits.
    pub(crate) fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        let id = child.id().to_string();
        assert!(Command::new("kill").arg(id).status().unwrap().success());
        let mut ended = None;
        eventually("the daemon stops", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        assert!(ended.unwrap().success(), "{ended:?}\n{}", self.log());
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        assert!(
            child.try_wait().unwrap().is_none(),
            "the daemon ended by itself:\n{}",
            self.log()
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder().join("log")).unwrap_or_default()
    }

    /// How often the log holds `part`.
    pub(crate) fn logged(&self, part: &str) -> usize {
        self.log().lines().filter(|line| line.contains(part)).count()
    }

    pub(crate) fn overview(&self) -> Option<Overview> {
        let reply = self.http().get("/v1/status").ok()?;
        Some(serde_json::from_str(&reply.body).unwrap())
    }

    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Overview) -> bool) -> Overview {
        let mut last = None;
        let begun = std::time::Instant::now();
        while begun.elapsed() < PATIENCE {
            last = self.overview();
            if let Some(overview) = &last
                && holds(overview)
            {
                return last.unwrap();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("never happened: {what}; {last:?}\n{}", self.log());
    }

    pub(crate) fn until_connected(&self) {
        self.until("the device is connected", |overview| overview.link.connected);
    }

    /// Until the slot answers with this version.
    pub(crate) fn until_active(&self, version: &str) {
        self.until("the model is active", |overview| {
            let slot = &overview.slots[&main_slot()];
            slot.reported.active_version.as_deref() == Some(version) && slot.model.is_some()
        });
    }

    /// What is on disk about slot `main`.
    pub(crate) fn record(&self) -> Option<SlotRecord> {
        let bytes = fs::read(self.state.join("store/slots/main.json")).ok()?;
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        Some(serde_json::from_value(json["slot"].clone()).unwrap())
    }

    /// Bytes of bundles that are being downloaded.
    pub(crate) fn partial_bytes(&self) -> u64 {
        let files = fs::read_dir(self.state.join("store/partial")).unwrap();
        let bundles = files
            .map(Result::unwrap)
            .filter(|file| file.path().extension().is_none());
        bundles.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
    }

    pub(crate) fn spool_size(&self) -> u64 {
        let files = fs::read_dir(self.state.join("spool")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            drop(child.kill());
            drop(child.wait());
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(60)..];
            eprintln!("the end of the device's log:\n{}", last.join("\n"));
        }
    }
}

pub(crate) fn operator(port: u16) -> Operator {
    let access = Access {
        host: "127.0.0.1".into(),
        port: Some(port),
        ..Access::default()
    };
    Operator::connect(&access).unwrap()
}

/// A file on the device.
pub(crate) fn from_file(made: &Made) -> SlotSpec {
    made.spec.clone()
}

pub(crate) fn from_url(made: &Made, url: String) -> SlotSpec {
    SlotSpec {
        sources: vec![ModelSource::Url(url)],
        ..made.spec.clone()
    }
}

/// Rolls out to device `d` as `edgeopt fleet deploy` does.
pub(crate) fn deploy(operator: &mut Operator, slot: &str, spec: SlotSpec, blob: Option<&Path>) -> RolloutEnd {
    let bundle = blob.map(|path| BundleFile::open(path).unwrap());
    let id: TopicName = "desk".parse().unwrap();
    let rollout = Rollout {
        devices: vec![device()],
        slot: slot.parse().unwrap(),
        change: Change::Install(spec),
        blob: bundle.as_ref().map(|bundle| (id, bundle)),
        wave: 1,
        failures: 0,
        patience: PATIENCE,
        watched: false,
        forget_other_slots: false,
    };
    roll_out(operator, &rollout, &mut |_, _| {}).unwrap()
}

/// The same, and it has to work.
pub(crate) fn deployed(operator: &mut Operator, spec: SlotSpec) {
    let end = deploy(operator, "main", spec, None);
    assert_eq!(end.done, [device()], "{end:?}");
}

/// The same, and the device has to refuse; says why.
pub(crate) fn refused(operator: &mut Operator, slot: &str, spec: SlotSpec) -> String {
    let mut end = deploy(operator, slot, spec, None);
    match end.failed.remove(&device()) {
        Some(Failure::Refused(reason)) => reason,
        _ => panic!("not refused: {end:?}"),
    }
}

/// Publishes a desired state, whatever was desired before.
pub(crate) fn desire(operator: &mut Operator, generation: u64, spec: Option<SlotSpec>) {
    let state = DesiredState {
        generation: Generation(generation),
        slots: spec.map(|spec| (main_slot(), spec)).into_iter().collect(),
    };
    let json = serde_json::to_vec(&state).unwrap();
    let topic = Topic::Desired.of(&device());
    operator.publish(&topic, json, true).unwrap();
    operator.settle().unwrap();
}
