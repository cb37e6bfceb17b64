//! A PWM channel by the kernel's files (Documentation/driver-api/pwm.rst): `pwmchip<n>/export` makes `pwm<channel>/` with
//! `period` and `duty_cycle` in nanoseconds and `enable`.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use embedded_hal::pwm::{Error, ErrorKind, ErrorType, SetDutyCycle};

use super::{HardwareError, Sysfs};

/// udev changes the new files' owner a little after `export`.
const SETTLE: Duration = Duration::from_secs(2);

/// A channel that runs.
#[derive(Debug)]
pub struct SysfsPwm {
    sysfs: Sysfs,
    folder: String,
    period_ns: u64,
}

impl SysfsPwm {
    /// Opens a channel of a chip with pulses of no width. `chip` is `pwmchip<n>` or the name of its device, such as
    /// `32f0000.pwm`, which stays the same when the numbers change.
    ///
    /// # Errors
    /// When there is no such chip or channel, or its files cannot be written.
    pub fn open(
        sysfs: &Sysfs,
        device: &str,
        chip: &str,
        channel: u32,
        period: Duration,
    ) -> Result<Self, HardwareError> {
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let failed = |problem: String| HardwareError::Open {
            device: device.to_owned(),
            target: format!("PWM {chip} channel {channel}"),
            problem,
        };
        let found = find(sysfs, chip)?.ok_or_else(|| {
            failed("there is no such chip below /sys/class/pwm: is the pin set to PWM (jetson-io)?".into())
        })?;
        let channels = sysfs.number::<u32>(format!("{found}/npwm"))?.unwrap_or(0);
        if channel >= channels {
            return Err(failed(format!(
                "the chip has {channels} channels, counted from 0"
            )));
        }
        let folder = format!("{found}/pwm{channel}");
        if !sysfs.exists(&folder) {
            sysfs.write(format!("{found}/export"), &channel.to_string())?;
        }
        let pwm = Self {
            sysfs: sysfs.clone(),
            folder,
            period_ns,
        };
        pwm.writable()?;
        // A period shorter than the width in force is refused, and so is any width before there is a period.
        if pwm
            .sysfs
            .number(format!("{}/period", pwm.folder))?
            .unwrap_or(0u64)
            > 0
        {
            pwm.write("duty_cycle", 0)?;
        }
        pwm.write("period", period_ns)?;
        pwm.write("duty_cycle", 0)?;
        pwm.write("enable", 1)?;
        Ok(pwm)
    }

    fn writable(&self) -> Result<(), HardwareError> {
        let path = self.sysfs.path(format!("{}/period", self.folder));
        let begin = Instant::now();
        while let Err(source) = fs::OpenOptions::new().write(true).open(&path) {
            if begin.elapsed() > SETTLE {
                return Err(HardwareError::File {
                    action: "write",
                    path,
                    source,
                });
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn write(&self, file: &str, value: u64) -> Result<(), HardwareError> {
        self.sysfs
            .write(format!("{}/{file}", self.folder), &value.to_string())
    }
}

fn find(sysfs: &Sysfs, chip: &str) -> Result<Option<String>, HardwareError> {
    for name in sysfs.names("sys/class/pwm")? {
        let folder = format!("sys/class/pwm/{name}");
        let device = sysfs.path(format!("{folder}/device")).canonicalize();
        if name == chip || device.is_ok_and(|device| device.file_name().is_some_and(|file| file == chip)) {
            return Ok(Some(folder));
        }
    }
    Ok(None)
}

impl ErrorType for SysfsPwm {
    type Error = HardwareError;
}

impl Error for HardwareError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

impl SetDutyCycle for SysfsPwm {
    fn max_duty_cycle(&self) -> u16 {
        u16::MAX
    }

    fn set_duty_cycle(&mut self, duty: u16) -> Result<(), HardwareError> {
        let width = u128::from(self.period_ns) * u128::from(duty) / u128::from(u16::MAX);
        self.write("duty_cycle", u64::try_from(width).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn tree(root: &Path) {
        let device = root.join("sys/devices/platform/32f0000.pwm");
        let chip = device.join("pwm/pwmchip3");
        fs::create_dir_all(chip.join("pwm0")).unwrap();
        fs::create_dir_all(root.join("sys/class/pwm")).unwrap();
        symlink(&device, chip.join("device")).unwrap();
        symlink(&chip, root.join("sys/class/pwm/pwmchip3")).unwrap();
        fs::write(chip.join("npwm"), "1\n").unwrap();
        for file in ["period", "duty_cycle", "enable"] {
            fs::write(chip.join("pwm0").join(file), "7").unwrap();
        }
    }

    #[test]
    fn pulses_are_written_in_nanoseconds() {
        let root = tempfile::tempdir().unwrap();
        tree(root.path());
        let sysfs = Sysfs::new(root.path());
        let read = |file: &str| {
            sysfs
                .number::<u64>(format!("sys/class/pwm/pwmchip3/pwm0/{file}"))
                .unwrap()
        };
        let period = Duration::from_millis(20);
        for chip in ["pwmchip3", "32f0000.pwm"] {
            let mut pwm = SysfsPwm::open(&sysfs, "hardware.outputs.horn", chip, 0, period).unwrap();
            assert_eq!(
                (read("duty_cycle"), read("period"), read("enable")),
                (Some(0), Some(20_000_000), Some(1))
            );
            pwm.set_duty_cycle(u16::MAX / 5).unwrap();
            assert_eq!(read("duty_cycle"), Some(4_000_000));
            pwm.set_duty_cycle_fully_on().unwrap();
            assert_eq!(read("duty_cycle"), Some(20_000_000));
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let root = tempfile::tempdir().unwrap();
        tree(root.path());
        let sysfs = Sysfs::new(root.path());
        let open = |chip: &str, channel| {
            let opened = SysfsPwm::open(
                &sysfs,
                "hardware.outputs.horn",
                chip,
                channel,
                Duration::from_millis(1),
            );
            opened.unwrap_err().to_string()
        };
        let error = open("pwmchip0", 0);
        assert!(
            error.starts_with(
                "hardware.outputs.horn: cannot open PWM pwmchip0 channel 0: there is no such chip"
            ),
            "{error}"
        );
        assert!(open("pwmchip3", 4).contains("has 1 channels, counted from 0"));
    }
}
