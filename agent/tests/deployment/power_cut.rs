//! The process is killed at random moments of deployments; what is on disk must always lead back to a model.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use edgeopt_agent::protocol::Phase;

use super::bundles::{Computes, make};
use super::{desire, keeper, record, server, wait_for};

const FOLDER: &str = "EDGEOPT_TEST_POWER_CUT";

/// Not a test of its own: what the killed process does. It deploys one version after the other for ever.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let root = Path::new(&folder);
    let server = server(8);
    let keeper = keeper(root, &server, None);
    let begun = keeper.handle().report().generation.0;
    for generation in begun + 1.. {
        let factor = generation as f32;
        // Every third bundle lies about what it computes.
        let golden = if generation % 3 == 0 { factor + 7.0 } else { factor };
        let made = make(
            root,
            &generation.to_string(),
            Computes::Times(factor),
            Some(golden),
        );
        desire(&keeper, generation, &made);
        wait_for(&keeper, |slot| {
            matches!(slot.phase, Phase::Active | Phase::Failed) && record(root).generation.0 == generation
        });
        std::fs::remove_file(&made.path).unwrap();
    }
}

fn spawn(root: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["power_cut::child", "--exact", "--nocapture"])
        .env(FOLDER, root)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn killed_at_any_moment_the_slot_has_a_model_again() {
    let root = tempfile::tempdir().unwrap();
    // A first model that is trusted: one that is still watched at the fourth start is given up, and a busy machine
    // deploys nothing between so many kills.
    {
        let server = server(8);
        let keeper = keeper(root.path(), &server, None);
        let made = make(root.path(), "0", Computes::Times(1.0), Some(1.0));
        desire(&keeper, 1, &made);
        wait_for(&keeper, |slot| slot.phase == Phase::Active);
        for _ in 0..10 {
            super::ask(&server, [1.0; 4]).unwrap();
        }
        wait_for(&keeper, |slot| !slot.watched);
    }
    let (mut state, mut generations) = (1u64, Vec::new());
    for kill in 0..40 {
        let mut child = spawn(root.path());
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(30_000 + (state >> 33) % 150_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let record = record(root.path());
        let active = record
            .active
            .clone()
            .unwrap_or_else(|| panic!("kill {kill}: no model: {record:?}"));
        // It is on disk, whole, and computes what its version says.
        let server = server(8);
        let keeper = keeper(root.path(), &server, None);
        let begun = std::time::Instant::now();
        while server.model().is_none() {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "kill {kill}: {active:?} does not come back"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        let answer = super::ask(&server, [1.0; 4]).unwrap();
        // Its own word: what was under way may have been switched to meanwhile.
        let version: f64 = answer.version.parse().unwrap();
        assert_eq!(super::first(&answer), version.max(1.0), "kill {kill}");
        assert!(
            version == 0.0 || version % 3.0 != 0.0,
            "kill {kill}: a bundle that lies is active"
        );
        generations.push(record.generation.0);
        drop(keeper);
    }
    eprintln!("generations at the kills: {generations:?}");
    assert!(
        generations.last() > generations.first(),
        "nothing was ever deployed"
    );
}
