//! How much memory there is to take, and how much a model takes: read before anything is loaded. The first is Linux's
//! own account of it; where there is none, nothing is known and nothing is refused.

use std::fmt;
use std::path::Path;

/// What sets the bound on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Machine,
    ControlGroup,
    AddressSpace,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "available on this machine",
            Self::ControlGroup => "left of the memory limit of this control group (container)",
            Self::AddressSpace => "left of this process's address space (`ulimit -v`)",
        })
    }
}

/// Memory that can still be taken: the least that any bound leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    pub bytes: u64,
    pub bound: Bound,
}

impl Available {
    /// `None` where the system does not tell.
    pub fn read() -> Option<Self> {
        Self::read_under(Path::new("/"))
    }

    fn read_under(root: &Path) -> Option<Self> {
        let machine =
            value_of(&root.join("proc/meminfo"), "MemAvailable:").map(|kib| kib.saturating_mul(1024));
        let bounds = [
            (machine, Bound::Machine),
            (left_of_control_groups(root), Bound::ControlGroup),
            (left_of_address_space(root), Bound::AddressSpace),
        ];
        let known = bounds.into_iter().filter_map(|(bytes, bound)| Some(Self { bytes: bytes?, bound }));
        known.min_by_key(|available| available.bytes)
    }
}

/// The names that the two versions of control groups give to the same things.
struct MemoryFiles {
    limit: &'static str,
    usage: &'static str,
    /// In `memory.stat`: files in memory that the system gives up before it refuses anybody.
    reclaimable: &'static str,
}

const VERSION_1: MemoryFiles = MemoryFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const VERSION_2: MemoryFiles =
    MemoryFiles { limit: "memory.max", usage: "memory.current", reclaimable: "inactive_file" };

/// What the tightest of this process's control groups leaves. A group is held to the limits of all groups above it.
/// Inside a container the path may be the host's, of which only the top is there to see.
fn left_of_control_groups(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let left = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (mount, files) = match controllers {
            "" => ("sys/fs/cgroup", Some(&VERSION_2)),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", Some(&VERSION_1))
            }
            _ => ("", None),
        };
        let inside = Path::new(path.trim_start_matches('/'));
        let mount = root.join(mount);
        files.into_iter().flat_map(move |files| {
            let folders: Vec<_> = inside.ancestors().map(|part| mount.join(part)).collect();
            folders.into_iter().filter_map(|folder| left_of_group(&folder, files))
        })
    });
    left.min()
}

fn left_of_group(folder: &Path, files: &MemoryFiles) -> Option<u64> {
    let number = |name| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // The second version writes `max` where there is no limit, which is no number; the first a number beyond any memory.
    let limit = number(files.limit)?;
    let reclaimable = value_of(&folder.join("memory.stat"), files.reclaimable).unwrap_or(0);
    let used = number(files.usage)?.saturating_sub(reclaimable);
    Some(limit.saturating_sub(used))
}

fn left_of_address_space(root: &Path) -> Option<u64> {
    let limit = value_of(&root.join("proc/self/limits"), "Max address space")?;
    let used = value_of(&root.join("proc/self/status"), "VmSize:")?.saturating_mul(1024);
    Some(limit.saturating_sub(used))
}

/// The number behind `name` on the line of a file that begins with it.
fn value_of(file: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(char::is_whitespace))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// What a model takes when it is as busy as it can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// As the kernels read them, and the embedding.
    pub weights_bytes: u64,
    /// The key-value cache when every page is in use; pages are taken from the system when they are first used.
    pub kv_bytes: u64,
    /// Where steps are computed.
    pub work_bytes: u64,
    pub tokenizer_bytes: u64,
}

impl MemoryNeed {
    pub fn total_bytes(&self) -> u64 {
        [self.weights_bytes, self.kv_bytes, self.work_bytes, self.tokenizer_bytes]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Bytes for people: in megabytes, or in gigabytes with one decimal.
#[derive(Clone, Copy, Debug)]
pub struct Readable(pub u64);

impl fmt::Display for Readable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 1_000_000_000 => write!(f, "{} MB", bytes.div_ceil(1_000_000)),
            bytes => write!(f, "{:.1} GB", bytes as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine as its files tell it.
    fn machine(files: &[(&str, &str)]) -> Option<Available> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Available::read_under(root.path())
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n");

    #[test]
    fn the_machine_is_the_bound_where_there_is_no_tighter_one() {
        let wanted = Some(Available { bytes: 8_192_000_000, bound: Bound::Machine });
        assert_eq!(machine(&[MEMINFO]), wanted);
        let unlimited = [
            MEMINFO,
            ("proc/self/cgroup", "4:cpu,memory:/a\n0::/a\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "5000\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.current", "5000\n"),
            (
                "proc/self/limits",
                "Max address space         unlimited            unlimited            bytes\n",
            ),
            ("proc/self/status", "VmSize:\t 100 kB\n"),
        ];
        assert_eq!(machine(&unlimited), wanted);
        assert_eq!(machine(&[]), None);
    }

    #[test]
    fn the_tightest_control_group_counts_less_what_it_uses_for_good() {
        let version_2 = [
            MEMINFO,
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "3000000000\n"),
            ("sys/fs/cgroup/outer/inner/memory.current", "500000000\n"),
            ("sys/fs/cgroup/outer/inner/memory.stat", "anon 1\nfile 400000000\ninactive_file 300000000\n"),
            ("sys/fs/cgroup/outer/memory.max", "2900000000\n"),
            ("sys/fs/cgroup/outer/memory.current", "900000000\n"),
        ];
        assert_eq!(
            machine(&version_2[..5]),
            Some(Available { bytes: 2_800_000_000, bound: Bound::ControlGroup })
        );
        assert_eq!(machine(&version_2), Some(Available { bytes: 2_000_000_000, bound: Bound::ControlGroup }));

        let version_1 = [
            MEMINFO,
            ("proc/self/cgroup", "2:cpu:/x\n4:hugetlb,memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "400000000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 100000000\n"),
        ];
        let wanted = Some(Available { bytes: 700_000_000, bound: Bound::ControlGroup });
        assert_eq!(machine(&version_1), wanted, "a container sees its own group at the top");
    }

    #[test]
    fn a_limit_on_the_address_space_counts_too() {
        let limited = [
            MEMINFO,
            (
                "proc/self/limits",
                "Max address space         2000000000           unlimited            bytes\n",
            ),
            ("proc/self/status", "VmPeak:\t 9 kB\nVmSize:\t  500000 kB\n"),
        ];
        assert_eq!(machine(&limited), Some(Available { bytes: 1_488_000_000, bound: Bound::AddressSpace }));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_tells() {
        assert!(Available::read().unwrap().bytes > 0);
    }

    #[test]
    fn bytes_are_read_in_megabytes_or_gigabytes() {
        assert_eq!(Readable(1).to_string(), "1 MB");
        assert_eq!(Readable(98_362_432).to_string(), "99 MB");
        assert_eq!(Readable(1_250_000_000).to_string(), "1.2 GB");
    }
}
