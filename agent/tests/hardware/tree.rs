//! A made-up tree of the files that an Orin Nano developer kit has under JetPack 6, after NVIDIA's Developer Guide, the
//! kernel's documentation and the sources of its drivers. It is no copy of a real one.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// The tree; gone when dropped.
pub(crate) struct Tree(TempDir);

impl Tree {
    /// Nothing at all: a machine without any of it.
    pub(crate) fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The developer kit in its 15 W mode, idle.
    pub(crate) fn orin_nano() -> Self {
        let tree = Self::empty();
        tree.files("sys/class/hwmon/hwmon0", &[("name", "pwm_tach"), ("rpm", "1466")]);
        tree.files(
            "sys/class/hwmon/hwmon1",
            &[
                ("name", "ina3221"),
                ("in1_label", "VDD_IN"),
                ("in1_enable", "1"),
                ("in1_input", "5016"),
                ("curr1_input", "896"),
                ("in2_label", "VDD_CPU_GPU_CV"),
                ("in2_enable", "1"),
                ("in2_input", "5000"),
                ("curr2_input", "160"),
                ("in3_label", "VDD_SOC"),
                ("in3_enable", "1"),
                ("in3_input", "5008"),
                ("curr3_input", "248"),
                // The voltages over the shunts and their sum, which are no rails.
                ("in4_input", "4"),
                ("in7_input", "7"),
                ("in7_label", "sum of shunt voltages"),
            ],
        );
        tree.files("sys/class/hwmon/hwmon2", &[("name", "pwmfan"), ("pwm1", "51")]);
        tree.files(
            "sys/class/hwmon/hwmon3",
            &[
                ("name", "soctherm_oc"),
                ("oc1_event_cnt", "0"),
                ("oc1_throt_en", "1"),
                ("oc2_event_cnt", "4"),
                ("oc2_throt_en", "1"),
                ("oc3_event_cnt", "0"),
                ("oc3_throt_en", "1"),
            ],
        );
        tree.files(
            "sys/class/hwmon/hwmon4",
            &[("name", "nvme"), ("temp1_input", "40850")],
        );
        for (index, (zone, temp)) in [
            ("cpu-thermal", "48218"),
            ("gpu-thermal", "46500"),
            ("cv0-thermal", "-256000"), // switched off
            ("soc0-thermal", "47125"),
            ("tj-thermal", "48218"),
        ]
        .into_iter()
        .enumerate()
        {
            tree.files(
                &format!("sys/class/thermal/thermal_zone{index}"),
                &[("type", zone), ("temp", temp)],
            );
        }
        for (index, (device, state)) in [
            ("cpufreq-cpu0", "0"),
            ("devfreq-17000000.gpu", "0"),
            ("cpu-throttle-alert", "0"),
            ("hot-surface-alert", "0"),
            ("pwm-fan", "2"),
        ]
        .into_iter()
        .enumerate()
        {
            tree.files(
                &format!("sys/class/thermal/cooling_device{index}"),
                &[("type", device), ("cur_state", state)],
            );
        }
        tree.files("var/lib/nvpmodel", &[("status", "pmode:0000")]);
        tree.files(
            "etc",
            &[(
                "nvpmodel.conf",
                "# < POWER_MODEL ID=0 NAME=OLD >\n\
                 < PARAM TYPE=FILE NAME=CPU_ONLINE >\nCORE_0 /sys/devices/system/cpu/cpu0/online\n\
                 < POWER_MODEL ID=0 NAME=15W >\nCPU_ONLINE CORE_0 1\n\
                 < POWER_MODEL ID=1 NAME=25W >\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n< POWER_MODEL ID=3 NAME=7W >\n\
                 < FAN_CONFIG DEFAULT=0 >\n< PM_CONFIG DEFAULT=1 >\n",
            )],
        );
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// Writes files of a folder, made if need be.
    pub(crate) fn files(&self, folder: &str, files: &[(&str, &str)]) {
        let folder = self.root().join(folder);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::write(self.root().join(file), format!("{text}\n")).unwrap();
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.root().join(file)).unwrap();
    }

    /// Puts a folder in a file's place: it is there, and cannot be read.
    pub(crate) fn make_unreadable(&self, file: &str) {
        self.remove(file);
        fs::create_dir(self.root().join(file)).unwrap();
    }
}
