//! Power rails as the kernel's drivers report them.
//!
//! On a Jetson the kernel owns the module's INA3221, so its hwmon files are the way to it (Documentation/hwmon/
//! ina3221.rst: `in<n>_input` in mV, `curr<n>_input` in mA, n = 1…3; 4 to 7 are shunt voltages and their sum). JetPack 4
//! has an IIO driver in its place, with `rail_name_<n>` and `in_power<n>_input` in mW. Other chips of that family on
//! newer boards (INA2xx) measure power themselves: `power<n>_input` in µW.

use std::collections::BTreeMap;

use super::{HardwareError, Sysfs};

/// Watts by rail. A rail that cannot be read now is left out, with the reason in the second part.
pub fn rails(sysfs: &Sysfs) -> (BTreeMap<String, f64>, Vec<HardwareError>) {
    let mut rails = BTreeMap::new();
    let mut problems = Vec::new();
    for found in [hwmon(sysfs, &mut problems), iio(sysfs, &mut problems)] {
        match found {
            Ok(found) => rails.extend(found),
            Err(error) => problems.push(error),
        }
    }
    (rails, problems)
}

fn hwmon(sysfs: &Sysfs, problems: &mut Vec<HardwareError>) -> Result<BTreeMap<String, f64>, HardwareError> {
    let mut rails = BTreeMap::new();
    for name in sysfs.names("sys/class/hwmon")? {
        let folder = format!("sys/class/hwmon/{name}");
        let Some(chip) = sysfs.text(format!("{folder}/name"))? else {
            continue;
        };
        if !chip.starts_with("ina") {
            continue;
        }
        // An INA3221 has three channels, the others of the family one.
        for channel in 1..=3 {
            match channel_power(sysfs, &folder, channel) {
                Ok(Some((label, watts))) => {
                    let label = label.unwrap_or_else(|| format!("{chip}.{channel}"));
                    insert(&mut rails, label, &name, watts);
                }
                Ok(None) => {}
                Err(error) => problems.push(error),
            }
        }
    }
    Ok(rails)
}

/// Label and watts of a channel; `None` if it is not there, switched off or not connected.
fn channel_power(
    sysfs: &Sysfs,
    folder: &str,
    channel: u8,
) -> Result<Option<(Option<String>, f64)>, HardwareError> {
    if let Some(microwatts) = sysfs.number::<f64>(format!("{folder}/power{channel}_input"))? {
        let label = sysfs.text(format!("{folder}/power{channel}_label"))?;
        return Ok(Some((label, microwatts * 1e-6)));
    }
    let label = sysfs.text(format!("{folder}/in{channel}_label"))?;
    // Modules of the Orin family label inputs that lead nowhere `NC`.
    let connected = label.as_deref() != Some("NC");
    if !connected || sysfs.number::<u8>(format!("{folder}/in{channel}_enable"))? == Some(0) {
        return Ok(None);
    }
    let millivolts = sysfs.number::<f64>(format!("{folder}/in{channel}_input"))?;
    let milliamperes = sysfs.number::<f64>(format!("{folder}/curr{channel}_input"))?;
    Ok(millivolts
        .zip(milliamperes)
        .map(|(millivolts, milliamperes)| (label, millivolts * milliamperes * 1e-6)))
}

fn iio(sysfs: &Sysfs, problems: &mut Vec<HardwareError>) -> Result<BTreeMap<String, f64>, HardwareError> {
    let mut rails = BTreeMap::new();
    let driver = "sys/bus/i2c/drivers/ina3221x";
    for chip in sysfs.names(driver)? {
        let chip_folder = format!("{driver}/{chip}");
        if !sysfs.path(&chip_folder).is_dir() {
            continue; // `bind`, `uevent` and other files of the driver
        }
        for device in sysfs.names(&chip_folder)? {
            if !device.starts_with("iio:device") {
                continue;
            }
            for channel in 0..3 {
                let at = |file: &str| format!("{chip_folder}/{device}/{file}");
                let label = sysfs.text(at(&format!("rail_name_{channel}")));
                let milliwatts = sysfs.number::<f64>(at(&format!("in_power{channel}_input")));
                match (label, milliwatts) {
                    (Ok(Some(label)), Ok(Some(milliwatts))) => {
                        insert(&mut rails, label, &chip, milliwatts * 1e-3);
                    }
                    (Err(error), _) | (_, Err(error)) => problems.push(error),
                    _ => {}
                }
            }
        }
    }
    Ok(rails)
}

/// Two chips may use one label: the second gets its chip's name, so that neither is lost.
fn insert(rails: &mut BTreeMap<String, f64>, label: String, chip: &str, watts: f64) {
    let label = match rails.contains_key(&label) {
        true => format!("{label}@{chip}"),
        false => label,
    };
    rails.insert(label, watts);
}
