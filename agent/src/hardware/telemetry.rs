use super::board::Readings;
use crate::protocol::Sample;

/// The samples that readings fill; `throttled` since the last report. What the machine does not have is left out: a desk
/// has no rails.
pub(super) fn samples(readings: &Readings, throttled: bool) -> Vec<Sample> {
    let mut samples = Vec::new();
    if !readings.rails.is_empty() {
        samples.push(Sample::Power(readings.rails.clone()));
    }
    if !readings.thermal.zones.is_empty() {
        samples.push(Sample::Temperature {
            zones: readings.thermal.zones.clone(),
            throttled,
        });
    }
    if !readings.fans.is_empty() {
        samples.push(Sample::Fan(readings.fans.clone()));
    }
    if let Some(mode) = &readings.power_mode {
        samples.push(Sample::PowerMode {
            id: mode.id,
            name: mode.name.clone(),
        });
    }
    samples
}
