//! Where a person goes on after signing in: a path of this portal, never another address, however it is dressed up.

use std::fmt;

const MAX_BYTES: usize = 2_000;

/// A path with its query, such as `/clients/7?tab=letters`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPath(String);

impl LocalPath {
    /// None for whatever a browser might take for another site: `//evil.example`, `/\evil.example`, `https:…`, control
    /// characters that it would leave out.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = text.bytes();
        let begins_well = bytes.next() == Some(b'/') && !matches!(bytes.next(), Some(b'/' | b'\\'));
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        (begins_well && is_plain && text.len() <= MAX_BYTES).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LocalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_this_portal_are_taken() {
        for path in ["/", "/clients", "/clients/7?tab=letters#top", "/a//b", "/?next=https://evil.example"] {
            assert_eq!(LocalPath::parse(path).unwrap().as_str(), path);
        }
        for path in [
            "",
            "clients",
            "//evil.example",
            "/\\evil.example",
            "\\/evil.example",
            "https://evil.example",
            "/\t/evil.example",
            "/\n/evil.example",
            "/ /evil.example",
            " /clients",
            "/clients\r\nSet-Cookie: a=b",
            "/cli\0ents",
            "/a\\b",
            "javascript:alert(1)",
            "/\u{2028}x",
        ] {
            assert_eq!(LocalPath::parse(path), None, "{path:?}");
        }
        assert_eq!(LocalPath::parse(&format!("/{}", "x".repeat(2_000))), None);
    }
}
