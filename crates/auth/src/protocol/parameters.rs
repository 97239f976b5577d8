//! Request parameters, from a query or a form.

use super::limits::MAX_FORM_BYTES;
use axum::extract::Request;
use axum::http::{HeaderMap, header};

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters(Vec<(String, String)>);

/// Why a parameter is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParameterError {
    #[error("{0} is repeated")]
    Repeated(&'static str),
    #[error("{0} contains a control character")]
    ControlCharacter(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormError {
    #[error("the body must be application/x-www-form-urlencoded")]
    NotAForm,
    #[error("the request is longer than {MAX_FORM_BYTES} bytes")]
    TooLong,
}

impl Parameters {
    pub(crate) fn parse(encoded: &str) -> Result<Self, FormError> {
        if encoded.len() > MAX_FORM_BYTES {
            return Err(FormError::TooLong);
        }
        Ok(Self(form_urlencoded::parse(encoded.as_bytes()).into_owned().collect()))
    }

    /// Reads a form body within the size limit.
    pub(crate) async fn from_form(request: Request) -> Result<Self, FormError> {
        Self::parse(&form_text(request).await?)
    }

    /// The value of a parameter. An empty value counts as absent (RFC 6749, 3.1).
    pub(crate) fn one(&self, name: &'static str) -> Result<Option<&str>, ParameterError> {
        let mut values = self.0.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str());
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(ParameterError::Repeated(name)),
            (Some(value), None) if value.chars().any(char::is_control) => {
                Err(ParameterError::ControlCharacter(name))
            }
            (value, None) => Ok(value.filter(|value| !value.is_empty())),
        }
    }
}

/// The form body, still encoded.
pub(crate) async fn form_text(request: Request) -> Result<String, FormError> {
    if !is_form(request.headers()) {
        return Err(FormError::NotAForm);
    }
    let body = axum::body::to_bytes(request.into_body(), MAX_FORM_BYTES).await;
    let body = body.map_err(|_| FormError::TooLong)?;
    String::from_utf8(body.into()).map_err(|_| FormError::NotAForm)
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

/// Encodes the parameters as a query.
pub(crate) fn to_query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

/// Appends the parameters to the URL's query.
pub(crate) fn with_parameters<'a>(
    address: &str,
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let query = to_query(pairs);
    let separator = match address.contains('?') {
        _ if query.is_empty() => "",
        true => "&",
        false => "?",
    };
    format!("{address}{separator}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_parameters_are_rejected() {
        let parameters = Parameters::parse("a=1&b=&c=x%20y+z&a=2&d=%00&unknown=1&unknown=2").unwrap();
        assert_eq!(parameters.one("a"), Err(ParameterError::Repeated("a")));
        assert_eq!(parameters.one("b"), Ok(None), "without a value it is left out");
        assert_eq!(parameters.one("c"), Ok(Some("x y z")));
        assert_eq!(parameters.one("d"), Err(ParameterError::ControlCharacter("d")));
        assert_eq!(parameters.one("e"), Ok(None));
        assert_eq!(Parameters::parse(&"x".repeat(MAX_FORM_BYTES + 1)), Err(FormError::TooLong));
    }

    #[test]
    fn parameters_are_appended_to_an_existing_query() {
        assert_eq!(with_parameters("https://a.example/b", [("c", "d e&f")]), "https://a.example/b?c=d+e%26f");
        assert_eq!(with_parameters("https://a.example/b?x=y", [("c", "d")]), "https://a.example/b?x=y&c=d");
        assert_eq!(with_parameters("https://a.example/b", []), "https://a.example/b");
    }
}
