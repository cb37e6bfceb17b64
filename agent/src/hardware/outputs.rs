//! Outputs: a pin that is high or low, or pulses of a set width.

use embedded_hal::digital::{OutputPin, PinState};
use embedded_hal::pwm::SetDutyCycle;

use super::HardwareError;

/// What an output is made of.
#[derive(Debug)]
pub enum Line<P, W> {
    /// A pin.
    Gpio(P),
    /// Pulses.
    Pwm {
        /// The channel.
        channel: W,
        /// Share of the period that is high while the output is active, 0 to 1.
        duty: f64,
    },
}

/// An output by name. It starts inactive, and a level that could not be set is tried again.
#[derive(Debug)]
pub struct Output<P, W> {
    name: String,
    line: Line<P, W>,
    active_low: bool,
    /// The state the device has taken; unknown before the first and after a failure.
    applied: Option<bool>,
}

impl<P: OutputPin, W: SetDutyCycle> Output<P, W> {
    /// Takes a device and makes it inactive. With `active_low` an active pin is low, and pulses are inverted: high all
    /// the time while inactive.
    ///
    /// # Errors
    /// When the device refuses.
    pub fn new(name: impl Into<String>, line: Line<P, W>, active_low: bool) -> Result<Self, HardwareError> {
        let mut output = Self {
            name: name.into(),
            line,
            active_low,
            applied: None,
        };
        output.set(false)?;
        Ok(output)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes it active or inactive; nothing is written if it is that already.
    ///
    /// # Errors
    /// When the device refuses; the next call writes again.
    pub fn set(&mut self, active: bool) -> Result<(), HardwareError> {
        if self.applied == Some(active) {
            return Ok(());
        }
        self.applied = None;
        let high = active != self.active_low;
        let written = match &mut self.line {
            Line::Gpio(pin) => pin
                .set_state(PinState::from(high))
                .map_err(|error| format!("{error:?}")),
            Line::Pwm { channel, duty } => {
                let share = if active { *duty } else { 0.0 };
                let share = if self.active_low { 1.0 - share } else { share };
                let most = channel.max_duty_cycle();
                // A float converts to the nearest end of the range when it is beyond: no duty is more than all of it.
                channel
                    .set_duty_cycle((share * f64::from(most)).round() as u16)
                    .map_err(|error| format!("{error:?}"))
            }
        };
        written.map_err(|problem| HardwareError::Output {
            output: self.name.clone(),
            state: if active { "active" } else { "inactive" },
            problem,
        })?;
        self.applied = Some(active);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use embedded_hal_mock::eh1::MockError;
    use embedded_hal_mock::eh1::digital::{Mock as Pin, State, Transaction as Level};
    use embedded_hal_mock::eh1::pwm::{Mock as Pwm, Transaction as Duty};

    use super::*;

    #[test]
    fn a_pin_is_written_when_its_state_changes_and_only_then() {
        for (active_low, on, off) in [(false, State::High, State::Low), (true, State::Low, State::High)] {
            let mut pin = Pin::new(&[Level::set(off), Level::set(on), Level::set(off)]);
            let mut output: Output<_, Pwm> =
                Output::new("lamp", Line::Gpio(pin.clone()), active_low).unwrap();
            for active in [false, true, true, false, false] {
                output.set(active).unwrap();
            }
            pin.done();
        }
    }

    #[test]
    fn a_level_that_was_refused_is_written_again() {
        let refused = Level::set(State::Low).with_error(MockError::Io(ErrorKind::NotConnected));
        let mut pin = Pin::new(&[
            Level::set(State::Low),
            Level::set(State::High),
            refused.clone(),
            Level::set(State::Low),
            Level::set(State::High),
            refused,
            Level::set(State::High),
        ]);
        let mut output: Output<_, Pwm> = Output::new("lamp", Line::Gpio(pin.clone()), false).unwrap();
        output.set(true).unwrap();
        let error = output.set(false).unwrap_err().to_string();
        assert!(
            error.starts_with("output lamp: cannot set it inactive"),
            "{error}"
        );
        output.set(false).unwrap();
        output.set(true).unwrap();
        output.set(false).unwrap_err();
        // It may be low or high now: what was set before the failure is set again.
        output.set(true).unwrap();
        pin.done();
    }

    #[test]
    fn pulses_have_the_width_that_was_asked_for() {
        for (active_low, script) in [(false, [0, 250, 0]), (true, [1000, 750, 1000])] {
            let expected: Vec<Duty> = script
                .into_iter()
                .flat_map(|duty| [Duty::max_duty_cycle(1000), Duty::set_duty_cycle(duty)])
                .collect();
            let mut channel = Pwm::new(&expected);
            let line = Line::Pwm {
                channel: channel.clone(),
                duty: 0.25,
            };
            let mut output: Output<Pin, _> = Output::new("horn", line, active_low).unwrap();
            output.set(true).unwrap();
            output.set(false).unwrap();
            channel.done();
        }
    }
}
