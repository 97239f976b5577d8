//! The stream of `POST /v1/generate` for programs: what each of its events is. OpenAPI 3.1 does not say what the schema of
//! an event stream describes; here, as in 3.2 and to those who check replies, it is one event.

use crate::generate::GenerateReply;
use crate::generate_events::{Begun, Failed};
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

pub(crate) struct GenerateEvent;

struct Event {
    name: &'static str,
    schema_name: &'static str,
    when: &'static str,
    /// The field that carries what the event is about.
    field: &'static str,
    content: fn() -> RefOr<Schema>,
}

const EVENTS: [Event; 6] = [
    Event {
        name: "response.created",
        schema_name: "GenerateCreatedEvent",
        when: "First: the request is admitted and its input counted.",
        field: "response",
        content: || Ref::from_schema_name(Begun::name()).into(),
    },
    Event {
        name: "response.output_text.delta",
        schema_name: "GenerateDeltaEvent",
        when: "A piece of the text, as it comes; any number of them.",
        field: "delta",
        content: || text("The piece; all pieces together are the whole text."),
    },
    Event {
        name: "response.output_text.done",
        schema_name: "GenerateTextEvent",
        when: "The text is finished.",
        field: "text",
        content: || text("The whole text."),
    },
    Event {
        name: "response.completed",
        schema_name: "GenerateCompletedEvent",
        when: "Last, where the model or a stop string ended the reply: the same reply as without `stream`.",
        field: "response",
        content: || Ref::from_schema_name(GenerateReply::name()).into(),
    },
    Event {
        name: "response.incomplete",
        schema_name: "GenerateIncompleteEvent",
        when: "Last, where a limit cut the reply short: the same reply as without `stream`.",
        field: "response",
        content: || Ref::from_schema_name(GenerateReply::name()).into(),
    },
    Event {
        name: "response.failed",
        schema_name: "GenerateFailedEvent",
        when: "Last, where the reply failed after the stream had begun; nothing is billed.",
        field: "response",
        content: || Ref::from_schema_name(Failed::name()).into(),
    },
];

fn text(meaning: &str) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::String).description(Some(meaning)).into()
}

impl Event {
    /// An event on its way: its name, and its data on one line.
    fn framed(&self) -> ObjectBuilder {
        let data = ObjectBuilder::new()
            .schema_type(Type::String)
            .content_media_type("application/json")
            .content_schema(Some(Ref::from_schema_name(self.schema_name)));
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some(self.when))
            .property("event", word(self.name))
            .property("data", data)
            .required("event")
            .required("data")
    }

    fn data(&self) -> RefOr<Schema> {
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(0))
            .description(Some("Counts the events of a stream from 0."));
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some(self.when))
            .property("type", word(self.name).description(Some("The event's name again.")))
            .property("sequence_number", number)
            .property(self.field, (self.content)())
            .required("type")
            .required("sequence_number")
            .required(self.field)
            .into()
    }
}

fn word(word: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some([word]))
}

impl ToSchema for GenerateEvent {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        Begun::schemas(schemas);
        schemas.push((Begun::name().into(), Begun::schema()));
        Failed::schemas(schemas);
        schemas.push((Failed::name().into(), Failed::schema()));
        schemas.extend(EVENTS.iter().map(|event| (event.schema_name.to_owned(), event.data())));
    }
}

impl PartialSchema for GenerateEvent {
    fn schema() -> RefOr<Schema> {
        let described = OneOfBuilder::new().description(Some(
            "One event of the stream. Its data is one line of JSON; lines that begin with `:` only keep the connection alive.",
        ));
        EVENTS.iter().fold(described, |events, event| events.item(event.framed())).into()
    }
}
