//! `edgeopt-agent`: the daemon on a device.

mod log;
mod service;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use edgeopt_agent::config::{Config, Severity};

/// What `sysexits.h` calls EX_CONFIG: the unit does not restart after it.
const BAD_CONFIGURATION: u8 = 78;

#[derive(Parser)]
#[command(version, about = "Receives models, runs them and publishes results over MQTT.", long_about = None)]
struct Arguments {
    /// The configuration
    #[arg(
        short,
        long,
        global = true,
        value_name = "FILE",
        default_value = "/etc/edgeopt/agent.toml"
    )]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Clone, Copy, Subcommand)]
enum Command {
    /// Run until SIGTERM or Ctrl-C; SIGHUP reads the configuration again (what happens without a command)
    Run,
    /// List everything that is wrong with the configuration, the files it names included
    #[command(alias = "check-config")]
    Check,
    /// Show slots, queues, memory and the connection of the daemon that runs with this configuration
    Status {
        /// Show it again every second
        #[arg(short, long)]
        watch: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command.unwrap_or(Command::Run) {
        Command::Run => service::run(&arguments.config),
        Command::Check => check(&arguments.config),
        Command::Status { watch, json } => status::show(&arguments.config, watch, json),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", in_words(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes; what a cause only repeats is said once.
fn in_words(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !parts.last().is_some_and(|last| last.ends_with(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

fn check(path: &std::path::Path) -> anyhow::Result<ExitCode> {
    let config = match Config::load(path, std::env::vars()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error}");
            return Ok(ExitCode::from(BAD_CONFIGURATION));
        }
    };
    let problems = config.check();
    for problem in &problems {
        println!("{problem}");
    }
    let errors = problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .count();
    println!(
        "{}: {errors} errors, {} warnings",
        path.display(),
        problems.len() - errors
    );
    std::io::Write::flush(&mut std::io::stdout()).context("standard output")?;
    Ok(if errors == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(BAD_CONFIGURATION)
    })
}
