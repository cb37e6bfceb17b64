//! Lengths that a model leaves open, as given on the command line.

/// `NAME=LENGTH`: a symbolic dimension.
pub(crate) fn parse_dim(text: &str) -> Result<(String, usize), String> {
    let wrong = || format!("{text:?} is not NAME=LENGTH, such as N=1");
    let (name, length) = text.split_once('=').ok_or_else(wrong)?;
    let length = length
        .parse()
        .ok()
        .filter(|length| *length > 0)
        .ok_or_else(wrong)?;
    Ok((name.to_owned(), length))
}

/// `INPUT=N,N,…`: the whole shape of an input.
pub(crate) fn parse_shape(text: &str) -> Result<(String, Vec<usize>), String> {
    let wrong = || format!("{text:?} is not INPUT=N,N,…, such as x=1,3,224,224");
    let (name, dims) = text.rsplit_once('=').ok_or_else(wrong)?;
    let dims = dims
        .split(',')
        .map(|n| n.trim().parse().map_err(|_| wrong()))
        .collect::<Result<_, _>>()?;
    Ok((name.to_owned(), dims))
}

/// The lengths a dimension may have, and the one to tune for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) min: usize,
    pub(crate) opt: usize,
    pub(crate) max: usize,
}

/// `NAME=MIN:OPT:MAX`: the range of a symbolic dimension.
pub(crate) fn parse_range(text: &str) -> Result<(String, Range), String> {
    let wrong =
        || format!("{text:?} is not NAME=MIN:OPT:MAX with 1 <= MIN <= OPT <= MAX, such as W=32:320:640");
    let (name, lengths) = text.rsplit_once('=').ok_or_else(wrong)?;
    let lengths: Vec<usize> = lengths
        .split(':')
        .map(|length| length.trim().parse().map_err(|_| wrong()))
        .collect::<Result<_, _>>()?;
    match lengths[..] {
        [min, opt, max] if 1 <= min && min <= opt && opt <= max => {
            Ok((name.to_owned(), Range { min, opt, max }))
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_must_ascend() {
        let range = Range {
            min: 1,
            opt: 2,
            max: 2,
        };
        assert_eq!(parse_range("a=b=1:2:2"), Ok(("a=b".to_owned(), range)));
        for text in [
            "W",
            "W=1:2",
            "W=0:1:2",
            "W=2:1:3",
            "W=1:3:2",
            "W=1:x:2",
            "W=1:2:3:4",
        ] {
            assert!(parse_range(text).unwrap_err().contains("MIN:OPT:MAX"), "{text}");
        }
    }
}
