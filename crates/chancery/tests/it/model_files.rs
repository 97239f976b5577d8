//! `chancery model`: real downloads from a server of the test, and the files that they leave. The rules of downloads are
//! tested in `crates/model-files`.

use crate::server::{Firm, MODEL, model_file};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;

const BYTES: usize = 1_000_000;

fn content() -> Vec<u8> {
    let noise = (0..BYTES as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8);
    b"GGUF".iter().copied().chain(noise).take(BYTES).collect()
}

/// The SHA-256 as the system's own program prints it.
fn sha256_of(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, bytes).unwrap();
    let printed = std::process::Command::new("sha256sum").arg(&file).output().unwrap().stdout;
    String::from_utf8(printed).unwrap()[..64].to_owned()
}

/// Serves the content, with ranges. The first reply breaks off in the middle.
fn start_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/weights.gguf", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let content = content();
        for (index, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let range = head
                .iter()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
            let start: usize = range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
            let status = if start == 0 { "200 OK" } else { "206 Partial Content" };
            let end = if index == 0 { BYTES / 2 } else { BYTES };
            let head = format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\netag: \"v1\"\r\ncontent-length: {}\r\n\
                 content-range: bytes {start}-{}/{BYTES}\r\n\r\n",
                BYTES - start,
                BYTES - 1,
            );
            let mut stream = stream;
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&content[start..end]));
        }
    });
    url
}

fn firm() -> Firm {
    let firm = Firm::new();
    let cache = firm.folder.path().join("cache");
    firm.with("XDG_CACHE_HOME", cache.to_str().unwrap()).with("HF_ENDPOINT", "http://127.0.0.1:9")
}

fn row(firm: &Firm, name: &str) -> Value {
    let rows = firm.json(&["model", "list", "--json"]);
    let row = rows.as_array().unwrap().iter().find(|row| row["name"] == name).cloned();
    row.unwrap_or_else(|| panic!("{name}: {rows}"))
}

#[test]
fn pull_continues_after_a_broken_connection_and_prints_the_path() {
    let firm = firm();
    let url = start_server();
    let sha256 = sha256_of(&content());
    let output = firm.output(&["model", "pull", &url, "--sha256", &sha256]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end());
    assert_eq!(path, firm.folder.path().join("cache/chancery/models/weights.gguf"));
    assert_eq!(std::fs::read(&path).unwrap(), content());
    assert!(
        errors.contains("trying again") && errors.contains("weights downloaded and verified"),
        "{errors}"
    );
    assert!(errors.contains("cannot serve it"), "the content is no model: {errors}");
    let listed = row(&firm, "weights");
    assert_eq!((&listed["verified"], &listed["sha256"]), (&Value::Bool(true), &Value::from(sha256)));
    assert_eq!(listed["fit"], "unsupported");
    assert!(firm.run(&["model", "remove", "weights"]).contains("weights removed, 1 MB freed"));
    assert!(!path.exists());
    let error = firm.fail(&["model", "remove", "weights"]);
    assert!(
        error.contains("no model file named weights") && error.contains("`chancery model list`"),
        "{error}"
    );
}

#[test]
fn pull_that_fills_the_disk_continues_when_there_is_space() {
    let mut firm = firm();
    let url = start_server();
    let sha256 = sha256_of(&content());
    let pull = ["model", "pull", &url, "--sha256", &sha256];
    // A limit on the size of files stands in for a full disk: the same write fails, in the middle of the file.
    firm.run_by(&["bash", "-c", "trap '' XFSZ; ulimit -f 300; exec \"$@\"", "limited"]);
    let error = firm.fail(&pull);
    assert!(error.contains("disk full") && error.contains("run the same command again"), "{error}");
    let models = firm.folder.path().join("cache/chancery/models");
    assert_eq!(std::fs::metadata(models.join("weights.gguf.partial")).unwrap().len(), 300 * 1024);
    firm.run_by(&[]);
    firm.run(&pull);
    assert_eq!(std::fs::read(models.join("weights.gguf")).unwrap(), content());
    assert!(!models.join("weights.gguf.partial").exists());
}

#[test]
fn pull_rejects_wrong_checksums_names_and_addresses() {
    let firm = firm();
    let wrong = "0".repeat(64);
    let error = firm.fail(&["model", "pull", &start_server(), "--sha256", &wrong]);
    assert!(error.contains(&wrong) && error.contains(&sha256_of(&content())), "{error}");
    for (arguments, part) in [
        (vec!["nobody"], "unknown model nobody; available: smollm2-135m, qwen2.5-coder-0.5b"),
        (vec!["hf:only/two"], "hf:OWNER/REPOSITORY/FILE.gguf"),
        (vec!["http://models.example/a.gguf"], "--allow-http"),
        (vec!["https://models.example/a.gguf", "--name", "../a"], "invalid model name"),
        (vec!["https://models.example/a.gguf", "--sha256", "1"], "64 hexadecimal digits"),
        (vec!["https://models.example/"], "choose one with `--name`"),
        (vec!["https://models.example/a.gguf", "--name", "smollm2-135m"], "name of the catalogue"),
        (vec!["smollm2-135m", "--name", "mine"], "keeps its name"),
    ] {
        let error = firm.fail(&[vec!["model", "pull"], arguments].concat());
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn imported_model_is_served_by_its_name_and_removed_by_force() {
    let firm = firm();
    let broken = firm.folder.path().join("broken.gguf");
    std::fs::write(&broken, "GGUF and nothing else").unwrap();
    let error = firm.fail(&["model", "import", broken.to_str().unwrap()]);
    assert!(error.contains("broken.gguf"), "{error}");
    assert!(firm.fail(&["model", "import", "nowhere.gguf"]).contains("file not found: nowhere.gguf"));
    let file = model_file();
    let path = firm.run(&["model", "import", file.to_str().unwrap(), "--name", "mine"]);
    let listed = row(&firm, "mine");
    assert_eq!((&listed["configured"], &listed["fit"]), (&Value::Bool(false), &Value::from("fits")));
    assert!(listed["memory_bytes"].as_u64().unwrap() > listed["bytes"].as_u64().unwrap());
    // The folder has the file of this name, so `file` need not be set.
    let firm = firm
        .without("CHANCERY_MODELS__0__FILE")
        .with("CHANCERY_MODELS__0__NAME", "mine")
        .with("CHANCERY_MODELS__0__INPUT_PER_MILLION", "0.10")
        .with("CHANCERY_MODELS__0__OUTPUT_PER_MILLION", "0.40");
    assert_eq!(row(&firm, "mine")["file"], path.trim_end());
    assert_eq!(row(&firm, "mine")["configured"], true);
    let error = firm.fail(&["model", "remove", "mine"]);
    assert!(error.contains("[[models]]") && error.contains("--force"), "{error}");
    firm.run(&["model", "remove", "mine", "--force"]);
    assert!(file.exists(), "the original stays");
}

#[test]
fn list_shows_the_catalogue_with_size_licence_and_fit() {
    let firm = firm();
    let listed = row(&firm, "qwen2.5-coder-0.5b");
    assert_eq!(listed["present"], false);
    assert_eq!(listed["bytes"], 491_400_064);
    assert_eq!(listed["licence"], "Apache-2.0");
    assert!(listed["sha256"].as_str().unwrap().starts_with("1d961463"));
    assert!(["fits", "too_large"].contains(&listed["fit"].as_str().unwrap()), "{listed}");
    assert_eq!(row(&firm, MODEL)["configured"], true);
    let table = firm.run(&["model", "list"]);
    assert!(table.contains("FITS") && table.contains("492 MB") && table.contains("available"), "{table}");
}
