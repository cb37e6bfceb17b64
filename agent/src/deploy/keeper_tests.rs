use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::deploy::{FetchError, Fetching, Loaded, Missing, Unloadable, Verdict};
use crate::protocol::SlotSpec;

/// Tells, whenever it is asked for the end of a build, what the keeper has promised the watchdog.
struct Telling {
    pulses: Pulses,
    told: Sender<Option<Duration>>,
}

impl Stage for Telling {
    fn built(&mut self) -> Option<Result<(), String>> {
        // The test has ended when nobody listens.
        let _ = self.told.send(self.pulses.promise("keeper of slot main"));
        None
    }
    fn stage(&mut self, _: &Path, _: Option<&str>) -> Result<Loaded, String> {
        Ok(Loaded::Engine)
    }
    fn restore(&mut self, _: &Path, _: Option<&str>) -> Result<Loaded, Unloadable> {
        Ok(Loaded::Engine)
    }
    fn self_test(&mut self) -> Result<(), String> {
        Ok(())
    }
    fn upgrade(&mut self, _: &Path) -> Result<(), String> {
        Ok(())
    }
    fn stand_in(&mut self, _: &Path, _: Missing) -> Result<(), Unloadable> {
        Ok(())
    }
    fn switch(&mut self) {}
    fn discard(&mut self) {}
    fn empty(&mut self) {}
    fn build(&mut self, _: &Path) {}
    fn begin_watch(&mut self) {}
    fn is_lost(&self) -> bool {
        false
    }
    fn missing(&self) -> Option<Missing> {
        None
    }
    fn backend(&self) -> Option<&'static str> {
        None
    }
    fn verdict(&mut self) -> Verdict {
        Verdict::Open
    }
}

/// A server that is away.
struct Away;

impl Bundles for Away {
    fn fetch(&mut self, _: &SlotSpec, fetching: &Fetching<'_>) -> Result<(), FetchError> {
        (fetching.waits_for)("its server");
        while !(fetching.superseded)() {
            thread::sleep(Duration::from_millis(1));
        }
        Err(FetchError::Superseded)
    }
    fn path(&self, sha256: &str) -> PathBuf {
        sha256.into()
    }
    fn collect(&mut self) {}
}

/// The end of a build may have to load a model, which may last longer than the keeper's other steps.
#[test]
fn the_watchdog_does_not_wait_for_the_keeper_while_the_stage_looks_after_a_build() {
    let (folder, pulses) = (tempfile::tempdir().unwrap(), Pulses::default());
    let (told, promises) = mpsc::channel();
    let stage = Telling {
        pulses: pulses.clone(),
        told,
    };
    let store = Store::open(folder.path(), edgeopt_models::Bytes::ZERO).unwrap();
    let name = "main".parse().unwrap();
    let (stage, bundles) = (Box::new(stage), Box::new(Away));
    let keeper = Keeper::start(&name, store, bundles, stage, Box::new(|| {}), &pulses).unwrap();
    let next = || promises.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(next(), None);
    keeper.handle().send(Event::Desired {
        generation: Generation(1),
        spec: Some(SlotSpec {
            model: "net".into(),
            version: "1".into(),
            sha256: "1".repeat(64),
            size: 1,
            sources: Vec::new(),
        }),
    });
    let is_away = || keeper.handle().report().slot.reason.is_some();
    while !is_away() {
        thread::sleep(Duration::from_millis(1));
    }
    while promises.try_recv().is_ok() {}
    assert_eq!(next(), None, "during a download");
    assert!(is_away());
}
