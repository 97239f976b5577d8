//! `GET /openapi.json`: the API described for programs, in OpenAPI 3.1. It is made from the code: endpoints and replies
//! from the handlers (`utoipa`), bodies from the lists that parse them (`request`), refusals from the error table. A route cannot be
//! added without being described, because `crate::routes` takes only described handlers.

pub(crate) mod errors;
mod headers;
pub(crate) mod values;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use std::sync::LazyLock;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::schema::{ObjectBuilder, SchemaType};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    Components, InfoBuilder, LicenseBuilder, OpenApi, PathItem, RefOr, Schema, ServerBuilder,
};

pub(crate) const EXAMPLE_REQUEST_ID: &str = "req_01kxa6y0rc4t3c8v1m5q9e2f7z";
pub(crate) const PATH: &str = "/openapi.json";

const DESCRIPTION: &str = "Text in, generated text and its token count out. Work is metered in tokens, and the count is the basis of \
     billing: a complete reply leaves only after its usage is on disk.\n\nEvery request below `/v1` carries \
     `Authorization: Bearer KEY`. Call the API from your server: a request that comes from a browser is refused, because keys \
     do not belong in browsers. Unknown and doubled fields are refused, with the nearest known name. A path that is not here is \
     404 `not_found`, and a method that its path does not take is 405 `method_not_allowed`.";

#[utoipa::path(
    get,
    path = PATH,
    operation_id = "openapi",
    tag = "This description",
    summary = "The API, for programs",
    description = "This document: OpenAPI 3.1, in JSON. No key is needed, and a browser may open it.",
    responses((status = 200, description = "The document.", body = serde_json::Value), errors::OpenRefusals)
)]
pub(crate) async fn handle() -> Response {
    static BYTES: LazyLock<String> = LazyLock::new(|| document().to_string());
    let media_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (media_type, BYTES.as_str()).into_response()
}

/// The document as a value; the same at every call.
pub fn document() -> serde_json::Value {
    let described = complete(crate::routes().into_openapi());
    // Strings and fixed shapes always serialize.
    serde_json::to_value(described).unwrap_or_default()
}

/// Gives types the schemas that the document shows for them, under their own names.
macro_rules! described_as {
    ($($name:ident => $schema:expr),+ $(,)?) => {
        $(
            impl utoipa::ToSchema for $name {}

            impl utoipa::PartialSchema for $name {
                fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                    $crate::openapi::schema_of_value($schema)
                }
            }
        )+
    };
}
pub(crate) use described_as;

/// A schema as it stands: `utoipa` keeps what it has no word for.
pub(crate) fn schema_of_value(schema: serde_json::Value) -> RefOr<Schema> {
    let serde_json::Value::Object(keywords) = schema else { return ObjectBuilder::new().into() };
    let any_type = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
    any_type.extensions(Some(Extensions::from_iter(keywords))).into()
}

/// Adds what no handler says: about the API as a whole, and what is the same for all replies.
fn complete(mut api: OpenApi) -> OpenApi {
    api.info = InfoBuilder::new()
        .title("Chancery: the text-generation API")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .license(Some(LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build()))
        .build();
    // Wherever it is served, paths are taken from there.
    api.servers = Some(vec![ServerBuilder::new().url("/").description(Some("this server")).build()]);
    api.tags = Some(
        [
            ("Generation", "Generate text, or count and price it first."),
            ("For OpenAI's clients", "The same work under the paths that the official clients call; only base address and key change."),
            ("Account", "What can be used, and what was."),
            ("This description", "Open to everybody, browsers included."),
        ]
        .map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build())
        .into(),
    );
    let components = api.components.get_or_insert_with(Components::new);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
        "An API key, made with `chancery key create`; sent as `Authorization: Bearer KEY`.",
    ));
    components.add_security_scheme("key", SecurityScheme::Http(bearer.build()));
    headers::describe(components);
    errors::describe(components);
    for item in api.paths.paths.values_mut() {
        let PathItem { get, put, post, delete, options, head, patch, trace, .. } = item;
        for operation in [get, put, post, delete, options, head, patch, trace].into_iter().flatten() {
            headers::attach(operation);
        }
    }
    api
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_kept_document_is_what_the_code_makes() {
        let kept = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json"));
        // In whichever order: that of names depends on what else is built into the program.
        let kept: Option<serde_json::Value> = kept.ok().and_then(|kept| serde_json::from_str(&kept).ok());
        assert!(
            kept.is_some_and(|kept| kept == document()),
            "docs/openapi.json is not what the code makes; run `make openapi`"
        );
    }

    fn references<'a>(value: &'a serde_json::Value, found: &mut Vec<&'a str>) {
        match value {
            serde_json::Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            serde_json::Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(|place| place.as_str()));
                fields.values().for_each(|field| references(field, found));
            }
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        for place in found {
            assert!(document.pointer(place.trim_start_matches('#')).is_some(), "{place}");
        }
    }

    #[test]
    fn every_route_of_the_router_is_in_the_document() {
        let shown = format!("{:?}", crate::endpoints());
        let paths = shown.split('"').filter(|part| part.starts_with('/'));
        // Axum's own, for what finds no endpoint.
        let routed: BTreeSet<&str> =
            paths.filter(|path| !["/", "/{*__private__axum_fallback}"].contains(path)).collect();
        let document = document();
        let described: BTreeSet<&str> =
            document["paths"].as_object().into_iter().flatten().map(|(path, _)| path.as_str()).collect();
        assert_eq!(routed, described);
    }
}
