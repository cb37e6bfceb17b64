//! The INA3221, three channels of voltage and current, for boards whose chip the kernel does not drive.
//!
//! Register numbers, fields and steps are those of Texas Instruments' data sheet SBOS576. Registers have 16 bits, the
//! high byte first.

use std::collections::BTreeMap;
use std::fmt;

use embedded_hal::i2c::I2c;
use serde::Deserialize;

use super::HardwareError;

const CONFIGURATION: u8 = 0x00;
const SHUNT_VOLTAGE_1: u8 = 0x01;
const BUS_VOLTAGE_1: u8 = 0x02;
const MASK_ENABLE: u8 = 0x0F;
const MANUFACTURER_ID: u8 = 0xFE;
const DIE_ID: u8 = 0xFF;

/// "TI" in ASCII.
const TEXAS_INSTRUMENTS: u16 = 0x5449;
const INA3221: u16 = 0x3220;

/// Bit 14 enables channel 1, bit 13 channel 2, bit 12 channel 3.
const CHANNEL_1_ENABLE: u16 = 1 << 14;
/// Averages of 16 samples, each 1.1 ms for the bus and 1.1 ms for the shunt, both measured without end.
const AVERAGE_16_CONTINUOUS: u16 = 0b010 << 9 | 0b100 << 6 | 0b100 << 3 | 0b111;
/// Set when every enabled channel has been converted since it was last read.
const CONVERSION_READY: u16 = 1;

/// Volts in a step of the shunt voltage; the lowest three bits are no part of the number.
const SHUNT_STEP: f64 = 40e-6;
/// Volts in a step of the bus voltage; the lowest three bits are no part of the number.
const BUS_STEP: f64 = 8e-3;
/// The ends of the shunt voltage's range, in steps.
const SHUNT_RANGE: (i16, i16) = (-4096, 4095);

/// One of the chip's channels, written as 1, 2 or 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "u8")]
#[expect(missing_docs, reason = "the names say it all")]
pub enum ChannelNumber {
    One,
    Two,
    Three,
}

/// A number that is no channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chip has the channels 1, 2 and 3, and not {0}")]
pub struct InvalidChannel(u8);

impl TryFrom<u8> for ChannelNumber {
    type Error = InvalidChannel;
    fn try_from(number: u8) -> Result<Self, InvalidChannel> {
        match number {
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            3 => Ok(Self::Three),
            _ => Err(InvalidChannel(number)),
        }
    }
}

/// A channel that is in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Channel {
    /// Which one.
    pub number: ChannelNumber,
    /// The rail it measures.
    pub rail: String,
    /// The shunt resistor in ohms, above 0.
    pub shunt_ohms: f64,
}

/// What a channel measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Volts from the load's side to ground.
    pub volts: f64,
    /// Amperes to the load; negative when the load gives back.
    pub amperes: f64,
}

impl Reading {
    /// The product.
    pub fn watts(self) -> f64 {
        self.volts * self.amperes
    }
}

/// The driver.
pub struct Ina3221<B> {
    bus: B,
    name: String,
    address: u8,
    channels: Vec<Channel>,
    converted: bool,
}

impl<B: I2c> Ina3221<B> {
    /// Makes sure that the chip is an INA3221 and starts its measurements. `name` is for messages.
    ///
    /// # Errors
    /// [`HardwareError::Identity`] when something else answers, [`HardwareError::Bus`] when nothing does.
    pub fn new(
        bus: B,
        name: impl Into<String>,
        address: u8,
        channels: Vec<Channel>,
    ) -> Result<Self, HardwareError> {
        let mut chip = Self {
            bus,
            name: name.into(),
            address,
            channels,
            converted: false,
        };
        for (register, expected) in [(MANUFACTURER_ID, TEXAS_INSTRUMENTS), (DIE_ID, INA3221)] {
            let found = chip.read(register)?;
            if found != expected {
                return Err(HardwareError::Identity {
                    device: chip.name,
                    address,
                    register,
                    found,
                    expected,
                });
            }
        }
        let enabled = chip
            .channels
            .iter()
            .fold(0, |bits, channel| bits | CHANNEL_1_ENABLE >> channel.number as u8);
        chip.write(CONFIGURATION, enabled | AVERAGE_16_CONTINUOUS)?;
        Ok(chip)
    }

    /// What each channel measures, by rail; `None` for about 0.1 s after the start, until the first averages are there.
    ///
    /// # Errors
    /// When the chip does not answer, or a current is out of range.
    pub fn readings(&mut self) -> Result<Option<BTreeMap<String, Reading>>, HardwareError> {
        if !self.converted {
            self.converted = self.read(MASK_ENABLE)? & CONVERSION_READY != 0;
            if !self.converted {
                return Ok(None);
            }
        }
        let mut readings = BTreeMap::new();
        for index in 0..self.channels.len() {
            let offset = self.channels[index].number as u8 * 2;
            let shunt = steps(self.read(SHUNT_VOLTAGE_1 + offset)?);
            let bus = steps(self.read(BUS_VOLTAGE_1 + offset)?);
            let channel = &self.channels[index];
            if shunt <= SHUNT_RANGE.0 || shunt >= SHUNT_RANGE.1 {
                return Err(HardwareError::OverRange {
                    device: self.name.clone(),
                    rail: channel.rail.clone(),
                });
            }
            let reading = Reading {
                volts: f64::from(bus) * BUS_STEP,
                amperes: f64::from(shunt) * SHUNT_STEP / channel.shunt_ohms,
            };
            readings.insert(channel.rail.clone(), reading);
        }
        Ok(Some(readings))
    }

    /// The bus, for tests that ask whether every transfer took place.
    pub fn release(self) -> B {
        self.bus
    }

    fn read(&mut self, register: u8) -> Result<u16, HardwareError> {
        let mut bytes = [0; 2];
        self.bus
            .write_read(self.address, &[register], &mut bytes)
            .map_err(|error| self.failed("reading", register, error))?;
        Ok(u16::from_be_bytes(bytes))
    }

    fn write(&mut self, register: u8, value: u16) -> Result<(), HardwareError> {
        let [high, low] = value.to_be_bytes();
        self.bus
            .write(self.address, &[register, high, low])
            .map_err(|error| self.failed("writing", register, error))
    }

    fn failed(&self, action: &'static str, register: u8, error: B::Error) -> HardwareError {
        HardwareError::Bus {
            device: self.name.clone(),
            address: self.address,
            action,
            register,
            problem: format!("{error:?}"),
        }
    }
}

impl<B> fmt::Debug for Ina3221<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ina3221")
            .field("name", &self.name)
            .field("address", &self.address)
            .field("channels", &self.channels)
            .finish_non_exhaustive()
    }
}

/// Bits 15 to 3 as a signed number.
fn steps(register: u16) -> i16 {
    register.cast_signed() >> 3
}

#[cfg(test)]
mod tests {
    use embedded_hal::i2c::{ErrorKind, NoAcknowledgeSource};
    use embedded_hal_mock::eh1::i2c::{Mock, Transaction};

    use super::*;

    const AT: u8 = 0x41;

    fn channels() -> Vec<Channel> {
        vec![
            Channel {
                number: ChannelNumber::One,
                rail: "MOTOR".into(),
                shunt_ohms: 0.005,
            },
            Channel {
                number: ChannelNumber::Three,
                rail: "PUMP".into(),
                shunt_ohms: 0.1,
            },
        ]
    }

    fn read(register: u8, value: u16) -> Transaction {
        Transaction::write_read(AT, vec![register], value.to_be_bytes().to_vec())
    }

    fn start() -> Vec<Transaction> {
        vec![
            read(0xFE, 0x5449),
            read(0xFF, 0x3220),
            // Channels 1 and 3, averages of 16, 1.1 ms each, continuous.
            Transaction::write(AT, vec![0x00, 0x55, 0x27]),
        ]
    }

    #[test]
    fn voltages_become_amperes_and_watts_by_each_channels_shunt() {
        let mut script = start();
        script.extend([
            read(0x0F, 0x0000), // not converted yet
            read(0x0F, 0x0001),
            read(0x01, 0x0FA0), // 500 steps of 40 µV: 20 mV over 5 mΩ is 4 A
            read(0x02, 0x2EE0), // 1500 steps of 8 mV: 12 V
            read(0x05, 0xFF38), // -25 steps of 40 µV: -1 mV over 100 mΩ is -10 mA
            read(0x06, 0x1388), // 625 steps of 8 mV: 5 V
        ]);
        let mut chip = Ina3221::new(Mock::new(&script), "board", AT, channels()).unwrap();
        assert_eq!(chip.readings().unwrap(), None);
        let readings = chip.readings().unwrap().unwrap();
        let motor = readings["MOTOR"];
        assert!((motor.amperes - 4.0).abs() < 1e-9 && (motor.volts - 12.0).abs() < 1e-9);
        assert!((motor.watts() - 48.0).abs() < 1e-9);
        let pump = readings["PUMP"];
        assert!((pump.amperes + 0.01).abs() < 1e-9 && (pump.watts() + 0.05).abs() < 1e-9);
        chip.release().done();
    }

    #[test]
    fn a_current_beyond_the_range_is_an_error_and_not_a_number() {
        for limit in [0x7FF8, 0x8000] {
            let mut script = start();
            script.extend([read(0x0F, 1), read(0x01, limit), read(0x02, 0x2EE0)]);
            let mut chip = Ina3221::new(Mock::new(&script), "board", AT, channels()).unwrap();
            let error = chip.readings().unwrap_err().to_string();
            assert!(error.contains("MOTOR") && error.contains("163.8 mV"), "{error}");
            chip.release().done();
        }
    }

    #[test]
    fn another_chip_or_none_is_named() {
        let mut bus = Mock::new(&[read(0xFE, 0x5449), read(0xFF, 0x2260)]);
        let error = Ina3221::new(bus.clone(), "board", AT, channels())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("board at address 0x41") && error.contains("0x2260"),
            "{error}"
        );
        bus.done();

        let silent = ErrorKind::NoAcknowledge(NoAcknowledgeSource::Address);
        let mut bus = Mock::new(&[read(0xFE, 0x5449).with_error(silent)]);
        let error = Ina3221::new(bus.clone(), "board", AT, channels())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("reading register 0xfe") && error.contains("NoAcknowledge"),
            "{error}"
        );
        bus.done();
    }
}
