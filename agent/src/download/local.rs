//! From a file of this machine, such as a USB stick.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::partial::{Appending, Partial};
use super::{Attempt, Job};

const PIECE: usize = 1 << 20;

/// Copies `path`, as it stands behind `file:`, from where the partial file ends.
pub(super) fn copy(path: &str, job: &Job<'_>, partial: &mut Partial<'_>) -> Attempt {
    // `file:/a` and `file:///a` are the same place.
    let path = match path.strip_prefix("//") {
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    };
    if !path.starts_with('/') {
        return Attempt::Never(format!("file:{path}: write the whole path, from /"));
    }
    let never = |problem: String| Attempt::Never(format!("{path}: {problem}"));
    // Before it is opened: opening a pipe waits for a writer.
    match fs::metadata(path) {
        Ok(data) if data.is_file() => {}
        Ok(_) => return never("not a file".into()),
        Err(error) => return never(error.to_string()),
    }
    let opened = File::open(Path::new(path)).and_then(|file| Ok((file.metadata()?, file)));
    let (data, file) = match opened {
        Ok(opened) => opened,
        Err(error) => return never(error.to_string()),
    };
    if data.len() != partial.size().0 {
        return never(format!(
            "it has {} bytes, announced were {}",
            data.len(),
            partial.size().0
        ));
    }
    let mut buffer = vec![0; PIECE];
    while !partial.is_complete() {
        if job.superseded() {
            return Attempt::Superseded;
        }
        match file.read_at(&mut buffer, partial.length().0) {
            Ok(0) => return never("it became shorter meanwhile".into()),
            Ok(count) => match partial.append(&buffer[..count]) {
                Ok(()) => {}
                Err(error @ Appending::TooLong) => return never(error.to_string()),
                Err(error @ Appending::Disk(_)) => return Attempt::Later(error.to_string()),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return never(error.to_string()),
        }
    }
    Attempt::Complete
}
