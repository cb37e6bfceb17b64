//! Sees all that a device publishes, and misses nothing while the broker restarts: it has a session of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use edgeopt_agent::config::Config;
use edgeopt_agent::link::{
    BackoffPolicy, Environment, Inbound, Link, LinkOptions, LinkState, MemoryOutbox, PacketLimit,
};
use edgeopt_agent::protocol::{ReportedSlot, ReportedState, ResultMessage, Status, Telemetry};

use crate::support::{PATIENCE, eventually};

pub(crate) struct Observer {
    _link: Link,
    heard: Arc<Mutex<Vec<Inbound>>>,
}

impl Observer {
    /// Of device `d`; returns once nothing published is missed.
    pub(crate) fn start(port: u16) -> Self {
        let text = format!(
            "device = \"observer\"\n[broker]\nhost = \"127.0.0.1\"\nport = {port}\nmax_packet = \"4MiB\"\n\
             [spool]\nsegment = \"4MiB\"\n[trust]\nrequire_signature = false\n"
        );
        let config = Config::from_text(Path::new("observer.toml"), &text, []).unwrap();
        let options = LinkOptions {
            backoff: BackoffPolicy {
                base: Duration::from_millis(20),
                cap: Duration::from_millis(100),
                stable: Duration::from_secs(60),
            },
            filters: vec!["edgeopt/v1/d/#".into()],
            ..LinkOptions::new(&config, "0.0.0-test")
        };
        let outbox = MemoryOutbox::new(16, PacketLimit::new(1 << 20));
        let (link, received) = Link::start(options, Box::new(outbox), Environment::default()).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&heard);
        thread::spawn(move || {
            for message in received {
                all.lock().unwrap().push(message);
            }
        });
        let subscribed = link.watch().wait(PATIENCE, |view| {
            matches!(view.state, LinkState::Connected { subscribed: true, .. })
        });
        assert!(subscribed.is_ok(), "{subscribed:?}");
        Self { _link: link, heard }
    }

    /// What was published on topics that end so, in order.
    pub(crate) fn on(&self, end: &str) -> Vec<Vec<u8>> {
        let heard = self.heard.lock().unwrap();
        let matching = heard.iter().filter(|message| message.topic.ends_with(end));
        matching.map(|message| message.payload.clone()).collect()
    }

    pub(crate) fn results(&self, slot: &str) -> Vec<ResultMessage> {
        let all = self.on(&format!("/models/{slot}/result"));
        all.iter()
            .map(|payload| ResultMessage::decode(payload).unwrap())
            .collect()
    }

    /// Results of a slot, each id once, by id.
    pub(crate) fn distinct(&self, slot: &str) -> BTreeMap<String, ResultMessage> {
        let all = self.results(slot).into_iter();
        all.map(|message| (message.id.clone(), message)).collect()
    }

    pub(crate) fn reports(&self) -> Vec<ReportedState> {
        let all = self.on("/reported");
        all.iter()
            .map(|payload| serde_json::from_slice(payload).unwrap())
            .collect()
    }

    /// Waits for a report about slot `main` for which `what` holds.
    pub(crate) fn report(&self, what: impl Fn(u64, &ReportedSlot) -> bool) -> ReportedSlot {
        let mut found = None;
        eventually("the device reports that", || {
            found = self.reports().into_iter().find_map(|report| {
                let slot = report.slots.iter().find(|(name, _)| name.as_str() == "main")?.1;
                what(report.generation.0, slot).then(|| slot.clone())
            });
            found.is_some()
        });
        found.unwrap()
    }

    pub(crate) fn telemetry(&self, kind: &str) -> Vec<Telemetry> {
        let all = self.on(&format!("/telemetry/{kind}"));
        all.iter()
            .map(|payload| serde_json::from_slice(payload).unwrap())
            .collect()
    }

    /// Whether the device is there, by its last word.
    pub(crate) fn online(&self) -> bool {
        let last = self.on("/d/status").pop();
        last.is_some_and(|payload| serde_json::from_slice::<Status>(&payload).unwrap().online)
    }
}
