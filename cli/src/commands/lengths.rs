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
