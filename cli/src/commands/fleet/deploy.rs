use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use edgeopt_agent::fleet::{
    BundleFile, Change, DeviceProgress, Failure, Operator, Rollout, RolloutEnd, roll_out, survey,
};
use edgeopt_agent::protocol::{DeviceId, ModelSource, SlotName, SlotSpec, TopicName};
use serde::Serialize;

use super::access::BrokerArguments;
use super::status::{engine, phase};
use crate::screen::{BAD, GOOD, Screen, printable_line};

#[derive(clap::Args)]
struct Target {
    /// The device; several, in this order.
    #[arg(short, long, required_unless_present = "all")]
    device: Vec<DeviceId>,

    /// Every device that is online.
    #[arg(long, conflicts_with = "device")]
    all: bool,

    /// The slot.
    #[arg(short, long)]
    slot: SlotName,

    /// Devices under way at a time.
    #[arg(long, default_value_t = 1, value_name = "N")]
    wave: usize,

    /// Devices that may fail before no further one is begun.
    #[arg(long, default_value_t = 0, value_name = "N")]
    max_failures: usize,

    /// Seconds that one device may take.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,

    /// Allows that other slots are emptied of which the broker has lost what they should hold.
    #[arg(long)]
    forget_other_slots: bool,
}

/// Puts a bundle into a slot of one or many devices, and waits until it answers there or they say why not.
///
/// Without --source the bundle is handed out over MQTT by this command, in chunks, as the devices ask for them. A device
/// that is offline takes the bundle when it comes back, if a source is there then.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
        edgeopt fleet deploy detector.edge --slot detector --device cam-1\n  \
        edgeopt fleet deploy detector.edge --slot detector --all --wave 10 --max-failures 2 --source https://models.example/detector.edge")]
pub(crate) struct Arguments {
    /// The bundle.
    bundle: PathBuf,

    #[command(flatten)]
    target: Target,

    /// Where devices get it: https://…, http://… or file:/… on the device; several, tried in this order.
    #[arg(long, value_name = "URL")]
    source: Vec<String>,

    /// Waits until the new model has been watched (by default 50 answers, or a minute), not only until it answers.
    #[arg(long)]
    watched: bool,

    /// Also hands it out over MQTT, after the sources given.
    #[arg(long, requires = "source")]
    mqtt_too: bool,

    #[command(flatten)]
    broker: BrokerArguments,
}

/// Empties a slot of one or many devices.
#[derive(clap::Args)]
pub(crate) struct RemoveArguments {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    broker: BrokerArguments,
}

/// A step of a device, as a line of JSON.
#[derive(Serialize)]
struct Step<'a> {
    device: &'a DeviceId,
    seconds: f64,
    #[serde(flatten)]
    what: serde_json::Value,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let bundle = BundleFile::open(&arguments.bundle)
        .with_context(|| format!("cannot deploy {}", arguments.bundle.display()))?;
    let mut operator = arguments.broker.connect()?;
    let mut sources: Vec<ModelSource> = arguments.source.iter().cloned().map(ModelSource::Url).collect();
    let hands_out = sources.is_empty() || arguments.mqtt_too;
    let id: TopicName = format!("cli-{:08x}", fastrand::u32(..)).parse()?;
    if hands_out {
        sources.push(ModelSource::Blob(id.clone()));
    }
    let spec = SlotSpec {
        model: bundle.manifest.name.clone(),
        version: bundle.manifest.version.clone(),
        sha256: bundle.sha256.clone(),
        size: bundle.size.0,
        sources,
    };
    let blob = hands_out.then_some((id, &bundle));
    go(
        &mut operator,
        &arguments.target,
        Change::Install(spec),
        blob,
        arguments.watched,
        screen,
    )
}

pub(crate) fn remove(arguments: &RemoveArguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let mut operator = arguments.broker.connect()?;
    go(
        &mut operator,
        &arguments.target,
        Change::Empty,
        None,
        false,
        screen,
    )
}

fn go(
    operator: &mut Operator,
    target: &Target,
    change: Change,
    blob: Option<(TopicName, &BundleFile)>,
    watched: bool,
    screen: &Screen,
) -> anyhow::Result<ExitCode> {
    let mut devices = target.device.clone();
    if target.all {
        let views = survey(operator, None, Duration::from_secs(1))?;
        devices = views
            .into_iter()
            .filter(|(_, view)| view.is_online())
            .map(|(device, _)| device)
            .collect();
        if devices.is_empty() {
            bail!("no device is online at this broker");
        }
    }
    let rollout = Rollout {
        devices,
        slot: target.slot.clone(),
        change,
        blob,
        wave: target.wave,
        failures: target.max_failures,
        patience: Duration::from_secs(target.timeout),
        watched,
        forget_other_slots: target.forget_other_slots,
    };
    let (begun, mut shown) = (Instant::now(), Ok(()));
    let end = roll_out(operator, &rollout, &mut |device, progress| {
        let shown_now = show(screen, device, progress, begun.elapsed());
        if shown.is_ok() {
            shown = shown_now;
        }
    })?;
    shown?;
    finish(&end, screen)
}

fn show(
    screen: &Screen,
    device: &DeviceId,
    progress: &DeviceProgress,
    since: Duration,
) -> anyhow::Result<()> {
    let seconds = since.as_secs_f64();
    let Some((text, what)) = told(progress) else {
        return Ok(());
    };
    screen.line(
        &Step {
            device,
            seconds,
            what,
        },
        |_| format!("{seconds:7.2} s  {device}  {text}\n"),
    )
}

/// A step in words and as JSON; `None` for one that is not worth a line.
fn told(progress: &DeviceProgress) -> Option<(String, serde_json::Value)> {
    Some(match progress {
        DeviceProgress::Asked(generation) => (
            format!("asked (generation {})", generation.0),
            serde_json::json!({ "asked": generation }),
        ),
        DeviceProgress::Reports(slot) => {
            let reason = slot
                .reason
                .as_ref()
                .map_or_else(String::new, |why| format!(": {}", printable_line(why)));
            let active = slot.active_version.as_ref().map_or_else(
                || "nothing answers".to_owned(),
                |version| format!("{} answers", printable_line(version)),
            );
            let watched = if slot.watched { ", watched" } else { "" };
            let engine = engine(slot).map_or_else(String::new, |text| format!(", {}", printable_line(&text)));
            (
                format!("{}, {active}{watched}{engine}{reason}", phase(slot.phase)),
                serde_json::json!({ "reports": slot }),
            )
        }
        // A line for each request would be many.
        DeviceProgress::Sent(share) if *share < 1.0 => return None,
        DeviceProgress::Sent(share) => (
            "has all of the bundle from here".to_owned(),
            serde_json::json!({ "sent": share }),
        ),
        DeviceProgress::Done => (format!("{GOOD}done{GOOD:#}"), serde_json::json!({ "done": true })),
        DeviceProgress::Failed(failure) => {
            let words = words(failure);
            (
                format!("{BAD}failed{BAD:#}: {}", printable_line(&words)),
                serde_json::json!({ "failed": words }),
            )
        }
    })
}

fn words(failure: &Failure) -> String {
    match failure {
        Failure::Refused(reason) => reason.clone(),
        Failure::Late(None) => "it has not said anything about it; it will take it when it comes back".into(),
        Failure::Late(Some(slot)) => format!(
            "not in time; its last word was {}{}",
            phase(slot.phase),
            slot.reason
                .as_ref()
                .map_or_else(String::new, |why| format!(" ({why})"))
        ),
        Failure::Superseded(generation) => {
            format!(
                "somebody else asked for something newer: generation {}",
                generation.0
            )
        }
        Failure::WouldEmpty(slots) => {
            let slots: Vec<&str> = slots.iter().map(SlotName::as_str).collect();
            format!(
                "the broker has lost what it should run, and this would empty {}; --forget-other-slots allows that",
                slots.join(", ")
            )
        }
    }
}

fn finish(end: &RolloutEnd, screen: &Screen) -> anyhow::Result<ExitCode> {
    let (done, failed, untouched) = (end.done.len(), end.failed.len(), end.untouched.len());
    if done + failed + untouched > 1 && !screen.json {
        let rest = if untouched > 0 {
            format!(", {untouched} not begun because too many failed")
        } else {
            String::new()
        };
        screen.line(&(), |()| format!("{done} done, {failed} failed{rest}\n"))?;
    }
    Ok(if failed + untouched == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use edgeopt_agent::protocol::{Phase, ReportedSlot};

    use super::*;

    #[test]
    fn devices_do_not_control_the_terminal() {
        let slot = ReportedSlot {
            phase: Phase::Failed,
            active_version: Some("1\u{9b}2J".into()),
            reason: Some("\u{1b}[2Jgone\nd  done".into()),
            ..ReportedSlot::default()
        };
        let (text, _) = told(&DeviceProgress::Reports(slot.clone())).unwrap();
        assert_eq!(
            text,
            "failed, 1\u{fffd}2J answers: \u{fffd}[2Jgone\u{fffd}d  done"
        );
        for failure in [
            Failure::Refused("\u{1b}[2J".into()),
            Failure::Late(Some(Box::new(slot))),
        ] {
            let (text, _) = told(&DeviceProgress::Failed(failure)).unwrap();
            let own = format!("{BAD}failed{BAD:#}: ");
            let behind = text.strip_prefix(&own).unwrap();
            assert!(
                behind.contains("\u{fffd}[2J") && !behind.contains('\u{1b}'),
                "{behind:?}"
            );
        }
    }

    #[test]
    fn slots_that_would_be_emptied_are_named() {
        let words = words(&Failure::WouldEmpty(vec![
            "a".parse().unwrap(),
            "b".parse().unwrap(),
        ]));
        assert!(words.contains("empty a, b; --forget-other-slots"), "{words}");
    }
}
