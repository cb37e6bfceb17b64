use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use edgeopt_models::bundle::{SecretKey, sign_file};
use serde::Serialize;

use crate::screen::Screen;

/// Signs a bundle in place; a signature it has is replaced. The bundle is verified first.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  edgeopt sign model.edge --key fleet.key")]
pub(crate) struct Arguments {
    /// The bundle.
    bundle: PathBuf,

    /// Secret key file. The password of an encrypted key is taken from EDGEOPT_KEY_PASSWORD.
    #[arg(short, long, value_name = "FILE")]
    key: PathBuf,
}

#[derive(Serialize)]
struct Signed {
    bundle: PathBuf,
    model: String,
    version: String,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&arguments.key)
        .with_context(|| format!("cannot read {}", arguments.key.display()))?;
    let password = std::env::var("EDGEOPT_KEY_PASSWORD").ok();
    let key = SecretKey::parse(&text, password.as_deref())
        .with_context(|| format!("cannot use {}", arguments.key.display()))?;
    let manifest = sign_file(&arguments.bundle, &key)
        .with_context(|| format!("cannot sign {}", arguments.bundle.display()))?;
    let signed = Signed {
        bundle: arguments.bundle.clone(),
        model: manifest.name,
        version: manifest.version,
    };
    screen.result(&signed, |signed| {
        format!(
            "signed {} ({} {})\n",
            signed.bundle.display(),
            signed.model,
            signed.version
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
