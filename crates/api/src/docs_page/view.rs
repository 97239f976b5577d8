//! The template context of the page, extracted from the document.

use super::client_code::{self, Example};
use super::prose::{self, Paragraph};
use super::sample;
use super::schema_text::{Document, Field};
use crate::openai::UNSUPPORTED_DESCRIPTION;
use crate::openapi::errors::ERRORS;
use serde_json::Value;

const EVENT_STREAM: &str = "text/event-stream";

#[derive(askama::Template)]
#[template(path = "docs.html")]
pub(super) struct Page {
    style_path: &'static str,
    script_path: &'static str,
    title: String,
    version: String,
    introduction: Vec<Paragraph>,
    sections: Vec<Section>,
    headers: Vec<Field>,
    errors: Vec<ErrorRow>,
}

struct Section {
    name: String,
    description: Paragraph,
    operations: Vec<Operation>,
}

struct Operation {
    id: String,
    method: String,
    path: String,
    summary: Paragraph,
    description: Vec<Paragraph>,
    needs_key: bool,
    curl: String,
    python: String,
    javascript: String,
    parameters: Vec<Field>,
    body: Option<Body>,
    replies: Vec<Reply>,
    events: Vec<Event>,
    error_responses: Vec<ErrorResponseRow>,
}

struct Body {
    description: Paragraph,
    fields: Vec<Field>,
    /// Known fields that are not supported.
    unsupported: Vec<String>,
}

struct Reply {
    media_type: String,
    description: Paragraph,
    fields: Vec<Field>,
    sample: String,
}

struct Event {
    name: String,
    fields: Vec<Field>,
    when: Paragraph,
}

struct ErrorResponseRow {
    status: String,
    codes: Vec<ErrorLink>,
}

/// An error code and the anchor of its table row.
struct ErrorLink {
    code: String,
    id: String,
}

struct ErrorRow {
    status: u16,
    code: &'static str,
    id: String,
    when: Paragraph,
}

/// Includes the status, because one code can occur under two statuses.
fn error_id(status: &str, code: &str) -> String {
    format!("error-{status}-{code}")
}

impl Page {
    pub(super) fn of(document: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let tags = document["tags"].as_array().into_iter().flatten();
        let sections = tags.map(|tag| Section {
            name: text(&tag["name"]),
            description: prose::line(&text(&tag["description"])),
            operations: operations(Document(document), &text(&tag["name"])),
        });
        let headers = document["components"]["headers"].as_object().into_iter().flatten();
        let headers = headers.map(|(name, header)| Field {
            name: name.clone(),
            kind: Document(document).kind(&header["schema"]),
            is_required: false,
            bounds: format!(
                "such as {}",
                header["example"].as_str().map_or_else(|| header["example"].to_string(), str::to_owned)
            ),
            meaning: prose::line(&text(&header["description"])),
        });
        let errors = ERRORS.iter().map(|error| ErrorRow {
            status: error.status,
            code: error.code,
            id: error_id(&error.status.to_string(), error.code),
            when: prose::line(error.when),
        });
        Self {
            style_path: super::STYLE_PATH,
            script_path: super::SCRIPT_PATH,
            title: text(&document["info"]["title"]),
            version: text(&document["info"]["version"]),
            introduction: prose::paragraphs(&text(&document["info"]["description"])),
            sections: sections.collect(),
            headers: headers.collect(),
            errors: errors.collect(),
        }
    }
}

fn operations(document: Document<'_>, tag: &str) -> Vec<Operation> {
    let paths = document.0["paths"].as_object().into_iter().flatten();
    let all = paths.flat_map(|(path, item)| {
        item.as_object().into_iter().flatten().map(move |(method, operation)| (path, method, operation))
    });
    let tagged = all.filter(|(_, _, operation)| operation["tags"][0] == tag);
    tagged.map(|(path, method, spec)| operation(document, path, method, spec)).collect()
}

fn operation(document: Document<'_>, path: &str, method: &str, spec: &Value) -> Operation {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let needs_key = spec["security"].as_array().is_some_and(|required| !required.is_empty());
    let body_schema = spec.pointer("/requestBody/content/application~1json/schema");
    let body_sample = body_schema.map(|schema| {
        let value = sample::of_schema(document, schema);
        sample::write(document, schema, &value)
    });
    let parameters = spec["parameters"].as_array().into_iter().flatten();
    let replies = spec["responses"]["200"]["content"].as_object().into_iter().flatten();
    let streams = replies.clone().filter(|(media_type, _)| *media_type == EVENT_STREAM);
    let events = streams.map(|(_, content)| &document.resolve(&content["schema"])["oneOf"]);
    let example_path = with_examples(path, &spec["parameters"]);
    let example = Example {
        path: &example_path,
        needs_key,
        body: body_sample.as_deref(),
        returns_json: !spec["responses"]["200"]["content"]["application/json"].is_null(),
    };
    Operation {
        id: text(&spec["operationId"]),
        method: method.to_uppercase(),
        path: path.to_owned(),
        summary: prose::line(&text(&spec["summary"])),
        description: prose::paragraphs(&text(&spec["description"])),
        needs_key,
        curl: sample::curl(&example_path, needs_key, body_sample.as_deref()),
        python: client_code::python(&example),
        javascript: client_code::javascript(&example),
        parameters: parameters.map(|parameter| self::parameter(document, parameter)).collect(),
        body: body_schema.map(|schema| body(document, schema)),
        events: events
            .flat_map(|events| events.as_array().into_iter().flatten())
            .map(|framed| event(document, framed))
            .collect(),
        replies: replies.map(|(media_type, content)| reply(document, media_type, content)).collect(),
        error_responses: error_responses(&spec["responses"]),
    }
}

fn body(document: Document<'_>, schema: &Value) -> Body {
    let spec = document.resolve(schema);
    let is_unsupported =
        |field: &Field| spec["properties"][&field.name]["description"] == UNSUPPORTED_DESCRIPTION;
    let (unsupported_fields, fields): (Vec<Field>, Vec<Field>) =
        document.fields(schema).into_iter().partition(is_unsupported);
    let top_level = unsupported_fields.into_iter().map(|field| field.name);
    let unsupported: Vec<String> = top_level.collect();
    let is_within =
        |field: &Field| unsupported.iter().any(|name| field.name.starts_with(&format!("{name}.")));
    Body {
        description: prose::line(spec["description"].as_str().unwrap_or_default()),
        fields: fields.into_iter().filter(|field| !is_within(field)).collect(),
        unsupported,
    }
}

/// Fills in path parameters with their examples.
fn with_examples(path: &str, parameters: &Value) -> String {
    parameters.as_array().into_iter().flatten().filter(|parameter| parameter["in"] == "path").fold(
        path.to_owned(),
        |path, parameter| {
            let name = parameter["name"].as_str().unwrap_or_default();
            path.replace(&format!("{{{name}}}"), parameter["example"].as_str().unwrap_or(name))
        },
    )
}

fn parameter(document: Document<'_>, parameter: &Value) -> Field {
    let name = parameter["name"].as_str().unwrap_or_default();
    let description = parameter["description"].as_str().unwrap_or_default();
    let field = document.field(name.to_owned(), &parameter["schema"], parameter["required"] == true);
    Field { meaning: prose::line(description), ..field }
}

fn reply(document: Document<'_>, media_type: &str, content: &Value) -> Reply {
    let schema = &content["schema"];
    let spec = document.resolve(schema);
    let fields = document.fields(schema);
    let value = sample::of_schema(document, schema);
    let sample = match &value {
        _ if fields.is_empty() && !spec["examples"].is_array() => String::new(),
        Value::String(text) => text.trim_end().to_owned(),
        other => sample::write(document, schema, other),
    };
    let description = prose::line(spec["description"].as_str().unwrap_or_default());
    Reply { media_type: media_type.to_owned(), description, fields, sample }
}

fn event(document: Document<'_>, event: &Value) -> Event {
    let fields = document.fields(&event["properties"]["data"]["contentSchema"]);
    let name = event["properties"]["event"]["enum"][0].as_str().unwrap_or_default();
    Event {
        name: name.to_owned(),
        // Nested fields belong to a reply or an error, described elsewhere on the page.
        fields: fields.into_iter().filter(|field| !field.name.contains('.')).collect(),
        when: prose::line(event["description"].as_str().unwrap_or_default()),
    }
}

fn error_responses(responses: &Value) -> Vec<ErrorResponseRow> {
    let errors = responses.as_object().into_iter().flatten().filter(|(status, _)| *status != "200");
    let rows = errors.map(|(status, response)| {
        let examples = response.pointer("/content/application~1json/examples").and_then(Value::as_object);
        let codes = examples.into_iter().flatten().map(|(code, _)| code);
        let link = |code: &String| ErrorLink { code: code.clone(), id: error_id(status, code) };
        ErrorResponseRow { status: status.clone(), codes: codes.map(link).collect() }
    });
    rows.collect()
}
