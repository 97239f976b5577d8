//! Names of time zones, from the IANA database that the program was built with. The database of the machine is not
//! used, so that all nodes agree.

use jiff::tz::TimeZoneDatabase;
use std::fmt;
use std::str::FromStr;

/// The areas of places. The database also has old names, such as `US/Eastern`, which are accepted but not offered.
const AREAS: [&str; 10] = [
    "Africa",
    "America",
    "Antarctica",
    "Arctic",
    "Asia",
    "Atlantic",
    "Australia",
    "Europe",
    "Indian",
    "Pacific",
];

/// The name of a time zone in the database, such as `Europe/Berlin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeZoneName(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown time zone; use an IANA name such as `Europe/Berlin`")]
pub struct UnknownTimeZone;

impl TimeZoneName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names to choose from: `UTC`, and the zones of places by name.
    pub fn offered() -> Vec<String> {
        let is_place = |name: &str| name.split_once('/').is_some_and(|(area, _)| AREAS.contains(&area));
        let database = TimeZoneDatabase::bundled();
        let mut names: Vec<String> = database.available().map(|name| name.as_str().to_owned()).collect();
        names.retain(|name| is_place(name));
        names.sort();
        names.insert(0, "UTC".to_owned());
        names
    }
}

impl FromStr for TimeZoneName {
    type Err = UnknownTimeZone;

    /// Ignores case, and stores the name as the database has it.
    fn from_str(text: &str) -> Result<Self, UnknownTimeZone> {
        let zone = TimeZoneDatabase::bundled().get(text.trim()).map_err(|_| UnknownTimeZone)?;
        match zone.iana_name() {
            Some(name) if !zone.is_unknown() => Ok(Self(name.to_owned())),
            _ => Err(UnknownTimeZone),
        }
    }
}

impl fmt::Display for TimeZoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_zone_names_are_validated_and_canonical() {
        let name = |text: &str| text.parse::<TimeZoneName>().map(|name| name.to_string());
        assert_eq!(name("europe/berlin").as_deref(), Ok("Europe/Berlin"));
        assert_eq!(name("UTC").as_deref(), Ok("UTC"));
        for unknown in ["", "CEST", "Europe/Berlin2", "../Europe/Berlin", "+01:00", "Etc/Unknown", "Europe"] {
            assert_eq!(name(unknown), Err(UnknownTimeZone), "{unknown}");
        }
    }

    #[test]
    fn every_offered_time_zone_is_valid() {
        let offered = TimeZoneName::offered();
        assert!(offered.len() > 300 && offered[0] == "UTC", "{}", offered.len());
        for name in offered {
            assert_eq!(name.parse::<TimeZoneName>().map(|zone| zone.to_string()), Ok(name));
        }
    }
}
