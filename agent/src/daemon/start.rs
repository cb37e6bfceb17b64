//! Starting a daemon from its configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use edgeopt_models::Bytes;
use edgeopt_models::bundle::{Limits, PublicKey, SignatureError, Trust};
use edgeopt_runtime::memory::Budget;

use super::Daemon;
use super::backend::executors;
use super::commands::{Commands, Means};
use super::inbound::{self, Addressees};
use super::machine::Machine;
use super::mail::Mail;
use super::overview::Observer;
use super::reports::Reports;
use super::results::Results;
use super::slots::{Slot, Slots};
use super::telemetry::{self, Source, Ticker};
use crate::clock::SystemClock;
use crate::config::{self, Config, Input};
use crate::deploy::Keeper;
use crate::download::{Blobs, Fetcher, HttpClient, HttpError};
use crate::hardware::HardwareError;
use crate::http::{HttpServer, HttpServerError};
use crate::inputs::camera::{CameraFeed, Monitor};
use crate::inputs::{FolderError, FolderWatch};
use crate::link::{Environment, Link, LinkError, LinkOptions};
use crate::protocol::{BlobRequest, MAX_CHUNK, SlotName, Topic, TopicName};
use crate::pulse::Pulses;
use crate::serve::{Executors, Server, ServerOptions, SlotStage, Turns, WatchCriteria};
use crate::spool::{DropPolicy, FsyncPolicy, Spool, SpoolError, SpoolOptions};
use crate::store::{Acceptance, Store, StoreError};

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A trusted key cannot be used.
    #[error("trust: {}: {source}", .place)]
    Key {
        /// The field or file.
        place: String,
        /// What is wrong.
        source: SignatureError,
    },
    /// The file of a trusted key cannot be read.
    #[error("trust.key_files: {}: {source}", .path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The spool cannot be used.
    #[error("spool.directory: {0}")]
    Spool(#[from] SpoolError),
    /// The store cannot be used.
    #[error("store.directory: {0}")]
    Store(#[from] StoreError),
    /// The client for downloads cannot be made.
    #[error(transparent)]
    Download(#[from] HttpError),
    /// A slot's record cannot be used.
    #[error("slot {slot}: {problem}")]
    Slot {
        /// Which.
        slot: SlotName,
        /// What is wrong.
        problem: String,
    },
    /// The link cannot be started.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The local interface cannot be opened.
    #[error("http.listen: {0}")]
    Http(#[from] HttpServerError),
    /// A folder cannot be watched.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The hardware that the configuration names is not there.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// The system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl StartError {
    /// Whether the configuration itself is wrong: to start again does not help.
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Key { .. })
    }

    /// Whether another process holds what this one needs, and may let go of it.
    pub fn is_in_use(&self) -> bool {
        matches!(
            self,
            Self::Spool(SpoolError::InUse(_)) | Self::Store(StoreError::InUse(_))
        )
    }
}

impl Daemon {
    /// Starts everything. The configuration is taken as it is; [`Config::check`] finds what is wrong with it.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: &Config, agent_version: &str, environment: Environment) -> Result<Self, StartError> {
        Self::start_on(executors(config), config, agent_version, environment)
    }

    /// The same with other backends than the configuration names.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_on(
        executors: Executors,
        config: &Config,
        agent_version: &str,
        environment: Environment,
    ) -> Result<Self, StartError> {
        let started = Instant::now();
        let pulses = Pulses::default();
        let options = LinkOptions::new(config, agent_version);
        let (instance, limit) = (options.instance.clone(), options.packet_limit());
        let wall = Arc::clone(&environment.wall);
        let device = config.device.clone();

        let opened = Machine::open(config)?;
        let mail = Mail::new(
            Spool::open(&config.spool.directory, spool_options(config))?,
            limit,
        );
        let store = Store::open(&config.store.directory, config.store.keep_free)?;
        let blobs = blobs(config, &mail);
        let reports = Reports::new(mail.clone(), &device);
        let budget = Budget::for_system(config.memory.limit);
        let parts = Parts {
            config,
            store,
            acceptance: acceptance(&config.trust)?,
            downloads: HttpClient::new(config.store.ca.as_deref())?,
            blobs: blobs.clone(),
            executors,
            budget: budget.clone(),
            turns: Turns::new(config.engine.concurrent.map(|count| count as usize)),
            pulses: pulses.clone(),
            reports: reports.clone(),
            count: Arc::default(),
            machine: opened.machine.clone(),
        };
        let (mut slots, mut keepers) = (BTreeMap::new(), Vec::new());
        for (name, settings) in &config.slots {
            let results = Results::new(
                mail.clone(),
                &device,
                name,
                settings.results,
                &instance,
                Arc::clone(&parts.count),
                Arc::clone(&wall),
            );
            let (slot, keeper) = parts.slot(name, settings, results)?;
            slots.insert(name.clone(), slot);
            keepers.push(keeper);
        }
        let slots = Arc::new(Slots::new(slots, keepers));
        let mut begun = Begun(Some(Arc::clone(&slots)));
        reports.of(Arc::clone(&slots));

        let (report, asked) = telemetry::now();
        let (link, received) = Link::start(options, Box::new(mail.clone()), environment)?;
        link.show_progress(pulses.join("link to the broker"));
        mail.tell(link.nudge());
        let commands = Commands::start(
            Means {
                device: device.clone(),
                slots: Arc::clone(&slots),
                mail: mail.clone(),
                report,
                wall: Arc::clone(&wall),
                journal: config.store.directory.join("commands.json"),
            },
            &pulses,
        )?;
        let monitors: BTreeMap<SlotName, Arc<Monitor>> = config
            .slots
            .iter()
            .filter_map(|(slot, settings)| {
                let device = settings.camera.as_ref()?.device.display().to_string();
                Some((slot.clone(), Arc::new(Monitor::new(device))))
            })
            .collect();
        let observer = Arc::new(Observer {
            device: device.clone(),
            agent_version: agent_version.to_owned(),
            started,
            link: link.watch(),
            mail: mail.clone(),
            slots: Arc::clone(&slots),
            budget,
            pulses: pulses.clone(),
            cameras: monitors.clone(),
        });
        let ticker = Ticker::start(
            Source {
                observer: Arc::clone(&observer),
                mail: mail.clone(),
                device: device.clone(),
                wall,
                interval: config.telemetry.interval(),
                machine: parts.machine.clone(),
                reports: reports.clone(),
            },
            asked,
            &pulses,
        )?;
        let board = opened.start(Arc::clone(&slots), &pulses)?;
        let http = match &config.http {
            Some(http) => Some(HttpServer::start(
                &http.listen,
                Arc::clone(&slots),
                Arc::clone(&observer),
                pulses.join("local interface"),
            )?),
            None => None,
        };
        let mut folders = Vec::new();
        for slot in config.slots.keys() {
            folders.extend(watched(config, slot, &slots, &pulses)?);
        }
        let mut cameras = Vec::new();
        for (slot, monitor) in monitors {
            let Some(settings) = config.slots.get(&slot) else {
                continue;
            };
            if let Some(camera) = &settings.camera {
                let slots = Arc::clone(&slots);
                cameras.push(CameraFeed::start(
                    camera,
                    settings.workers,
                    slot,
                    slots,
                    monitor,
                    &pulses,
                )?);
            }
        }
        let inbound = inbound::start(
            received,
            Addressees {
                device,
                slots: Arc::clone(&slots),
                reports,
                blobs,
                commands: commands.asked,
            },
            &pulses,
        )?;
        begun.0 = None;
        Ok(Self {
            folders,
            cameras,
            http,
            ticker,
            slots,
            board,
            link,
            behind: vec![inbound, commands.thread],
            mail,
            pulses,
            overview: observer,
        })
    }
}

/// Slots of a start that has not succeeded yet. Their keepers report about all slots, so that they keep each other, and
/// with them spool and store, until somebody ends them.
struct Begun(Option<Arc<Slots>>);

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(slots) = self.0.take() {
            slots.end();
        }
    }
}

/// What every slot is made of.
struct Parts<'a> {
    config: &'a Config,
    store: Store,
    acceptance: Acceptance,
    downloads: HttpClient,
    blobs: Blobs,
    executors: Executors,
    budget: Option<Budget>,
    turns: Turns,
    pulses: Pulses,
    reports: Reports,
    count: Arc<AtomicU64>,
    machine: Machine,
}

impl Parts<'_> {
    fn slot(
        &self,
        name: &SlotName,
        settings: &config::Slot,
        results: Results,
    ) -> Result<(Slot, Keeper), StartError> {
        let bad = |problem| StartError::Slot {
            slot: name.clone(),
            problem,
        };
        let workers = settings.workers.max(1) as usize;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = settings
            .threads
            .map_or((cores / workers).max(1), |threads| threads as usize);
        let options = ServerOptions {
            queue: settings.queue as usize,
            drop: settings.drop,
            workers,
            batch_wait: Duration::from_millis(settings.batch_wait_ms.into()),
            priority: settings.priority,
            hang_after: Duration::from_secs(self.config.engine.hang_after_s.into()),
        };
        let server = Server::start(name.as_str(), options, self.turns.clone(), &self.pulses)?;
        // What the broker has kept for this device comes before its model is loaded again: it waits for it.
        let record = self.store.slot(name).map_err(|error| bad(error.to_string()))?;
        if record.is_some_and(|record| record.active.is_some()) {
            server.release();
        }
        let watch = &self.config.watch;
        let criteria = WatchCriteria {
            answers: watch.answers,
            longest: Duration::from_secs(watch.longest_s.into()),
            failures: watch.failures,
            slowdown: Some(watch.slowdown),
        };
        let stage = SlotStage::new(
            server.clone(),
            self.executors.clone(),
            self.budget.clone(),
            threads,
            criteria,
            &self.pulses,
        );
        let build = stage.progress();
        let fetcher = Fetcher::new(
            self.store.clone(),
            self.acceptance.clone(),
            self.downloads.clone(),
            self.blobs.clone(),
            Arc::new(SystemClock::default()),
        );
        let reports = self.reports.clone();
        let keeper = Keeper::start(
            name,
            self.store.clone(),
            Box::new(fetcher),
            Box::new(stage),
            Box::new(move || reports.publish()),
            &self.pulses,
        )
        .map_err(bad)?;
        let slot = Slot {
            name: name.clone(),
            settings: settings.clone(),
            server,
            keeper: keeper.handle(),
            build,
            results,
            machine: self.machine.clone(),
        };
        Ok((slot, keeper))
    }
}

fn watched(
    config: &Config,
    slot: &SlotName,
    slots: &Arc<Slots>,
    pulses: &Pulses,
) -> Result<Vec<FolderWatch>, StartError> {
    let inputs = config.slots.get(slot).map(|settings| settings.inputs.as_slice());
    let mut watches = Vec::new();
    for input in inputs.unwrap_or_default() {
        if let Input::Folder { path, keep } = input {
            watches.push(FolderWatch::start(
                path,
                *keep,
                slot.clone(),
                Arc::clone(slots),
                pulses,
            )?);
        }
    }
    Ok(watches)
}

fn spool_options(config: &Config) -> SpoolOptions {
    let spool = &config.spool;
    SpoolOptions {
        max_bytes: spool.max,
        segment_bytes: spool.segment,
        // A message within the packet's limit fits a record: its header is smaller than the packet's.
        max_record: config.broker.max_packet,
        fsync: match spool.sync {
            config::Sync::Record => FsyncPolicy::Always,
            config::Sync::Batch => FsyncPolicy::Interval(Duration::from_secs(1)),
        },
        full: match spool.drop {
            config::DropPolicy::Oldest => DropPolicy::DropOldest,
            config::DropPolicy::Newest => DropPolicy::RefuseNew,
        },
        ..SpoolOptions::default()
    }
}

fn acceptance(trust: &config::Trust) -> Result<Acceptance, StartError> {
    let mut keys = Vec::new();
    for (index, key) in trust.keys.iter().enumerate() {
        keys.push(PublicKey::parse(key).map_err(|source| StartError::Key {
            place: format!("keys[{index}]"),
            source,
        })?);
    }
    for path in &trust.key_files {
        let text = std::fs::read_to_string(path).map_err(|source| StartError::KeyFile {
            path: path.clone(),
            source,
        })?;
        keys.push(PublicKey::parse(&text).map_err(|source| StartError::Key {
            place: path.display().to_string(),
            source,
        })?);
    }
    let trust = if trust.require_signature {
        Trust::Require(keys)
    } else {
        Trust::Unchecked
    };
    Ok(Acceptance {
        trust,
        limits: Limits::default(),
    })
}

/// Requests for chunks go out as the latest word on their topic: a newer one replaces one that was not sent yet.
fn blobs(config: &Config, mail: &Mail) -> Blobs {
    // A chunk's header and topic need some room of the packet.
    let room = config.broker.max_packet.saturating_sub(Bytes::kib(8));
    let chunk = u32::try_from(room.0).unwrap_or(MAX_CHUNK).min(MAX_CHUNK);
    let (mail, device) = (mail.clone(), config.device.clone());
    Blobs::new(chunk, move |id: &TopicName, request: &BlobRequest| {
        let topic = Topic::BlobRequest(id.clone()).of(&device);
        if let Err(error) = mail.say_message(topic.clone(), request, false) {
            tracing::warn!("{topic}: {error}");
        }
    })
}
