//! The power mode of a Jetson, from what `nvpmodel` keeps in files: `/var/lib/nvpmodel/status` holds the mode in force
//! (`pmode:0002`), `/etc/nvpmodel.conf` the names (`< POWER_MODEL ID=2 NAME=MAXN_SUPER >`) and the one at the first boot
//! (`< PM_CONFIG DEFAULT=1 >`).

use super::{HardwareError, Sysfs};

const STATUS: &str = "var/lib/nvpmodel/status";
const CONFIGURATION: &str = "etc/nvpmodel.conf";

/// A power mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PowerMode {
    /// Its number, as `nvpmodel -m` takes it.
    pub id: u32,
    /// Its name, such as `15W`; the number where the configuration names none.
    pub name: String,
}

/// The mode in force; `None` where there is no `nvpmodel`.
///
/// # Errors
/// When the files are there and cannot be read, or say nothing that is a mode.
pub fn power_mode(sysfs: &Sysfs) -> Result<Option<PowerMode>, HardwareError> {
    let configuration = sysfs.text(CONFIGURATION)?;
    let id = match sysfs.text(STATUS)? {
        Some(text) => match status(&text) {
            Some(id) => id,
            None => {
                return Err(HardwareError::Content {
                    path: sysfs.path(STATUS),
                    text,
                    expected: "a mode such as `pmode:0002`",
                });
            }
        },
        // Nobody has chosen a mode yet.
        None => match configuration.as_deref().and_then(default_mode) {
            Some(id) => id,
            None => return Ok(None),
        },
    };
    let name = configuration
        .as_deref()
        .and_then(|text| mode_name(text, id))
        .unwrap_or_else(|| id.to_string());
    Ok(Some(PowerMode { id, name }))
}

fn status(text: &str) -> Option<u32> {
    let field = text
        .split_whitespace()
        .find_map(|field| field.strip_prefix("pmode:"))?;
    field.parse().ok()
}

/// Fields of the lines `< KIND A=1 B=2 >` of one kind; comments begin with `#`.
fn headers<'a>(text: &'a str, kind: &'a str) -> impl Iterator<Item = Vec<(&'a str, &'a str)>> {
    text.lines().filter_map(move |line| {
        let inner = line.trim().strip_prefix('<')?.strip_suffix('>')?;
        let mut words = inner.split_whitespace();
        (words.next()? == kind).then(|| words.filter_map(|word| word.split_once('=')).collect())
    })
}

fn field<'a>(header: &[(&'a str, &'a str)], name: &str) -> Option<&'a str> {
    header
        .iter()
        .find(|(found, _)| *found == name)
        .map(|(_, value)| *value)
}

fn mode_name(text: &str, id: u32) -> Option<String> {
    headers(text, "POWER_MODEL")
        .find(|header| field(header, "ID").and_then(|found| found.parse().ok()) == Some(id))
        .and_then(|header| field(&header, "NAME").map(str::to_owned))
}

fn default_mode(text: &str) -> Option<u32> {
    headers(text, "PM_CONFIG").find_map(|header| field(&header, "DEFAULT")?.parse().ok())
}
