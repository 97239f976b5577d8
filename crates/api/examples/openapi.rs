//! Prints the document that `GET /openapi.json` serves; `make openapi` keeps it as `docs/openapi.json`.

fn main() {
    println!("{:#}", chancery_api::openapi_document());
}
