//! The named fields of a request object, each taken once and checked for its type. What is left over at the end is
//! unknown, and is refused with the nearest known name.

use crate::error::ApiError;
use crate::json::{Json, LARGEST_EXACT, shorten};

pub(crate) struct Fields {
    /// Where the object stands in the body: nothing, or a path that ends with a dot.
    within: String,
    left: Vec<(String, Json)>,
    asked_for: Vec<&'static str>,
}

impl Fields {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        if std::str::from_utf8(bytes).is_err() {
            return Err(ApiError::malformed("the body is not valid UTF-8"));
        }
        match Json::parse(bytes) {
            Ok(Json::Object(left)) => Ok(Self { within: String::new(), left, asked_for: Vec::new() }),
            Ok(other) => Err(ApiError::malformed(format!(
                "the body must be a JSON object, and it is {}",
                other.kind()
            ))),
            Err(error) => Err(ApiError::malformed(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// The fields of an object that stands at `path` in the body.
    pub(crate) fn of_object(path: &str, value: Json) -> Result<Self, ApiError> {
        match value {
            Json::Object(left) => Ok(Self { within: format!("{path}."), left, asked_for: Vec::new() }),
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    /// What a field is called in a refusal.
    pub(crate) fn path_of(&self, name: &str) -> String {
        format!("{}{name}", self.within)
    }

    /// None where the field is absent or null.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<Json> {
        self.asked_for.push(name);
        self.take_unmentioned(name)
    }

    /// The same for a name that nobody is to be pointed to.
    pub(crate) fn take_unmentioned(&mut self, name: &str) -> Option<Json> {
        let place = self.left.iter().position(|(known, _)| known == name)?;
        Some(self.left.swap_remove(place).1).filter(|value| *value != Json::Null)
    }

    pub(crate) fn required_string(&mut self, name: &'static str) -> Result<String, ApiError> {
        match self.take(name) {
            Some(Json::String(text)) => Ok(text),
            Some(other) => Err(wrong_type(&self.path_of(name), "a string", &other)),
            None => Err(self.missing(name, "a string")),
        }
    }

    pub(crate) fn optional_string(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.path_of(name), "a string", &other)),
        }
    }

    /// A field that is missing under its own name may be there under a similar one.
    pub(crate) fn missing(&self, name: &'static str, what: &str) -> ApiError {
        let similar = self.left.iter().find(|(sent, _)| chancery_domain::nearest(sent, [name]).is_some());
        ApiError::missing_field(&self.path_of(name), what, similar.map(|(sent, _)| shorten(sent)).as_deref())
    }

    /// At least `min`; the upper bound is the caller's to check, since it depends on the model.
    pub(crate) fn required_integer(&mut self, name: &'static str, min: u64) -> Result<u64, ApiError> {
        let value = self.take(name).ok_or_else(|| self.missing(name, "an integer"))?;
        integer(&self.path_of(name), &value, min)
    }

    pub(crate) fn optional_integer(&mut self, name: &'static str, min: u64) -> Result<Option<u64>, ApiError> {
        self.take(name).map(|value| integer(&self.path_of(name), &value, min)).transpose()
    }

    pub(crate) fn optional_bool(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(&self.path_of(name), "a boolean", &other)),
        }
    }

    pub(crate) fn optional_number(&mut self, name: &'static str) -> Result<Option<f64>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Integer(value)) => Ok(Some(value as f64)),
            Some(Json::Number(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(&self.path_of(name), "a number", &other)),
        }
    }

    /// A string counts as an array of one.
    pub(crate) fn optional_strings(&mut self, name: &'static str) -> Result<Vec<String>, ApiError> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Json::String(text)) => Ok(vec![text]),
            Some(Json::Array(items)) => items
                .into_iter()
                .map(|item| match item {
                    Json::String(text) => Ok(text),
                    other => Err(wrong_type(&self.path_of(name), "an array of strings", &other)),
                })
                .collect(),
            Some(other) => Err(wrong_type(&self.path_of(name), "an array of strings", &other)),
        }
    }

    /// To be called when everything known has been taken.
    pub(crate) fn refuse_the_rest(self) -> Result<(), ApiError> {
        let Some((unknown, _)) = self.left.first() else { return Ok(()) };
        let shown = self.path_of(&shorten(unknown));
        let hint = match chancery_domain::nearest(&shorten(unknown), self.asked_for.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if self.asked_for.is_empty() => "leave it out".to_owned(),
            None => format!("the known ones are {}", self.asked_for.join(", ")),
        };
        Err(ApiError::malformed(format!("there is no field `{shown}`; {hint}")).at_field(shown))
    }
}

pub(crate) fn wrong_type(name: &str, wanted: &str, got: &Json) -> ApiError {
    ApiError::malformed(format!("`{name}` must be {wanted}, and it is {}", got.kind())).at_field(name)
}

/// JSON does not tell `64` from `64.0`, so a whole number is an integer however it is written.
fn integer(name: &str, value: &Json, min: u64) -> Result<u64, ApiError> {
    let out_of_range = || {
        ApiError::invalid_value(
            name,
            format!("`{name}` is out of range; it must be from {min} to {}", u64::MAX),
        )
    };
    match value {
        Json::Integer(value) => {
            u64::try_from(*value).ok().filter(|value| *value >= min).ok_or_else(out_of_range)
        }
        Json::Number(value) if value.fract() == 0.0 => {
            // Nothing here is larger.
            let exact = (0.0..=LARGEST_EXACT).contains(value).then_some(*value as u64);
            exact.filter(|value| *value >= min).ok_or_else(out_of_range)
        }
        Json::Number(_) => {
            Err(ApiError::malformed(format!("`{name}` must be an integer, and it has a fraction"))
                .at_field(name))
        }
        other => Err(wrong_type(name, "an integer", other)),
    }
}
