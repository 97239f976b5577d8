//! Fuzzing on a stable toolchain, inside ordinary tests. A target has seeds and a check. Each input is a seed with a few mutations,
//! all chosen from one number, so a run can be repeated. Without coverage feedback, inputs stay close to valid ones instead:
//! seeds are real inputs, and mutations insert words of the format. An input that panics is shrunk by leaving out bytes.
//!
//! A target is the only test of its name, in a module `fuzz`. It runs, in this order:
//!
//! 1. the files in `CRATE/fuzz/NAME/`: each input that failed once;
//! 2. its seeds, unchanged;
//! 3. `iterations` mutated inputs, or as many as fit into `CHANCERY_FUZZ_SECONDS`, from `CHANCERY_FUZZ_SEED`.
//!
//! With `CHANCERY_FUZZ_INPUT=FILE`, it runs that file alone. A shrunk input is saved as `target/fuzz/NAME.failed`. One that
//! aborts or hangs the process stays in `target/fuzz/NAME.running`.

use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

const INPUT: &str = "CHANCERY_FUZZ_INPUT";
const SECONDS: &str = "CHANCERY_FUZZ_SECONDS";
const SEED: &str = "CHANCERY_FUZZ_SEED";
const DEFAULT_SEED: u64 = 1;

/// CPU time of one input, in a debug build. Parsers take milliseconds; what takes longer is a way to keep a server busy.
const MAX_CPU_TIME: Duration = Duration::from_secs(3);
/// Mutations do not grow an input beyond this, so that a slow input is slow for its size.
const MAX_INPUT_BYTES: usize = 64 * 1024;
const SHRINK_TIME: Duration = Duration::from_secs(5);
/// Bytes of a failed input that are printed. The whole input is in its file.
const MAX_PRINTED_BYTES: usize = 4 * 1024;

/// What breaks parsers of any format.
const TOKENS: [&[u8]; 24] = [
    b"\0",
    b"\n",
    b"\r\n",
    b" ",
    b"\t",
    b"\"",
    b"'",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"0",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"null",
    b"\xff",
    b"\xef\xbb\xbf",
    b"e\xcc\x81",
    b"\xf0\x9f\x98\x80",
    b"\\ud800",
];

/// Lengths and counts of binary formats, written with 1, 2, 4 or 8 bytes.
const NUMBERS: [u64; 8] = [0, 1, 0x7f, 0x80, 0xffff, i32::MAX as u64, i64::MAX as u64, u64::MAX];

/// A fuzz target.
#[derive(Debug)]
pub struct Fuzz<'a> {
    /// The name of the test.
    pub name: &'a str,
    /// `env!("CARGO_MANIFEST_DIR")` of the test's crate.
    pub crate_folder: &'a str,
    /// Valid inputs, at least one.
    pub seeds: Vec<Vec<u8>>,
    /// Words of the format.
    pub tokens: &'a [&'a str],
    /// Mutated inputs in `make test`.
    pub iterations: u64,
}

impl Fuzz<'_> {
    /// Runs `check` with each input. It panics if the input breaks a rule.
    pub fn run(&self, mut check: impl FnMut(&[u8])) {
        if let Some(file) = std::env::var_os(INPUT) {
            check(&std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
            return;
        }
        let seed = number_from_environment(SEED).unwrap_or(DEFAULT_SEED);
        let length = match number_from_environment(SECONDS) {
            Some(seconds) => RunLength::Time(Duration::from_secs(seconds)),
            None => RunLength::Inputs(self.iterations),
        };
        let count = self.run_from(seed, length, check);
        report(&format!("fuzz {}: {count} inputs from seed {seed}", self.name));
    }

    /// Returns how many inputs were run.
    fn run_from(&self, seed: u64, length: RunLength, check: impl FnMut(&[u8])) -> u64 {
        let mut inputs = self.regressions();
        inputs.extend(self.seeds.iter().cloned());
        assert!(!inputs.is_empty(), "the fuzz target {} has no seed", self.name);
        let corpus = Corpus { inputs, tokens: self.tokens };
        let mut target = Target { corpus: &corpus, check, running: RunningInput::create(self.name) };
        let outcome = target.run_all(seed, length);
        target.running.remove();
        match outcome {
            Ok(count) => count,
            Err(failed) => self.fail(&failed, seed),
        }
    }

    /// The inputs that failed once, in the order of their names.
    fn regressions(&self) -> Vec<Vec<u8>> {
        let folder = Path::new(self.crate_folder).join("fuzz").join(self.name);
        let Ok(files) = std::fs::read_dir(&folder) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
    }

    fn fail(&self, failed: &FailedInput, seed: u64) -> ! {
        let Self { name, crate_folder, .. } = self;
        let FailedInput { bytes, error } = failed;
        let file = output_folder().join(format!("{name}.failed"));
        std::fs::write(&file, bytes).unwrap();
        let file = file.display();
        let printed = bytes[..bytes.len().min(MAX_PRINTED_BYTES)].escape_ascii();
        panic!(
            "fuzz target {name}, {SEED}={seed}: {error}\n\n\
             input of {} bytes: {printed}\n\n\
             to replay it:      {INPUT}={file} cargo test --workspace --tests fuzz::{name}\n\
             to test it always: mkdir -p {crate_folder}/fuzz/{name} && cp {file} {crate_folder}/fuzz/{name}/WHAT_FAILED",
            bytes.len()
        );
    }
}

#[derive(Clone, Copy)]
enum RunLength {
    /// Of mutated inputs.
    Inputs(u64),
    Time(Duration),
}

struct FailedInput {
    bytes: Vec<u8>,
    error: String,
}

/// The inputs that mutations start from.
struct Corpus<'a> {
    inputs: Vec<Vec<u8>>,
    tokens: &'a [&'a str],
}

impl Corpus<'_> {
    fn mutated(&self, random: &mut SplitMix64) -> Vec<u8> {
        let mut bytes = self.inputs[random.below(self.inputs.len())].clone();
        while random.below(4) != 0 {
            self.mutate(&mut bytes, random);
        }
        bytes
    }

    fn mutate(&self, bytes: &mut Vec<u8>, random: &mut SplitMix64) {
        const MAX_PART_BYTES: usize = 64;
        let kind = random.below(8);
        let at = random.below(bytes.len() + 1);
        let end = at + random.below((bytes.len() - at).min(MAX_PART_BYTES) + 1);
        match kind {
            0 => drop(bytes.drain(at..end)),
            1 => drop(bytes.splice(at..at, self.token(random))),
            2 => drop(bytes.splice(at..end, self.token(random))),
            3 => {
                let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                let width = (1_usize << random.below(4)).min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            4 => {
                // Deep nesting, long lines and many fields.
                let part = if random.below(2) == 0 { bytes[at..end].to_vec() } else { self.token(random) };
                let room = MAX_INPUT_BYTES.saturating_sub(bytes.len()) / part.len().max(1);
                drop(bytes.splice(at..at, part.repeat((1_usize << random.below(17)).min(room))));
            }
            5 => {
                let other = &self.inputs[random.below(self.inputs.len())];
                let from = random.below(other.len() + 1);
                let to = from + random.below((other.len() - from).min(MAX_PART_BYTES) + 1);
                drop(bytes.splice(at..end, other[from..to].iter().copied()));
            }
            6 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            _ => bytes.truncate(at),
        }
    }

    fn token(&self, random: &mut SplitMix64) -> Vec<u8> {
        let index = random.below(TOKENS.len() + self.tokens.len());
        match TOKENS.get(index) {
            Some(token) => token.to_vec(),
            None => self.tokens[index - TOKENS.len()].as_bytes().to_vec(),
        }
    }
}

struct Target<'a, F> {
    corpus: &'a Corpus<'a>,
    check: F,
    running: RunningInput,
}

impl<F: FnMut(&[u8])> Target<'_, F> {
    fn run_all(&mut self, seed: u64, length: RunLength) -> Result<u64, FailedInput> {
        let corpus = self.corpus;
        for bytes in &corpus.inputs {
            self.check_input(bytes.clone())?;
        }
        let mut random = SplitMix64(seed);
        let started_at = clock(ClockId::Monotonic);
        let mut mutated = 0;
        loop {
            let is_over = match length {
                RunLength::Inputs(count) => mutated >= count,
                RunLength::Time(time) => clock(ClockId::Monotonic) - started_at >= time,
            };
            if is_over {
                return Ok(corpus.inputs.len() as u64 + mutated);
            }
            self.check_input(corpus.mutated(&mut random)).map_err(|failed| self.shrink(failed))?;
            mutated += 1;
        }
    }

    fn check_input(&mut self, bytes: Vec<u8>) -> Result<(), FailedInput> {
        self.running.store(&bytes);
        let outcome = catch_panic(|| {
            let started_at = clock(ClockId::ThreadCPUTime);
            (self.check)(&bytes);
            let used = clock(ClockId::ThreadCPUTime) - started_at;
            assert!(used < MAX_CPU_TIME, "the input took {} ms of CPU time", used.as_millis());
        });
        outcome.map_err(|error| FailedInput { bytes, error })
    }

    /// Leaves out bytes while the input still panics: first half of them at once, in the end one by one. An input that passes on
    /// a second run stays as it is: it depends on earlier inputs, or on the time it takes.
    fn shrink(&mut self, mut failed: FailedInput) -> FailedInput {
        let started_at = clock(ClockId::Monotonic);
        let mut part_bytes = failed.bytes.len().div_ceil(2);
        while part_bytes > 0 {
            let mut start = 0;
            while start < failed.bytes.len() && clock(ClockId::Monotonic) - started_at < SHRINK_TIME {
                let end = (start + part_bytes).min(failed.bytes.len());
                match self.check_input([&failed.bytes[..start], &failed.bytes[end..]].concat()) {
                    Ok(()) => start = end,
                    Err(shorter) => failed = shorter,
                }
            }
            part_bytes /= 2;
        }
        failed
    }
}

thread_local! {
    /// The last panic of this thread while it catches panics, and `None` while it does not.
    static CAUGHT_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a function, and returns the message and the place of its panic instead of printing them.
fn catch_panic(run: impl FnOnce()) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            CAUGHT_PANIC.with_borrow_mut(|caught| match caught {
                Some(message) => *message = panic.to_string(),
                None => print(panic),
            });
        }));
    });
    CAUGHT_PANIC.set(Some(String::new()));
    let outcome = panic::catch_unwind(AssertUnwindSafe(run));
    let message = CAUGHT_PANIC.take().unwrap_or_default();
    outcome.map_err(|_| message)
}

/// The current input, on disk for the case that the process does not survive it.
struct RunningInput {
    path: PathBuf,
    file: File,
}

impl RunningInput {
    fn create(name: &str) -> Self {
        let path = output_folder().join(format!("{name}.running"));
        let file = File::create(&path).unwrap();
        Self { path, file }
    }

    fn store(&self, bytes: &[u8]) {
        self.file.set_len(0).unwrap();
        self.file.write_all_at(bytes, 0).unwrap();
    }

    fn remove(self) {
        std::fs::remove_file(self.path).unwrap();
    }
}

/// `target/fuzz`; test programs are in `target/PROFILE/deps`.
fn output_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.ancestors().nth(3).unwrap().join("fuzz");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Adds a line to the report of `make torture`.
fn report(line: &str) {
    println!("{line}");
    if let Some(file) = std::env::var_os("CHANCERY_FAULTS_REPORT") {
        let mut file = File::options().create(true).append(true).open(file).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

fn number_from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a whole number, and not {text:?}")))
}

/// The CPU time of a thread does not grow while a busy machine runs other threads.
fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// `bound` is at least 1.
    fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> Fuzz<'_> {
        Fuzz {
            name,
            crate_folder: env!("CARGO_MANIFEST_DIR"),
            seeds: vec![b"{\"name\":\"value\"}".to_vec(), b"[1,2,3]".to_vec()],
            tokens: &["needle"],
            iterations: 0,
        }
    }

    fn has_needle(bytes: &[u8]) -> bool {
        bytes.windows(6).any(|part| part == b"needle")
    }

    fn inputs(name: &str) -> Vec<Vec<u8>> {
        let mut seen = Vec::new();
        target(name).run_from(DEFAULT_SEED, RunLength::Inputs(1_000), |bytes| seen.push(bytes.to_vec()));
        seen
    }

    #[test]
    fn inputs_are_the_same_in_each_run_and_begin_with_the_seeds() {
        let first = inputs("first_run");
        assert_eq!(first.len(), 1_002);
        assert_eq!(first[..2], target("").seeds);
        assert_eq!(first, inputs("second_run"));
        assert!(first.iter().any(|bytes| has_needle(bytes)));
        assert!(first.iter().any(|bytes| bytes.len() > 10_000), "long inputs are tested too");
    }

    #[test]
    fn failing_input_is_shrunk_saved_and_named_with_the_replay_command() {
        let run = || {
            let check = |bytes: &[u8]| assert!(!has_needle(bytes));
            target("finds_needle").run_from(DEFAULT_SEED, RunLength::Inputs(10_000), check)
        };
        let panic = panic::catch_unwind(run).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        let file = output_folder().join("finds_needle.failed");
        let saved = std::fs::read(&file).unwrap();
        assert_eq!(saved, b"needle", "{message}");
        assert!(message.contains(&format!("panicked at {}", file!())), "{message}");
        let replay = format!(
            "CHANCERY_FUZZ_INPUT={} cargo test --workspace --tests fuzz::finds_needle",
            file.display()
        );
        assert!(message.contains(&replay), "{message}");
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn input_that_fails_only_once_is_kept_whole() {
        let mut has_failed = false;
        let mut failing = Vec::new();
        let check = |bytes: &[u8]| {
            if !has_failed && has_needle(bytes) {
                has_failed = true;
                failing = bytes.to_vec();
                panic!("only once");
            }
        };
        let run = || target("fails_once").run_from(DEFAULT_SEED, RunLength::Inputs(10_000), check);
        let panic = panic::catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains("only once"));
        let file = output_folder().join("fails_once.failed");
        assert_eq!(std::fs::read(&file).unwrap(), failing);
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn running_input_is_on_disk_while_it_is_checked() {
        let file = output_folder().join("stores_running.running");
        let check = |bytes: &[u8]| assert_eq!(std::fs::read(&file).unwrap(), bytes);
        target("stores_running").run_from(DEFAULT_SEED, RunLength::Inputs(100), check);
        assert!(!file.exists());
    }
}
