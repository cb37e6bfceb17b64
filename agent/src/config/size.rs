use std::fmt;

use edgeopt_models::Bytes;
use serde::de::{Deserializer, Error, Visitor};

/// Reads an amount of memory or storage from a number of bytes or from a text such as `"64MiB"`.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    struct Amount;
    impl Visitor<'_> for Amount {
        type Value = Bytes;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an amount such as \"64MiB\" or a number of bytes")
        }
        fn visit_i64<E: Error>(self, bytes: i64) -> Result<Bytes, E> {
            u64::try_from(bytes)
                .map(Bytes)
                .map_err(|_| E::custom("an amount cannot be negative"))
        }
        fn visit_u64<E: Error>(self, bytes: u64) -> Result<Bytes, E> {
            Ok(Bytes(bytes))
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_any(Amount)
}

/// [`read`] for a field that may be absent.
pub(super) fn read_optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    read(deserializer).map(Some)
}
