//! Keys whose names are settled but whose parts this version does not have. A file written for the whole of Chancery
//! still starts; each such key is named in a warning, because a setting that silently does nothing is a trap.

use super::reader::Reader;

const KEYS: &[&str] = &["portal.drafting.api_url", "portal.drafting.api_key_file", "portal.drafting.model"];

/// Keys that would make the server less safe if they were only warned about.
const REFUSED: &[&str] = &["tls.certificate", "tls.private_key"];

pub fn read(reader: &mut Reader) -> Vec<String> {
    let before = reader.settings.len();
    let mut warnings = Vec::new();
    for key in KEYS {
        if reader.skip(key) {
            let origin = reader.origin(key);
            warnings.push(format!("{origin}: {key} has no effect yet: this version drafts no letters"));
        }
    }
    for key in REFUSED {
        if reader.skip(key) {
            reader.problem(
                key,
                "this version does not serve TLS itself; remove it and put a TLS proxy in front",
            );
        }
    }
    // They are known to `report_unknown`, but not shown as if they did something.
    for setting in &mut reader.settings[before..] {
        setting.value = None;
    }
    warnings
}
