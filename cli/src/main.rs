//! The command line: parses, calls the libraries, shows what they say.

mod commands;
mod failure;
mod screen;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use screen::{ColorChoice, Screen};

/// Turns ONNX models into small, fast, verified bundles for Jetson-class devices.
#[derive(Parser)]
#[command(
    name = "edgeopt",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Examples:\n  \
        edgeopt inspect model.onnx\n  \
        edgeopt build model.onnx -o model.edge --precision int8 --memory 64MiB --calibration-data images/\n  \
        edgeopt run model.edge --input photo.jpg"
)]
struct Arguments {
    /// Prints JSON for machines instead of text for people.
    #[arg(long, global = true)]
    json: bool,

    /// When to colour the output.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    color: ColorChoice,

    /// Says more (twice: everything).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,

    /// No progress bars.
    #[arg(short, long, global = true)]
    quiet: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Build(Box<commands::build::Arguments>),
    Inspect(commands::inspect::Arguments),
    Run(commands::run::Arguments),
    Bench(commands::bench::Arguments),
    Compare(commands::compare::Arguments),
    Verify(commands::verify::Arguments),
    Sign(commands::sign::Arguments),
    Keygen(commands::keygen::Arguments),
    Doctor(commands::doctor::Arguments),
    Fleet(commands::fleet::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let level = match arguments.verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    // Targets and levels (`edgeopt=debug,ort=info`), without the regular expressions over fields that would double the
    // size of this dependency.
    let filter: Targets = std::env::var("RUST_LOG")
        .ok()
        .and_then(|asked| asked.parse().ok())
        .unwrap_or_else(|| Targets::new().with_default(level));
    tracing_subscriber::registry()
        .with(
            fmt::layer()
                .with_writer(std::io::stderr)
                .without_time()
                .with_filter(filter),
        )
        .init();

    let screen = Screen::new(arguments.json, arguments.color, arguments.quiet);
    let result = match arguments.command {
        Command::Build(arguments) => commands::build::run(&arguments, &screen),
        Command::Inspect(arguments) => commands::inspect::run(&arguments, &screen),
        Command::Run(arguments) => commands::run::run(&arguments, &screen),
        Command::Bench(arguments) => commands::bench::run(&arguments, &screen),
        Command::Compare(arguments) => commands::compare::run(&arguments, &screen),
        Command::Verify(arguments) => commands::verify::run(&arguments, &screen),
        Command::Sign(arguments) => commands::sign::run(&arguments, &screen),
        Command::Keygen(arguments) => commands::keygen::run(&arguments, &screen),
        Command::Doctor(arguments) => commands::doctor::run(&arguments, &screen),
        Command::Fleet(arguments) => commands::fleet::run(&arguments, &screen),
    };
    match result {
        Ok(code) => code,
        Err(error) => failure::report(&error, &screen),
    }
}
