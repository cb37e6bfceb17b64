//! Following small integer tensors by value: the arithmetic that models do on shapes.

use super::creation::bounds;
use super::facts::{Integers, Item, LONGEST, Op, normalized};
use super::pick::sliced;
use crate::Attribute;

/// The value of the node's first output, if it follows from what is known.
pub(super) fn follow(op: &Op<'_>) -> Option<Integers> {
    if !op.node.domain.is_empty() {
        return None;
    }
    let value = match op.node.op_type.as_str() {
        "Shape" => {
            let input = op.shape(0)?;
            let (start, end) = bounds(op, input.len());
            let dims = input.get(start..end.max(start))?;
            Integers {
                scalar: false,
                items: dims.iter().map(Item::from).collect(),
            }
        }
        "Size" => {
            let count = op.shape(0)?.elements().and_then(|n| i64::try_from(n).ok());
            Integers {
                scalar: true,
                items: vec![count.map_or(Item::Unknown, Item::Known)],
            }
        }
        "Constant" => constant(op)?,
        "Identity" => op.integers(0)?,
        "Cast" if op.node.int("to").is_some_and(|to| to == 7 || to == 6) => op.integers(0)?,
        "Squeeze" => {
            let value = op.integers(0)?;
            Integers {
                scalar: value.items.len() == 1,
                items: value.items,
            }
        }
        "Unsqueeze" => {
            let value = op.integers(0)?;
            if !value.scalar {
                return None;
            }
            Integers {
                scalar: false,
                items: value.items,
            }
        }
        "Reshape" => {
            let value = op.integers(0)?;
            let rank = op.integers(1)?.items.len();
            if rank > 1 {
                return None;
            }
            Integers {
                scalar: rank == 0,
                items: value.items,
            }
        }
        "Gather" => gather(op)?,
        "Slice" => slice(op)?,
        "Concat" => {
            let mut items = Vec::new();
            for input in 0..op.node.inputs.len() {
                match op.integers(input) {
                    Some(value) => items.extend(value.items),
                    // A part of known length but unknown content.
                    None => items.extend(vec![
                        Item::Unknown;
                        op.shape(input)?.elements().filter(|n| *n <= LONGEST)?
                    ]),
                }
            }
            Integers { scalar: false, items }
        }
        "ConstantOfShape" => {
            let [Item::Known(length)] = op.integers(0)?.items[..] else {
                return None;
            };
            let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST)?;
            let fill = match op.node.attributes.get("value") {
                Some(Attribute::Tensor(tensor)) => Item::Known(*tensor.to_i64().ok()?.first()?),
                _ => return None,
            };
            Integers {
                scalar: false,
                items: vec![fill; length],
            }
        }
        "Range" => {
            let (start, limit, step) = (
                *op.known(0)?.first()?,
                *op.known(1)?.first()?,
                *op.known(2)?.first()?,
            );
            let count = usize::try_from(limit.checked_sub(start)?.checked_div(step)?).ok()?;
            if count > LONGEST || step < 1 {
                return None;
            }
            Integers {
                scalar: false,
                items: (start..limit).step_by(step as usize).map(Item::Known).collect(),
            }
        }
        "Add" => zip(op, |a, b| a.checked_add(b), 0)?,
        "Sub" => zip(op, |a, b| a.checked_sub(b), 0)?,
        "Mul" => zip(op, |a, b| a.checked_mul(b), 1)?,
        // Truncation towards zero, as ONNX's integer division does.
        "Div" => zip(op, |a, b| a.checked_div(b), 1)?,
        "Mod" => zip(op, |a, b| a.checked_rem_euclid(b), i64::MAX)?,
        "Min" => zip(op, |a, b| Some(a.min(b)), i64::MAX)?,
        "Max" => zip(op, |a, b| Some(a.max(b)), i64::MAX)?,
        "Equal" => zip(op, |a, b| Some(i64::from(a == b)), i64::MIN)?,
        "Where" => select(op)?,
        "ReduceProd" => {
            let product = op
                .known(0)?
                .iter()
                .try_fold(1i64, |product, value| product.checked_mul(*value))?;
            Integers {
                scalar: op.node.int("keepdims") == Some(0),
                items: vec![Item::Known(product)],
            }
        }
        _ => return None,
    };
    (value.items.len() <= LONGEST).then_some(value)
}

fn constant(op: &Op<'_>) -> Option<Integers> {
    let known = |values: &[i64]| values.iter().map(|value| Item::Known(*value)).collect();
    match op.node.attributes.iter().next()? {
        (_, Attribute::Tensor(tensor)) if tensor.dims().len() <= 1 && tensor.elements() <= LONGEST => {
            if !tensor.dtype().is_integer() {
                return None;
            }
            Some(Integers {
                scalar: tensor.dims().is_empty(),
                items: known(&tensor.to_i64().ok()?),
            })
        }
        (_, Attribute::Int(value)) => Some(Integers {
            scalar: true,
            items: vec![Item::Known(*value)],
        }),
        (_, Attribute::Ints(values)) => Some(Integers {
            scalar: false,
            items: known(values),
        }),
        _ => None,
    }
}

fn gather(op: &Op<'_>) -> Option<Integers> {
    let (data, indices) = (op.integers(0)?, op.integers(1)?);
    let items = indices
        .items
        .iter()
        .map(|index| {
            let index = index
                .known()
                .and_then(|index| normalized(index, data.items.len()).ok());
            index.map_or(Item::Unknown, |index| data.items[index].clone())
        })
        .collect();
    Some(Integers {
        scalar: indices.scalar,
        items,
    })
}

fn slice(op: &Op<'_>) -> Option<Integers> {
    let value = op.integers(0)?;
    let first = |name: &str, input: usize| {
        op.node
            .ints(name)
            .and_then(|values| values.first().copied())
            .or_else(|| op.known(input)?.first().copied())
    };
    let (start, end) = (first("starts", 1)?, first("ends", 2)?);
    let step = if op.node.input(4).is_some() {
        *op.known(4)?.first()?
    } else {
        1
    };
    if step == 0 {
        return None;
    }
    let length = value.items.len() as i64;
    let count = sliced(length, start, end, step);
    let low = if start < 0 {
        start.saturating_add(length)
    } else {
        start
    };
    let low = low.clamp(0, if step > 0 { length } else { (length - 1).max(0) });
    let items = (0..count).map(|index| value.items.get((low + index * step) as usize).cloned());
    Some(Integers {
        scalar: false,
        items: items.collect::<Option<_>>()?,
    })
}

/// Applies `f` element by element with broadcasting. `neutral` is the right-hand value that changes nothing, so that a
/// symbol survives `n + 0` and `n × 1`.
fn zip(op: &Op<'_>, f: impl Fn(i64, i64) -> Option<i64>, neutral: i64) -> Option<Integers> {
    let (a, b) = (op.integers(0)?, op.integers(1)?);
    let length = a.items.len().max(b.items.len());
    let at = |value: &Integers, index: usize| -> Option<Item> {
        if value.items.len() == 1 {
            value.items.first().cloned()
        } else {
            value.items.get(index).cloned()
        }
    };
    let items = (0..length)
        .map(|index| {
            Some(match (at(&a, index)?, at(&b, index)?) {
                (Item::Known(a), Item::Known(b)) => f(a, b).map_or(Item::Unknown, Item::Known),
                (symbol @ Item::Symbol(_), Item::Known(value)) if value == neutral => symbol,
                _ => Item::Unknown,
            })
        })
        .collect::<Option<_>>()?;
    Some(Integers {
        scalar: a.scalar && b.scalar,
        items,
    })
}

fn select(op: &Op<'_>) -> Option<Integers> {
    let (condition, yes, no) = (op.integers(0)?, op.integers(1)?, op.integers(2)?);
    let length = condition.items.len().max(yes.items.len()).max(no.items.len());
    let at = |value: &Integers, index: usize| -> Option<Item> {
        if value.items.len() == 1 {
            value.items.first().cloned()
        } else {
            value.items.get(index).cloned()
        }
    };
    let items = (0..length)
        .map(|index| match at(&condition, index)? {
            Item::Known(0) => at(&no, index),
            Item::Known(_) => at(&yes, index),
            _ => Some(Item::Unknown),
        })
        .collect::<Option<_>>()?;
    Some(Integers {
        scalar: condition.scalar && yes.scalar && no.scalar,
        items,
    })
}
