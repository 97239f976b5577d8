//! Fuzz target of the configuration file: it is accepted, or every problem names the key or the line.

use super::source::Source;
use super::{ConfigError, Loaded};
use chancery_test_support::Fuzz;
use std::path::Path;

const FILE: &str = "chancery.toml";

fn read(text: &str) -> Result<Loaded, ConfigError> {
    let mut source = Source::default();
    source.add_file(Path::new(FILE), text).map_err(|problem| ConfigError(vec![problem]))?;
    // A folder that does not exist, so that no file is read.
    Loaded::from_source(source, Path::new("no-such-folder"), None)
}

#[test]
fn configuration() {
    let example = include_str!("../../../../chancery.example.toml");
    // The example has most keys as comments.
    let uncommented: String =
        example.lines().map(|line| format!("{}\n", line.strip_prefix("# ").unwrap_or(line))).collect();
    let small = "data = \"data\"\n[api]\nlisten = \"127.0.0.1:8080\"\nmax_body_bytes = 1_048_576\n[limits]\ndefault_rpm = 60\n\
        store = \"redis://127.0.0.1:6379\"\n[database]\nurl = \"postgres://u:p@127.0.0.1/firm\"\n[[models]]\nname = \"a\"\n\
        engine = \"upstream\"\nendpoints = [\"http://127.0.0.1:8000/v1\"]\ninput_per_million = \"0.10\"\noutput_per_million = \"0.40\"\n";
    let fuzz = Fuzz {
        name: "configuration",
        crate_folder: env!("CARGO_MANIFEST_DIR"),
        seeds: [example, &uncommented, small].map(|seed| seed.as_bytes().to_vec()).to_vec(),
        tokens: &[
            "=",
            "[[models]]\n",
            "[portal]\n",
            "[identity]\n",
            "[mail]\n",
            "[billing]\n",
            "[webhooks]\n",
            "models.9.name = \"x\"\n",
            "models.18446744073709551615.name = \"x\"\n",
            "\"\"\"",
            "'''",
            "#",
            "é = 1\n",
            "1979-05-27T07:32:00Z",
            "0x7f",
            "inf",
            "true",
            "{ a = 1 }",
            "\"https://example.com\"",
            "\"localhost\"",
            "\"0\"",
            "\"1e9\"",
            "\\U0010FFFF",
            "\\u001b",
        ],
        iterations: 300,
    };
    fuzz.run(|bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        match read(text) {
            Ok(loaded) => assert!(loaded.settings.iter().all(|setting| !setting.key.is_empty())),
            Err(ConfigError(problems)) => {
                assert!(!problems.is_empty());
                for problem in problems {
                    let (location, what) = problem.split_once(": ").unwrap_or_default();
                    assert!(!location.is_empty() && !what.trim().is_empty(), "{problem:?}");
                    if let Some(line) = location.strip_prefix(&format!("{FILE} line ")) {
                        let lines = text.matches('\n').count() + 1;
                        assert!(
                            (1..=lines).contains(&line.parse::<usize>().unwrap()),
                            "{problem:?} in {lines} lines"
                        );
                    }
                }
            }
        }
    });
}
