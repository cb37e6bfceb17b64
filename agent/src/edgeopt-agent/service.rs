//! The daemon as a service: signals, and what systemd wants to know (`sd_notify(3)`).

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use edgeopt_agent::config::{Config, Problem, Severity};
use edgeopt_agent::daemon::{Daemon, StartError};
use edgeopt_agent::link::{Environment, Stopped};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{BAD_CONFIGURATION, log};

/// How long a stop may take; below the unit's `TimeoutStopSec`, and with [`HANDOVER`] below its `WatchdogSec`: a daemon that
/// starts anew with a changed configuration stops first.
const STOP: Duration = Duration::from_secs(15);
/// How often the daemon is looked at.
const TICK: Duration = Duration::from_millis(250);
/// How often more time for the start is asked for, and how much: the first time at once, so that it does not depend on
/// what the unit allows.
const EXTEND_EVERY: Duration = Duration::from_secs(5);
const EXTEND_BY: Duration = Duration::from_secs(30);
/// How long another process, or an earlier start of this one, may take to let go of spool and store.
const HANDOVER: Duration = Duration::from_secs(10);
/// A second signal ends at once.
const IMPATIENT: u8 = 130;

pub(crate) fn run(path: &Path) -> anyhow::Result<ExitCode> {
    log::start()?;
    let mut config = match Config::load(path, std::env::vars()) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!("{error}");
            return Ok(ExitCode::from(BAD_CONFIGURATION));
        }
    };
    let signals = signals().context("cannot take signals")?;
    // To which a start that fails after a reload goes back.
    let mut before: Option<Config> = None;
    loop {
        for Problem {
            field,
            message,
            severity,
        } in config.check()
        {
            match severity {
                Severity::Error => tracing::error!("{field}: {message}"),
                Severity::Warning => tracing::warn!("{field}: {message}"),
            }
        }
        extend();
        let daemon = match (start(&config), before.take()) {
            (Ok(daemon), _) => daemon,
            (Err(error), Some(old)) => {
                tracing::error!("{error}; going back to the configuration before");
                config = old;
                continue;
            }
            (Err(error), None) if error.is_configuration() => {
                tracing::error!("{error}");
                return Ok(ExitCode::from(BAD_CONFIGURATION));
            }
            (Err(error), None) => return Err(error).context("the daemon does not start"),
        };
        let next = Service::new(&daemon).until_signal(&signals, &config, path);
        match next {
            Next::Anew(changed) => {
                daemon.stop(STOP);
                before = Some(std::mem::replace(&mut config, *changed));
            }
            Next::Stop => {
                tracing::info!("stopping");
                tell(&[NotifyState::Stopping]);
                stop(daemon, signals);
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

fn stop(daemon: Daemon, signals: Receiver<i32>) {
    thread::spawn(move || {
        if signals.recv().is_ok_and(|signal| signal != SIGHUP) {
            signal_hook::low_level::exit(IMPATIENT.into());
        }
    });
    if daemon.stop(STOP) == Stopped::Abandoned {
        tracing::warn!("not everything ended in time; what the broker has not acknowledged is on disk");
        // Threads still use what libraries would clean up at an ordinary exit.
        signal_hook::low_level::exit(0);
    }
}

fn signals() -> std::io::Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let (send, received) = mpsc::channel();
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            if send.send(signal).is_err() {
                return;
            }
        }
    })?;
    Ok(received)
}

fn start(config: &Config) -> Result<Daemon, StartError> {
    let begun = Instant::now();
    loop {
        match Daemon::start(config, env!("CARGO_PKG_VERSION"), Environment::default()) {
            Err(error) if error.is_in_use() && begun.elapsed() < HANDOVER => {
                tracing::info!("{error}; waiting");
                thread::sleep(TICK);
            }
            result => return result,
        }
    }
}

/// What comes after a daemon.
enum Next {
    Stop,
    Anew(Box<Config>),
}

struct Service<'a> {
    daemon: &'a Daemon,
    ready: bool,
    extended: Option<Instant>,
    /// How often systemd's watchdog is fed.
    watchdog: Option<Duration>,
    fed: Option<Instant>,
    /// Threads that were said to hang.
    hanging: Vec<String>,
}

impl<'a> Service<'a> {
    fn new(daemon: &'a Daemon) -> Self {
        Self {
            daemon,
            ready: false,
            extended: None,
            // sd_watchdog_enabled(3) advises half of it; a quarter leaves room for a slow machine.
            watchdog: sd_notify::watchdog_enabled().map(|limit| limit / 4),
            fed: None,
            hanging: Vec::new(),
        }
    }

    fn until_signal(mut self, signals: &Receiver<i32>, config: &Config, path: &Path) -> Next {
        let tick = self.watchdog.map_or(TICK, |limit| limit.min(TICK));
        loop {
            self.look();
            match signals.recv_timeout(tick) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(SIGHUP) => match Config::load(path, std::env::vars()) {
                    Err(error) => tracing::error!("the configuration stays as it was: {error}"),
                    Ok(changed) if changed == *config => tracing::info!("the configuration is the same"),
                    // Inputs notice a short pause.
                    Ok(changed) => {
                        tracing::info!("starting anew with the changed configuration");
                        if let Ok(now) = NotifyState::monotonic_usec_now() {
                            tell(&[NotifyState::Reloading, now]);
                        }
                        return Next::Anew(Box::new(changed));
                    }
                },
                _ => return Next::Stop,
            }
        }
    }

    fn look(&mut self) {
        let hanging = self.daemon.hanging();
        let names: Vec<String> = hanging.iter().map(|one| one.thread.clone()).collect();
        if names != self.hanging {
            for one in &hanging {
                tracing::error!(thread = one.thread, "{one}");
            }
            self.hanging = names;
            self.say();
        }
        if !self.ready && self.daemon.is_ready() {
            self.ready = true;
            tracing::info!("ready");
            tell(&[NotifyState::Ready]);
            self.say();
        }
        // A thread that hangs gets no more time, neither to start nor to go on.
        if !self.hanging.is_empty() {
            return;
        }
        if !self.ready && self.extended.is_none_or(|last| last.elapsed() >= EXTEND_EVERY) {
            self.extended = Some(Instant::now());
            extend();
        }
        if let Some(every) = self.watchdog
            && self.fed.is_none_or(|fed| fed.elapsed() >= every)
        {
            self.fed = Some(Instant::now());
            tell(&[NotifyState::Watchdog]);
        }
    }

    /// What `systemctl status` shows.
    fn say(&self) {
        let status = match (self.hanging.as_slice(), self.ready) {
            ([], true) => "serving".to_owned(),
            ([], false) => "starting".to_owned(),
            (names, _) => format!("hangs: {}", names.join(", ")),
        };
        tell(&[NotifyState::Status(&status)]);
    }
}

fn extend() {
    let microseconds = u32::try_from(EXTEND_BY.as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::ExtendTimeoutUsec(microseconds)]);
}

fn tell(states: &[NotifyState<'_>]) {
    // Without systemd there is nobody to tell.
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("systemd cannot be told {states:?}: {error}");
    }
}
