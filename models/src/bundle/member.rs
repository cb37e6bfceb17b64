use super::BundleError;

/// The first member: what the bundle says about its model.
pub const MANIFEST: &str = "manifest.json";
/// Minisign signature over the manifest; the second member if there is one.
pub const SIGNATURE: &str = "manifest.json.minisig";
/// The optimized model.
pub const MODEL: &str = "model.onnx";
/// The report for people.
pub const REPORT: &str = "report.html";

/// Checks that a path can be a member: relative, `/`-separated, plain ASCII, no `.` or `..`, at most 100 bytes (so
/// that it fits a plain tar header and can never leave the folder it is unpacked into).
pub(super) fn check_path(path: &str) -> Result<(), BundleError> {
    let problem = if path.is_empty() || path.len() > 100 {
        "its path must have 1 to 100 bytes"
    } else if !path
        .bytes()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'/' | b'+'))
    {
        "its path may hold only ASCII letters, digits and `._-+/`"
    } else if path
        .split('/')
        .any(|part| part.is_empty() || part == "." || part == "..")
    {
        "its path must be relative, without empty parts, `.` or `..`"
    } else {
        return Ok(());
    };
    Err(BundleError::Member {
        member: path.to_owned(),
        problem: problem.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_could_leave_the_folder_are_refused() {
        for good in ["model.onnx", "golden/input-0.npz", "engines/trt10.3-sm87.plan"] {
            assert!(check_path(good).is_ok(), "{good}");
        }
        let long = "a".repeat(101);
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "./a",
            "a\\b",
            "C:x",
            "a\0",
            "é",
            "a/",
            &long,
        ] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
    }
}
