//! The files that are shipped for systemd, before systemd's own programs. Nothing outside a temporary folder is touched.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use edgeopt_agent::config::Config;
use tempfile::TempDir;

use crate::device::{AGENT, shipped};

/// The settings of a unit file, in order.
pub(crate) struct Unit(Vec<(String, String)>);

impl Unit {
    pub(crate) fn shipped() -> Self {
        let text = fs::read_to_string(shipped("edgeopt-agent.service")).unwrap();
        let settings = text.lines().filter(|line| !line.starts_with(['#', '[']));
        let split = |line: &str| {
            let (name, value) = line.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        };
        Self(settings.filter_map(split).collect())
    }

    fn all(&self, name: &str) -> Vec<&str> {
        let named = self.0.iter().filter(|(other, _)| other == name);
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of a setting that is there once.
    pub(crate) fn one(&self, name: &str) -> &str {
        let values = self.all(name);
        assert_eq!(values.len(), 1, "{name}: {values:?}");
        values[0]
    }

    pub(crate) fn seconds(&self, name: &str) -> Duration {
        Duration::from_secs(self.one(name).parse().unwrap())
    }
}

/// Runs one of systemd's programs; returns what it says, on either stream.
fn systemd<I: IntoIterator<Item: AsRef<OsStr>>>(program: &str, arguments: I) -> (bool, String) {
    let output = Command::new(program)
        .args(arguments)
        .env("SYSTEMD_COLORS", "0")
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; install the package systemd"));
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.success(), said)
}

/// A folder with the unit, whose program is the one that was just built; with the drop-in, if asked.
fn installed(drop_in: bool) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(shipped("edgeopt-agent.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/edgeopt-agent "));
    let unit = unit.replace("/usr/bin/edgeopt-agent", AGENT);
    fs::write(folder.path().join("edgeopt-agent.service"), unit).unwrap();
    if drop_in {
        let beside = folder.path().join("edgeopt-agent.service.d");
        fs::create_dir(&beside).unwrap();
        fs::copy(shipped("jetson.conf"), beside.join("jetson.conf")).unwrap();
    }
    folder
}

fn verify(folder: &Path) -> (bool, String) {
    let unit = folder.join("edgeopt-agent.service");
    systemd(
        "systemd-analyze",
        ["verify".as_ref(), "--man=no".as_ref(), unit.as_os_str()],
    )
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    for drop_in in [false, true] {
        let folder = installed(drop_in);
        let (fine, said) = verify(folder.path());
        assert!(fine && !said.contains("edgeopt"), "{said}");
    }
    // It does look: a mistake in either file is found. The exit code says nothing of it.
    for file in ["edgeopt-agent.service", "edgeopt-agent.service.d/jetson.conf"] {
        let folder = installed(true);
        let path = folder.path().join(file);
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("\n[Service]\nProtectKernelTunnels=yes\n");
        fs::write(&path, text).unwrap();
        let (_, said) = verify(folder.path());
        assert!(said.contains("ProtectKernelTunnels"), "{file}: {said}");
    }
}

/// The README says how exposed the unit is; no change may make it worse than that.
#[test]
fn the_unit_is_as_hardened_as_the_readme_says() {
    let readme = fs::read_to_string(shipped("README.md")).unwrap();
    for (drop_in, mark) in [(false, "exposure level "), (true, "with `jetson.conf` ")] {
        let stated: String = readme
            .split(mark)
            .nth(1)
            .unwrap_or_else(|| panic!("README.md does not say {mark:?}"))
            .chars()
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect();
        let stated: f64 = stated.trim_end_matches('.').parse().unwrap();
        let folder = installed(drop_in);
        let unit = folder.path().join("edgeopt-agent.service");
        // The threshold is in tenths.
        let threshold = format!("--threshold={:.0}", stated * 10.0);
        let arguments = ["security", "--offline=yes", "--no-pager", &threshold];
        let arguments = arguments.into_iter().map(OsStr::new).chain([unit.as_os_str()]);
        let (fine, said) = systemd("systemd-analyze", arguments);
        assert!(fine, "more than {stated}:\n{said}");
        assert!(said.contains("Overall exposure level"), "{said}");
    }
}

#[test]
fn the_gpu_stays_visible() {
    let unit = Unit::shipped();
    for (name, value) in &unit.0 {
        let hides = match name.as_str() {
            "PrivateDevices" | "MemoryDenyWriteExecute" | "PrivateUsers" => value != "no",
            "ProcSubset" => value == "pid",
            "InaccessiblePaths" => value.contains("/dev") || value.contains("/sys"),
            _ => false,
        };
        assert!(!hides, "{name}={value}");
    }
    // Names in /proc/devices of what CUDA opens: discrete, then Orin under JetPack 5 and 6.
    let allowed: Vec<&str> = unit
        .all("DeviceAllow")
        .into_iter()
        .map(|value| value.strip_suffix(" rw").unwrap().strip_prefix("char-").unwrap())
        .collect();
    for device in [
        "nvidia",
        "nvidia-frontend",
        "nvidia-uvm",
        "nvidia-caps",
        "nvhost",
        "17000000.ga10b",
        "17000000.gpu",
        "host1x-fence",
        "misc",
        "drm",
        "i2c",
        "gpiochip",
        // Cameras, by number.
        "81",
    ] {
        let matches = |pattern: &str| match pattern.split_once('*') {
            Some((before, after)) => device.starts_with(before) && device.ends_with(after),
            None => device == pattern,
        };
        assert!(
            allowed.iter().any(|pattern| matches(pattern)),
            "{device} is not among {allowed:?}"
        );
    }
}

#[test]
fn folders_and_times_fit_the_daemon() {
    let unit = Unit::shipped();
    let config = Config::from_text(
        Path::new("agent.toml"),
        "device = \"a\"\n[broker]\nhost = \"b\"\n[trust]\nrequire_signature = false\n",
        [],
    )
    .unwrap();
    let state = Path::new("/var/lib").join(unit.one("StateDirectory"));
    assert!(config.spool.directory.starts_with(&state));
    assert!(config.store.directory.starts_with(&state));
    let cache = Path::new("/var/cache").join(unit.one("CacheDirectory"));
    assert!(config.engine.cache.starts_with(cache));
    // The example listens where the unit lets it.
    let example = fs::read_to_string(shipped("agent.toml")).unwrap();
    let socket = format!("unix:/run/{}/", unit.one("RuntimeDirectory"));
    assert!(example.contains(&socket), "{socket}");

    // A stop takes 15 s; a changed configuration a stop, and 10 s until everything is let go. The daemon feeds the watchdog
    // four times in its time.
    let stop = Duration::from_secs(15);
    assert!(unit.seconds("TimeoutStopSec") > stop + Duration::from_secs(5));
    let watchdog = unit.seconds("WatchdogSec");
    assert!(watchdog > watchdog / 4 + stop + Duration::from_secs(10));
    assert!(unit.seconds("TimeoutStartSec") > Duration::from_secs(10));
    assert_eq!(unit.one("Type"), "notify");
    assert_eq!(unit.one("Restart"), "always");
}

/// Users and folders are made in a root of their own.
#[test]
fn users_and_folders_come_out_as_the_unit_needs_them() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    let at_root = format!("--root={}", root.path().display());
    let users = shipped("edgeopt.sysusers.conf");
    let (fine, said) = systemd("systemd-sysusers", [at_root.as_ref(), users.as_os_str()]);
    assert!(fine, "{said}");
    let unit = Unit::shipped();
    let passwd = fs::read_to_string(root.path().join("etc/passwd")).unwrap();
    let fields: Vec<&str> = passwd.trim_end().split(':').collect();
    assert_eq!((fields[0], fields[6]), (unit.one("User"), "/usr/sbin/nologin"));
    let (user, group) = (fields[2], fields[3]);
    let groups = fs::read_to_string(root.path().join("etc/group")).unwrap();
    for member in ["video", "render", "i2c", "gpio"] {
        let line = groups
            .lines()
            .find(|line| line.starts_with(&format!("{member}:")));
        assert!(
            line.is_some_and(|line| line.ends_with(":edgeopt")),
            "{member}: {groups}"
        );
    }
    assert!(groups.contains(&format!("{}:x:{group}:", unit.one("Group"))));

    let folders = shipped("edgeopt.tmpfiles.conf");
    let arguments = ["--create".as_ref(), at_root.as_ref(), folders.as_os_str()];
    let (_, said) = systemd("systemd-tmpfiles", arguments);
    // Whoever is not root cannot give files away.
    let wrong: Vec<&str> = said
        .lines()
        .filter(|line| !line.contains("Operation not permitted"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (path, mode, owner) in [
        ("etc/edgeopt", 0o750, "0"),
        ("var/lib/edgeopt", 0o750, user),
        ("var/lib/edgeopt/in", 0o2770, user),
    ] {
        let data = fs::metadata(root.path().join(path)).unwrap();
        if rustix::process::geteuid().is_root() {
            assert_eq!(data.permissions().mode() & 0o7777, mode, "{path}");
            assert_eq!(
                (data.uid().to_string().as_str(), data.gid().to_string().as_str()),
                (owner, group),
                "{path}"
            );
        }
    }
}
