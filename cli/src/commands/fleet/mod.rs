mod access;
mod broker;
mod command;
mod deploy;
mod listen;
mod send;
mod status;

use std::process::ExitCode;

use clap::Subcommand;

use crate::screen::Screen;

/// Works with devices that run edgeopt-agent, over MQTT: deploys models, shows state and results.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
        edgeopt fleet status --broker broker.example\n  \
        edgeopt fleet deploy detector.edge --slot detector --device cam-1 --broker broker.example\n  \
        edgeopt fleet listen --broker broker.example\n\n\
        EDGEOPT_BROKER stands for --broker.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Status(status::Arguments),
    Deploy(Box<deploy::Arguments>),
    Remove(deploy::RemoveArguments),
    Listen(listen::Arguments),
    Send(send::Arguments),
    Command(command::Arguments),
    Broker(broker::Arguments),
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    match &arguments.action {
        Action::Status(arguments) => status::run(arguments, screen),
        Action::Deploy(arguments) => deploy::run(arguments, screen),
        Action::Remove(arguments) => deploy::remove(arguments, screen),
        Action::Listen(arguments) => listen::run(arguments, screen),
        Action::Send(arguments) => send::run(arguments, screen),
        Action::Command(arguments) => command::run(arguments, screen),
        Action::Broker(arguments) => broker::run(arguments, screen),
    }
}
