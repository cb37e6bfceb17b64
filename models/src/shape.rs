use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// One dimension of a shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A fixed length.
    Known(usize),
    /// A length known only at run time, with a name: equal names mean equal lengths within a model.
    Symbol(Arc<str>),
    /// Nothing is known.
    Unknown,
}

impl Dim {
    /// The fixed length, if it is one.
    pub fn known(&self) -> Option<usize> {
        match self {
            Self::Known(n) => Some(*n),
            _ => None,
        }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Self::Known(n)
    }
}

impl From<&str> for Dim {
    fn from(name: &str) -> Self {
        Self::Symbol(name.into())
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(n) => write!(f, "{n}"),
            Self::Symbol(name) => f.write_str(name),
            Self::Unknown => f.write_str("?"),
        }
    }
}

/// A tensor's shape of known rank: `[]` is a scalar. Shown as `[N, 3, 224, 224]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// A shape of fixed lengths.
    pub fn known(dims: &[usize]) -> Self {
        Self(dims.iter().copied().map(Dim::Known).collect())
    }

    /// All lengths, if every one is fixed.
    pub fn as_known(&self) -> Option<Vec<usize>> {
        self.0.iter().map(Dim::known).collect()
    }

    /// The number of elements, if every length is fixed and the product fits.
    pub fn elements(&self) -> Option<usize> {
        self.0
            .iter()
            .try_fold(1usize, |product, dim| product.checked_mul(dim.known()?))
    }
}

impl Deref for Shape {
    type Target = Vec<Dim>;
    fn deref(&self) -> &Vec<Dim> {
        &self.0
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut Vec<Dim> {
        &mut self.0
    }
}

impl FromIterator<Dim> for Shape {
    fn from_iter<I: IntoIterator<Item = Dim>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}
