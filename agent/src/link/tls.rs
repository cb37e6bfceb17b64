use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::clock::{CertificateTime, SystemClock, WallClock};
use crate::config::Tls;

/// Why a TLS configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("broker.tls.{field}: cannot read {}: {source}", .path.display())]
    Read {
        /// The field that names it.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds nothing usable.
    #[error("broker.tls.{field}: {}: {problem}", .path.display())]
    Content {
        /// The field that names it.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Only one of certificate and key is given.
    #[error("broker.tls: `certificate` and `key` belong together: set both or neither")]
    HalfIdentity,
    /// The system has no authorities.
    #[error(
        "the system's store of certificate authorities is empty: install ca-certificates, or set broker.tls.ca"
    )]
    NoSystemAuthorities,
    /// The parts do not fit together, such as a key of another certificate.
    #[error("broker.tls: {0}")]
    Unusable(#[from] rustls::Error),
}

/// Reads the files and makes a configuration with which `wall` judges certificates.
pub(crate) fn client_config(tls: &Tls, wall: Arc<dyn WallClock>) -> Result<ClientConfig, TlsError> {
    let roots = authorities(tls.ca.as_deref())?;
    let builder = ClientConfig::builder_with_details(
        Arc::new(ring::default_provider()),
        Arc::new(CertificateTime(wall)),
    )
    .with_safe_default_protocol_versions()?
    .with_root_certificates(roots);
    let mut config = match (&tls.certificate, &tls.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
            builder.with_client_auth_cert(certificates("certificate", certificate)?, private_key(key)?)?
        }
        _ => return Err(TlsError::HalfIdentity),
    };
    config.alpn_protocols = tls.alpn.iter().map(|name| name.clone().into_bytes()).collect();
    Ok(config)
}

/// Whether a connection could be made with these files.
pub(crate) fn check_tls(tls: &Tls) -> Result<(), TlsError> {
    client_config(tls, Arc::new(SystemClock)).map(drop)
}

fn authorities(ca: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            for certificate in certificates("ca", path)? {
                roots
                    .add(certificate)
                    .map_err(|error| content("ca", path, error))?;
            }
        }
        None => {
            // Single damaged files in the system's store are no reason to refuse all others.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(TlsError::NoSystemAuthorities);
            }
        }
    }
    Ok(roots)
}

fn content(field: &'static str, path: &Path, problem: impl ToString) -> TlsError {
    TlsError::Content {
        field,
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

fn read(field: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read {
        field,
        path: path.to_owned(),
        source,
    })
}

fn certificates(field: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(field, path)?).collect();
    match found {
        Ok(found) if found.is_empty() => Err(content(field, path, "no PEM block `CERTIFICATE`")),
        Ok(found) => Ok(found),
        Err(error) => Err(content(field, path, error)),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read("key", path)?).map_err(|error| match error {
        pem::Error::NoItemsFound => content("key", path, "no private key in PEM readable without a password"),
        error => content("key", path, error),
    })
}
