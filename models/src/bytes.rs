use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An amount of memory or storage in bytes. Shown in binary units (`1.5 MiB`), serialized as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// An amount in KiB (1024 bytes).
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// An amount in MiB (1024² bytes).
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// The amount as `f64` MiB, for tables and charts.
    pub fn as_mib(self) -> f64 {
        self.0 as f64 / (1u64 << 20) as f64
    }

    /// `self - other`, or zero if that is negative.
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self + other`, or `None` beyond `u64::MAX`.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// Rounded up to a multiple of `alignment` (in bytes, not zero).
    pub fn align_up(self, alignment: u64) -> Self {
        Self(self.0.div_ceil(alignment) * alignment)
    }
}

impl From<usize> for Bytes {
    fn from(n: usize) -> Self {
        Self(n as u64)
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = if value < 9.995 {
            2
        } else if value < 99.95 {
            1
        } else {
            0
        };
        f.pad(&format!("{value:.digits$} {}", UNITS[unit]))
    }
}

/// Why a text is not an amount of memory.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{text}` is not an amount of memory; write for example 64MiB, 1.5GiB, 500MB or a number of bytes")]
pub struct ParseBytesError {
    text: String,
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// Accepts `64MiB`, `64 MiB`, `64M` (binary), `64MB` (decimal, 10⁶), `1.5GiB`, `4096`.
    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let fail = || ParseBytesError {
            text: text.to_owned(),
        };
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let number: f64 = number.parse().map_err(|_| fail())?;
        let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "k" | "kib" => 1024.0,
            "m" | "mib" => 1024f64.powi(2),
            "g" | "gib" => 1024f64.powi(3),
            "t" | "tib" => 1024f64.powi(4),
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            _ => return Err(fail()),
        };
        let bytes = number * scale;
        if !bytes.is_finite() || bytes > u64::MAX as f64 {
            return Err(fail());
        }
        Ok(Self(bytes.round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_binary_and_decimal_units() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("64 M", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("500MB", 500_000_000),
            ("17", 17),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
        for bad in [
            "",
            "MiB",
            "12 parsecs",
            "1e99GiB",
            "-4",
            "1..2M",
            "99999999999999TiB",
        ] {
            let error = bad.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains(bad), "{error}");
        }
    }

    #[test]
    fn shows_three_significant_digits() {
        let shown: Vec<String> = [0, 1023, 1024, 1_500_000, 64 << 20, 1023 << 20, 1 << 30]
            .map(|n| Bytes(n).to_string())
            .into();
        assert_eq!(
            shown,
            [
                "0 B", "1023 B", "1.00 KiB", "1.43 MiB", "64.0 MiB", "1023 MiB", "1.00 GiB"
            ]
        );
    }
}
