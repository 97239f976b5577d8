//! Clear text to other machines: whoever is on the way can read and change it. Each section that names such a hop must allow it.

use super::reader::Reader;

/// A hop in clear text.
pub struct CleartextHop<'a> {
    /// The section of the configuration.
    pub section: &'a str,
    /// The key that names the host.
    pub key: &'a str,
    pub host: &'a str,
    /// What would be readable.
    pub secrets: &'a str,
    pub fix: &'a str,
}

/// Reads `allow_cleartext` of a section.
pub fn is_allowed(reader: &mut Reader, section: &str) -> bool {
    reader.boolean(&format!("{section}.allow_cleartext"), false)
}

pub fn reject(reader: &mut Reader, hop: &CleartextHop<'_>) {
    let CleartextHop { section, key, host, secrets, fix } = hop;
    reader.problem(
        key,
        format!(
            "{secrets} would be sent to {host} in clear text; {fix}, or set {section}.allow_cleartext = true if that network is private"
        ),
    );
}

#[cfg(test)]
mod tests {
    use crate::config::Loaded;
    use crate::config::source::Source;
    use std::path::Path;

    fn problems(text: &str) -> String {
        let mut source = Source::default();
        source.add_file(Path::new("chancery.toml"), text).unwrap();
        Loaded::from_source(source, Path::new("etc"), None)
            .map_or_else(|error| error.to_string(), |_| String::new())
    }

    fn model(endpoint: &str, with_key: bool) -> String {
        let key = if with_key { "api_key_file = \"k\"\n" } else { "" };
        format!(
            "[[models]]\nname = \"m\"\nengine = \"upstream\"\nendpoints = [\"https://h/v1\", \"{endpoint}\"]\n{key}\
             input_per_million = \"1\"\noutput_per_million = \"2\"\n"
        )
    }

    #[test]
    fn clear_text_to_another_machine_is_rejected_with_the_fix() {
        for (text, parts) in [
            (
                "[database]\nurl = \"postgres://u:secret@db.example/firm\"\n".to_owned(),
                [
                    "line 2: database.url: ",
                    "to db.example in clear text; add ?sslmode=verify-full",
                    "database.allow_cleartext",
                ],
            ),
            (
                "[database]\nurl = \"postgres://u:secret@10.0.0.5/firm?sslmode=prefer\"\n".to_owned(),
                ["database.url: ", "to 10.0.0.5 in clear text", "database.allow_cleartext = true"],
            ),
            (
                "[limits]\nstore = \"redis://:secret@cache.example/0\"\n".to_owned(),
                [
                    "line 2: limits.store: ",
                    "to cache.example in clear text; use rediss://",
                    "limits.allow_cleartext = true",
                ],
            ),
            (
                model("http://10.0.0.7:8000/v1", true),
                [
                    "line 4: models.0.endpoints: ",
                    "to 10.0.0.7 in clear text; use https://",
                    "models.0.allow_cleartext = true",
                ],
            ),
        ] {
            let problem = problems(&text);
            for part in parts {
                assert!(problem.contains(part), "{part}: {problem}");
            }
            assert!(!problem.contains("secret@"), "{problem}");
            let allowed = text.replacen("]\n", "]\nallow_cleartext = true\n", 1);
            assert_eq!(problems(&allowed), "", "{allowed}");
        }
    }

    #[test]
    fn encrypted_and_local_hops_need_no_permission() {
        for text in [
            "[database]\nurl = \"postgres://u:p@db.example/firm?sslmode=require\"".to_owned(),
            "[database]\nurl = \"postgres://u:p@db.example/firm?sslmode=verify-full\"".to_owned(),
            "[database]\nurl = \"postgres://u:p@localhost/firm\"".to_owned(),
            "[database]\nurl = \"postgres://u:p@127.0.0.1/firm\"".to_owned(),
            "[database]\nurl = \"postgres://u:p@%2Frun%2Fpostgresql/firm\"".to_owned(),
            "[limits]\nstore = \"rediss://:p@cache.example/0\"".to_owned(),
            "[limits]\nstore = \"redis://127.0.0.1/0\"".to_owned(),
            model("http://127.0.0.1:8000/v1", true),
            model("http://[::1]:8000/v1", true),
            model("https://10.0.0.7:8000/v1", true),
            model("http://10.0.0.7:8000/v1", false),
        ] {
            assert_eq!(problems(&text), "", "{text}");
        }
    }

    #[test]
    fn allow_cleartext_belongs_to_upstream_models_only() {
        let problem = problems("[[models]]\nname = \"smollm2-135m\"\nallow_cleartext = true");
        assert!(
            problem.contains("models.0.allow_cleartext: only valid with engine = \"upstream\""),
            "{problem}"
        );
    }
}
