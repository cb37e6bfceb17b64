//! Everything of `[hardware]` behind one object, which the daemon calls from one thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use super::fan::fans;
use super::ina3221::{Channel, Ina3221};
use super::outputs::{Line, Output};
use super::power::rails;
use super::power_mode::{PowerMode, power_mode};
use super::sensor::{Sensor, Window};
use super::settings::{HardwareSettings, OutputSettings};
use super::telemetry;
use super::thermal::{Thermal, ThermalReader};
use super::throttle::{Conditions, Throttle};
use super::{Devices, HardwareError, LinuxDevices, Rules, Sysfs};
use crate::clock::Clock;
use crate::config::Config;
use crate::protocol::{Fan, Sample, SlotName};

/// What is measured at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Readings {
    pub(super) rails: BTreeMap<String, f64>,
    pub(super) thermal: Thermal,
    pub(super) fans: BTreeMap<String, Fan>,
    pub(super) power_mode: Option<PowerMode>,
}

/// The device's hardware. `now` is the time of the daemon's [`Clock`]. Dropping it makes every output inactive.
pub struct Hardware<D: Devices = LinuxDevices> {
    sysfs: Sysfs,
    outputs: Vec<OutputOf<D>>,
    rules: Rules,
    monitors: Vec<Ina3221<D::Bus>>,
    thermal: ThermalReader,
    throttle: Throttle,
    slots: Vec<SlotName>,
    look_interval: Duration,
    next_look: Duration,
    /// Whether clocks were lowered at any look since the last report.
    throttled: bool,
    waiting: Vec<Sensor<D::Bus>>,
    running: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    /// Failures that are known, so that each is logged once.
    known: BTreeMap<Source, BTreeSet<String>>,
}

/// An output made of some devices.
type OutputOf<D> = Output<<D as Devices>::Pin, <D as Devices>::Pwm>;

/// Where failures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Readings,
    Outputs,
}

impl Hardware {
    /// Opens what the configuration names; the kernel's files are below `root`, which is `/` on a device.
    ///
    /// # Errors
    /// With the first device that cannot be opened, by its place in the configuration.
    pub fn open(config: &Config, root: &Path) -> Result<Self, HardwareError> {
        Self::open_with(config, root, LinuxDevices::new(Sysfs::new(root)))
    }
}

impl<D: Devices> Hardware<D> {
    /// [`Hardware::open`] with other devices than Linux's.
    ///
    /// # Errors
    /// As [`Hardware::open`].
    pub fn open_with(config: &Config, root: &Path, mut devices: D) -> Result<Self, HardwareError> {
        let settings = &config.hardware;
        let rules = settings.rules.iter().map(|rule| rule.rule()).collect();
        Ok(Self {
            sysfs: Sysfs::new(root),
            outputs: open_outputs(settings, &mut devices)?,
            rules: Rules::new(rules),
            monitors: open_monitors(settings, &mut devices)?,
            thermal: ThermalReader::default(),
            throttle: Throttle::new(&settings.throttle),
            slots: config.slots.keys().cloned().collect(),
            look_interval: Duration::from_secs(settings.throttle.interval_s.into()),
            next_look: Duration::ZERO,
            throttled: false,
            waiting: open_sensors(settings, &mut devices)?,
            running: Vec::new(),
            stop: Arc::default(),
            known: BTreeMap::new(),
        })
    }

    /// Starts a thread for each sensor; `sink` is given its windows, on that thread, and must not wait long.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start_sensors(
        &mut self,
        clock: &Arc<dyn Clock>,
        sink: &Arc<dyn Fn(Window) + Send + Sync>,
    ) -> Result<(), HardwareError> {
        for mut sensor in self.waiting.drain(..) {
            let (clock, stop, sink) = (Arc::clone(clock), Arc::clone(&self.stop), Arc::clone(sink));
            let name = sensor.name().to_owned();
            let thread = thread::Builder::new()
                .name(format!("sensor-{name}"))
                .spawn(move || sensor.run(&*clock, &stop, |window| sink(window)))
                .map_err(|source| HardwareError::Thread { sensor: name, source })?;
            self.running.push(thread);
        }
        Ok(())
    }

    /// Takes in a result (its field `prediction`) and switches outputs.
    pub fn on_result(&mut self, slot: &SlotName, prediction: &Value, now: Duration) {
        for problem in self.rules.result(slot, prediction, now) {
            tracing::warn!(slot = slot.as_str(), "a rule never triggers: {problem}");
        }
        self.apply(now);
    }

    /// A slot no longer answers: what its results hold active is released.
    pub fn on_fault(&mut self, slot: &SlotName, now: Duration) {
        self.rules.fault(slot);
        self.apply(now);
    }

    /// Ends holds that are over, tries again what failed, and looks at temperatures and power when it is time. To be
    /// called at [`Hardware::next_tick`] or earlier.
    pub fn tick(&mut self, now: Duration) {
        self.apply(now);
        if !self.throttle.is_empty() && now >= self.next_look {
            self.look(now);
        }
    }

    /// When there is something to do next; `None` if only results can change anything.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        let hold = self.rules.next_change(now);
        let look = (!self.throttle.is_empty()).then_some(self.next_look);
        let again = self
            .known
            .get(&Source::Outputs)
            .is_some_and(|failures| !failures.is_empty())
            .then(|| now + Duration::from_secs(1));
        [hold, look, again].into_iter().flatten().min()
    }

    /// Largest number of inferences per second that a slot may do now; `None` while nothing limits it.
    pub fn rate_limit(&self, slot: &SlotName) -> Option<f64> {
        self.throttle.rate_limit(slot)
    }

    /// Measures what the machine has: rails, temperatures, fans, power mode, and the limits in force if there are any
    /// to come into force.
    pub fn samples(&mut self, now: Duration) -> Vec<Sample> {
        let readings = self.look(now);
        let mut samples = telemetry::samples(&readings, std::mem::take(&mut self.throttled));
        if !self.throttle.is_empty() {
            let limited = self
                .slots
                .iter()
                .filter_map(|slot| Some((slot.clone(), self.rate_limit(slot)?)));
            samples.push(Sample::RateLimit {
                causes: self.throttle.causes(),
                slots: limited.collect(),
            });
        }
        samples
    }

    /// Makes every output inactive for good and ends the sensors' threads.
    pub fn stop(&mut self) {
        self.rules.stop();
        self.apply(Duration::ZERO);
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.running.drain(..) {
            if thread.join().is_err() {
                tracing::error!("the thread of a sensor had panicked");
            }
        }
    }

    fn apply(&mut self, now: Duration) {
        let rules = &self.rules;
        let set = |output: &mut Output<_, _>| output.set(rules.active(output.name(), now)).err();
        let failures = self.outputs.iter_mut().filter_map(set).collect();
        self.report(Source::Outputs, failures);
    }

    fn look(&mut self, now: Duration) -> Readings {
        let (mut rails, mut failures) = rails(&self.sysfs);
        for monitor in &mut self.monitors {
            match monitor.readings() {
                Ok(readings) => rails.extend(
                    readings
                        .into_iter()
                        .flatten()
                        .map(|(rail, reading)| (rail, reading.watts())),
                ),
                Err(error) => failures.push(error),
            }
        }
        let (thermal, more) = self.thermal.read(&self.sysfs);
        failures.extend(more);
        let (fans, more) = fans(&self.sysfs);
        failures.extend(more);
        let power_mode = power_mode(&self.sysfs).unwrap_or_else(|error| {
            failures.push(error);
            None
        });
        self.throttled |= !thermal.throttled_by.is_empty();
        let conditions = Conditions {
            zones: thermal.zones.clone(),
            rails: rails.clone(),
            power_mode: power_mode.as_ref().map(|mode| mode.name.clone()),
            throttled: Some(!thermal.throttled_by.is_empty()),
        };
        self.next_look = now + self.look_interval;
        for change in self.throttle.update(&conditions, now) {
            match change.in_force {
                true => tracing::warn!(cause = change.cause, "slots answer less often"),
                false => tracing::info!(cause = change.cause, "a limit of slots' rates is lifted"),
            }
        }
        self.report(Source::Readings, failures);
        Readings {
            rails,
            thermal,
            fans,
            power_mode,
        }
    }

    /// Logs failures that are new.
    fn report(&mut self, source: Source, failures: Vec<HardwareError>) {
        let found: BTreeSet<String> = failures.iter().map(ToString::to_string).collect();
        let known = self.known.entry(source).or_default();
        for failure in found.difference(known) {
            tracing::warn!("{failure}");
        }
        *known = found;
    }
}

impl<D: Devices> Drop for Hardware<D> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<D: Devices> fmt::Debug for Hardware<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hardware")
            .field("rules", &self.rules)
            .field("throttle", &self.throttle)
            .finish_non_exhaustive()
    }
}

fn open_outputs<D: Devices>(
    settings: &HardwareSettings,
    devices: &mut D,
) -> Result<Vec<OutputOf<D>>, HardwareError> {
    let open = |(name, output): (&String, &OutputSettings)| {
        let device = format!("hardware.outputs.{name}");
        let (line, active_low) = match output {
            OutputSettings::Gpio {
                chip,
                line,
                active_low,
            } => {
                let inactive = *active_low;
                (
                    Line::Gpio(devices.gpio(&device, chip, line, inactive)?),
                    *active_low,
                )
            }
            OutputSettings::Pwm {
                chip,
                channel,
                frequency_hz,
                duty,
                active_low,
            } => {
                let period = Duration::from_secs_f64(1.0 / frequency_hz);
                let channel = devices.pwm(&device, chip, *channel, period)?;
                (Line::Pwm { channel, duty: *duty }, *active_low)
            }
        };
        Output::new(name, line, active_low)
    };
    settings.outputs.iter().map(open).collect()
}

fn open_monitors<D: Devices>(
    settings: &HardwareSettings,
    devices: &mut D,
) -> Result<Vec<Ina3221<D::Bus>>, HardwareError> {
    let mut monitors = Vec::new();
    for (name, monitor) in &settings.ina3221 {
        let device = format!("hardware.ina3221.{name}");
        let bus = devices.i2c(&device, &monitor.bus, monitor.address)?;
        let channels = monitor.channels.iter().map(|channel| Channel {
            number: channel.channel,
            rail: channel.rail.clone(),
            shunt_ohms: channel.shunt_milliohms * 1e-3,
        });
        monitors.push(Ina3221::new(bus, device, monitor.address, channels.collect())?);
    }
    Ok(monitors)
}

fn open_sensors<D: Devices>(
    settings: &HardwareSettings,
    devices: &mut D,
) -> Result<Vec<Sensor<D::Bus>>, HardwareError> {
    let mut sensors = Vec::new();
    for (name, sensor) in &settings.sensors {
        let bus = devices.i2c(&format!("hardware.sensors.{name}"), &sensor.bus, sensor.address)?;
        sensors.push(Sensor::new(bus, name, sensor.clone())?);
    }
    Ok(sensors)
}
