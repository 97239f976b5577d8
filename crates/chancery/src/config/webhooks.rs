//! The `[webhooks]` section.

use super::reader::Reader;
use chancery_alerts::{AllowedNetwork, AllowedNetworks};

#[derive(Debug)]
pub struct Webhooks {
    /// Addresses that are not public and that webhooks may reach all the same.
    pub allow_private: AllowedNetworks,
}

pub fn webhooks(reader: &mut Reader) -> Webhooks {
    const KEY: &str = "webhooks.allow_private";
    let mut networks: Vec<AllowedNetwork> = Vec::new();
    for text in reader.texts(KEY) {
        match text.parse() {
            Ok(network) => networks.push(network),
            Err(error) => reader.problem(KEY, format!("{text:?} {error}")),
        }
    }
    Webhooks { allow_private: networks.into_iter().collect() }
}
