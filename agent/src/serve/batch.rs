//! Several samples as one run. Pure.

use edgeopt_models::Tensor;

/// The samples' inputs joined along the first axis; `None` if their types or other lengths differ.
pub(super) fn stack<S: AsRef<[Tensor]>>(samples: &[S]) -> Option<Vec<Tensor>> {
    let first = samples.first()?.as_ref();
    (0..first.len())
        .map(|input| {
            let parts: Option<Vec<&Tensor>> =
                samples.iter().map(|sample| sample.as_ref().get(input)).collect();
            let parts = parts?;
            let (head, rest) = (parts.first()?, first.get(input)?.dims().get(1..)?);
            let same = |part: &&Tensor| part.dtype() == head.dtype() && part.dims().get(1..) == Some(rest);
            if !parts.iter().all(same) {
                return None;
            }
            let rows: usize = parts.iter().map(|part| part.dims()[0]).sum();
            let bytes = parts
                .iter()
                .map(|part| part.as_bytes())
                .collect::<Vec<_>>()
                .concat();
            let dims: Vec<usize> = std::iter::once(rows).chain(rest.iter().copied()).collect();
            Tensor::from_bytes(head.dtype(), &dims, &bytes).ok()
        })
        .collect()
}

/// Outputs of `count` samples of one row each, apart again; `None` if an output does not count the samples.
pub(super) fn split(outputs: &[Tensor], count: usize) -> Option<Vec<Vec<Tensor>>> {
    let row = |output: &Tensor, index: usize| {
        let (rows, rest) = output.dims().split_first()?;
        if *rows != count {
            return None;
        }
        let size = output.as_bytes().len() / count;
        let bytes = output.as_bytes().get(index * size..(index + 1) * size)?;
        let dims: Vec<usize> = std::iter::once(1).chain(rest.iter().copied()).collect();
        Tensor::from_bytes(output.dtype(), &dims, bytes).ok()
    };
    (0..count)
        .map(|index| outputs.iter().map(|output| row(output, index)).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dims: &[usize], values: &[f32]) -> Tensor {
        Tensor::new(dims, values).unwrap()
    }

    #[test]
    fn samples_are_joined_and_their_outputs_taken_apart() {
        let samples = vec![
            vec![tensor(&[1, 2], &[1.0, 2.0])],
            vec![tensor(&[1, 2], &[3.0, 4.0])],
        ];
        let stacked = stack(&samples).unwrap();
        assert_eq!(stacked, [tensor(&[2, 2], &[1.0, 2.0, 3.0, 4.0])]);
        assert_eq!(split(&stacked, 2), Some(samples));
        assert_eq!(split(&stacked, 3), None);
        let other = vec![
            vec![tensor(&[1, 2], &[1.0, 2.0])],
            vec![tensor(&[1, 3], &[3.0, 4.0, 5.0])],
        ];
        assert_eq!(stack(&other), None);
        assert_eq!(split(&[Tensor::scalar(1.0f32)], 1), None);
    }
}
