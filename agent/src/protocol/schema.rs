//! Keeps `docs/schemas/` and `docs/mqtt.md` true to the types. Run with `EDGEOPT_UPDATE_SCHEMAS=1` to rewrite the schemas.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use schemars::{JsonSchema, schema_for};
use serde::de::DeserializeOwned;

use super::*;

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// One type of message: its name, its schema and a way to read one.
struct Message {
    name: &'static str,
    schema: String,
    read: fn(&str) -> Result<(), serde_json::Error>,
}

fn message<T: JsonSchema + DeserializeOwned>(name: &'static str) -> Message {
    let schema = serde_json::to_string_pretty(&schema_for!(T)).unwrap() + "\n";
    Message {
        name,
        schema,
        read: |text| serde_json::from_str::<T>(text).map(drop),
    }
}

fn messages() -> Vec<Message> {
    vec![
        message::<DesiredState>("DesiredState"),
        message::<ReportedState>("ReportedState"),
        message::<Status>("Status"),
        message::<ResultMessage>("ResultMessage"),
        message::<Telemetry>("Telemetry"),
        message::<Command>("Command"),
        message::<CommandReply>("CommandReply"),
        message::<BlobRequest>("BlobRequest"),
        message::<BlobChunk>("BlobChunk"),
    ]
}

#[test]
fn schemas_on_disk_are_those_of_the_types() {
    let folder = docs().join("schemas");
    let update = std::env::var_os("EDGEOPT_UPDATE_SCHEMAS").is_some();
    let mut expected = BTreeSet::new();
    for message in messages() {
        let path = folder.join(format!("{}.json", message.name));
        if update {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, &message.schema).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            found, message.schema,
            "{} has drifted: EDGEOPT_UPDATE_SCHEMAS=1 rewrites it",
            message.name
        );
        expected.insert(path);
    }
    let present: BTreeSet<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(present, expected, "schemas without a type");
}

#[test]
fn every_example_in_the_guide_reads_as_what_it_says_it_is() {
    let guide = fs::read_to_string(docs().join("mqtt.md")).unwrap();
    let messages = messages();
    let mut shown = BTreeSet::new();
    let mut rest = guide.as_str();
    while let Some(start) = rest.find("```json ") {
        let block = &rest[start + "```json ".len()..];
        let (name, block) = block.split_once('\n').unwrap();
        let (text, after) = block.split_once("```").unwrap();
        let message = messages.iter().find(|message| message.name == name).expect(name);
        (message.read)(text).unwrap_or_else(|error| panic!("example of {name}: {error}\n{text}"));
        shown.insert(message.name);
        rest = after;
    }
    let all: BTreeSet<&str> = messages.iter().map(|message| message.name).collect();
    assert_eq!(shown, all, "each message has an example");
}

#[test]
fn the_guide_lists_each_topic_with_its_writer_and_whether_it_is_retained() {
    let guide = fs::read_to_string(docs().join("mqtt.md")).unwrap();
    let device: DeviceId = "d".parse().unwrap();
    let name: TopicName = "n".parse().unwrap();
    let slot: SlotName = "s".parse().unwrap();
    for (topic, shown) in [
        (Topic::Desired, "desired"),
        (Topic::Reported, "reported"),
        (Topic::Status, "status"),
        (Topic::Input(slot.clone()), "models/<slot>/input"),
        (Topic::Result(slot), "models/<slot>/result"),
        (Topic::Telemetry(name.clone()), "telemetry/<kind>"),
        (Topic::Command(name.clone()), "command/<id>"),
        (Topic::CommandReply(name.clone()), "command/<id>/reply"),
        (Topic::BlobRequest(name.clone()), "blob/<id>/request"),
        (Topic::BlobChunk(name), "blob/<id>/chunk"),
    ] {
        let levels = |text: &str| text.split('/').count();
        assert_eq!(levels(&topic.of(&device)), levels(shown) + 3, "{shown}");
        let row = guide
            .lines()
            .find(|line| line.starts_with(&format!("| `{shown}` |")))
            .unwrap_or_else(|| panic!("no row for {shown}"));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[2], format!("{:?}", topic.writer()).to_lowercase(), "{row}");
        assert_eq!(cells[3], if topic.retained() { "yes" } else { "no" }, "{row}");
    }
}

#[test]
fn the_kind_of_a_sample_is_its_tag() {
    use std::collections::BTreeMap;
    for sample in [
        Sample::Memory {
            available: 1,
            total: 2,
            resident: 3,
            limit: 4,
            reserved: 5,
        },
        Sample::Power(BTreeMap::new()),
        Sample::Temperature {
            zones: BTreeMap::new(),
            throttled: false,
        },
        Sample::Fan(BTreeMap::new()),
        Sample::PowerMode {
            id: 0,
            name: "15W".into(),
        },
        Sample::RateLimit {
            causes: BTreeSet::new(),
            slots: BTreeMap::new(),
        },
        Sample::Camera(BTreeMap::new()),
        Sample::Latency(BTreeMap::new()),
        Sample::Link {
            connects: 1,
            spooled: 2,
            dropped: 3,
            oversize: 4,
        },
    ] {
        let json = serde_json::to_value(&sample).unwrap();
        assert!(json.get(sample.kind().as_str()).is_some(), "{json}");
        assert!(sample.kind().as_str().parse::<TopicName>().is_ok());
    }
}
