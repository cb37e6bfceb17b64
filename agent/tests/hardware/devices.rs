//! Scripted devices in the place of Linux's.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use edgeopt_agent::hardware::settings::LineName;
use edgeopt_agent::hardware::{Devices, HardwareError};
use embedded_hal::i2c::{ErrorKind, ErrorType, I2c, Operation};
use embedded_hal_mock::eh1::digital::{Mock as Pin, State, Transaction as Level};
use embedded_hal_mock::eh1::i2c::{Mock, Transaction as Transfer};
use embedded_hal_mock::eh1::pwm::{Mock as Pwm, Transaction as Duty};

/// A bus.
pub(crate) enum Bus {
    /// One that expects these transfers and no others.
    Script(Mock),
    /// One with a chip whose registers all hold the number of reads so far: for who reads as long as it likes.
    Counter(u8),
}

impl ErrorType for Bus {
    type Error = ErrorKind;
}

impl I2c for Bus {
    fn transaction(&mut self, address: u8, operations: &mut [Operation<'_>]) -> Result<(), ErrorKind> {
        match (self, operations) {
            (Self::Script(mock), [Operation::Write(register), Operation::Read(bytes)]) => {
                mock.write_read(address, register, bytes)
            }
            (Self::Script(mock), [Operation::Write(bytes)]) => mock.write(address, bytes),
            (Self::Counter(reads), [Operation::Write(_), Operation::Read(bytes)]) => {
                bytes.fill(*reads);
                *reads = reads.wrapping_add(1);
                Ok(())
            }
            _ => Err(ErrorKind::Other),
        }
    }
}

/// Devices by their place in the configuration. Each must be opened once and end up with its whole script done.
#[derive(Default)]
pub(crate) struct Scripted {
    buses: BTreeMap<String, Bus>,
    pins: BTreeMap<String, Pin>,
    pulses: BTreeMap<String, Pwm>,
    /// What was opened, with the level that a pin began with.
    pub(crate) opened: Vec<(String, Option<bool>)>,
}

impl Scripted {
    pub(crate) fn bus(&mut self, device: &str, script: &[Transfer]) -> Mock {
        let bus = Mock::new(script);
        self.buses.insert(device.into(), Bus::Script(bus.clone()));
        bus
    }

    pub(crate) fn counter(&mut self, device: &str) {
        self.buses.insert(device.into(), Bus::Counter(0));
    }

    /// A pin that is set to each of these levels, `true` for high.
    pub(crate) fn pin(&mut self, device: &str, levels: &[bool]) -> Pin {
        let script: Vec<Level> = levels
            .iter()
            .map(|high| Level::set(if *high { State::High } else { State::Low }))
            .collect();
        self.pin_with(device, &script)
    }

    pub(crate) fn pin_with(&mut self, device: &str, script: &[Level]) -> Pin {
        let pin = Pin::new(script);
        self.pins.insert(device.into(), pin.clone());
        pin
    }

    /// A channel of 1000 steps that is set to each of these.
    pub(crate) fn pwm(&mut self, device: &str, duties: &[u16]) -> Pwm {
        let script: Vec<Duty> = duties
            .iter()
            .flat_map(|duty| [Duty::max_duty_cycle(1000), Duty::set_duty_cycle(*duty)])
            .collect();
        let pwm = Pwm::new(&script);
        self.pulses.insert(device.into(), pwm.clone());
        pwm
    }

    fn unknown(device: &str) -> HardwareError {
        HardwareError::Open {
            device: device.into(),
            target: "a scripted device".into(),
            problem: "the test has none".into(),
        }
    }
}

impl Devices for &mut Scripted {
    type Bus = Bus;
    type Pin = Pin;
    type Pwm = Pwm;

    fn i2c(&mut self, device: &str, _: &Path, _: u8) -> Result<Bus, HardwareError> {
        self.opened.push((device.into(), None));
        self.buses.remove(device).ok_or_else(|| Scripted::unknown(device))
    }

    fn gpio(&mut self, device: &str, _: &Path, _: &LineName, high: bool) -> Result<Pin, HardwareError> {
        self.opened.push((device.into(), Some(high)));
        self.pins.remove(device).ok_or_else(|| Scripted::unknown(device))
    }

    fn pwm(&mut self, device: &str, _: &str, _: u32, period: Duration) -> Result<Pwm, HardwareError> {
        assert!(!period.is_zero());
        self.opened.push((device.into(), None));
        self.pulses
            .remove(device)
            .ok_or_else(|| Scripted::unknown(device))
    }
}
