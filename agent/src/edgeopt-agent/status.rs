//! Asking the running daemon how it is.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use edgeopt_agent::config::{Config, Listen};
use edgeopt_agent::daemon::Overview;
use edgeopt_agent::inputs::camera::CameraView;
use edgeopt_agent::protocol::{CameraState, EngineState};
use edgeopt_models::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn show(path: &Path, watch: bool, json: bool) -> anyhow::Result<ExitCode> {
    let config = Config::load(path, std::env::vars())?;
    let Some(http) = config.http else {
        bail!(
            "{} has no [http] section, through which a daemon says how it is; add `listen = \"unix:/run/edgeopt/http.sock\"`",
            path.display()
        );
    };
    loop {
        let text = ask(&http.listen).with_context(|| format!("no daemon answers at {}", http.listen))?;
        let mut out = std::io::stdout().lock();
        if json {
            out.write_all(text.as_bytes())?;
        } else {
            let overview: Overview =
                serde_json::from_str(&text).context("the daemon is of another version than this program")?;
            let clear = if watch && out.is_terminal() {
                "\x1b[2J\x1b[H"
            } else {
                ""
            };
            write!(out, "{clear}{}", page(&overview))?;
        }
        out.flush()?;
        if !watch {
            return Ok(ExitCode::SUCCESS);
        }
        drop(out);
        thread::sleep(Duration::from_secs(1));
    }
}

fn ask(listen: &Listen) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let asked = async {
        match listen {
            Listen::Unix(path) => get(UnixStream::connect(path).await?).await,
            Listen::Tcp(address) => get(TcpStream::connect(address).await?).await,
        }
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, asked).await })?
}

async fn get(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> anyhow::Result<String> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get("/v1/status")
        .header("Host", "localhost")
        .body(Empty::<hyper::body::Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    if !status.is_success() {
        bail!("{status}: {text}");
    }
    Ok(text)
}

fn write_camera(page: &mut String, view: &CameraView) {
    let camera = &view.camera;
    let state = match camera.state {
        CameraState::Starting => "starting",
        CameraState::Streaming => "streaming",
        CameraState::Failed => "failed",
    };
    let mode = match (&view.format, view.size) {
        (Some(format), Some((width, height))) => format!(", {format} {width}x{height}"),
        _ => String::new(),
    };
    let age = view
        .age_ms
        .map_or("no frame yet".to_owned(), |age| format!("the last {age} ms ago"));
    let _ = writeln!(
        page,
        "  camera {}  {state}{mode}, {:.1} frames/s: {} taken, {} skipped, {} bad, {} lost, {age}",
        view.device, camera.fps, camera.taken, camera.skipped, camera.bad, camera.lost
    );
    if let Some(problem) = &camera.problem {
        let _ = writeln!(page, "  ! {problem}");
    }
}

fn page(overview: &Overview) -> String {
    let mut page = String::new();
    let (link, spool, memory) = (&overview.link, &overview.spool, &overview.memory);
    let state = match (overview.ready, overview.hanging.is_empty()) {
        (_, false) => "hangs",
        (false, true) => "starting",
        (true, true) => "ready",
    };
    // Writing to a text cannot fail.
    let _ = writeln!(
        page,
        "{}  edgeopt-agent {}  {state}, up {} s",
        overview.device, overview.agent_version, overview.uptime_s
    );
    for hanging in &overview.hanging {
        let _ = writeln!(page, "  ! {hanging}");
    }
    let _ = writeln!(page, "broker  {}", link.state);
    for alarm in &link.alarms {
        let _ = writeln!(page, "  ! {alarm}");
    }
    let _ = writeln!(
        page,
        "spool   {} waiting, {} on disk, {} given up, {} too large",
        spool.waiting,
        Bytes(spool.bytes),
        spool.dropped,
        spool.oversize
    );
    let limit = match memory.limit {
        0 => "no limit".to_owned(),
        limit => format!("of {} for models", Bytes(limit)),
    };
    let _ = writeln!(
        page,
        "memory  {} resident, {} reserved {limit}, {} available of {}",
        Bytes(memory.resident),
        Bytes(memory.reserved),
        Bytes(memory.available),
        Bytes(memory.total)
    );
    for (name, slot) in &overview.slots {
        let phase = serde_json::to_value(slot.reported.phase)
            .ok()
            .and_then(|phase| phase.as_str().map(str::to_owned))
            .unwrap_or_default();
        let model = match (&slot.model, &slot.reported.active_version) {
            (Some(model), Some(version)) => format!("{model} {version}"),
            _ => "no model".to_owned(),
        };
        let backend = slot.reported.backend.as_ref();
        let model = backend.map_or_else(|| model.clone(), |backend| format!("{model} on {backend}"));
        let _ = writeln!(
            page,
            "slot {name}  {phase}, {model}: {} answered, {} failed, {} dropped, {} waiting, {:.2} ms median, {:.2} ms p99",
            slot.answered, slot.failed, slot.dropped, slot.waiting, slot.p50_ms, slot.p99_ms
        );
        if let Some(engine) = &slot.reported.engine {
            let state = match (engine.state, slot.build) {
                (EngineState::Building, Some(build)) => {
                    format!("has been built for {} s, {} steps", build.elapsed_s, build.steps)
                }
                (EngineState::Building, None) => "is to be built".to_owned(),
                (EngineState::Trying, _) => "is on trial".to_owned(),
                (EngineState::Failed, _) => "has failed".to_owned(),
            };
            let _ = writeln!(page, "  its engine {state}: {}", engine.reason);
        }
        if let Some(reason) = &slot.reported.reason {
            let _ = writeln!(page, "  {reason}");
        }
        if let Some(camera) = &slot.camera {
            write_camera(&mut page, camera);
        }
    }
    page
}
