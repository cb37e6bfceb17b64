//! The local interface: predictions, health, metrics and status over HTTP, on a Unix socket or a loopback address.
//!
//! ```text
//! POST /v1/slots/<slot>/predict   an image, .npy or .npz  ->  ResultMessage, as CBOR where `Accept` names it
//! GET  /v1/status                 everything              ->  Overview
//! GET  /healthz                   200 while all threads make progress and all slots are settled, 503 otherwise
//! GET  /metrics                   for Prometheus
//! ```

mod metrics;
mod routes;

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime;
use tokio::sync::oneshot;

use crate::config::Listen;
use crate::daemon::overview::Observer;
use crate::daemon::slots::Slots;
use crate::pulse::Pulse;
use routes::Routes;

/// How long a client may take to send the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Who may use the socket: the daemon's user and group.
const SOCKET_MODE: u32 = 0o660;

/// The interface cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum HttpServerError {
    /// The system refuses the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: Listen,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody listens there.
    #[error("{} is in use by another process, or is no socket", .0.display())]
    InUse(PathBuf),
}

/// The running interface; ends when dropped.
pub struct HttpServer {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its thread already.
            drop(thread.join());
        }
    }
}

enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl HttpServer {
    /// Listens, and shows by `pulse` that it goes on.
    ///
    /// # Errors
    /// See [`HttpServerError`].
    pub(crate) fn start(
        listen: &Listen,
        slots: Arc<Slots>,
        observer: Arc<Observer>,
        pulse: Pulse,
    ) -> Result<Self, HttpServerError> {
        let failed = |source| HttpServerError::Listen {
            address: listen.clone(),
            source,
        };
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let within = runtime.enter();
        let listener = match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Listener::Tcp(tokio::net::TcpListener::from_std(listener).map_err(failed)?)
            }
            Listen::Unix(path) => {
                remove_stale(path)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Listener::Unix(tokio::net::UnixListener::from_std(listener).map_err(failed)?)
            }
        };
        drop(within);
        let routes = Arc::new(Routes { slots, observer });
        let (stop, stopped) = oneshot::channel();
        let socket = match listen {
            Listen::Unix(path) => Some(path.clone()),
            Listen::Tcp(_) => None,
        };
        let thread = thread::Builder::new()
            .name("http".into())
            .spawn(move || {
                runtime.spawn(pulse.beat_while_turning());
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(listener, routes) => {}
                        // The sender is dropped rather than used.
                        _gone = stopped => {}
                    }
                });
                runtime.shutdown_timeout(Duration::from_millis(100));
                if let Some(path) = socket {
                    // Whoever starts next removes it otherwise.
                    drop(fs::remove_file(path));
                }
            })
            .map_err(failed)?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

/// A socket that a killed process left behind is removed; one that somebody answers on is not.
fn remove_stale(path: &Path) -> Result<(), HttpServerError> {
    let Ok(data) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !data.file_type().is_socket() || UnixStream::connect(path).is_ok() {
        return Err(HttpServerError::InUse(path.into()));
    }
    fs::remove_file(path).map_err(|source| HttpServerError::Listen {
        address: Listen::Unix(path.into()),
        source,
    })
}

async fn accept(listener: Listener, routes: Arc<Routes>) {
    loop {
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                // An answer goes out at once.
                drop(stream.set_nodelay(true));
                serve(stream, &routes);
            }),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| serve(stream, &routes)),
        };
        if let Err(error) = accepted {
            tracing::warn!("http: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, routes: &Arc<Routes>) {
    let routes = Arc::clone(routes);
    tokio::spawn(async move {
        let service = service_fn(move |request| {
            let routes = Arc::clone(&routes);
            async move { Ok::<_, std::convert::Infallible>(routes.answer(request).await) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .serve_connection(TokioIo::new(stream), service)
            .await;
        if let Err(error) = served {
            tracing::debug!("http: {error}");
        }
    });
}
