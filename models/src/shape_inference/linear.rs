use super::elementwise::broadcast_shapes;
use super::facts::{Derived, Op, one};
use crate::{DataType, Dim, Shape};

fn product(a: &Shape, b: &Shape) -> Result<Shape, String> {
    let wrong = || format!("matrices of shapes {a} and {b} cannot be multiplied");
    let (Some(inner_a), Some(inner_b)) = (
        a.last(),
        b.len().checked_sub(2).map_or(b.first(), |axis| b.get(axis)),
    ) else {
        return Err(wrong());
    };
    if let (Some(x), Some(y)) = (inner_a.known(), inner_b.known())
        && x != y
    {
        return Err(wrong());
    }
    let batch = |shape: &Shape| Shape(shape[..shape.len().saturating_sub(2)].to_vec());
    let mut shape = broadcast_shapes(&batch(a), &batch(b))?;
    if a.len() >= 2 {
        shape.push(a[a.len() - 2].clone());
    }
    if b.len() >= 2 {
        shape.push(b[b.len() - 1].clone());
    }
    Ok(shape)
}

pub(super) fn matmul(op: &Op<'_>) -> Derived {
    let (second, dtype) = match op.node.op_type.as_str() {
        "QLinearMatMul" => (3, op.dtype(7)),
        "MatMulInteger" => (1, Some(DataType::Int32)),
        _ => (1, op.dtype(0)),
    };
    match (op.shape(0), op.shape(second)) {
        (Some(a), Some(b)) => one(dtype, Some(product(a, b)?)),
        _ => one(dtype, None),
    }
}

pub(super) fn gemm(op: &Op<'_>) -> Derived {
    let (Some(a), Some(b)) = (op.shape(0), op.shape(1)) else {
        return one(op.dtype(0), None);
    };
    let ([a0, a1], [b0, b1]) = (a.as_slice(), b.as_slice()) else {
        return Err(format!("Gemm takes matrices, the shapes are {a} and {b}"));
    };
    let flip = |name: &str| op.node.int(name).is_some_and(|value| value != 0);
    let (m, k): (&Dim, &Dim) = if flip("transA") { (a1, a0) } else { (a0, a1) };
    let (other, n) = if flip("transB") { (b1, b0) } else { (b0, b1) };
    if let (Some(x), Some(y)) = (k.known(), other.known())
        && x != y
    {
        return Err(format!("matrices of shapes {a} and {b} cannot be multiplied"));
    }
    one(op.dtype(0), Some(Shape(vec![m.clone(), n.clone()])))
}
