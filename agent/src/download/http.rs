//! From an HTTP server, resumed by ranges (RFC 9110, sections 13.1.5 and 14).

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::http::header::{CONTENT_RANGE, ETAG, HeaderMap};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, http};

use super::partial::{Appending, Notes, Partial};
use super::{Attempt, Job};

/// How long connecting, an answer, or one more piece of it may take.
const PATIENCE: Duration = Duration::from_secs(30);
const PIECE: usize = 256 << 10;

/// The client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The file of authorities is of no use.
    #[error("store.ca: {}: {problem}", .path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// Downloads over HTTP and HTTPS; keeps connections open between requests. Clones share them.
#[derive(Clone, Debug)]
pub struct HttpClient {
    /// `None` = the system's, which are read when they are first needed: there are hundreds.
    authorities: Option<Vec<CertificateDer<'static>>>,
    agent: Arc<OnceLock<Agent>>,
}

impl HttpClient {
    /// A client that trusts the authorities in `ca` (PEM), or the system's.
    ///
    /// # Errors
    /// When `ca` cannot be used.
    pub fn new(ca: Option<&Path>) -> Result<Self, HttpError> {
        let authorities = ca.map(authorities).transpose()?;
        Ok(Self {
            authorities,
            agent: Arc::default(),
        })
    }

    fn agent(&self) -> &Agent {
        self.agent.get_or_init(|| {
            let roots = self
                .authorities
                .clone()
                .unwrap_or_else(|| rustls_native_certs::load_native_certs().certs);
            let roots: Vec<Certificate<'static>> = roots
                .iter()
                .map(|certificate| Certificate::from_der(certificate).to_owned())
                .collect();
            let tls = TlsConfig::builder()
                .provider(TlsProvider::Rustls)
                .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
                .root_certs(RootCerts::Specific(Arc::new(roots)))
                .build();
            let config = Agent::config_builder()
                .http_status_as_error(false)
                .timeout_connect(Some(PATIENCE))
                .timeout_recv_response(Some(PATIENCE))
                .timeout_per_read(Some(PATIENCE))
                .user_agent(concat!("edgeopt-agent/", env!("CARGO_PKG_VERSION")))
                .tls_config(tls)
                .build();
            config.new_agent()
        })
    }

    /// Downloads what the partial file lacks.
    pub(super) fn download(&self, url: &str, job: &Job<'_>, partial: &mut Partial<'_>) -> Attempt {
        let shown = without_secrets(url);
        match self.attempt(url, job, partial) {
            Ok(()) => Attempt::Complete,
            Err(Stop::Superseded) => Attempt::Superseded,
            Err(Stop::Later(problem)) => Attempt::Later(format!("{shown}: {problem}")),
            Err(Stop::Never(problem)) => Attempt::Never(format!("{shown}: {problem}")),
        }
    }

    fn attempt(&self, url: &str, job: &Job<'_>, partial: &mut Partial<'_>) -> Result<(), Stop> {
        let mut request = self.agent().get(url).header("Accept-Encoding", "identity");
        let (length, size) = (partial.length().0, partial.size().0);
        if length > 0 {
            request = request.header("Range", format!("bytes={length}-"));
            let notes = partial.notes();
            if let (true, Some(etag)) = (notes.url == url, notes.etag) {
                // Changed meanwhile? Then all of it comes, with status 200.
                request = request.header("If-Range", etag);
            }
        }
        let response = request.call().map_err(failed)?;
        let (parts, body) = response.into_parts();
        match parts.status.as_u16() {
            206 => begins_at(&parts.headers, length, size)?,
            200 => {
                let announced = body.content_length();
                if let Some(found) = announced.filter(|found| *found != size) {
                    return Err(Stop::Never(format!(
                        "it has {found} bytes, announced were {size}"
                    )));
                }
                if length > 0 {
                    tracing::info!("{}: begins again from the start", without_secrets(url));
                    partial
                        .restart()
                        .map_err(|error| Stop::Later(error.to_string()))?;
                }
                let etag = parts.headers.get(ETAG).and_then(|etag| etag.to_str().ok());
                let notes = Notes {
                    url: url.to_owned(),
                    etag: etag.filter(|etag| !etag.starts_with("W/")).map(str::to_owned),
                };
                partial
                    .set_notes(&notes)
                    .map_err(|error| Stop::Later(error.to_string()))?;
            }
            // What we have ends where its file ends or later: it has another length.
            416 => {
                partial
                    .restart()
                    .map_err(|error| Stop::Later(error.to_string()))?;
                return Err(Stop::Later(
                    "it has no bytes after those that are here; beginning again".into(),
                ));
            }
            408 | 425 | 429 | 500..=599 => return Err(Stop::Later(format!("status {}", parts.status))),
            _ => return Err(Stop::Never(format!("status {}", parts.status))),
        }
        let mut reader = body.into_reader();
        let mut buffer = vec![0; PIECE];
        loop {
            if job.superseded() {
                return Err(Stop::Superseded);
            }
            match reader.read(&mut buffer) {
                Ok(0) if partial.is_complete() => return Ok(()),
                Ok(0) => return Err(Stop::Later("it ended too early".into())),
                Ok(count) => match partial.append(&buffer[..count]) {
                    Ok(()) => {}
                    Err(error @ Appending::TooLong) => return Err(Stop::Never(error.to_string())),
                    Err(error @ Appending::Disk(_)) => return Err(Stop::Later(error.to_string())),
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Stop::Later(error.to_string())),
            }
        }
    }
}

/// The certificates in a PEM file.
fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    let fail = |problem: String| HttpError::Authorities {
        path: path.into(),
        problem,
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fail(error.to_string()))?;
    if certificates.is_empty() {
        return Err(fail("holds no certificate".into()));
    }
    Ok(certificates)
}

enum Stop {
    Superseded,
    Later(String),
    Never(String),
}

fn failed(error: ureq::Error) -> Stop {
    use ureq::Error;
    let text = error.to_string();
    match error {
        Error::BadUri(_)
        | Error::Http(_)
        | Error::RedirectFailed
        | Error::TooManyRedirects
        | Error::RequireHttpsOnly(_)
        | Error::LargeResponseHeader(..) => Stop::Never(text),
        // Certificates too: the clock may not be set yet.
        _ => Stop::Later(text),
    }
}

/// Whether a partial answer is the rest that was asked for.
fn begins_at(headers: &HeaderMap, offset: u64, size: u64) -> Result<(), Stop> {
    let range = headers
        .get(CONTENT_RANGE)
        .and_then(|range| range.to_str().ok())
        .unwrap_or_default();
    let parsed = range.strip_prefix("bytes ").and_then(|range| {
        let (span, total) = range.split_once('/')?;
        let (first, _) = span.split_once('-')?;
        Some((first.parse::<u64>().ok()?, total.to_owned()))
    });
    let Some((first, total)) = parsed else {
        return Err(Stop::Never(format!(
            "it answers with status 206 and Content-Range {range:?}"
        )));
    };
    if total != "*" && total.parse() != Ok(size) {
        return Err(Stop::Never(format!(
            "it has {total} bytes, announced were {size}"
        )));
    }
    if first != offset {
        return Err(Stop::Never(format!(
            "asked for bytes from {offset}, it sends those from {first}"
        )));
    }
    Ok(())
}

/// The address without user, password and query, for messages.
fn without_secrets(url: &str) -> String {
    match url.parse::<http::Uri>() {
        Ok(uri) => {
            let authority = uri.authority().map_or("", http::uri::Authority::as_str);
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{}://{host}{}", uri.scheme_str().unwrap_or("http"), uri.path())
        }
        Err(_) => url.to_owned(),
    }
}
