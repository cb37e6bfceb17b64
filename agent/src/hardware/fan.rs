//! Fans: how hard they are driven (`pwm<n>`, 0 to 255, Documentation/hwmon/sysfs-interface.rst) and how fast they turn
//! (`fan<n>_input`, or `rpm` in NVIDIA's drivers). On a Jetson Orin these are two hwmon devices.

use std::collections::BTreeMap;

use super::{HardwareError, Sysfs};
use crate::protocol::Fan;

/// Fans by the name of their hwmon device. What cannot be read is named in the second part.
pub fn fans(sysfs: &Sysfs) -> (BTreeMap<String, Fan>, Vec<HardwareError>) {
    let mut driven: BTreeMap<String, Fan> = BTreeMap::new();
    let mut measured: BTreeMap<String, Fan> = BTreeMap::new();
    let mut problems = Vec::new();
    let names = sysfs.names("sys/class/hwmon").unwrap_or_else(|error| {
        problems.push(error);
        Vec::new()
    });
    for name in names {
        match one(sysfs, &format!("sys/class/hwmon/{name}")) {
            Ok(None) => {}
            Ok(Some((label, fan))) => {
                let place = match fan.percent {
                    Some(_) => &mut driven,
                    None => &mut measured,
                };
                let label = match place.contains_key(&label) {
                    true => format!("{label}@{name}"),
                    false => label,
                };
                place.insert(label, fan);
            }
            Err(error) => problems.push(error),
        }
    }
    // One fan that is driven and one tachometer belong together; of more, nobody says which is whose.
    if driven.len() == 1
        && measured.len() == 1
        && let Some(fan) = driven.values_mut().next()
        && fan.rpm.is_none()
    {
        fan.rpm = measured.values().next().and_then(|fan| fan.rpm);
        measured.clear();
    }
    driven.extend(measured);
    (driven, problems)
}

fn one(sysfs: &Sysfs, folder: &str) -> Result<Option<(String, Fan)>, HardwareError> {
    let pwm = sysfs.number::<f64>(format!("{folder}/pwm1"))?;
    let rpm = match sysfs.number(format!("{folder}/fan1_input"))? {
        None => sysfs.number(format!("{folder}/rpm"))?,
        found => found,
    };
    if pwm.is_none() && rpm.is_none() {
        return Ok(None);
    }
    let label = sysfs
        .text(format!("{folder}/name"))?
        .unwrap_or_else(|| "fan".into());
    let percent = pwm.map(|pwm| pwm / 2.55);
    Ok(Some((label, Fan { percent, rpm })))
}
