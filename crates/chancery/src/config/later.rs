//! Keys whose names are settled but whose parts this version does not have. Each is refused with what to do instead: a
//! server that ignored them would be less safe than its file says.

use super::reader::Reader;

const REFUSED: &[&str] = &["tls.certificate", "tls.private_key"];

pub fn refuse(reader: &mut Reader) {
    let before = reader.settings.len();
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
}
