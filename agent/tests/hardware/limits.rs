use std::time::Duration;

use edgeopt_agent::hardware::Hardware;
use edgeopt_agent::protocol::{Sample, SlotName};

use crate::config;
use crate::tree::Tree;

const LIMITS: &str = "[hardware.throttle]\ninterval_s = 5\ndwell_s = 20\n\
    [[hardware.throttle.limits]]\n\
    when = { kind = 'temperature', above = 85.0, below = 78.0, zone = 'tj-thermal' }\nrates = { detector = 2.0 }\n\
    [[hardware.throttle.limits]]\nwhen = { kind = 'power', rail = 'VDD_IN', above = 12.0, below = 10.0 }\nrate = 4.0\n\
    [[hardware.throttle.limits]]\nwhen = { kind = 'power_mode', names = ['7W'] }\nrate = 5.0\n";

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn slots_answer_less_often_while_the_device_is_hot_and_the_operator_is_told() {
    let tree = Tree::orin_nano();
    let mut hardware = Hardware::open(&config(LIMITS).unwrap(), tree.root()).unwrap();
    let detector: SlotName = "detector".parse().unwrap();
    let anomaly: SlotName = "anomaly".parse().unwrap();
    hardware.tick(secs(0));
    assert_eq!(hardware.rate_limit(&detector), None);
    assert_eq!(hardware.next_tick(secs(0)), Some(secs(5)));

    tree.write("sys/class/thermal/thermal_zone4/temp", "86000");
    hardware.tick(secs(4)); // not the time to look
    assert_eq!(hardware.rate_limit(&detector), None);
    hardware.tick(secs(5));
    assert_eq!(hardware.rate_limit(&detector), Some(2.0));
    assert_eq!(hardware.rate_limit(&anomaly), None);

    let Some(Sample::RateLimit { causes, slots }) = hardware.samples(secs(6)).pop() else {
        panic!("no sample of limits")
    };
    assert_eq!(
        causes.into_iter().collect::<Vec<_>>(),
        ["temperature of tj-thermal"]
    );
    assert_eq!(slots.into_iter().collect::<Vec<_>>(), [(detector.clone(), 2.0)]);

    // The zone is lost for a while: nobody knows that it is cool.
    tree.remove("sys/class/thermal/thermal_zone4/temp");
    hardware.tick(secs(100));
    assert_eq!(hardware.rate_limit(&detector), Some(2.0));
    tree.write("sys/class/thermal/thermal_zone4/temp", "50000");
    hardware.tick(secs(200));
    hardware.tick(secs(219));
    assert_eq!(hardware.rate_limit(&detector), Some(2.0));
    hardware.tick(secs(224));
    assert_eq!(hardware.rate_limit(&detector), None);
}

#[test]
fn power_and_power_mode_limit_too() {
    let tree = Tree::orin_nano();
    let mut hardware = Hardware::open(&config(LIMITS).unwrap(), tree.root()).unwrap();
    let anomaly: SlotName = "anomaly".parse().unwrap();
    tree.write("var/lib/nvpmodel/status", "pmode:0003");
    hardware.tick(secs(0));
    assert_eq!(hardware.rate_limit(&anomaly), Some(5.0));
    tree.write("sys/class/hwmon/hwmon1/curr1_input", "2400"); // 5.016 V · 2.4 A = 12.04 W
    hardware.tick(secs(5));
    assert_eq!(hardware.rate_limit(&anomaly), Some(4.0));
}
