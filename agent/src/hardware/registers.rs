//! Numbers in the registers of a chip.

use serde::Deserialize;

use super::settings::ChannelSettings;

/// How registers hold a number: signed or not, bits, and which byte comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Format {
    U8,
    I8,
    U16be,
    U16le,
    I16be,
    I16le,
    U24be,
    I24be,
    U32be,
    U32le,
    I32be,
    I32le,
}

impl Format {
    /// Registers it takes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16be | Self::U16le | Self::I16be | Self::I16le => 2,
            Self::U24be | Self::I24be => 3,
            Self::U32be | Self::U32le | Self::I32be | Self::I32le => 4,
        }
    }

    pub(super) fn number(self, raw: &[u8]) -> f64 {
        let little = matches!(self, Self::U16le | Self::I16le | Self::U32le | Self::I32le);
        let add = |sum: u32, byte: &u8| sum << 8 | u32::from(*byte);
        let value = match little {
            true => raw.iter().rev().fold(0, add),
            false => raw.iter().fold(0, add),
        };
        match self {
            Self::I8 | Self::I16be | Self::I16le | Self::I24be | Self::I32be | Self::I32le => {
                let unused = 32 - 8 * self.bytes() as u32;
                f64::from((value << unused).cast_signed() >> unused)
            }
            _ => f64::from(value),
        }
    }
}

/// Registers that are read in one transfer, so that their values are of one moment.
#[derive(Clone, Debug)]
pub(super) struct Burst {
    pub(super) register: u8,
    pub(super) channels: Vec<ChannelSettings>,
    pub(super) bytes: usize,
}

/// Joins channels that follow each other register by register.
pub(super) fn bursts(channels: &[ChannelSettings]) -> Vec<Burst> {
    let mut bursts: Vec<Burst> = Vec::new();
    for channel in channels {
        let bytes = channel.format.bytes();
        match bursts.last_mut() {
            Some(last) if usize::from(last.register) + last.bytes == usize::from(channel.register) => {
                last.bytes += bytes;
                last.channels.push(channel.clone());
            }
            _ => bursts.push(Burst {
                register: channel.register,
                channels: vec![channel.clone()],
                bytes,
            }),
        }
    }
    bursts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_reads_its_bytes() {
        for (format, raw, expected) in [
            (Format::U8, &[0xFF][..], 255.0),
            (Format::I8, &[0xFF], -1.0),
            (Format::U16be, &[0x12, 0x34], 4660.0),
            (Format::U16le, &[0x12, 0x34], 13330.0),
            (Format::I16be, &[0xFF, 0x00], -256.0),
            (Format::I16le, &[0x00, 0xFF], -256.0),
            (Format::U24be, &[0x80, 0x00, 0x01], 8_388_609.0),
            (Format::I24be, &[0xFF, 0xFF, 0xFE], -2.0),
            (Format::U32be, &[0xFF, 0xFF, 0xFF, 0xFF], 4_294_967_295.0),
            (Format::U32le, &[1, 0, 0, 0], 1.0),
            (Format::I32be, &[0xFF, 0xFF, 0xFF, 0xFF], -1.0),
            (Format::I32le, &[0, 0, 0, 0x80], -2_147_483_648.0),
        ] {
            assert_eq!(format.bytes(), raw.len());
            assert_eq!(format.number(raw), expected, "{format:?}");
        }
    }
}
