//! Errors as people and machines see them: what went wrong, why, and what to do.

use std::process::ExitCode;

use edgeopt_models::bundle::{BundleError, SignatureError};
use edgeopt_runtime::RuntimeError;

use crate::screen::Screen;

/// Prints an error with its causes and a hint, and gives the exit code for it.
pub(crate) fn report(error: &anyhow::Error, screen: &Screen) -> ExitCode {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        // Transparent wrappers say the same as their source; say it once.
        if !parts.last().is_some_and(|last| last.ends_with(&text)) {
            parts.push(text);
        }
    }
    let message = parts.join(": ");
    let hint = error.chain().find_map(hint);
    if screen.json {
        let json = serde_json::json!({ "error": message, "hint": hint });
        eprintln!("{json}");
    } else {
        screen.error(&message, hint.as_deref());
    }
    ExitCode::FAILURE
}

/// What to do about a known kind of error.
fn hint(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(RuntimeError::LibraryNotFound { .. }) = cause.downcast_ref() {
        return Some(
            "in a checkout, `make fetch` brings it; elsewhere, install ONNX Runtime 1.24 or newer and name its \
             library in EDGEOPT_ORT_DYLIB"
                .into(),
        );
    }
    match cause.downcast_ref::<BundleError>()? {
        BundleError::Archive(_) => Some("a bundle is made by `edgeopt build`; is this an .onnx file?".into()),
        BundleError::Digest { .. } => Some("copy or download the file again".into()),
        BundleError::Signature(SignatureError::UnknownKey { .. }) => {
            Some("name the signer's public key with --key".into())
        }
        _ => None,
    }
}
