//! Parses the forms for a key's own limits and its rotation. An empty field means that the key has no such limit. A
//! field that an existing key's form does not have leaves the limit as it is.

use super::forms::count;
use chancery_domain::{
    AllowedModels, Day, KeyHash, KeyLimits, KeyPrefix, Nanos, Randomness, UnixMillis, parse_expiry,
};
use chancery_store::{KeyLimitsChange, LimitChange};
use chancery_web::{Problems, capitalize};
use serde::Deserialize;
use std::time::Duration;

/// The ids of the inputs. A page may have the form of a new key and of an existing one.
pub(super) struct KeyLimitIds {
    rpm: &'static str,
    tpm: &'static str,
    cap: &'static str,
    models: &'static str,
    expires: &'static str,
}

/// The form of a new key.
pub(super) const NEW_KEY: KeyLimitIds = KeyLimitIds {
    rpm: "new-rpm",
    tpm: "new-tpm",
    cap: "new-cap",
    models: "new-models",
    expires: "new-expires",
};

/// The form of an existing key.
pub(super) const EXISTING_KEY: KeyLimitIds = KeyLimitIds {
    rpm: "key-rpm",
    tpm: "key-tpm",
    cap: "key-cap",
    models: "key-models",
    expires: "key-expires",
};

/// The limits of a key as text, as the form shows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyLimitsInput {
    pub(crate) rpm: String,
    pub(crate) tpm: String,
    pub(crate) cap: String,
    /// Names separated by commas.
    pub(crate) models: String,
    /// The last day on which the key works, or the exact time.
    pub(crate) expires: String,
}

impl KeyLimitsInput {
    pub(super) fn of(limits: &KeyLimits) -> Self {
        fn text<T: ToString>(limit: Option<&T>) -> String {
            limit.map_or_else(String::new, ToString::to_string)
        }
        Self {
            rpm: text(limits.requests_per_min.as_ref()),
            tpm: text(limits.tokens_per_min.as_ref()),
            cap: text(limits.spend_per_month.as_ref()),
            models: text(limits.models.as_ref()),
            expires: limits.expires_at.map_or_else(String::new, expiry_text),
        }
    }

    pub(super) fn read(&self, ids: &KeyLimitIds) -> Result<KeyLimits, Problems> {
        let mut problems = Problems::default();
        let limits = KeyLimits {
            requests_per_min: optional(&self.rpm, |text| count(&mut problems, ids.rpm, text)),
            tokens_per_min: optional(&self.tpm, |text| count(&mut problems, ids.tpm, text)),
            spend_per_month: optional(&self.cap, |text| {
                let message = "Enter an amount like 250 or 12.50, or leave it empty for no cap";
                text.parse::<Nanos>().map_err(|_| problems.add(ids.cap, message)).ok()
            }),
            models: optional(&self.models, |text| {
                let read = text.parse::<AllowedModels>();
                read.map_err(|error| problems.add(ids.models, capitalize(&error.to_string()))).ok()
            }),
            expires_at: optional(&self.expires, |text| {
                let read = parse_expiry(text);
                read.map_err(|error| problems.add(ids.expires, capitalize(&error.to_string()))).ok()
            }),
        };
        if problems.any() { Err(problems) } else { Ok(limits) }
    }
}

fn optional<T>(typed: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    match typed.trim() {
        "" => None,
        text => read(text),
    }
}

/// As `parse_expiry` reads it.
fn expiry_text(at: UnixMillis) -> String {
    let last_day = Day(Day::containing(at).0 - 1);
    if last_day.end() == at { last_day.to_string() } else { at.to_iso() }
}

/// Changed limits of an existing key. `None`: the request does not have the field.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyLimitsForm {
    rpm: Option<String>,
    tpm: Option<String>,
    cap: Option<String>,
    models: Option<String>,
    expires: Option<String>,
}

impl KeyLimitsForm {
    pub(super) fn read(&self) -> Result<KeyLimitsChange, Problems> {
        fn change<T>(typed: Option<&String>, limit: Option<T>) -> LimitChange<T> {
            match (typed, limit) {
                (None, _) => LimitChange::Keep,
                (Some(_), None) => LimitChange::Remove,
                (Some(_), Some(limit)) => LimitChange::Set(limit),
            }
        }
        let limits = self.typed_over(KeyLimitsInput::default()).read(&EXISTING_KEY)?;
        Ok(KeyLimitsChange {
            requests_per_min: change(self.rpm.as_ref(), limits.requests_per_min),
            tokens_per_min: change(self.tpm.as_ref(), limits.tokens_per_min),
            spend_per_month: change(self.cap.as_ref(), limits.spend_per_month),
            models: change(self.models.as_ref(), limits.models),
            expires_at: change(self.expires.as_ref(), limits.expires_at),
        })
    }

    /// What was typed, and `shown` where nothing was.
    pub(super) fn typed_over(&self, shown: KeyLimitsInput) -> KeyLimitsInput {
        KeyLimitsInput {
            rpm: self.rpm.clone().unwrap_or(shown.rpm),
            tpm: self.tpm.clone().unwrap_or(shown.tpm),
            cap: self.cap.clone().unwrap_or(shown.cap),
            models: self.models.clone().unwrap_or(shown.models),
            expires: self.expires.clone().unwrap_or(shown.expires),
        }
    }
}

/// A new key: its label and its limits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NewKeyInput {
    /// The public prefix of the key that this form creates. A form that is sent twice creates one key, because a prefix is
    /// used once. Empty if the request is not from the form.
    pub(crate) prefix: String,
    pub(crate) label: String,
    pub(crate) rpm: String,
    pub(crate) tpm: String,
    pub(crate) cap: String,
    pub(crate) models: String,
    pub(crate) expires: String,
}

impl NewKeyInput {
    pub(super) fn fresh(randomness: &dyn Randomness) -> Self {
        Self::default().with_prefix(randomness)
    }

    /// Generates a prefix if there is no valid one.
    pub(super) fn with_prefix(self, randomness: &dyn Randomness) -> Self {
        match self.key_prefix() {
            Some(_) => self,
            None => Self { prefix: KeyPrefix::generate(randomness).to_string(), ..self },
        }
    }

    pub(super) fn key_prefix(&self) -> Option<KeyPrefix> {
        KeyPrefix::parse(&self.prefix).ok()
    }

    pub(super) fn read(&self) -> Result<(String, KeyLimits), Problems> {
        let label = super::forms::LabelInput { label: self.label.clone() }.read("label");
        let limits = KeyLimitsInput {
            rpm: self.rpm.clone(),
            tpm: self.tpm.clone(),
            cap: self.cap.clone(),
            models: self.models.clone(),
            expires: self.expires.clone(),
        };
        match (label, limits.read(&NEW_KEY)) {
            (Ok(label), Ok(limits)) => Ok((label, limits)),
            (label, limits) => {
                let mut problems = label.err().unwrap_or_default();
                problems.0.extend(limits.err().unwrap_or_default().0);
                Err(problems)
            }
        }
    }

    /// Whether a limit was typed, so that the form shows them.
    pub(super) fn has_limits(&self) -> bool {
        [&self.rpm, &self.tpm, &self.cap, &self.models, &self.expires].iter().any(|typed| !typed.is_empty())
    }
}

/// How long the old secret of a rotated key still works, and whether to end a running overlap (a checkbox).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RotateInput {
    overlap_hours: String,
    end_overlap: String,
    /// The secret that the form rotates (`secret_id`), so that a form that is sent twice rotates once. Empty if the request is
    /// not from the form.
    secret: String,
}

/// Tells a key's secrets apart, without the secret.
pub(super) fn secret_id(hash: &KeyHash) -> String {
    hash.0[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// In hours, with its text. The first is selected.
const OVERLAPS: [(u64, &str); 4] = [(24, "24 hours"), (1, "1 hour"), (7 * 24, "7 days"), (0, "Not at all")];

impl RotateInput {
    /// Only what the form offers. Anything else is a request that the form did not send, and gets the default.
    pub(super) fn overlap(&self) -> Duration {
        Duration::from_secs(self.overlap_hours() * 3_600)
    }

    fn overlap_hours(&self) -> u64 {
        let hours = self.overlap_hours.trim().parse().ok();
        let known = OVERLAPS.iter().map(|(hours, _)| *hours).find(|offered| Some(*offered) == hours);
        known.unwrap_or(OVERLAPS[0].0)
    }

    /// Whether the form was for an earlier secret.
    pub(super) fn is_outdated(&self, current: &KeyHash) -> bool {
        !self.secret.is_empty() && self.secret != secret_id(current)
    }

    pub(super) fn ends_running_overlap(&self) -> bool {
        !self.end_overlap.is_empty()
    }

    /// Hours and text of the offered overlaps, and whether it is the selected one.
    pub(super) fn overlap_choices(&self) -> Vec<(u64, &'static str, bool)> {
        let selected = self.overlap_hours();
        OVERLAPS.iter().map(|(hours, text)| (*hours, *text, *hours == selected)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_limits_are_optional_and_reported_by_field() {
        assert_eq!(KeyLimitsInput::default().read(&EXISTING_KEY).unwrap(), KeyLimits::default());
        let input = KeyLimitsInput {
            rpm: " 60 ".to_owned(),
            tpm: "1".to_owned(),
            cap: "12.50".to_owned(),
            models: "b, a".to_owned(),
            expires: "2027-06-30".to_owned(),
        };
        let limits = input.read(&EXISTING_KEY).unwrap();
        assert_eq!((limits.requests_per_min, limits.tokens_per_min), (Some(60), Some(1)));
        assert_eq!(limits.spend_per_month, Some(Nanos(12_500_000_000)));
        assert_eq!(limits.models.as_ref().unwrap().names(), ["a", "b"]);
        assert_eq!(limits.expires_at.unwrap().to_iso(), "2027-07-01T00:00:00.000Z");
        let shown = KeyLimitsInput::of(&limits);
        assert_eq!((shown.expires.as_str(), shown.models.as_str()), ("2027-06-30", "a,b"));
        assert_eq!(shown.read(&EXISTING_KEY).unwrap(), limits);

        let bad = KeyLimitsInput {
            rpm: "0".to_owned(),
            tpm: "many".to_owned(),
            cap: "$5".to_owned(),
            models: ",".to_owned(),
            expires: "soon".to_owned(),
        };
        let problems = bad.read(&NEW_KEY).unwrap_err();
        let fields: Vec<_> = problems.0.iter().map(|problem| problem.field).collect();
        assert_eq!(fields, ["new-rpm", "new-tpm", "new-cap", "new-models", "new-expires"]);
    }

    #[test]
    fn exact_expiry_is_shown_as_a_time_and_stays_the_same() {
        let at = UnixMillis(1_798_000_000_123);
        let limits = KeyLimits { expires_at: Some(at), ..KeyLimits::default() };
        assert_eq!(KeyLimitsInput::of(&limits).read(&NEW_KEY).unwrap().expires_at, Some(at));
    }

    #[test]
    fn overlap_is_one_of_the_offered() {
        let input = |text: &str| RotateInput { overlap_hours: text.to_owned(), ..RotateInput::default() };
        let overlap = |text: &str| input(text).overlap().as_secs();
        assert_eq!([overlap("0"), overlap("1"), overlap("168")], [0, 3_600, 604_800]);
        assert_eq!([overlap(""), overlap("5"), overlap("x")], [86_400; 3]);
        let selected = |text: &str| {
            let choices = input(text).overlap_choices();
            choices.iter().filter(|choice| choice.2).map(|choice| choice.0).collect::<Vec<_>>()
        };
        assert_eq!([selected(""), selected("168")], [[24], [168]]);
    }

    #[test]
    fn absent_limit_field_keeps_the_limit_and_an_empty_one_removes_it() {
        let form = KeyLimitsForm {
            rpm: Some("7".to_owned()),
            tpm: Some(" ".to_owned()),
            ..KeyLimitsForm::default()
        };
        let before = KeyLimits {
            requests_per_min: Some(5),
            tokens_per_min: Some(6),
            spend_per_month: Some(Nanos(1)),
            models: Some("a".parse().unwrap()),
            expires_at: Some(UnixMillis(86_400_000)),
        };
        let after = form.read().unwrap().apply(before.clone());
        assert_eq!(after, KeyLimits { requests_per_min: Some(7), tokens_per_min: None, ..before.clone() });
        let shown = form.typed_over(KeyLimitsInput::of(&before));
        assert_eq!((shown.rpm.as_str(), shown.tpm.as_str(), shown.models.as_str()), ("7", " ", "a"));
    }
}
