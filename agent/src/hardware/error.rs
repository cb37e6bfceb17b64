use std::io;
use std::path::PathBuf;

/// Why a piece of hardware cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// A file of the kernel cannot be read or written.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// What was tried: `read`, `list` or `write`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the kernel says something else than it should.
    #[error("{}: {text:?} is not {expected}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A device of the configuration cannot be opened.
    #[error("{device}: cannot open {target}: {problem}")]
    Open {
        /// Its place in the configuration, such as `hardware.outputs.lamp`.
        device: String,
        /// What was to be opened: a device file with line, channel or address.
        target: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A transfer on an I²C bus failed.
    #[error("{device} at address {address:#04x}: {action} register {register:#04x} failed: {problem}")]
    Bus {
        /// The chip or sensor.
        device: String,
        /// Its 7-bit address.
        address: u8,
        /// `reading` or `writing`.
        action: &'static str,
        /// The register.
        register: u8,
        /// What the bus said.
        problem: String,
    },
    /// Another chip answers at the address.
    #[error(
        "{device} at address {address:#04x}: register {register:#04x} holds {found:#06x} instead of {expected:#06x}: \
         another chip is there, or the address is wrong"
    )]
    Identity {
        /// The chip or sensor that was expected.
        device: String,
        /// Its 7-bit address.
        address: u8,
        /// The register that identifies it.
        register: u8,
        /// What it holds.
        found: u16,
        /// What it should hold.
        expected: u16,
    },
    /// A voltage over a shunt resistor is at the end of the chip's range, so the current is unknown.
    #[error(
        "{device}: the voltage over the shunt of {rail} is out of the chip's range of ±163.8 mV: the current is larger \
         than the shunt allows for"
    )]
    OverRange {
        /// The chip.
        device: String,
        /// The channel's rail.
        rail: String,
    },
    /// A level could not be set.
    #[error("output {output}: cannot set it {state}: {problem}")]
    Output {
        /// Its name.
        output: String,
        /// `active` or `inactive`.
        state: &'static str,
        /// What the device said.
        problem: String,
    },
    /// The system gives no thread for a sensor.
    #[error("sensor {sensor}: cannot start its thread: {source}")]
    Thread {
        /// Its name.
        sensor: String,
        /// What the system said.
        source: io::Error,
    },
}
