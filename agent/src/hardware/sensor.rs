//! A sensor on an I²C bus whose samples, a window at a time, are the input of a model.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use embedded_hal::i2c::I2c;
use npyz::WriterBuilder;

use super::HardwareError;
use super::registers::{Burst, bursts};
use super::settings::{Layout, SensorSettings};
use crate::clock::Clock;
use crate::protocol::SlotName;

/// Time before a sensor that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest sleep, so that stopping does not wait for a slow sensor's next sample.
const NAP: Duration = Duration::from_millis(100);

/// A window of samples, ready for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The sensor's name.
    pub sensor: String,
    /// The slot it is for.
    pub slot: SlotName,
    /// `.npy`: float32, in the sensor's layout.
    pub bytes: Vec<u8>,
}

/// The sensor.
pub struct Sensor<B> {
    bus: B,
    name: String,
    settings: SensorSettings,
    bursts: Vec<Burst>,
    /// The newest samples, channel by channel.
    values: VecDeque<f32>,
    /// Samples from the start of a window to the start of the next.
    step: usize,
    /// Samples to come until the next window is complete.
    missing: usize,
}

impl<B: I2c> Sensor<B> {
    /// Checks the sensor's identity and sets it up.
    ///
    /// # Errors
    /// [`HardwareError::Identity`] when something else answers, [`HardwareError::Bus`] when nothing does.
    pub fn new(bus: B, name: impl Into<String>, mut settings: SensorSettings) -> Result<Self, HardwareError> {
        settings.window = settings.window.max(1);
        let step = settings.step.unwrap_or(settings.window);
        let mut sensor = Self {
            bus,
            name: name.into(),
            bursts: bursts(&settings.channels),
            values: VecDeque::with_capacity(settings.window * settings.channels.len()),
            missing: settings.window,
            step: step.clamp(1, settings.window),
            settings,
        };
        sensor.set_up()?;
        Ok(sensor)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes one sample, and gives a window when one is complete.
    ///
    /// # Errors
    /// When the sensor does not answer. The samples so far are dropped then: a window has no gaps.
    pub fn sample(&mut self) -> Result<Option<Window>, HardwareError> {
        // The longest burst: registers 0 to 254, then one more number.
        let mut buffer = [0; 255 + 4];
        for index in 0..self.bursts.len() {
            let (register, bytes) = (self.bursts[index].register, self.bursts[index].bytes);
            if let Err(error) = self
                .bus
                .write_read(self.settings.address, &[register], &mut buffer[..bytes])
            {
                self.restart();
                return Err(self.failed("reading", register, error));
            }
            let mut rest = &buffer[..bytes];
            for channel in &self.bursts[index].channels {
                let (raw, after) = rest.split_at(channel.format.bytes());
                rest = after;
                let value = channel.format.number(raw) * channel.scale + channel.offset;
                self.values.push_back(value as f32);
            }
        }
        self.missing -= 1;
        if self.missing > 0 {
            return Ok(None);
        }
        let window = self.window();
        self.values.drain(..self.step * self.settings.channels.len());
        self.missing = self.step;
        Ok(Some(window))
    }

    /// Takes samples until `stop`, at even times. Where one comes more than an interval late, the window begins anew.
    pub fn run(&mut self, clock: &dyn Clock, stop: &AtomicBool, mut sink: impl FnMut(Window)) {
        let interval = Duration::from_micros(self.settings.interval_us);
        let mut next = clock.elapsed();
        let mut working = true;
        while wait_until(next, clock, stop) {
            if clock.elapsed() >= next + interval {
                self.restart();
                next = clock.elapsed();
            }
            next += interval;
            // After a failure it may have lost its settings.
            let taken = match working {
                true => self.sample(),
                false => self.set_up().and_then(|()| self.sample()),
            };
            match taken {
                Ok(window) => {
                    if !working {
                        tracing::info!(sensor = self.name, "the sensor answers again");
                    }
                    working = true;
                    window.into_iter().for_each(&mut sink);
                }
                Err(error) => {
                    if working {
                        tracing::warn!(sensor = self.name, "no samples until it answers again: {error}");
                    }
                    working = false;
                    next = clock.elapsed() + RETRY.max(interval);
                }
            }
        }
    }

    /// The bus, for tests that ask whether every transfer took place.
    pub fn release(self) -> B {
        self.bus
    }

    fn restart(&mut self) {
        self.values.clear();
        self.missing = self.settings.window;
    }

    fn set_up(&mut self) -> Result<(), HardwareError> {
        let address = self.settings.address;
        if let Some(identity) = self.settings.identity {
            let mut found = [0];
            self.bus
                .write_read(address, &[identity.register], &mut found)
                .map_err(|error| self.failed("reading", identity.register, error))?;
            if found[0] != identity.value {
                return Err(HardwareError::Identity {
                    device: format!("sensor {}", self.name),
                    address,
                    register: identity.register,
                    found: found[0].into(),
                    expected: identity.value.into(),
                });
            }
        }
        for index in 0..self.settings.setup.len() {
            let write = self.settings.setup[index];
            self.bus
                .write(address, &[write.register, write.value])
                .map_err(|error| self.failed("writing", write.register, error))?;
        }
        Ok(())
    }

    fn window(&self) -> Window {
        let (window, channels) = (self.settings.window, self.settings.channels.len());
        let (shape, values): (_, Vec<f32>) = match self.settings.layout {
            Layout::Nwc => ([1, window, channels], self.values.iter().copied().collect()),
            Layout::Ncw => {
                let channel = |channel| self.values.iter().skip(channel).step_by(channels).copied();
                ([1, channels, window], (0..channels).flat_map(channel).collect())
            }
        };
        let mut bytes = Vec::with_capacity(128 + values.len() * 4);
        let written = npyz::WriteOptions::<f32>::new()
            .default_dtype()
            .shape(&shape.map(|length| length as u64))
            .writer(&mut bytes)
            .begin_nd()
            .and_then(|mut writer| {
                writer.extend(values.iter().copied())?;
                writer.finish()
            });
        debug_assert!(written.is_ok(), "a Vec takes every byte: {written:?}");
        Window {
            sensor: self.name.clone(),
            slot: self.settings.slot.clone(),
            bytes,
        }
    }

    fn failed(&self, action: &'static str, register: u8, error: B::Error) -> HardwareError {
        HardwareError::Bus {
            device: format!("sensor {}", self.name),
            address: self.settings.address,
            action,
            register,
            problem: format!("{error:?}"),
        }
    }
}

impl<B> fmt::Debug for Sensor<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sensor")
            .field("name", &self.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Returns at `moment`, or with `false` when told to stop.
fn wait_until(moment: Duration, clock: &dyn Clock, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let rest = moment.saturating_sub(clock.elapsed());
        if rest.is_zero() {
            return true;
        }
        clock.sleep(rest.min(NAP));
    }
}

#[cfg(test)]
mod tests {
    use edgeopt_models::{DataType, Shape};
    use edgeopt_runtime::TensorSpec;
    use edgeopt_runtime::dataset::decode_arrays;
    use embedded_hal::i2c::ErrorKind;
    use embedded_hal_mock::eh1::i2c::{Mock, Transaction};

    use super::*;
    use crate::clock::ManualClock;

    const AT: u8 = 0x68;

    fn settings(extra: &str) -> SensorSettings {
        toml::from_str(&format!(
            "bus = '/dev/i2c-7'\naddress = 0x68\nslot = 'anomaly'\ninterval_us = 10000\nwindow = 2\n{extra}\n\
             [[channels]]\nregister = 0x3B\nformat = 'i16be'\nscale = 0.5\n\
             [[channels]]\nregister = 0x3D\nformat = 'i16be'\noffset = 1.0\n\
             [[channels]]\nregister = 0x10\nformat = 'u8'\n"
        ))
        .unwrap()
    }

    /// A sample of the three channels: the first two in one transfer.
    fn sample(first: [u8; 2], second: [u8; 2], third: u8) -> [Transaction; 2] {
        [
            Transaction::write_read(AT, vec![0x3B], [first, second].concat()),
            Transaction::write_read(AT, vec![0x10], vec![third]),
        ]
    }

    fn counted(value: u8) -> [Transaction; 2] {
        sample([0, value], [0, value], value)
    }

    fn numbers(window: &Window) -> (Vec<u64>, Vec<f32>) {
        let file = npyz::NpyFile::new(window.bytes.as_slice()).unwrap();
        let shape = file.shape().to_vec();
        (shape, file.into_vec().unwrap())
    }

    #[test]
    fn a_window_is_an_array_of_samples_by_channels() {
        let mut script = vec![
            Transaction::write_read(AT, vec![0x75], vec![0x68]),
            Transaction::write(AT, vec![0x6B, 0x00]),
            Transaction::write(AT, vec![0x1C, 0x10]),
        ];
        script.extend(sample([0xFF, 0xFE], [0x01, 0x00], 200)); // -2, 256, 200
        script.extend(sample([0x00, 0x03], [0x80, 0x00], 7)); // 3, -32768, 7
        let settings = settings(
            "identity = { register = 0x75, value = 0x68 }\n\
             setup = [{ register = 0x6B, value = 0 }, { register = 0x1C, value = 0x10 }]",
        );
        let mut sensor = Sensor::new(Mock::new(&script), "imu", settings).unwrap();
        assert_eq!(sensor.sample().unwrap(), None);
        let window = sensor.sample().unwrap().unwrap();
        assert_eq!(window.slot.as_str(), "anomaly");
        let expected = vec![-1.0, 257.0, 200.0, 1.5, -32767.0, 7.0];
        assert_eq!(numbers(&window), (vec![1, 2, 3], expected));
        sensor.release().done();
    }

    #[test]
    fn a_convolution_gets_its_channels_first_and_a_slot_reads_either() {
        for (layout, dims, expected) in [
            ("nwc", [1, 2, 3], [0.5, 2.0, 1.0, 1.0, 3.0, 2.0]),
            ("ncw", [1, 3, 2], [0.5, 1.0, 2.0, 3.0, 1.0, 2.0]),
        ] {
            let script: Vec<_> = (1..=2).flat_map(counted).collect();
            let settings = settings(&format!("layout = '{layout}'"));
            let mut sensor = Sensor::new(Mock::new(&script), "imu", settings).unwrap();
            sensor.sample().unwrap();
            let window = sensor.sample().unwrap().unwrap();
            let input = TensorSpec {
                name: "samples".into(),
                dtype: DataType::Float32,
                shape: Shape::known(&dims),
                ranked: true,
            };
            let read = decode_arrays("imu", &window.bytes, &[input]).unwrap();
            assert_eq!(read[0].dims(), dims);
            assert_eq!(read[0].to_f32().unwrap().as_ref(), expected);
            sensor.release().done();
        }
    }

    #[test]
    fn windows_overlap_by_what_the_step_leaves() {
        let script: Vec<_> = (1..=4).flat_map(counted).collect();
        let mut sensor = Sensor::new(Mock::new(&script), "imu", settings("step = 1")).unwrap();
        let windows: Vec<Vec<f32>> = (0..4)
            .filter_map(|_| sensor.sample().unwrap())
            .map(|window| numbers(&window).1.into_iter().skip(2).step_by(3).collect())
            .collect();
        assert_eq!(windows, [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]);
        sensor.release().done();
    }

    #[test]
    fn a_failure_drops_the_window_and_the_sensor_is_set_up_again() {
        let setup = || Transaction::write(AT, vec![0x6B, 0x00]);
        let mut script = vec![setup()];
        script.extend(counted(1));
        script.push(Transaction::write_read(AT, vec![0x3B], vec![0; 4]).with_error(ErrorKind::Bus));
        script.push(setup().with_error(ErrorKind::Bus));
        script.push(setup());
        script.extend(counted(2));
        script.extend(counted(3));
        let mut sensor = Sensor::new(
            Mock::new(&script),
            "imu",
            settings("setup = [{ register = 0x6B, value = 0 }]"),
        )
        .unwrap();
        let clock = ManualClock::default();
        let stop = AtomicBool::new(false);
        let mut windows = Vec::new();
        sensor.run(&clock, &stop, |window| {
            windows.push(numbers(&window).1);
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(windows, [[1.0, 3.0, 2.0, 1.5, 4.0, 3.0]]);
        // 10 ms to the sample that failed, twice the pause, 10 ms to the last one.
        assert_eq!(clock.elapsed(), Duration::from_millis(10 + 2000 + 10));
        sensor.release().done();
    }

    #[test]
    fn samples_come_at_even_times_and_a_late_one_begins_anew() {
        /// A bus that takes its time at one sample.
        struct Slow<'a>(Mock, &'a ManualClock, u32);
        impl embedded_hal::i2c::ErrorType for Slow<'_> {
            type Error = ErrorKind;
        }
        impl I2c for Slow<'_> {
            fn transaction(
                &mut self,
                address: u8,
                operations: &mut [embedded_hal::i2c::Operation<'_>],
            ) -> Result<(), ErrorKind> {
                self.2 += 1;
                self.1
                    .advance(Duration::from_millis(if self.2 == 1 { 35 } else { 1 }));
                let [
                    embedded_hal::i2c::Operation::Write(register),
                    embedded_hal::i2c::Operation::Read(bytes),
                ] = operations
                else {
                    return Err(ErrorKind::Other);
                };
                self.0.write_read(address, register, bytes)
            }
        }
        let script: Vec<_> = (1..=3).flat_map(counted).collect();
        let clock = ManualClock::default();
        let mut mock = Mock::new(&script);
        let mut sensor = Sensor::new(Slow(mock.clone(), &clock, 0), "imu", settings("")).unwrap();
        let stop = AtomicBool::new(false);
        let mut windows = Vec::new();
        sensor.run(&clock, &stop, |window| {
            windows.push((clock.elapsed(), numbers(&window).1));
            stop.store(true, Ordering::Relaxed);
        });
        // The first sample ends at 36 ms, too late for the second at 10 ms: the window is of samples at 36 and 46 ms.
        let expected = (Duration::from_millis(48), vec![1.0, 3.0, 2.0, 1.5, 4.0, 3.0]);
        assert_eq!(windows, [expected]);
        mock.done();
    }

    #[test]
    fn stopping_does_not_wait_for_the_next_sample() {
        let mut slow = settings("");
        slow.interval_us = 1 << 50;
        let script: Vec<_> = counted(1).into();
        let mut sensor = Sensor::new(Mock::new(&script), "imu", slow).unwrap();
        let clock = ManualClock::default();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| sensor.run(&clock, &stop, |_| {}));
            while clock.slept().is_empty() {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(clock.slept().iter().all(|nap| *nap <= NAP));
        sensor.release().done();
    }

    #[test]
    fn another_chip_at_the_address_is_refused() {
        let mut bus = Mock::new(&[Transaction::write_read(AT, vec![0x75], vec![0x19])]);
        let settings = settings("identity = { register = 0x75, value = 0x68 }");
        let error = Sensor::new(bus.clone(), "imu", settings).unwrap_err().to_string();
        assert!(
            error.contains("sensor imu at address 0x68") && error.contains("0x0019"),
            "{error}"
        );
        bus.done();
    }
}
