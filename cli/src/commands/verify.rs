use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use edgeopt_models::Bytes;
use edgeopt_models::bundle::{Limits, PublicKey, Trust, Trusted, verify};
use serde::Serialize;

use crate::screen::{GOOD, Screen, WARN};

/// Checks a bundle: structure, every digest, and the signature.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  edgeopt verify model.edge --key fleet.pub\n  \
                        edgeopt verify model.edge --unsigned      (digests only)")]
pub(crate) struct Arguments {
    /// The bundle.
    bundle: PathBuf,

    /// Public key that must have signed it; several: one of them.
    #[arg(short, long, value_name = "FILE", required_unless_present = "unsigned")]
    key: Vec<PathBuf>,

    /// Accepts bundles without a signature.
    #[arg(long)]
    unsigned: bool,
}

#[derive(Serialize)]
struct Verified {
    model: String,
    version: String,
    precision: String,
    members: usize,
    size: Bytes,
    /// Id of the key that signed it.
    signed_by: Option<String>,
    signature: &'static str,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let keys = arguments
        .key
        .iter()
        .map(|path| {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            PublicKey::parse(&text).with_context(|| format!("cannot use {}", path.display()))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let trust = match (arguments.unsigned, keys.is_empty()) {
        (false, _) => Trust::Require(keys),
        (true, false) => Trust::IfSigned(keys),
        (true, true) => Trust::Unchecked,
    };
    let path = &arguments.bundle;
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let (manifest, trusted) = verify(file, &Limits::default(), &trust)
        .with_context(|| format!("{} is not accepted", path.display()))?;
    let (signed_by, signature) = match trusted {
        Trusted::By(key) => (Some(key), "trusted"),
        Trusted::NotChecked => (None, "not checked"),
        Trusted::Unsigned => (None, "none"),
    };
    let verified = Verified {
        model: manifest.name,
        version: manifest.version,
        precision: manifest.precision.to_string(),
        members: manifest.members.len(),
        size: manifest.members.values().map(|member| member.size).sum(),
        signed_by,
        signature,
    };
    screen.result(&verified, |verified| {
        let signature = match &verified.signed_by {
            Some(key) => format!("{GOOD}signed by trusted key {key}{GOOD:#}"),
            None => format!("{WARN}signature: {}{WARN:#}", verified.signature),
        };
        format!(
            "{GOOD}ok{GOOD:#} {} {} {}, {} members, {}\n{signature}\n",
            verified.model, verified.version, verified.precision, verified.members, verified.size
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
