//! Fields against repeated text, shared by all bodies that generate: the penalties and `stop_on_repetition`.

use super::field_types::{Boolean, Integer, Number};
use super::fields::Fields;
use crate::error::ApiResult;
use chancery_engine::{Dry, Penalties};

/// OpenAI's range of both penalties.
const FREQUENCY_OR_PRESENCE: Number = Number { min: -2.0, excludes_min: false, max: 2.0 };
const REPETITION: Number = Number { min: 0.0, excludes_min: true, max: 2.0 };
/// Smaller ones have the same effect, but would make logits overflow.
const MIN_REPETITION: f32 = 1e-3;
const DRY_MULTIPLIER: Number = Number { min: 0.0, excludes_min: false, max: 5.0 };
const DRY_BASE: Number = Number { min: 1.0, excludes_min: false, max: 4.0 };
const DRY_ALLOWED_LENGTH: Integer = Integer { min: 1, max: Some(64) };

pub(crate) fn penalties(fields: &mut Fields) -> ApiResult<Penalties> {
    let Penalties { repetition, frequency, presence, dry } = Penalties::NONE;
    let frequency = fields.with_default(
        "frequency_penalty",
        &FREQUENCY_OR_PRESENCE,
        frequency,
        "Makes a token less likely each time the reply has it; below 0, more likely.",
    )?;
    let presence = fields.with_default(
        "presence_penalty",
        &FREQUENCY_OR_PRESENCE,
        presence,
        "Makes every token that the reply has less likely, however often it has it; below 0, more likely.",
    )?;
    let repetition = fields.with_default(
        "repetition_penalty",
        &REPETITION,
        repetition,
        "Above 1, makes every token of the prompt and the reply less likely: its logit is divided by this if it is positive, \
         and multiplied otherwise.",
    )?;
    let repetition = repetition.max(MIN_REPETITION);
    let multiplier = fields.with_default(
        "dry_multiplier",
        &DRY_MULTIPLIER,
        dry.multiplier,
        "Above 0, turns on DRY (\"don't repeat yourself\"): a token that would continue a sequence that was there before \
         becomes less likely, the more the longer the sequence is.",
    )?;
    let base = fields.with_default(
        "dry_base",
        &DRY_BASE,
        dry.base,
        "With `dry_multiplier`: the penalty is `dry_multiplier` times this to the power of the length beyond \
         `dry_allowed_length`.",
    )?;
    let allowed_length = fields.with_default(
        "dry_allowed_length",
        &DRY_ALLOWED_LENGTH,
        u64::from(dry.allowed_length),
        "With `dry_multiplier`: repeated sequences shorter than this many tokens are not penalised.",
    )?;
    let allowed_length = u32::try_from(allowed_length).unwrap_or(u32::MAX);
    Ok(Penalties { repetition, frequency, presence, dry: Dry { multiplier, base, allowed_length } })
}

pub(crate) fn stop_on_repetition(fields: &mut Fields) -> ApiResult<bool> {
    fields.with_default(
        "stop_on_repetition",
        &Boolean,
        false,
        "Whether a reply that only repeats itself is ended, with the stop reason `repetition`.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;

    fn read(body: &str) -> ApiResult<(Penalties, bool)> {
        let body = Json::parse(body.as_bytes()).unwrap();
        Fields::read("", body, |fields| Ok((penalties(fields)?, stop_on_repetition(fields)?)))
    }

    #[test]
    fn penalties_are_off_by_default() {
        let (penalties, stops) = read("{}").unwrap();
        assert_eq!((penalties, stops), (Penalties::NONE, false));
        assert!(penalties.is_none());
        let nulls = r#"{"frequency_penalty":null,"dry_base":null,"stop_on_repetition":null}"#;
        assert_eq!(read(nulls).unwrap(), (Penalties::NONE, false));
    }

    #[test]
    fn every_penalty_is_read_into_its_own_field() {
        let body = r#"{"frequency_penalty":-2,"presence_penalty":0.5,"repetition_penalty":1.25,"dry_multiplier":0.75,
            "dry_base":2,"dry_allowed_length":64,"stop_on_repetition":true}"#;
        let dry = Dry { multiplier: 0.75, base: 2.0, allowed_length: 64 };
        let expected = Penalties { repetition: 1.25, frequency: -2.0, presence: 0.5, dry };
        assert_eq!(read(body).unwrap(), (expected, true));
        let (tiny, _) = read(r#"{"repetition_penalty":1e-320}"#).unwrap();
        assert_eq!(tiny, Penalties { repetition: MIN_REPETITION, ..Penalties::NONE });
    }

    #[test]
    fn penalty_out_of_range_is_rejected_with_its_range() {
        for (field, value, range) in [
            ("frequency_penalty", "2.1", "from -2 to 2"),
            ("frequency_penalty", "-2.1", "from -2 to 2"),
            ("presence_penalty", "3", "from -2 to 2"),
            ("repetition_penalty", "0", "greater than 0 and at most 2"),
            ("repetition_penalty", "2.5", "greater than 0 and at most 2"),
            ("dry_multiplier", "-0.1", "from 0 to 5"),
            ("dry_multiplier", "5.1", "from 0 to 5"),
            ("dry_base", "0.9", "from 1 to 4"),
            ("dry_allowed_length", "0", "from 1 to 64"),
            ("dry_allowed_length", "65", "from 1 to 64"),
        ] {
            let error = read(&format!(r#"{{"{field}":{value}}}"#)).unwrap_err();
            assert_eq!((error.code, error.field.as_deref()), ("invalid_value", Some(field)));
            assert_eq!(error.reason, format!("`{field}` must be {range}"));
        }
    }
}
