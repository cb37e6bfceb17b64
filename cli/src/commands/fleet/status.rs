use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Table, presets};
use edgeopt_agent::fleet::{DeviceView, survey};
use edgeopt_agent::protocol::{DeviceId, EngineState, Phase, ReportedSlot};

use super::access::BrokerArguments;
use crate::screen::{Screen, printable_line};

/// Shows devices, whether they are there, and what their slots run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    broker: BrokerArguments,

    /// Only this device.
    #[arg(short, long)]
    device: Option<DeviceId>,

    /// Seconds without news after which everything is taken to be known.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    quiet_for: f64,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let mut operator = arguments.broker.connect()?;
    let quiet = Duration::try_from_secs_f64(arguments.quiet_for.clamp(0.05, 60.0))?;
    let views = survey(&mut operator, arguments.device.as_ref(), quiet)?;
    screen.result(&views, table)?;
    Ok(if views.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn table(views: &BTreeMap<DeviceId, DeviceView>) -> String {
    if views.is_empty() {
        return "no device has said anything to this broker\n".into();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "device",
        "",
        "agent",
        "generation",
        "slot",
        "phase",
        "active",
        "previous",
        "reason",
    ]);
    for (device, view) in views {
        let status = view.status.as_ref();
        let state = match status {
            Some(status) if status.online => "online",
            Some(_) => "offline",
            None => "unknown",
        };
        let version = status.map_or_else(String::new, |status| printable_line(&status.agent_version));
        let generations = match (&view.reported, &view.desired) {
            (Some(reported), Some(desired)) if reported.generation < desired.generation => {
                format!("{} (of {})", reported.generation.0, desired.generation.0)
            }
            (Some(reported), _) => reported.generation.0.to_string(),
            (None, Some(desired)) => format!("- (of {})", desired.generation.0),
            (None, None) => String::new(),
        };
        let head = [device.as_str(), state, &version, &generations].map(str::to_owned);
        let slots = view.reported.iter().flat_map(|reported| &reported.slots);
        let mut any = false;
        for (slot, report) in slots {
            let head = if any { Default::default() } else { head.clone() };
            any = true;
            let text = |version: &Option<String>| version.as_deref().map(printable_line).unwrap_or_default();
            table.add_row(head.into_iter().chain([
                slot.to_string(),
                phase(report.phase),
                text(&report.active_version),
                text(&report.previous_version),
                text(&report.reason.clone().or_else(|| engine(report))),
            ]));
        }
        if !any {
            table.add_row(head);
        }
    }
    format!("{table}\n")
}

/// What is not as it should be about the engine.
pub(super) fn engine(report: &ReportedSlot) -> Option<String> {
    let engine = report.engine.as_ref()?;
    let state = match engine.state {
        EngineState::Building => "its engine is being built",
        EngineState::Trying => "its engine is on trial",
        EngineState::Failed => "its engine has failed",
    };
    let on = report
        .backend
        .as_deref()
        .map_or_else(String::new, |backend| format!("on {backend}, "));
    Some(format!("{on}{state}: {}", engine.reason))
}

/// A phase as it is written in messages.
pub(super) fn phase(phase: Phase) -> String {
    serde_json::to_value(phase)
        .ok()
        .and_then(|phase| phase.as_str().map(str::to_owned))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use edgeopt_agent::protocol::{Generation, ReportedEngine, ReportedState, Status};

    use super::*;

    #[test]
    fn an_engine_that_is_not_as_it_should_be_is_told_with_what_answers() {
        let mut slot = ReportedSlot {
            backend: Some("cpu".into()),
            ..ReportedSlot::default()
        };
        assert_eq!(engine(&slot), None);
        slot.engine = Some(ReportedEngine {
            state: EngineState::Building,
            reason: "none was built".into(),
        });
        assert_eq!(
            engine(&slot).unwrap(),
            "on cpu, its engine is being built: none was built"
        );
    }

    #[test]
    fn devices_do_not_control_the_terminal() {
        let view = DeviceView {
            status: Some(Status {
                online: true,
                agent_version: "\u{1b}]0;a\u{7}".into(),
                instance: "i".into(),
            }),
            reported: Some(ReportedState {
                generation: Generation(1),
                slots: BTreeMap::from([(
                    "main".parse().unwrap(),
                    ReportedSlot {
                        phase: Phase::Failed,
                        active_version: Some("\u{1b}[2J1".into()),
                        previous_version: Some("0\u{9b}m".into()),
                        reason: Some("why\nnot\u{1b}c".into()),
                        ..ReportedSlot::default()
                    },
                )]),
            }),
            desired: None,
        };
        let shown = table(&BTreeMap::from([("d".parse().unwrap(), view)]));
        assert!(
            !shown.contains(|c: char| c.is_control() && c != '\n'),
            "{shown:?}"
        );
        assert_eq!(shown.matches('\u{fffd}').count(), 6, "{shown:?}");
        assert_eq!(shown.lines().count(), 2, "{shown:?}");
    }
}
