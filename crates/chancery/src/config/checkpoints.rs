//! The `[checkpoints]` section.

use super::is_on_this_machine;
use super::reader::Reader;
use chancery_domain::mask_url;
use chancery_transparency::{Destinations, SyslogAddress};
use reqwest::Url;

/// Where signed checkpoints go besides `DATA/checkpoints`.
pub fn checkpoints(reader: &mut Reader) -> Destinations {
    Destinations { syslog: syslog(reader), webhook: webhook(reader) }
}

fn syslog(reader: &mut Reader) -> Option<SyslogAddress> {
    const KEY: &str = "checkpoints.syslog";
    let text = reader.optional_text(KEY)?;
    match text.parse::<SyslogAddress>() {
        Ok(address) => Some(address),
        Err(error) => {
            reader.problem(KEY, format!("{text:?}: {error}"));
            None
        }
    }
}

fn webhook(reader: &mut Reader) -> Option<Url> {
    const KEY: &str = "checkpoints.webhook";
    let text = reader.optional_text(KEY)?;
    let url = Url::parse(&text).ok().filter(|url| url.has_host());
    let is_private = is_on_this_machine(&text) && text.starts_with("http://");
    match url.filter(|url| url.scheme() == "https" || is_private) {
        Some(url) => Some(url),
        None => {
            let problem =
                "use a URL such as \"https://example.com/checkpoints\"; http:// only for this machine";
            reader.problem(KEY, format!("invalid URL {:?}; {problem}", mask_url(&text)));
            None
        }
    }
}
