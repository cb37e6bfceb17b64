//! Temperatures, and whether the system slows itself down.
//!
//! Zones and cooling devices are those of the kernel's thermal framework (Documentation/driver-api/thermal/
//! sysfs-api.rst). A cooling device with a state above 0 acts. On a Jetson Orin they are the clocks (`cpufreq-cpu0`,
//! `devfreq-17000000.gpu`), the firmware's alerts (`cpu-throttle-alert` and so on), `hot-surface-alert`, which only warns
//! of the touch, and the fan. Over-current and under-voltage throttling is counted by `oc<n>_event_cnt` of the hwmon
//! device `soctherm_oc` (NVIDIA's driver `tegra234-oc-event`).

use std::collections::BTreeMap;
use std::io;

use super::{HardwareError, Sysfs};

/// Temperatures and throttling at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Thermal {
    /// Degrees Celsius by zone. Zones of parts that are switched off are left out.
    pub zones: BTreeMap<String, f64>,
    /// What lowers clocks: the types of cooling devices that act, and `soctherm_oc` after an over-current event.
    pub throttled_by: Vec<String>,
}

impl Thermal {
    /// The hottest zone.
    pub fn hottest(&self) -> Option<f64> {
        self.zones.values().copied().reduce(f64::max)
    }
}

/// Reads temperatures; remembers event counters, for only their growth means throttling.
#[derive(Debug, Default)]
pub struct ThermalReader {
    events: BTreeMap<String, u64>,
}

impl ThermalReader {
    /// Temperatures and throttling since the last call. What cannot be read is named in the second part.
    pub fn read(&mut self, sysfs: &Sysfs) -> (Thermal, Vec<HardwareError>) {
        let mut thermal = Thermal::default();
        let mut problems = Vec::new();
        let mut failures = Vec::new();
        for part in [
            zones(sysfs, &mut thermal, &mut problems),
            cooling(sysfs, &mut thermal),
            self.over_current(sysfs, &mut thermal),
        ] {
            failures.extend(part.err());
        }
        problems.extend(failures);
        (thermal, problems)
    }

    fn over_current(&mut self, sysfs: &Sysfs, thermal: &mut Thermal) -> Result<(), HardwareError> {
        for name in sysfs.names("sys/class/hwmon")? {
            let folder = format!("sys/class/hwmon/{name}");
            if sysfs.text(format!("{folder}/name"))?.as_deref() != Some("soctherm_oc") {
                continue;
            }
            let mut grew = false;
            for file in sysfs.names(&folder)? {
                if !(file.starts_with("oc") && file.ends_with("_event_cnt")) {
                    continue;
                }
                let path = format!("{folder}/{file}");
                let Some(count) = sysfs.number::<u64>(&path)? else {
                    continue;
                };
                let before = self.events.insert(path, count);
                grew |= before.is_some_and(|before| count > before);
            }
            if grew {
                thermal.throttled_by.push("soctherm_oc".into());
            }
        }
        Ok(())
    }
}

fn zones(
    sysfs: &Sysfs,
    thermal: &mut Thermal,
    problems: &mut Vec<HardwareError>,
) -> Result<(), HardwareError> {
    for name in sysfs.names("sys/class/thermal")? {
        if !name.starts_with("thermal_zone") {
            continue;
        }
        let folder = format!("sys/class/thermal/{name}");
        let Some(kind) = sysfs.text(format!("{folder}/type"))? else {
            continue;
        };
        // Up to JetPack 4 this zone is a constant 100 °C, not a measurement.
        if kind == "PMIC-Die" {
            continue;
        }
        let millidegrees = match sysfs.number::<f64>(format!("{folder}/temp")) {
            Ok(Some(millidegrees)) => millidegrees,
            Ok(None) => continue,
            // A zone of a part that is switched off (`cv0-thermal`) says "try again", and is no fault.
            Err(HardwareError::File { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                problems.push(error);
                continue;
            }
        };
        let degrees = millidegrees * 1e-3;
        // No sensor of these chips reaches that: drivers mark the absence of a value with such numbers.
        if !(-60.0..=200.0).contains(&degrees) {
            continue;
        }
        let label = match thermal.zones.contains_key(&kind) {
            true => format!("{kind}@{name}"),
            false => kind,
        };
        thermal.zones.insert(label, degrees);
    }
    Ok(())
}

/// Whether a cooling device of this type lowers clocks when it acts.
fn lowers_clocks(kind: &str) -> bool {
    ["cpufreq-", "devfreq-", "thermal-cpufreq", "thermal-devfreq"]
        .iter()
        .any(|prefix| kind.starts_with(prefix))
        || kind.ends_with("-throttle-alert")
}

fn cooling(sysfs: &Sysfs, thermal: &mut Thermal) -> Result<(), HardwareError> {
    for name in sysfs.names("sys/class/thermal")? {
        if !name.starts_with("cooling_device") {
            continue;
        }
        let folder = format!("sys/class/thermal/{name}");
        let kind = sysfs.text(format!("{folder}/type"))?.unwrap_or_default();
        if lowers_clocks(&kind) && sysfs.number::<i64>(format!("{folder}/cur_state"))?.unwrap_or(0) > 0 {
            thermal.throttled_by.push(kind);
        }
    }
    Ok(())
}
