//! `Einsum`: every letter of the equation is one length.

use std::collections::BTreeMap;

use super::facts::{Derived, Op, one};
use crate::{Dim, Shape};

pub(super) fn einsum(op: &Op<'_>) -> Derived {
    let unknown = || one(op.dtype(0), None);
    let Some(equation) = op.node.string("equation") else {
        return unknown();
    };
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    // An ellipsis stands for axes without letters: not followed.
    if equation.contains('.') {
        return unknown();
    }
    let (terms, output) = match equation.split_once("->") {
        Some((terms, output)) => (terms, Some(output.to_owned())),
        None => (equation.as_str(), None),
    };
    let mut lengths: BTreeMap<char, Dim> = BTreeMap::new();
    let mut times: BTreeMap<char, usize> = BTreeMap::new();
    for (index, term) in terms.split(',').enumerate() {
        let Some(shape) = op.shape(index) else {
            return unknown();
        };
        if term.chars().count() != shape.len() {
            return Err(format!(
                "the term {term:?} of {equation:?} does not fit the shape {shape}"
            ));
        }
        for (letter, dim) in term.chars().zip(shape.iter()) {
            *times.entry(letter).or_default() += 1;
            let length = lengths.entry(letter).or_insert_with(|| dim.clone());
            match (&*length, dim) {
                // A length of one is broadcast.
                (Dim::Known(a), Dim::Known(b)) if a != b && *a != 1 && *b != 1 => {
                    return Err(format!("{letter:?} of {equation:?} is both {a} and {b}"));
                }
                (Dim::Known(1) | Dim::Unknown, _) | (Dim::Symbol(_), Dim::Known(2..)) => {
                    *length = dim.clone()
                }
                _ => {}
            }
        }
    }
    // Without an arrow: the letters that occur once, in alphabetical order.
    let output = output.unwrap_or_else(|| {
        let single = times.iter().filter(|(_, count)| **count == 1);
        single.map(|(letter, _)| *letter).collect()
    });
    let dims: Option<Shape> = output
        .chars()
        .map(|letter| lengths.get(&letter).cloned())
        .collect();
    match dims {
        Some(shape) => one(op.dtype(0), Some(shape)),
        None => Err(format!(
            "the output of {equation:?} has a letter that no input has"
        )),
    }
}
