//! Keys that are reserved but not implemented in this version. Each is rejected with an alternative: a server that
//! ignored them would be less secure than its configuration claims.

use super::reader::Reader;

const UNSUPPORTED_SECTIONS: &[&str] = &["tls.certificate", "tls.private_key"];

pub fn reject_unsupported(reader: &mut Reader) {
    let before = reader.settings.len();
    for key in UNSUPPORTED_SECTIONS {
        if reader.skip(key) {
            reader.problem(key, "TLS is not supported in this version; remove the key and use a TLS proxy");
        }
    }
    // `report_unknown` must know these keys, but `config show` must not list them as if they had an effect.
    for setting in &mut reader.settings[before..] {
        setting.value = None;
    }
}
