//! Checks the settings in `deploy/` against the binary: each file with the environment that it runs in.
//! `scripts/lint-deploy` checks the rest.

use crate::server::{binary, clean_command, model_file, write_secret};
use crate::upstream::tokenizer_file;
use std::collections::BTreeMap;
use std::path::Path;

fn deployed(path: &str) -> String {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy")).join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Runs `chancery config` in a directory whose `chancery.toml` has this text; returns its output.
fn config(command: &[&str], folder: &Path, toml: &str, environment: &[(String, String)]) -> String {
    std::fs::write(folder.join("chancery.toml"), toml).unwrap();
    let mut chancery = clean_command(binary());
    chancery.arg("config").args(command).current_dir(folder);
    chancery.envs(environment.iter().map(|(name, value)| (name, value)));
    let output = chancery.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns all `NAME=value` pairs in a text that are Chancery settings.
fn assigned(text: &str) -> Vec<(String, String)> {
    let pairs = text.split_whitespace().filter_map(|word| word.split_once('='));
    pairs
        .filter(|(name, _)| name.starts_with("CHANCERY_"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The Deployment's variables, with values from the example Secrets.
fn variables_of_pods() -> Vec<(String, String)> {
    let (deployment, secrets) =
        (deployed("kubernetes/deployment.yaml"), deployed("kubernetes/examples/secrets.yaml"));
    let values: BTreeMap<&str, &str> =
        secrets.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(": ")).collect();
    let variables = deployment.split("- name: CHANCERY_").skip(1);
    let variable = |text: &str| {
        let name = text.lines().next().unwrap();
        let key = text.split_once("key: ").unwrap().1.lines().next().unwrap();
        (format!("CHANCERY_{name}"), values[key].to_owned())
    };
    variables.map(variable).collect()
}

#[test]
fn kubernetes_config_is_valid_and_reads_passwords_from_the_secret() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("secrets")).unwrap();
    write_secret(&folder.path().join("secrets/upstream.key"), "key\n");
    let tokenizer = tokenizer_file::write(&model_file(), folder.path());
    let mut environment = variables_of_pods();
    assert_eq!(environment.len(), 3);
    environment.extend(assigned(&deployed("container/Containerfile")));
    environment.push(("CHANCERY_MODELS__0__TOKENIZER".to_owned(), tokenizer.to_str().unwrap().to_owned()));
    let toml = deployed("kubernetes/chancery.toml");
    assert!(config(&["check"], folder.path(), &toml, &environment).contains("configuration OK"));
    let shown = config(&["show"], folder.path(), &toml, &environment);
    for key in ["api.listen", "portal.listen", "auth.listen", "ops.listen"] {
        let line = shown.lines().find(|line| line.starts_with(key)).unwrap();
        assert!(line.contains("0.0.0.0") && !line.contains("# environment variable"), "{line}");
    }
    for key in ["database.url", "limits.store", "mail.smtp"] {
        let line = shown.lines().find(|line| line.starts_with(key)).unwrap();
        assert!(line.contains("# environment variable") && !line.contains("PASSWORD"), "{line}");
    }
}

#[test]
fn systemd_and_container_configs_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let unit = assigned(&deployed("systemd/chancery.service").replace("Environment=", ""));
    assert!(unit.contains(&("CHANCERY_DATA".to_owned(), "/var/lib/chancery".to_owned())), "{unit:?}");
    assert!(
        config(&["check"], folder.path(), &deployed("systemd/chancery.toml"), &unit)
            .contains("configuration OK")
    );
    let image = assigned(&deployed("container/Containerfile"));
    assert_eq!(image.len(), 1, "{image:?}");
    assert!(config(&["check"], folder.path(), "", &image).contains("configuration OK"));
}
