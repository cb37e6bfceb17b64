use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use edgeopt_models::bundle::generate_keys;
use serde::Serialize;

use crate::screen::Screen;

/// Makes a key pair for signing bundles, in minisign's formats.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  edgeopt keygen --output fleet\n  (writes fleet.key and fleet.pub)")]
pub(crate) struct Arguments {
    /// Where to write: `<OUTPUT>.key` (secret) and `<OUTPUT>.pub`.
    #[arg(short, long, default_value = "edgeopt", value_name = "PATH")]
    output: PathBuf,
}

#[derive(Serialize)]
struct Keys {
    id: String,
    secret_key: PathBuf,
    public_key: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let secret_key = with_extension(&arguments.output, "key");
    let public_key = with_extension(&arguments.output, "pub");
    for path in [&secret_key, &public_key] {
        if path.exists() {
            bail!("{} exists already; a key is never overwritten", path.display());
        }
    }
    let password = std::env::var("EDGEOPT_KEY_PASSWORD").ok();
    let (public, secret) = generate_keys(password.as_deref())?;
    write_new(&secret_key, &secret.to_file()?, 0o600)?;
    write_new(&public_key, &public.to_file()?, 0o644)?;
    if password.is_none() {
        screen.warning("the secret key is not encrypted; set EDGEOPT_KEY_PASSWORD to encrypt it");
    }
    let keys = Keys {
        id: public.id(),
        secret_key,
        public_key,
    };
    screen.result(&keys, |keys| {
        format!(
            "key {}\nsecret {}\npublic {}\n",
            keys.id,
            keys.secret_key.display(),
            keys.public_key.display()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

fn with_extension(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

fn write_new(path: &Path, content: &str, mode: u32) -> anyhow::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    let mut file = options
        .open(path)
        .with_context(|| format!("cannot create {}", path.display()))?;
    file.write_all(content.as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(|| format!("cannot write {}", path.display()))
}
