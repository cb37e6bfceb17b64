use std::time::Duration;

use edgeopt_agent::hardware::{Hardware, Sysfs, ThermalReader, fans, power_mode, rails};
use edgeopt_agent::protocol::Sample;
use embedded_hal_mock::eh1::i2c::Transaction;

use crate::config;
use crate::devices::Scripted;
use crate::tree::Tree;

#[test]
fn an_orin_nano_reports_rails_temperatures_fan_and_power_mode() {
    let tree = Tree::orin_nano();
    let mut hardware = Hardware::open(&config("").unwrap(), tree.root()).unwrap();
    let samples = hardware.samples(Duration::ZERO);
    let [
        Sample::Power(rails),
        Sample::Temperature { zones, throttled },
        Sample::Fan(fans),
        Sample::PowerMode { id, name },
    ] = samples.as_slice()
    else {
        panic!("{samples:?}")
    };
    let names: Vec<&str> = rails.keys().map(String::as_str).collect();
    assert_eq!(names, ["VDD_CPU_GPU_CV", "VDD_IN", "VDD_SOC"]);
    assert!((rails["VDD_IN"] - 5.016 * 0.896).abs() < 1e-9);
    // A zone that is switched off has no temperature, and other chips' temperatures are no zones.
    let names: Vec<&str> = zones.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["cpu-thermal", "gpu-thermal", "soc0-thermal", "tj-thermal"]
    );
    assert!((zones["gpu-thermal"] - 46.5).abs() < 1e-9);
    assert!(!throttled);
    assert_eq!(fans.len(), 1);
    let fan = &fans["pwmfan"];
    assert!((fan.percent.unwrap() - 20.0).abs() < 1e-9 && fan.rpm == Some(1466));
    assert_eq!((*id, name.as_str()), (0, "15W"));
}

#[test]
fn a_machine_with_none_of_it_reports_nothing() {
    let tree = Tree::empty();
    let mut hardware = Hardware::open(&config("").unwrap(), tree.root()).unwrap();
    assert_eq!(hardware.samples(Duration::ZERO), []);
    assert_eq!(hardware.next_tick(Duration::ZERO), None);
}

#[test]
fn only_what_lowers_clocks_is_throttling_and_events_count_since_the_last_report() {
    let tree = Tree::orin_nano();
    let sysfs = Sysfs::new(tree.root());
    let mut reader = ThermalReader::default();
    let mut throttled_by = || {
        let (thermal, problems) = reader.read(&sysfs);
        assert!(problems.is_empty(), "{problems:?}");
        thermal.throttled_by
    };
    // Four events happened before the daemon came.
    assert!(throttled_by().is_empty());
    tree.write("sys/class/thermal/cooling_device3/cur_state", "1"); // a hot surface is a warning
    assert!(throttled_by().is_empty());
    tree.write("sys/class/thermal/cooling_device1/cur_state", "3");
    assert_eq!(throttled_by(), ["devfreq-17000000.gpu"]);
    tree.write("sys/class/thermal/cooling_device1/cur_state", "0");
    tree.write("sys/class/hwmon/hwmon3/oc2_event_cnt", "5");
    assert_eq!(throttled_by(), ["soctherm_oc"]);
    assert!(throttled_by().is_empty());

    // Between two reports, whoever looks first must not use the event up.
    let limits = "[[hardware.throttle.limits]]\nwhen = { kind = 'throttled' }\nrate = 1.0\n";
    let mut hardware = Hardware::open(&config(limits).unwrap(), tree.root()).unwrap();
    let throttled = |samples: Vec<Sample>| {
        samples
            .iter()
            .any(|sample| matches!(sample, Sample::Temperature { throttled: true, .. }))
    };
    assert!(!throttled(hardware.samples(Duration::ZERO)));
    tree.write("sys/class/hwmon/hwmon3/oc1_event_cnt", "1");
    hardware.tick(Duration::from_secs(10));
    hardware.tick(Duration::from_secs(20));
    assert!(throttled(hardware.samples(Duration::from_secs(30))));
    assert!(!throttled(hardware.samples(Duration::from_secs(90))));
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_reported() {
    let tree = Tree::orin_nano();
    tree.make_unreadable("sys/class/hwmon/hwmon1/in2_input");
    tree.write("sys/class/hwmon/hwmon1/curr3_input", "many");
    tree.make_unreadable("sys/class/thermal/thermal_zone1/temp");
    let sysfs = Sysfs::new(tree.root());
    let (found, problems) = rails(&sysfs);
    assert_eq!(found.into_keys().collect::<Vec<_>>(), ["VDD_IN"]);
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 2);
    assert!(problems[0].contains("hwmon1/in2_input"), "{problems:?}");
    assert!(
        problems[1].contains("curr3_input: \"many\" is not a number"),
        "{problems:?}"
    );
    let (thermal, problems) = ThermalReader::default().read(&sysfs);
    assert_eq!(thermal.zones.len(), 3);
    assert_eq!(thermal.hottest(), Some(48.218));
    assert!(problems[0].to_string().contains("thermal_zone1/temp"));
}

#[test]
fn channels_that_lead_nowhere_or_are_off_are_no_rails_and_no_name_hides_another() {
    let tree = Tree::orin_nano();
    tree.write("sys/class/hwmon/hwmon1/in2_label", "NC");
    tree.write("sys/class/hwmon/hwmon1/in3_enable", "0");
    tree.files(
        "sys/class/hwmon/hwmon9",
        &[
            ("name", "ina3221"),
            ("in1_label", "VDD_IN"),
            ("in1_input", "12000"),
            ("curr1_input", "500"),
            ("in2_input", "1000"),
            ("curr2_input", "1000"),
        ],
    );
    // Chips of the family that measure power themselves, in µW.
    tree.files(
        "sys/class/hwmon/hwmon10",
        &[
            ("name", "ina238"),
            ("in1_input", "19000"),
            ("curr1_input", "1"),
            ("power1_input", "2500000"),
        ],
    );
    let (rails, problems) = rails(&Sysfs::new(tree.root()));
    assert!(problems.is_empty());
    let shown: Vec<(&str, f64)> = rails
        .iter()
        .map(|(name, watts)| (name.as_str(), (watts * 1e3).round()))
        .collect();
    assert_eq!(
        shown,
        [
            ("VDD_IN", 4494.0),
            ("VDD_IN@hwmon9", 6000.0),
            ("ina238.1", 2500.0),
            ("ina3221.2", 1000.0)
        ]
    );
}

#[test]
fn the_older_driver_of_jetpack_4_is_understood() {
    let tree = Tree::empty();
    tree.files(
        "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0",
        &[
            ("rail_name_0", "POM_5V_IN"),
            ("in_power0_input", "2875"),
            ("rail_name_1", "POM_5V_GPU"),
            ("in_power1_input", "120"),
        ],
    );
    tree.files("sys/bus/i2c/drivers/ina3221x", &[("uevent", "")]);
    // A constant, and no measurement.
    tree.files(
        "sys/class/thermal/thermal_zone4",
        &[("type", "PMIC-Die"), ("temp", "100000")],
    );
    let sysfs = Sysfs::new(tree.root());
    let (rails, problems) = rails(&sysfs);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(
        rails.into_iter().collect::<Vec<_>>(),
        [("POM_5V_GPU".into(), 0.12), ("POM_5V_IN".into(), 2.875)]
    );
    assert!(ThermalReader::default().read(&sysfs).0.zones.is_empty());
}

#[test]
fn two_fans_and_a_tachometer_stay_apart() {
    let tree = Tree::orin_nano();
    tree.files(
        "sys/class/hwmon/hwmon5",
        &[("name", "pwmfan"), ("pwm1", "255"), ("fan1_input", "3000")],
    );
    let (fans, problems) = fans(&Sysfs::new(tree.root()));
    assert!(problems.is_empty());
    let shown: Vec<_> = fans
        .iter()
        .map(|(name, fan)| (name.as_str(), fan.percent.map(f64::round), fan.rpm))
        .collect();
    assert_eq!(
        shown,
        [
            ("pwm_tach", None, Some(1466)),
            ("pwmfan", Some(20.0), None),
            ("pwmfan@hwmon5", Some(100.0), Some(3000)),
        ]
    );
}

#[test]
fn the_power_mode_is_the_chosen_one_else_the_default() {
    let tree = Tree::orin_nano();
    let sysfs = Sysfs::new(tree.root());
    let mode = || power_mode(&sysfs).map(|mode| mode.map(|mode| (mode.id, mode.name)));
    // Older releases write the fan's mode behind it.
    tree.write("var/lib/nvpmodel/status", "pmode:0003 fmode:fanNULL");
    assert_eq!(mode().unwrap(), Some((3, "7W".into())));
    tree.write("var/lib/nvpmodel/status", "pmode:0012");
    assert_eq!(mode().unwrap(), Some((12, "12".into())), "a mode without a name");
    tree.write("var/lib/nvpmodel/status", "broken");
    let error = mode().unwrap_err().to_string();
    assert!(
        error.contains("status") && error.contains("pmode:0002"),
        "{error}"
    );
    tree.remove("var/lib/nvpmodel/status");
    assert_eq!(mode().unwrap(), Some((1, "25W".into())));
    tree.remove("etc/nvpmodel.conf");
    assert_eq!(mode().unwrap(), None);
}

#[test]
fn an_external_monitor_adds_its_rails() {
    let read = |register: u8, value: u16| {
        Transaction::write_read(0x41, vec![register], value.to_be_bytes().to_vec())
    };
    let mut devices = Scripted::default();
    let mut bus = devices.bus(
        "hardware.ina3221.carrier",
        &[
            read(0xFE, 0x5449),
            read(0xFF, 0x3220),
            Transaction::write(0x41, vec![0x00, 0x25, 0x27]),
            read(0x0F, 0),
            read(0x0F, 1),
            read(0x03, 0x0FA0), // 20 mV over 10 mΩ: 2 A
            read(0x04, 0x2EE0), // 12 V
            read(0x03, 0x7FF8), // beyond the range
            read(0x04, 0x2EE0),
        ],
    );
    let tree = Tree::orin_nano();
    let config = config(
        "[hardware.ina3221.carrier]\nbus = '/dev/i2c-7'\naddress = 0x41\n\
         channels = [{ channel = 2, rail = 'LASER', shunt_milliohms = 10.0 }]\n",
    )
    .unwrap();
    let mut hardware = Hardware::open_with(&config, tree.root(), &mut devices).unwrap();
    let mut laser = || match hardware.samples(Duration::ZERO).into_iter().next() {
        Some(Sample::Power(rails)) => {
            assert!(rails.contains_key("VDD_IN"));
            rails.get("LASER").copied()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(laser(), None, "nothing is converted yet");
    assert!((laser().unwrap() - 24.0).abs() < 1e-9);
    assert_eq!(laser(), None, "out of range is not a number");
    bus.done();
}
