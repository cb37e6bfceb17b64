//! Log lines: with their fields to the journal where systemd runs, as text to standard error elsewhere.

use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;

use tracing::level_filters::LevelFilter;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Names the least important level shown: error, warn, info, debug or trace.
const LEVEL: &str = "EDGEOPT_LOG";

/// Levels as syslog names them.
const PRIORITIES: PriorityMappings = PriorityMappings {
    error: Priority::Error,
    warn: Priority::Warning,
    info: Priority::Informational,
    debug: Priority::Debug,
    trace: Priority::Debug,
};

/// Begins logging; an unknown level is an error that names it.
pub(crate) fn start() -> anyhow::Result<()> {
    let level = match std::env::var(LEVEL) {
        Ok(text) => text.parse::<LevelFilter>().map_err(|_| {
            anyhow::anyhow!("{LEVEL}={text:?} is no level: use error, warn, info, debug or trace")
        })?,
        Err(_) => LevelFilter::INFO,
    };
    let registry = tracing_subscriber::registry().with(level);
    // Where the journal cannot be reached, lines without fields are better than none.
    let journal = to_journal().then(|| tracing_journald::layer().ok()).flatten();
    match journal {
        Some(layer) => registry
            .with(
                layer
                    .with_field_prefix(Some("EDGEOPT".into()))
                    .with_priority_mappings(PRIORITIES),
            )
            .init(),
        None => {
            let terminal = std::io::stderr().is_terminal();
            let layer = tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(terminal)
                .with_target(false)
                // How long each inference took, by its steps; spans exist from the level debug on.
                .with_span_events(FmtSpan::CLOSE);
            registry.with(layer).init();
        }
    }
    Ok(())
}

/// Whether standard error goes to the journal: its device and inode are those that systemd tells (`systemd.exec(5)`). A
/// process further down inherits the variable, but may write elsewhere.
fn to_journal() -> bool {
    let (Ok(told), Ok(file)) = (
        std::env::var("JOURNAL_STREAM"),
        std::fs::metadata("/proc/self/fd/2"),
    ) else {
        return false;
    };
    told == format!("{}:{}", file.dev(), file.ino())
}
