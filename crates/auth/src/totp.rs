//! Codes of authenticator apps (RFC 6238): SHA-1, six digits, 30 seconds. Which codes were used is the store's.

use crate::limits::{TOTP_DIGITS, TOTP_SECRET_BYTES, TOTP_STEP_S, TOTP_TOLERANCE_STEPS};
use chancery_domain::{EmailAddress, Randomness, UnixMillis};
use data_encoding::BASE32_NOPAD;
use qrcode::{Color, QrCode};
use ring::hmac;
use std::fmt::Write as _;
use subtle::ConstantTimeEq;

/// What RFC 4226 requires.
const MIN_SECRET_BYTES: usize = 16;

/// Modules of white around a QR code, as the standard requires.
const QUIET_ZONE: usize = 4;

pub(crate) fn generate_secret(randomness: &dyn Randomness) -> Vec<u8> {
    let mut secret = vec![0; TOTP_SECRET_BYTES];
    randomness.fill(&mut secret);
    secret
}

/// The secret as people type it.
pub(crate) fn to_base32(secret: &[u8]) -> String {
    BASE32_NOPAD.encode(secret)
}

/// The reverse of `to_base32`.
pub(crate) fn from_base32(text: &str) -> Option<Vec<u8>> {
    BASE32_NOPAD.decode(text.as_bytes()).ok()
}

/// In groups of four, which are easier to type.
pub(crate) fn grouped(base32: &str) -> String {
    let chars: Vec<char> = base32.chars().collect();
    let groups: Vec<String> = chars.chunks(4).map(|group| group.iter().collect()).collect();
    groups.join(" ")
}

/// Ignores spaces and hyphens. `None` if it is not six digits.
pub(crate) fn parse_code(typed: &str) -> Option<String> {
    let code: String = typed.chars().filter(|c| !c.is_whitespace() && *c != '-').collect();
    (code.len() == TOTP_DIGITS && code.bytes().all(|byte| byte.is_ascii_digit())).then_some(code)
}

/// The time step whose code this is, among those that are accepted now. The newest, if two steps have the same code.
pub(crate) fn matching_step(secret: &[u8], code: &str, now: UnixMillis) -> Option<i64> {
    if secret.len() < MIN_SECRET_BYTES {
        return None;
    }
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret);
    let current = now.0 / 1_000 / TOTP_STEP_S;
    let mut matching = None;
    for step in current - TOTP_TOLERANCE_STEPS..=current + TOTP_TOLERANCE_STEPS {
        let Ok(counter) = u64::try_from(step) else { continue };
        if hotp(&key, counter).as_bytes().ct_eq(code.as_bytes()).into() {
            matching = Some(step);
        }
    }
    matching
}

/// RFC 4226, section 5.3: the last half byte of the MAC says where in it the four bytes of the code are.
fn hotp(key: &hmac::Key, counter: u64) -> String {
    let mac = hmac::sign(key, &counter.to_be_bytes());
    let mac = mac.as_ref();
    let start = usize::from(mac[mac.len() - 1] & 0xf);
    let number = mac[start..start + 4].iter().fold(0, |number, byte| (number << 8) | u32::from(*byte));
    let code = (number & 0x7fff_ffff) % 10_u32.pow(TOTP_DIGITS as u32);
    format!("{code:0TOTP_DIGITS$}")
}

/// What the QR code contains: the key URI format that authenticator apps read.
pub(crate) fn uri(firm_name: &str, email: &EmailAddress, base32: &str) -> String {
    // A colon separates the firm from the account.
    let firm = percent_encode(&firm_name.replace(':', " "));
    let account = percent_encode(email.as_str());
    format!(
        "otpauth://totp/{firm}:{account}?secret={base32}&issuer={firm}&algorithm=SHA1\
         &digits={TOTP_DIGITS}&period={TOTP_STEP_S}"
    )
}

/// A QR code as an SVG path on a white square.
pub(crate) struct QrImage {
    pub side: usize,
    pub path: String,
}

/// `None` if the text is too long for a QR code.
pub(crate) fn qr_image(text: &str) -> Option<QrImage> {
    let code = QrCode::new(text).ok()?;
    let width = code.width();
    let mut path = String::new();
    for (index, color) in code.to_colors().into_iter().enumerate() {
        if color == Color::Dark {
            let (x, y) = (index % width + QUIET_ZONE, index / width + QUIET_ZONE);
            // Writing to a `String` cannot fail.
            let _ = write!(path, "M{x} {y}h1v1h-1z");
        }
    }
    Some(QrImage { side: width + 2 * QUIET_ZONE, path })
}

fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            other => {
                let _ = write!(encoded, "%{other:02X}");
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::OsRandomness;

    /// The secret and the SHA-1 values of RFC 6238, appendix B, shortened to six digits.
    const RFC_SECRET: &[u8] = b"12345678901234567890";

    fn at(seconds: i64) -> UnixMillis {
        UnixMillis(seconds * 1_000)
    }

    #[test]
    fn codes_are_those_of_rfc_6238() {
        for (seconds, code) in [
            (59, "287082"),
            (1_111_111_109, "081804"),
            (1_111_111_111, "050471"),
            (1_234_567_890, "005924"),
            (2_000_000_000, "279037"),
            (20_000_000_000, "353130"),
        ] {
            assert_eq!(matching_step(RFC_SECRET, code, at(seconds)), Some(seconds / 30), "{seconds}");
        }
    }

    #[test]
    fn codes_are_those_of_rfc_4226() {
        let codes = [
            "755224", "287082", "359152", "969429", "338314", "254676", "287922", "162583", "399871",
            "520489",
        ];
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, RFC_SECRET);
        for (counter, code) in (0..).zip(codes) {
            assert_eq!(hotp(&key, counter), code, "{counter}");
        }
    }

    #[test]
    fn code_is_accepted_one_step_early_or_late() {
        let step = 59 / 30;
        for (seconds, expected) in [(0, Some(step)), (29, Some(step)), (89, Some(step)), (90, None)] {
            assert_eq!(matching_step(RFC_SECRET, "287082", at(seconds)), expected, "{seconds}");
        }
        assert_eq!(matching_step(RFC_SECRET, "287083", at(59)), None);
    }

    #[test]
    fn short_secret_has_no_codes() {
        let secret = &RFC_SECRET[..MIN_SECRET_BYTES - 1];
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret);
        assert_eq!(matching_step(secret, &hotp(&key, 1), at(59)), None);
    }

    #[test]
    fn typed_codes_may_have_spaces() {
        for typed in ["287082", " 287 082 ", "287-082"] {
            assert_eq!(parse_code(typed).as_deref(), Some("287082"));
        }
        for typed in ["", "28708", "2870822", "28708a", "٢٨٧٠٨٢"] {
            assert_eq!(parse_code(typed), None, "{typed}");
        }
    }

    #[test]
    fn secret_round_trips_as_text() {
        let secret = generate_secret(&OsRandomness);
        let text = to_base32(&secret);
        assert_eq!((text.len(), from_base32(&text)), (32, Some(secret)));
        assert_eq!(to_base32(RFC_SECRET), "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ");
        assert_eq!(from_base32("GEZDGNBVGY3TQOJ1"), None);
        assert_eq!(grouped("ABCDEFGHIJ"), "ABCD EFGH IJ");
    }

    #[test]
    fn uri_names_firm_and_account() {
        let email = "maya+work@example.com".parse().unwrap();
        let uri = uri("Hale & Ward: Boston", &email, "ABCD");
        assert_eq!(
            uri,
            "otpauth://totp/Hale%20%26%20Ward%20%20Boston:maya%2Bwork%40example.com?secret=ABCD\
             &issuer=Hale%20%26%20Ward%20%20Boston&algorithm=SHA1&digits=6&period=30"
        );
        let image = qr_image(&uri).unwrap();
        assert!(image.side > 30 && image.path.starts_with("M4 4h1v1h-1z"), "the first corner");
    }
}
