//! What is shown where: results on standard output, progress and errors on standard error, colour on terminals only.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColorChoice {
    /// On terminals, unless NO_COLOR is set.
    #[default]
    Auto,
    Always,
    Never,
}

/// Bold text.
pub(crate) const BOLD: Style = Style::new().bold();
/// Text of less weight.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Something good.
pub(crate) const GOOD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
/// Something to look at.
pub(crate) const WARN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
/// Something wrong.
pub(crate) const BAD: Style = Style::new()
    .fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)))
    .bold();

/// Where output goes.
pub(crate) struct Screen {
    /// Results as JSON.
    pub(crate) json: bool,
    progress: bool,
}

impl Screen {
    pub(crate) fn new(json: bool, color: ColorChoice, quiet: bool) -> Self {
        match color {
            ColorChoice::Auto => anstream::ColorChoice::Auto,
            ColorChoice::Always => anstream::ColorChoice::Always,
            ColorChoice::Never => anstream::ColorChoice::Never,
        }
        .write_global();
        Self {
            json,
            progress: !quiet && !json && std::io::stderr().is_terminal(),
        }
    }

    /// Prints a result: as JSON if that was asked for, else as `text` makes it.
    pub(crate) fn result<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        let mut out = anstream::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, value)?;
            writeln!(out)?;
        } else {
            write!(out, "{}", text(value))?;
        }
        out.flush()?;
        Ok(())
    }

    /// Prints one of many results as soon as it is there: a line of JSON each, or text.
    pub(crate) fn line<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        let mut out = anstream::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, value)?;
            writeln!(out)?;
        } else {
            write!(out, "{}", text(value))?;
        }
        out.flush()?;
        Ok(())
    }

    /// Prints an error and a hint.
    pub(crate) fn error(&self, message: &str, hint: Option<&str>) {
        let mut out = anstream::stderr().lock();
        let message = printable(message);
        // Nothing can be done if standard error is closed.
        let _ = writeln!(out, "{BAD}error{BAD:#}: {message}");
        if let Some(hint) = hint {
            let _ = writeln!(out, "{GOOD}hint{GOOD:#}: {hint}");
        }
    }

    /// Prints something to look at, without stopping.
    pub(crate) fn warning(&self, message: &str) {
        let message = printable(message);
        let _ = writeln!(anstream::stderr().lock(), "{WARN}warning{WARN:#}: {message}");
    }

    /// A progress bar that shows up only if the work takes longer than a second, and only on terminals.
    pub(crate) fn bar(&self, what: &str, total: Option<u64>) -> ProgressBar {
        if !self.progress {
            return ProgressBar::hidden();
        }
        let bar = match total {
            Some(total) => ProgressBar::new(total).with_style(style("{msg:24} {bar:32} {pos}/{len} {eta}")),
            None => ProgressBar::new_spinner().with_style(style("{spinner} {msg} {elapsed}")),
        };
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_secs(1));
        bar
    }
}

/// Text from a file or a device, which must not control the terminal, nor turn the direction of what stands around it.
pub(crate) fn printable(text: &str) -> String {
    text.split('\n')
        .map(printable_line)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The same for a place within a line, which it must not end.
pub(crate) fn printable_line(text: &str) -> String {
    let turns = |c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|c| if c.is_control() || turns(c) { '\u{fffd}' } else { c })
        .collect()
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::{printable, printable_line};

    #[test]
    fn nothing_that_controls_a_terminal_is_left() {
        let text = "é\u{1b}[2J\r\u{9b}m\u{7f}\u{202e}\nb\tc";
        assert_eq!(
            printable(text),
            "é\u{fffd}[2J\u{fffd}\u{fffd}m\u{fffd}\u{fffd}\nb\u{fffd}c"
        );
        assert_eq!(printable_line(text), printable(text).replace('\n', "\u{fffd}"));
    }
}
