//! The redirect target after sign-in: a path of this portal, never another site, however it is disguised.

use std::fmt;

const MAX_BYTES: usize = 2_000;

/// A path with its query, such as `/clients/7?tab=letters`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPath(String);

impl LocalPath {
    /// Returns `None` for anything that a browser might treat as another site: `//evil.example`, `/\evil.example`, `https:…`, or
    /// control characters that it would strip.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = text.bytes();
        let starts_with_slash = bytes.next() == Some(b'/') && !matches!(bytes.next(), Some(b'/' | b'\\'));
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        (starts_with_slash && is_plain && text.len() <= MAX_BYTES).then(|| Self(text.to_owned()))
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
    fn return_path_must_be_local() {
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
