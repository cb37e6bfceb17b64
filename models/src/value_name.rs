use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The name of a value (tensor) in a graph. Cheap to clone; the empty name means "optional, not given".
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueName(Arc<str>);

impl ValueName {
    /// The name of an omitted optional input or output.
    pub fn omitted() -> Self {
        Self(Arc::from(""))
    }

    /// Whether this stands for an omitted optional input or output.
    pub fn is_omitted(&self) -> bool {
        self.0.is_empty()
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for ValueName {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ValueName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<T: Into<Arc<str>>> From<T> for ValueName {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl PartialEq<str> for ValueName {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for ValueName {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl fmt::Display for ValueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ValueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}
