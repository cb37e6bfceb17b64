use std::collections::HashMap;
use std::sync::Arc;

use crate::{DataType, Dim, Graph, Node, Shape, Tensor, ValueName, ValueType};

/// One element of an integer tensor that is followed by value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Known(i64),
    Symbol(Arc<str>),
    Unknown,
}

impl Item {
    pub(super) fn known(&self) -> Option<i64> {
        match self {
            Self::Known(value) => Some(*value),
            _ => None,
        }
    }

    /// As a length; negative numbers are no lengths.
    pub(super) fn dim(&self) -> Dim {
        match self {
            Self::Known(value) => usize::try_from(*value).map_or(Dim::Unknown, Dim::Known),
            Self::Symbol(name) => Dim::Symbol(Arc::clone(name)),
            Self::Unknown => Dim::Unknown,
        }
    }
}

impl From<&Dim> for Item {
    fn from(dim: &Dim) -> Self {
        match dim {
            Dim::Known(length) => i64::try_from(*length).map_or(Self::Unknown, Self::Known),
            Dim::Symbol(name) => Self::Symbol(Arc::clone(name)),
            Dim::Unknown => Self::Unknown,
        }
    }
}

/// A small integer tensor of rank 0 or 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Integers {
    pub(super) scalar: bool,
    pub(super) items: Vec<Item>,
}

/// Longest tensor that is followed by value.
pub(super) const LONGEST: usize = 1024;

/// What is known so far; names are unique across scopes, so one table serves them all.
#[derive(Debug, Default)]
pub(super) struct Facts {
    types: HashMap<ValueName, ValueType>,
    values: HashMap<ValueName, Integers>,
    /// Tensors of `Constant` nodes.
    constants: HashMap<ValueName, Tensor>,
}

impl Facts {
    pub(super) fn type_of(&self, name: &str) -> Option<&ValueType> {
        self.types.get(name)
    }

    pub(super) fn set_type(&mut self, name: &ValueName, ty: ValueType) {
        self.types.insert(name.clone(), ty);
    }

    pub(super) fn set_value(&mut self, name: &ValueName, value: Integers) {
        self.values.insert(name.clone(), value);
    }

    /// Remembers the tensor of a `Constant` node (which shares its data).
    pub(super) fn set_constant(&mut self, name: &ValueName, tensor: Tensor) {
        self.constants.insert(name.clone(), tensor);
    }
}

/// A graph and those around it, for looking up constants.
pub(super) struct Scope<'a> {
    pub(super) graph: &'a Graph,
    pub(super) outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    fn constant(&self, name: &str) -> Option<&Tensor> {
        self.graph
            .constant(name)
            .or_else(|| self.outer.and_then(|outer| outer.constant(name)))
    }
}

/// A node with what is known about its inputs.
pub(super) struct Op<'a> {
    pub(super) node: &'a Node,
    pub(super) facts: &'a Facts,
    pub(super) scope: &'a Scope<'a>,
    pub(super) opset: i64,
    /// Output types of each subgraph.
    pub(super) branches: Vec<Vec<ValueType>>,
}

/// The types of a node's outputs; `None` where nothing is known.
pub(super) type Derived = Result<Vec<Option<ValueType>>, String>;

impl Op<'_> {
    pub(super) fn ty(&self, input: usize) -> Option<&ValueType> {
        self.facts.type_of(self.node.input(input)?)
    }

    pub(super) fn dtype(&self, input: usize) -> Option<DataType> {
        self.ty(input)?.dtype()
    }

    pub(super) fn shape(&self, input: usize) -> Option<&Shape> {
        self.ty(input)?.shape()
    }

    pub(super) fn constant(&self, input: usize) -> Option<&Tensor> {
        let name = self.node.input(input)?;
        self.facts
            .constants
            .get(&**name)
            .or_else(|| self.scope.constant(name))
    }

    /// The input by value, if it is a small integer tensor that is known at least in part.
    pub(super) fn integers(&self, input: usize) -> Option<Integers> {
        let name = self.node.input(input)?;
        if let Some(value) = self.facts.values.get(&**name) {
            return Some(value.clone());
        }
        let tensor = self.constant(input)?;
        if tensor.dims().len() > 1 || tensor.elements() > LONGEST || !tensor.dtype().is_integer() {
            return None;
        }
        let items = tensor
            .to_i64()
            .ok()?
            .iter()
            .map(|value| Item::Known(*value))
            .collect();
        Some(Integers {
            scalar: tensor.dims().is_empty(),
            items,
        })
    }

    /// The input as fully known integers.
    pub(super) fn known(&self, input: usize) -> Option<Vec<i64>> {
        self.integers(input)?.items.iter().map(Item::known).collect()
    }

    /// Axes given as the attribute `axes` or, in newer operator sets, as an input.
    pub(super) fn axes(&self, input: usize) -> Option<Vec<i64>> {
        self.node
            .ints("axes")
            .map(<[i64]>::to_vec)
            .or_else(|| self.known(input))
    }

    /// Whether axes are given at all.
    pub(super) fn has_axes(&self, input: usize) -> bool {
        self.node.ints("axes").is_some() || self.node.input(input).is_some()
    }
}

/// One output of this type and, if known, shape.
pub(super) fn one(dtype: Option<DataType>, shape: Option<Shape>) -> Derived {
    Ok(vec![dtype.map(|dtype| ValueType::Tensor { dtype, shape })])
}

/// A shape of `rank` unknown lengths.
pub(super) fn ranked(rank: usize) -> Shape {
    Shape(vec![Dim::Unknown; rank])
}

/// `axis` counted from the end if negative, if it is within `0..limit`.
pub(super) fn normalized(axis: i64, limit: usize) -> Result<usize, String> {
    let signed = if axis < 0 {
        axis.checked_add(limit as i64)
    } else {
        Some(axis)
    };
    signed
        .and_then(|axis| usize::try_from(axis).ok())
        .filter(|axis| *axis < limit)
        .ok_or_else(|| format!("axis {axis} is outside a tensor of rank {limit}"))
}
