//! The fields that say how a text is drawn and where it ends, wherever they stand in a body.

use crate::error::ApiError;
use crate::request::fields::Fields;

pub(crate) const MAX_TEMPERATURE: f64 = 2.0;
pub(crate) const MAX_STOP_STRINGS: usize = 4;
/// In characters, because that is what a schema can say.
pub(crate) const MAX_STOP_CHARS: usize = 256;

/// None where the caller leaves it to us.
pub(crate) fn temperature(fields: &mut Fields) -> Result<Option<f32>, ApiError> {
    let temperature = fields.optional_number("temperature")?;
    if temperature.is_some_and(|temperature| !(0.0..=MAX_TEMPERATURE).contains(&temperature)) {
        let reason = format!("`temperature` must be from 0 to {MAX_TEMPERATURE}");
        return Err(ApiError::invalid_value("temperature", reason));
    }
    Ok(temperature.map(|temperature| temperature as f32))
}

pub(crate) fn top_p(fields: &mut Fields) -> Result<f32, ApiError> {
    let top_p = fields.optional_number("top_p")?.unwrap_or(1.0);
    if !(top_p > 0.0 && top_p <= 1.0) {
        return Err(ApiError::invalid_value("top_p", "`top_p` must be above 0 and at most 1"));
    }
    // What is too small for it is above 0 all the same: only the likeliest stays.
    Ok((top_p as f32).max(f32::MIN_POSITIVE))
}

pub(crate) fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stop = fields.optional_strings("stop")?;
    let is_too_long = |text: &String| text.chars().nth(MAX_STOP_CHARS).is_some();
    if stop.len() > MAX_STOP_STRINGS || stop.iter().any(|text| text.is_empty() || is_too_long(text)) {
        let reason =
            format!("`stop` takes up to {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARS} characters each");
        return Err(ApiError::invalid_value("stop", reason));
    }
    Ok(stop)
}
