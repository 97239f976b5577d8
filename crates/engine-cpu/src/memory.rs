//! Available memory and a model's memory need, both determined before anything is loaded. Availability is read from
//! Linux's own accounting; on other systems it is unknown, and nothing is rejected for it.

use std::fmt;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBound {
    Machine,
    Cgroup,
    AddressSpace,
}

impl fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "available on this machine",
            Self::Cgroup => "left in this container's memory limit (cgroup)",
            Self::AddressSpace => "left in this process's address space (`ulimit -v`)",
        })
    }
}

/// Memory that can still be allocated: the minimum over all bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    pub bytes: u64,
    pub bound: MemoryBound,
}

/// What running models change about the memory that the system reports as available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningModelMemory {
    /// KV cache that no job has written yet. The system counts it as available; only the address space has it already.
    pub uncommitted_bytes: u64,
    /// Memory of a model that is dropped before anything is loaded: what it has committed, and with what it has not.
    pub freed_bytes: u64,
    pub freed_address_bytes: u64,
}

impl AvailableMemory {
    /// `None` if the system does not report it.
    pub fn read() -> Option<Self> {
        Self::read_beside(RunningModelMemory::default())
    }

    /// The memory for further models beside those that run.
    pub fn read_beside(running: RunningModelMemory) -> Option<Self> {
        Self::read_under(Path::new("/"), running)
    }

    fn read_under(root: &Path, running: RunningModelMemory) -> Option<Self> {
        let machine =
            value_of(&root.join("proc/meminfo"), "MemAvailable:").map(|kib| kib.saturating_mul(1024));
        let committed =
            |bytes: u64| bytes.saturating_add(running.freed_bytes).saturating_sub(running.uncommitted_bytes);
        let addresses = |bytes: u64| bytes.saturating_add(running.freed_address_bytes);
        let bounds = [
            (machine.map(committed), MemoryBound::Machine),
            (cgroup_available(root).map(committed), MemoryBound::Cgroup),
            (address_space_available(root).map(addresses), MemoryBound::AddressSpace),
        ];
        let known = bounds.into_iter().filter_map(|(bytes, bound)| Some(Self { bytes: bytes?, bound }));
        known.min_by_key(|available| available.bytes)
    }
}

/// File and field names in the two cgroup versions.
struct CgroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// Field in `memory.stat`: page cache that the kernel reclaims before an allocation fails.
    reclaimable: &'static str,
}

const CGROUP_V1: CgroupFiles = CgroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const CGROUP_V2: CgroupFiles =
    CgroupFiles { limit: "memory.max", usage: "memory.current", reclaimable: "inactive_file" };

/// What the tightest of this process's cgroups leaves; the limits of all ancestors apply to a cgroup. Inside a
/// container the path may be the host's, of which only the root is visible.
fn cgroup_available(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let available = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (mount, files) = match controllers {
            "" => ("sys/fs/cgroup", Some(&CGROUP_V2)),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", Some(&CGROUP_V1))
            }
            _ => ("", None),
        };
        let cgroup_path = Path::new(path.trim_start_matches('/'));
        let mount = root.join(mount);
        files.into_iter().flat_map(move |files| {
            let folders: Vec<_> = cgroup_path.ancestors().map(|part| mount.join(part)).collect();
            folders.into_iter().filter_map(|folder| cgroup_available_at(&folder, files))
        })
    });
    available.min()
}

fn cgroup_available_at(folder: &Path, files: &CgroupFiles) -> Option<u64> {
    let number = |name| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // Without a limit, cgroup v2 writes `max`, which does not parse; v1 writes a number larger than any memory.
    let limit = number(files.limit)?;
    let reclaimable = value_of(&folder.join("memory.stat"), files.reclaimable).unwrap_or(0);
    let used = number(files.usage)?.saturating_sub(reclaimable);
    Some(limit.saturating_sub(used))
}

fn address_space_available(root: &Path) -> Option<u64> {
    let limit = value_of(&root.join("proc/self/limits"), "Max address space")?;
    let used = value_of(&root.join("proc/self/status"), "VmSize:")?.saturating_mul(1024);
    Some(limit.saturating_sub(used))
}

/// The number after `name`, on the line that starts with it.
fn value_of(file: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(char::is_whitespace))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// A model's memory need at full load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Repacked for the kernels, plus the embedding.
    pub weights_bytes: u64,
    /// The KV cache with every page in use; the system commits pages when they are first written.
    pub kv_bytes: u64,
    /// Scratch buffers of the forward pass.
    pub activation_bytes: u64,
    pub tokenizer_bytes: u64,
}

impl MemoryEstimate {
    pub fn total_bytes(&self) -> u64 {
        [self.weights_bytes, self.kv_bytes, self.activation_bytes, self.tokenizer_bytes]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Formats bytes for people: in MB, or in GB with one decimal.
#[derive(Clone, Copy, Debug)]
pub struct HumanBytes(pub u64);

impl fmt::Display for HumanBytes {
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

    /// Reads a fake machine, given as files under `/proc` and `/sys`.
    fn machine(files: &[(&str, &str)]) -> Option<AvailableMemory> {
        machine_beside(files, RunningModelMemory::default())
    }

    fn machine_beside(files: &[(&str, &str)], running: RunningModelMemory) -> Option<AvailableMemory> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        AvailableMemory::read_under(root.path(), running)
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n");

    #[test]
    fn machine_memory_is_the_limit_without_a_tighter_one() {
        let expected = Some(AvailableMemory { bytes: 8_192_000_000, bound: MemoryBound::Machine });
        assert_eq!(machine(&[MEMINFO]), expected);
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
        assert_eq!(machine(&unlimited), expected);
        assert_eq!(machine(&[]), None);
    }

    #[test]
    fn tightest_cgroup_limit_minus_its_usage_applies() {
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
            Some(AvailableMemory { bytes: 2_800_000_000, bound: MemoryBound::Cgroup })
        );
        assert_eq!(
            machine(&version_2),
            Some(AvailableMemory { bytes: 2_000_000_000, bound: MemoryBound::Cgroup })
        );

        let version_1 = [
            MEMINFO,
            ("proc/self/cgroup", "2:cpu:/x\n4:hugetlb,memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "400000000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 100000000\n"),
        ];
        let expected = Some(AvailableMemory { bytes: 700_000_000, bound: MemoryBound::Cgroup });
        assert_eq!(machine(&version_1), expected, "a container sees its own group at the top");
    }

    #[test]
    fn address_space_limit_applies() {
        let limited = [
            MEMINFO,
            (
                "proc/self/limits",
                "Max address space         2000000000           unlimited            bytes\n",
            ),
            ("proc/self/status", "VmPeak:\t 9 kB\nVmSize:\t  500000 kB\n"),
        ];
        assert_eq!(
            machine(&limited),
            Some(AvailableMemory { bytes: 1_488_000_000, bound: MemoryBound::AddressSpace })
        );
    }

    #[test]
    fn running_models_keep_the_memory_they_may_still_write() {
        let limited = [
            MEMINFO,
            (
                "proc/self/limits",
                "Max address space         20000000000          unlimited            bytes\n",
            ),
            ("proc/self/status", "VmSize:\t  500000 kB\n"),
        ];
        let running =
            RunningModelMemory { uncommitted_bytes: 1_000_000_000, ..RunningModelMemory::default() };
        assert_eq!(
            machine_beside(&limited, running),
            Some(AvailableMemory { bytes: 7_192_000_000, bound: MemoryBound::Machine })
        );
        let replacing =
            RunningModelMemory { freed_bytes: 500_000_000, freed_address_bytes: 2_000_000_000, ..running };
        assert_eq!(
            machine_beside(&limited, replacing),
            Some(AvailableMemory { bytes: 7_692_000_000, bound: MemoryBound::Machine })
        );
        let only_addresses = machine_beside(&limited[1..], replacing);
        assert_eq!(
            only_addresses,
            Some(AvailableMemory { bytes: 21_488_000_000, bound: MemoryBound::AddressSpace }),
            "what is not written yet has its addresses already"
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn available_memory_is_readable_on_this_machine() {
        assert!(AvailableMemory::read().unwrap().bytes > 0);
    }

    #[test]
    fn bytes_are_displayed_in_mb_or_gb() {
        assert_eq!(HumanBytes(1).to_string(), "1 MB");
        assert_eq!(HumanBytes(98_362_432).to_string(), "99 MB");
        assert_eq!(HumanBytes(1_250_000_000).to_string(), "1.2 GB");
    }
}
