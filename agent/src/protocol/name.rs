use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest device, slot or other name, in bytes.
const MAX_NAME: usize = 64;

/// A name that cannot be a level of an MQTT topic here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {name:?} is not valid: use 1 to {MAX_NAME} ASCII letters, digits, `-`, `_` or `.`")]
pub struct InvalidName {
    what: &'static str,
    name: String,
}

macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        #[cfg(test)]
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "pattern": format!("^[A-Za-z0-9._-]{{1,{MAX_NAME}}}$"),
                })
            }
        }

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = InvalidName;
            fn try_from(name: String) -> Result<Self, InvalidName> {
                let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
                if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) {
                    return Err(InvalidName { what: $what, name });
                }
                Ok(Self(name))
            }
        }

        impl FromStr for $type {
            type Err = InvalidName;
            fn from_str(name: &str) -> Result<Self, InvalidName> {
                name.to_owned().try_into()
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name_type!(
    /// Identifies a device in the fleet; also its MQTT client id.
    DeviceId,
    "device"
);
name_type!(
    /// Names the place on a device that one model occupies, such as `detector`.
    SlotName,
    "slot"
);
name_type!(
    /// A level of a topic that one side chooses: the id of a command or of a blob's source, a kind of telemetry.
    TopicName,
    "name"
);

impl TopicName {
    /// A name that this crate spells out itself; the caller sees that it is valid.
    pub(super) fn fixed(name: &'static str) -> Self {
        Self(name.to_owned())
    }
}
