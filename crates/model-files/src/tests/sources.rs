//! Hugging Face's redirects, checksums and tokens, and which source is used.

use super::server::{Reply, Server};
use super::{Fixture, HUGGING_FACE, Messages, NAME, model, name, request, sha256_of, source_error, weights};
use crate::{NoProgress, PullRequest, RemoteFile, SourceError, StoreOutcome};

fn hugging_face_request() -> PullRequest {
    let file = RemoteFile::HuggingFace("o/r/f.gguf@v1".parse().unwrap());
    PullRequest { file, name: name(), expected_sha256: None, allow_http: false }
}

#[test]
fn hugging_face_checksum_is_used_and_the_token_stays_there() {
    let bytes = weights(0);
    let content = bytes.clone();
    let storage = Server::start(move |request, _| Reply::ranged(request, &content, "\"s3\""));
    let (location, sha256) = (format!("{}/blob", storage.url), sha256_of(&bytes));
    let hub =
        Server::start(move |_, _| Reply::redirect(&location).with("x-linked-etag", &format!("\"{sha256}\"")));
    let mut fixture = Fixture::new().with_hugging_face(&hub.url);
    fixture.folder.hugging_face.token = Some("hf_secret".to_owned());
    let stored = fixture.folder.pull_file(&hugging_face_request(), &NoProgress).unwrap();
    assert!(stored.is_verified, "the hub stated the checksum");
    assert_eq!(hub.received()[0].path, "/o/r/resolve/v1/f.gguf");
    assert_eq!(hub.received()[0].header("authorization"), Some("Bearer hf_secret"));
    assert_eq!(storage.received()[0].header("authorization"), None);
    let again = fixture.folder.pull_file(&hugging_face_request(), &NoProgress).unwrap();
    assert_eq!((again.outcome, again.is_verified), (StoreOutcome::AlreadyPresent, true));
    assert_eq!(hub.received().len(), 1);
}

#[test]
fn other_bytes_than_hugging_face_states_are_rejected() {
    let bytes = weights(0);
    let stated = sha256_of(b"other");
    let hub = Server::start(move |_, _| Reply::whole(&bytes).with("x-linked-etag", stated.as_str()));
    let fixture = Fixture::new().with_hugging_face(&hub.url);
    let error = fixture.folder.pull_file(&hugging_face_request(), &NoProgress).unwrap_err().to_string();
    assert!(error.contains("wrong checksum"), "{error}");
    assert_eq!(fixture.files(), Vec::<String>::new());
}

#[test]
fn other_servers_get_no_token_and_state_no_checksum() {
    let bytes = weights(0);
    let other = sha256_of(b"other");
    let server = Server::start(move |_, _| Reply::whole(&bytes).with("x-linked-etag", other.as_str()));
    let mut fixture = Fixture::new();
    fixture.folder.hugging_face.token = Some("hf_secret".to_owned());
    let stored = fixture.folder.pull_file(&request(&format!("{}/a.gguf", server.url), None), &NoProgress);
    assert!(!stored.unwrap().is_verified);
    assert_eq!(server.received()[0].header("authorization"), None);
}

#[test]
fn published_file_with_another_checksum_is_not_even_downloaded() {
    let bytes = weights(0);
    let stated = sha256_of(b"other");
    let hub = Server::start(move |_, _| Reply::status(200).with("x-linked-etag", stated.as_str()));
    let fixture = Fixture::new().with_hugging_face(&hub.url);
    let error = source_error(fixture.folder.pull(&model(&bytes, &[HUGGING_FACE]), &NoProgress).unwrap_err());
    assert!(matches!(error, SourceError::WrongChecksum { .. }), "{error}");
}

#[test]
fn second_source_is_used_after_a_wrong_checksum() {
    const OTHER: crate::catalog::Source =
        crate::catalog::Source::HuggingFace { repository: "o/other", revision: "main", file: "f.gguf" };
    let bytes = weights(0);
    let content = bytes.clone();
    let hub = Server::start(move |request, _| match request.path.starts_with("/o/other/") {
        true => Reply::whole(&content),
        false => Reply::whole(&weights(1)),
    });
    let fixture = Fixture::new().with_hugging_face(&hub.url);
    let messages = Messages::default();
    let stored = fixture.folder.pull(&model(&bytes, &[HUGGING_FACE, OTHER]), &messages).unwrap();
    assert_eq!(stored.sha256, sha256_of(&bytes));
    assert_eq!(std::fs::read(fixture.path()).unwrap(), bytes);
    let text = messages.text();
    assert!(text.contains("hf:o/r/f.gguf: wrong checksum"), "{text}");
    assert!(
        text.contains(sha256_of(&weights(1)).as_str()) && text.contains("trying hf:o/other/f.gguf"),
        "{text}"
    );
}

#[test]
fn file_of_another_size_is_rejected_at_once() {
    let bytes = weights(0);
    let hub = Server::start(|_, earlier| match earlier {
        0 => Reply::whole(&weights(0)[..1_000]),
        _ => Reply::without_length(&[weights(0), weights(0)].concat()),
    });
    let fixture = Fixture::new().with_hugging_face(&hub.url);
    let pull =
        || source_error(fixture.folder.pull(&model(&bytes, &[HUGGING_FACE]), &NoProgress).unwrap_err());
    let error = pull();
    assert!(
        matches!(error, SourceError::WrongSize { received_bytes: 1_000, expected_bytes: 300_004 }),
        "{error}"
    );
    let error = pull();
    assert!(matches!(error, SourceError::TooLarge { max_bytes: 300_004 }), "{error}");
    assert_eq!(fixture.files(), Vec::<String>::new());
}

#[test]
fn damaged_file_of_the_catalogue_is_downloaded_again() {
    let bytes = weights(0);
    let content = bytes.clone();
    let hub = Server::start(move |_, _| Reply::whole(&content));
    let fixture = Fixture::new().with_hugging_face(&hub.url);
    std::fs::create_dir_all(fixture.folder.folder()).unwrap();
    std::fs::write(fixture.path(), weights(1)).unwrap();
    let model = model(&bytes, &[HUGGING_FACE]);
    assert_eq!(fixture.folder.pull(&model, &NoProgress).unwrap().outcome, StoreOutcome::Stored);
    assert_eq!(std::fs::read(fixture.path()).unwrap(), bytes);
    assert_eq!(fixture.folder.pull(&model, &NoProgress).unwrap().outcome, StoreOutcome::AlreadyPresent);
    assert_eq!(fixture.folder.list().unwrap()[0].name.as_str(), NAME);
}
