use std::collections::{BTreeSet, VecDeque};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use edgeopt_agent::protocol::{DeviceId, ReportedState, ResultMessage, SlotName, Status, Topic};
use serde::Serialize;
use serde_json::Value;

use super::access::BrokerArguments;
use super::status::{engine, phase};
use crate::screen::{DIM, GOOD, Screen, WARN, printable_line};

/// Shows results, and changes of state, as they arrive.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    broker: BrokerArguments,

    /// Only this device.
    #[arg(short, long)]
    device: Option<DeviceId>,

    /// Only this slot.
    #[arg(short, long)]
    slot: Option<SlotName>,

    /// Telemetry, too.
    #[arg(long)]
    telemetry: bool,

    /// Ends after so many results.
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,

    /// Ends after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
}

/// Ids remembered, to show a repeated result once.
const REMEMBERED: usize = 10_000;

#[derive(Serialize)]
struct Line {
    device: String,
    topic: String,
    message: Value,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let mut operator = arguments.broker.connect()?;
    let device = arguments.device.as_ref().map_or("+", DeviceId::as_str);
    let slot = arguments.slot.as_ref().map_or("+", SlotName::as_str);
    let mut leaves = vec![
        format!("models/{slot}/result"),
        "status".into(),
        "reported".into(),
    ];
    if arguments.telemetry {
        leaves.push("telemetry/+".into());
    }
    for leaf in &leaves {
        operator.subscribe(&format!("edgeopt/v1/{device}/{leaf}"))?;
    }
    let until = arguments
        .seconds
        .map(|seconds| Duration::try_from_secs_f64(seconds).map(|limit| Instant::now() + limit))
        .transpose()?;
    let (mut seen, mut order, mut results) = (BTreeSet::new(), VecDeque::new(), 0u64);
    while until.is_none_or(|until| Instant::now() < until)
        && arguments.count.is_none_or(|count| results < count)
    {
        let Some(heard) = operator.next(Duration::from_millis(200))? else {
            continue;
        };
        let Ok((device, topic)) = Topic::parse(&heard.topic) else {
            continue;
        };
        if let Topic::Result(_) = topic {
            if let Ok(result) = ResultMessage::decode(&heard.payload) {
                if !seen.insert(result.id.clone()) {
                    continue;
                }
                order.push_back(result.id);
                if order.len() > REMEMBERED
                    && let Some(oldest) = order.pop_front()
                {
                    seen.remove(&oldest);
                }
            }
            results += 1;
        }
        let line = Line {
            device: device.to_string(),
            topic: heard.topic,
            // Whatever the message: JSON is read as it is.
            message: ResultMessage::json_of(&heard.payload)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&heard.payload).into_owned())),
        };
        screen.line(&line, |line| shown(&topic, line))?;
    }
    Ok(match arguments.count {
        Some(count) if results < count => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

fn shown(topic: &Topic, line: &Line) -> String {
    let device = &line.device;
    match topic {
        Topic::Result(slot) => match serde_json::from_value::<ResultMessage>(line.message.clone()) {
            Ok(result) => format!(
                "{device}/{slot}  {GOOD}{}{GOOD:#}  {DIM}{} {}, {:.1} ms, {}{DIM:#}\n",
                prediction(&result.prediction),
                printable_line(&result.model),
                printable_line(&result.version),
                result.latency_ms,
                printable_line(&result.stream)
            ),
            Err(error) => {
                let error = printable_line(&error.to_string());
                format!("{device}/{slot}  {WARN}not a result: {error}{WARN:#}\n")
            }
        },
        Topic::Status => match serde_json::from_value::<Status>(line.message.clone()) {
            Ok(status) if status.online => {
                let version = printable_line(&status.agent_version);
                format!("{device}  online, agent {version}\n")
            }
            Ok(_) => format!("{device}  {WARN}offline{WARN:#}\n"),
            Err(_) => String::new(),
        },
        Topic::Reported => match serde_json::from_value::<ReportedState>(line.message.clone()) {
            Ok(state) => state
                .slots
                .iter()
                .map(|(slot, report)| {
                    let version = printable_line(report.active_version.as_deref().unwrap_or("none"));
                    let reason = report
                        .reason
                        .as_deref()
                        .map_or_else(String::new, |why| format!(": {}", printable_line(why)));
                    let engine = engine(report)
                        .map_or_else(String::new, |text| format!(", {}", printable_line(&text)));
                    format!(
                        "{device}/{slot}  generation {}: {}, version {version} answers{engine}{reason}\n",
                        state.generation.0,
                        phase(report.phase)
                    )
                })
                .collect(),
            Err(_) => String::new(),
        },
        _ => printable_line(&format!("{}  {}", line.topic, line.message)) + "\n",
    }
}

/// A prediction in a few words.
fn prediction(value: &Value) -> String {
    let text = printable_line(&describe(value).unwrap_or_else(|| value.to_string()));
    if text.chars().count() > 160 {
        text.chars().take(160).chain(['…']).collect()
    } else {
        text
    }
}

/// In words, for the kinds that have few.
fn describe(value: &Value) -> Option<String> {
    let named = |item: &Value| {
        let label = item.get("label").and_then(Value::as_str).map(str::to_owned);
        let index = item.get("index").or_else(|| item.get("class"));
        let name = label.or_else(|| index.map(Value::to_string))?;
        Some(format!("{name} {:.0} %", 100.0 * item.get("score")?.as_f64()?))
    };
    let list = |field: &str| value.get(field).and_then(Value::as_array);
    match value.get("kind")?.as_str()? {
        "text" => Some(format!("{:?}", value.get("text")?.as_str()?)),
        "classes" => list("classes")?.first().and_then(named),
        "objects" => {
            let objects = list("objects")?;
            let named: Vec<String> = objects.iter().take(8).filter_map(named).collect();
            Some(format!("{} objects: {}", objects.len(), named.join(", ")))
        }
        "text_regions" => Some(format!("{} regions of text", list("regions")?.len())),
        "embedding" => Some(format!("a vector of {}", list("vector")?.len())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_are_told_in_few_words() {
        for (json, text) in [
            (r#"{"kind": "text", "text": "A \"b\""}"#, r#""A \"b\"""#),
            (
                r#"{"kind": "classes", "classes": [{"index": 3, "score": 0.987}]}"#,
                "3 99 %",
            ),
            (
                r#"{"kind": "objects", "objects": [{"class": 1, "label": "cat", "score": 0.5}]}"#,
                "1 objects: cat 50 %",
            ),
            (r#"{"kind": "new"}"#, r#"{"kind":"new"}"#),
        ] {
            assert_eq!(prediction(&serde_json::from_str(json).unwrap()), text);
        }
        let long = serde_json::json!({ "kind": "other", "values": vec![1; 1000] });
        assert_eq!(prediction(&long).chars().count(), 161);
    }

    #[test]
    fn devices_do_not_control_the_terminal() {
        let evil = "\u{1b}[2Jcat\nd\u{9b}m";
        let result = serde_json::json!({
            "id": "1", "model": evil, "version": evil, "stream": evil, "latency_ms": 1.0, "wall_ms": 1,
            "monotonic_us": 1,
            "prediction": { "kind": "classes", "classes": [{ "index": 1, "label": evil, "score": 1.0 }] },
        });
        let main = || "main".parse().unwrap();
        for (topic, message, replaced) in [
            (Topic::Result(main()), result, 12),
            (Topic::Result(main()), serde_json::json!({ "id": [evil] }), 0),
            (
                Topic::Status,
                serde_json::json!({ "online": true, "agent_version": evil, "instance": "i" }),
                3,
            ),
            (
                Topic::Reported,
                serde_json::json!({ "generation": 1, "slots": { "main": {
                    "phase": "failed", "active_version": evil, "previous_version": null, "reason": evil,
                } } }),
                6,
            ),
            // JSON escapes the first two characters itself.
            (
                Topic::Telemetry("power".parse().unwrap()),
                serde_json::json!({ "said": evil }),
                1,
            ),
        ] {
            let line = Line {
                device: "d".into(),
                topic: topic.of(&"d".parse().unwrap()),
                message,
            };
            let mut shown = shown(&topic, &line);
            for own in [GOOD, DIM, WARN] {
                shown = shown
                    .replace(&format!("{own}"), "")
                    .replace(&format!("{own:#}"), "");
            }
            assert!(shown.ends_with('\n') && shown.lines().count() == 1, "{shown:?}");
            assert!(
                !shown.trim_end_matches('\n').contains(char::is_control),
                "{shown:?}"
            );
            assert_eq!(shown.matches('\u{fffd}').count(), replaced, "{shown:?}");
        }
    }
}
