//! The devices of a Linux machine behind the traits of `embedded-hal`.

use std::path::Path;
use std::time::Duration;

use embedded_hal::digital::OutputPin;
use embedded_hal::i2c::I2c;
use embedded_hal::pwm::SetDutyCycle;
use linux_embedded_hal::gpio_cdev::{Chip, Line, LineRequestFlags};
use linux_embedded_hal::{CdevPin, I2cdev};

use super::pwm::SysfsPwm;
use super::settings::LineName;
use super::{HardwareError, Sysfs};

/// Opens devices. `device` is their place in the configuration, for messages.
pub trait Devices {
    /// An I²C bus.
    type Bus: I2c + Send + 'static;
    /// A pin.
    type Pin: OutputPin;
    /// A PWM channel.
    type Pwm: SetDutyCycle;

    /// Opens a bus to talk to the chip at `address`.
    ///
    /// # Errors
    /// When there is no such bus, no access to it, or the kernel's own driver has the address.
    fn i2c(&mut self, device: &str, bus: &Path, address: u8) -> Result<Self::Bus, HardwareError>;

    /// Opens a pin as an output that is `high` or low from the first moment.
    ///
    /// # Errors
    /// When there is no such line, no access to it, or something else uses it.
    fn gpio(
        &mut self,
        device: &str,
        chip: &Path,
        line: &LineName,
        high: bool,
    ) -> Result<Self::Pin, HardwareError>;

    /// Opens a PWM channel whose pulses have no width.
    ///
    /// # Errors
    /// When there is no such channel or no access to it.
    fn pwm(
        &mut self,
        device: &str,
        chip: &str,
        channel: u32,
        period: Duration,
    ) -> Result<Self::Pwm, HardwareError>;
}

/// The kernel's character devices for I²C and GPIO, and its files for PWM.
#[derive(Debug)]
pub struct LinuxDevices {
    sysfs: Sysfs,
}

impl LinuxDevices {
    /// Devices of this machine; PWM channels are looked for below the files' root.
    pub fn new(sysfs: Sysfs) -> Self {
        Self { sysfs }
    }
}

impl Devices for LinuxDevices {
    type Bus = I2cdev;
    type Pin = CdevPin;
    type Pwm = SysfsPwm;

    fn i2c(&mut self, device: &str, bus: &Path, address: u8) -> Result<I2cdev, HardwareError> {
        let failed = |problem: String| HardwareError::Open {
            device: device.to_owned(),
            target: format!("{} address {address:#04x}", bus.display()),
            problem,
        };
        // Refused while a driver of the kernel has the address; `I2cdev` itself would claim it at the first transfer only.
        linux_embedded_hal::i2cdev::linux::LinuxI2CDevice::new(bus, address.into()).map_err(|error| {
            failed(format!(
                "{error}; the daemon's user must be in the group that owns the bus (`i2c`), and an address that a \
                 driver of the kernel uses is read through hwmon instead"
            ))
        })?;
        I2cdev::new(bus).map_err(|error| failed(error.to_string()))
    }

    fn gpio(
        &mut self,
        device: &str,
        chip: &Path,
        line: &LineName,
        high: bool,
    ) -> Result<CdevPin, HardwareError> {
        let failed = |problem: String| HardwareError::Open {
            device: device.to_owned(),
            target: format!("{} line {line}", chip.display()),
            problem,
        };
        let access = "; the daemon's user must be in the group that owns the chip (`gpio`)";
        let mut opened = Chip::new(chip).map_err(|error| failed(format!("{error}{access}")))?;
        let found: Line = match line {
            LineName::Number(offset) => opened
                .get_line(*offset)
                .map_err(|error| failed(error.to_string()))?,
            LineName::Name(name) => opened
                .lines()
                .find(|line| line.info().is_ok_and(|info| info.name() == Some(name.as_str())))
                .ok_or_else(|| failed("the chip has no line of that name: see `gpioinfo`".into()))?,
        };
        let handle = found
            .request(LineRequestFlags::OUTPUT, high.into(), "edgeopt-agent")
            .map_err(|error| failed(format!("{error}; is the line in use? See `gpioinfo`")))?;
        CdevPin::new(handle).map_err(|error| failed(error.to_string()))
    }

    fn pwm(
        &mut self,
        device: &str,
        chip: &str,
        channel: u32,
        period: Duration,
    ) -> Result<SysfsPwm, HardwareError> {
        SysfsPwm::open(&self.sysfs, device, chip, channel, period)
    }
}
