//! URLs as people may see them: without user names, passwords and the values of the query, any of which may be a secret.

/// The text with `***` in place of what may be a secret. It is one URL, or anything else, which stays as it is.
pub fn mask_url(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    format!("{scheme}://{}", mask_after_scheme(rest))
}

/// Masks every URL in a text, such as a line of a log. A URL ends at the first character that URLs cannot have.
pub fn mask_urls(text: &str) -> String {
    let (mut masked, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once("://") {
        let is_end = |character: char| {
            character.is_whitespace() || character.is_control() || "\"`<>\\".contains(character)
        };
        let (url, more) = after.split_at(after.find(is_end).unwrap_or(after.len()));
        let (url, punctuation) = url.split_at(url.trim_end_matches([',', ';', '.', ':', ')']).len());
        masked.extend([before, "://", &mask_after_scheme(url), punctuation]);
        rest = more;
    }
    masked + rest
}

fn mask_after_scheme(rest: &str) -> String {
    let split =
        |text, at: char| str::split_once(text, at).map_or((text, None), |(it, rest)| (it, Some(rest)));
    let (rest, fragment) = split(rest, '#');
    let (address, query) = split(rest, '?');
    let (authority, path) = address.split_at(address.find('/').unwrap_or(address.len()));
    let mut masked = match authority.rsplit_once('@') {
        Some((_, host)) => format!("***@{host}{path}"),
        None => address.to_owned(),
    };
    if let Some(query) = query {
        let mask = |parameter: &str| match parameter.split_once('=') {
            Some((name, _)) => format!("{name}=***"),
            None => "***".to_owned(),
        };
        masked += &format!("?{}", query.split('&').map(mask).collect::<Vec<_>>().join("&"));
    }
    masked + fragment.map_or("", |_| "#***")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_query_are_shown() {
        for (url, shown) in [
            ("https://host/path?token=a&b=c=d", "https://host/path?token=***&b=***"),
            ("https://host:8443/?secret", "https://host:8443/?***"),
            ("https://host/a?x=1#secret", "https://host/a?x=***#***"),
            ("redis://:p%40ss@cache/2", "redis://***@cache/2"),
            ("https://u:a@b@host/c@d?e=f@g", "https://***@host/c@d?e=***"),
            ("https://host/path", "https://host/path"),
            ("sqlite:/var/a?b=c", "sqlite:/var/a?b=c"),
            ("memory", "memory"),
            ("", ""),
        ] {
            assert_eq!(mask_url(url), shown);
            assert_eq!(mask_urls(url), shown);
        }
    }

    #[test]
    fn every_url_in_a_text_is_masked() {
        for (text, shown) in [
            (
                "no \"https://a/?k=v\", (http://u:p@b/): why?",
                "no \"https://a/?k=***\", (http://***@b/): why?",
            ),
            ("https://a?k=v, https://b?k=v.", "https://a?k=***, https://b?k=***."),
            ("a ://?k=v", "a ://?k=***"),
        ] {
            assert_eq!(mask_urls(text), shown);
        }
    }
}
