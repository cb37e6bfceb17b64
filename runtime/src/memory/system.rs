//! How much memory the system and the control group leave to this process.

use std::fs;
use std::path::{Path, PathBuf};

use edgeopt_models::Bytes;

/// The memory that can be taken now without swapping or being killed: the smaller of `MemAvailable` and what the
/// process's control group leaves. `None` where neither is known (not Linux).
pub fn available() -> Option<Bytes> {
    let system = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| mem_available(&text));
    let group = fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|text| group_available(&text, Path::new("/sys/fs/cgroup")));
    [system, group].into_iter().flatten().min()
}

/// `MemAvailable` of `/proc/meminfo`.
fn mem_available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::kib(kib))
}

/// What the tightest control group around the process leaves. `membership` is `/proc/self/cgroup`, `root` where the
/// groups are mounted.
fn group_available(membership: &str, root: &Path) -> Option<Bytes> {
    let mut tightest = None;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (mount, limit, usage) = if controllers.is_empty() {
            (root.to_owned(), "memory.max", "memory.current")
        } else if controllers.split(',').any(|name| name == "memory") {
            (
                root.join("memory"),
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
        } else {
            continue;
        };
        // A group is bound by those around it too. Inside a container the path may not exist below the mount,
        // which then shows the container's own group.
        let mut folder = mount.join(path.trim_start_matches('/'));
        loop {
            let left = left_in(&folder, limit, usage);
            tightest = [tightest, left].into_iter().flatten().min();
            if folder == mount || !folder.starts_with(&mount) || !folder.pop() {
                break;
            }
        }
    }
    tightest
}

fn left_in(folder: &Path, limit: &str, usage: &str) -> Option<Bytes> {
    let read = |name: &str| fs::read_to_string(PathBuf::from(folder).join(name)).ok();
    let limit = group_limit(&read(limit)?)?;
    let usage = read(usage)?.trim().parse().map(Bytes).ok()?;
    let reclaimable = read("memory.stat").map_or(Bytes::ZERO, |text| inactive_file(&text));
    Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
}

/// The limit of a group; `None` for `max` and for version 1's "no limit" (the largest page-aligned `i64`).
fn group_limit(text: &str) -> Option<Bytes> {
    let bytes: u64 = text.trim().parse().ok()?;
    (bytes < 1 << 62).then_some(Bytes(bytes))
}

/// Page cache that is given up under pressure counts as used in a group, but is free to take.
fn inactive_file(stat: &str) -> Bytes {
    let value = |key: &str| {
        stat.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(name, _)| *name == key)
            .and_then(|(_, value)| value.trim().parse().ok())
    };
    Bytes(
        value("total_inactive_file")
            .or_else(|| value("inactive_file"))
            .unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_says_is_available() {
        let text = "MemTotal:        7990272 kB\nMemFree:          210000 kB\nMemAvailable:    1048576 kB\n";
        assert_eq!(mem_available(text), Some(Bytes::mib(1024)));
        assert_eq!(mem_available("MemTotal: 5 kB\n"), None);
        assert_eq!(mem_available("MemAvailable: lots\n"), None);
    }

    fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn the_tightest_group_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        write(
            &root.path().join("slice"),
            &[("memory.max", "104857600\n"), ("memory.current", "41943040\n")],
        );
        write(
            &root.path().join("slice/service"),
            &[("memory.max", "max\n"), ("memory.current", "20971520\n")],
        );
        assert_eq!(
            group_available("0::/slice/service\n", root.path()),
            Some(Bytes::mib(60))
        );
    }

    #[test]
    fn cache_that_can_be_given_up_is_available() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("memory.max", "104857600"),
            ("memory.current", "94371840"),
            ("memory.stat", "anon 1\ninactive_file 52428800\n"),
        ];
        write(&root.path().join("a"), &files);
        assert_eq!(group_available("0::/a\n", root.path()), Some(Bytes::mib(60)));
    }

    #[test]
    fn version_one_has_a_number_for_no_limit() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("memory/docker/x");
        let limited = [
            ("memory.limit_in_bytes", "67108864\n"),
            ("memory.usage_in_bytes", "1048576\n"),
        ];
        write(&folder, &limited);
        let top = [
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.usage_in_bytes", "0\n"),
        ];
        write(&root.path().join("memory"), &top);
        let membership = "12:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n";
        assert_eq!(group_available(membership, root.path()), Some(Bytes::mib(63)));
        assert_eq!(group_available("garbage\n", root.path()), None);
    }
}
