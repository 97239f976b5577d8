//! One URL: interruptions, servers without ranges, changed files, limits, redirects, a full disk.

use super::server::{Reply, Server};
use super::{Fixture, Messages, NAME, SmallDisk, request, sha256_of, source_error, weights};
use crate::{FolderError, NoProgress, SourceError, StoreOutcome};

const ETAG: &str = "\"v1\"";
const HALF: usize = 150_000;

#[test]
fn broken_connection_continues_where_it_ended() {
    let bytes = weights(0);
    let content = bytes.clone();
    let server = Server::start(move |request, earlier| {
        let reply = Reply::ranged(request, &content, ETAG);
        if earlier == 0 { reply.cut_to(HALF) } else { reply }
    });
    let fixture = Fixture::new();
    let messages = Messages::default();
    let request = request(&format!("{}/a.gguf?key=secret", server.url), Some(sha256_of(&bytes)));
    let stored = fixture.folder.pull_file(&request, &messages).unwrap();
    assert_eq!((stored.outcome, stored.is_verified), (StoreOutcome::Stored, true));
    assert_eq!(std::fs::read(fixture.path()).unwrap(), bytes);
    let received = server.received();
    assert_eq!(received.len(), 2);
    assert_eq!(received[0].header("range"), None);
    assert_eq!(received[1].header("range"), Some(format!("bytes={HALF}-").as_str()));
    assert_eq!(received[1].header("if-range"), Some(ETAG));
    assert!(messages.text().contains("trying again") && !messages.text().contains("secret"), "{messages:?}");
    assert_eq!(fixture.files(), [format!("{NAME}.gguf"), format!("{NAME}.gguf.json")]);
}

#[test]
fn next_pull_continues_an_interrupted_one() {
    let bytes = weights(0);
    let content = bytes.clone();
    let server = Server::start(move |request, earlier| match earlier {
        0 => Reply::ranged(request, &content, ETAG).cut_to(HALF),
        1 => Reply::status(404),
        _ => Reply::ranged(request, &content, ETAG),
    });
    let fixture = Fixture::new();
    let request = request(&format!("{}/a.gguf", server.url), None);
    let error = source_error(fixture.folder.pull_file(&request, &NoProgress).unwrap_err());
    assert!(matches!(error, SourceError::Status { status: 404 }), "{error}");
    assert_eq!(std::fs::metadata(fixture.partial_path()).unwrap().len(), HALF as u64);
    let stored = fixture.folder.pull_file(&request, &NoProgress).unwrap();
    assert!(!stored.is_verified, "no checksum was stated");
    assert_eq!(stored.sha256, sha256_of(&bytes));
    assert_eq!(server.received()[2].header("range"), Some(format!("bytes={HALF}-").as_str()));
}

#[test]
fn server_without_ranges_starts_again() {
    let bytes = weights(0);
    let content = bytes.clone();
    let server = Server::start(move |_, earlier| {
        let reply = Reply::whole(&content).with("etag", ETAG);
        if earlier == 0 { reply.cut_to(HALF) } else { reply }
    });
    let fixture = Fixture::new();
    let request = request(&format!("{}/a.gguf", server.url), Some(sha256_of(&bytes)));
    fixture.folder.pull_file(&request, &NoProgress).unwrap();
    assert_eq!(std::fs::read(fixture.path()).unwrap(), bytes);
}

#[test]
fn file_that_changed_meanwhile_starts_again() {
    let (old, new) = (weights(1), weights(2));
    let content = new.clone();
    let server = Server::start(move |request, earlier| match earlier {
        0 => Reply::ranged(request, &old, ETAG).cut_to(HALF),
        _ => Reply::ranged(request, &content, "\"v2\""),
    });
    let fixture = Fixture::new();
    let request = request(&format!("{}/a.gguf", server.url), None);
    fixture.folder.pull_file(&request, &NoProgress).unwrap();
    assert_eq!(std::fs::read(fixture.path()).unwrap(), new, "no byte of the old version is left");
}

#[test]
fn changed_file_of_a_server_that_ignores_if_range_starts_again() {
    let (old, new) = (weights(1), weights(2));
    let content = new.clone();
    let server = Server::start(move |request, earlier| match earlier {
        0 => Reply::ranged(request, &old, ETAG).cut_to(HALF),
        _ => Reply::ranged_always(request, &content, "\"v2\""),
    });
    let fixture = Fixture::new();
    let request = request(&format!("{}/a.gguf", server.url), None);
    fixture.folder.pull_file(&request, &NoProgress).unwrap();
    assert_eq!(std::fs::read(fixture.path()).unwrap(), new, "no byte of the old version is left");
}

#[test]
fn without_etag_and_checksum_nothing_is_continued() {
    let bytes = weights(0);
    let content = bytes.clone();
    let server = Server::start(move |request, earlier| match earlier {
        0 => Reply::whole(&content).with("etag", "W/\"weak\"").cut_to(HALF),
        _ => Reply::ranged(request, &content, ETAG),
    });
    let fixture = Fixture::new();
    fixture.folder.pull_file(&request(&format!("{}/a.gguf", server.url), None), &NoProgress).unwrap();
    assert_eq!(server.received()[1].header("range"), None);
    assert_eq!(std::fs::read(fixture.path()).unwrap(), bytes);
}

#[test]
fn server_that_never_sends_more_is_given_up() {
    let bytes = weights(0);
    let server = Server::start(move |_, _| Reply::whole(&bytes).cut_to(HALF));
    let fixture = Fixture::new();
    let error = fixture.folder.pull_file(&request(&format!("{}/a.gguf", server.url), None), &NoProgress);
    let error = source_error(error.unwrap_err());
    assert!(matches!(error, SourceError::Interrupted { .. }), "{error}");
    assert!(server.received().len() < 10);
}

#[test]
fn wrong_checksum_deletes_the_file_and_names_both_hashes() {
    let (bytes, expected) = (weights(0), sha256_of(b"other"));
    let received = sha256_of(&bytes);
    let server = Server::start(move |_, _| Reply::whole(&bytes).with("etag", ETAG));
    let fixture = Fixture::new();
    let url = format!("{}/a.gguf", server.url);
    let error = fixture.folder.pull_file(&request(&url, Some(expected.clone())), &NoProgress).unwrap_err();
    let error = error.to_string();
    assert!(error.contains(expected.as_str()) && error.contains(received.as_str()), "{error}");
    assert!(error.contains(&url), "{error}");
    assert_eq!(fixture.files(), Vec::<String>::new());
}

#[test]
fn page_that_is_no_model_is_rejected() {
    let server = Server::start(|_, _| Reply::whole(b"<html>Sign in</html>"));
    let fixture = Fixture::new();
    let error = fixture.folder.pull_file(&request(&format!("{}/a.gguf", server.url), None), &NoProgress);
    let error = source_error(error.unwrap_err());
    assert!(matches!(error, SourceError::NotGguf), "{error}");
    assert_eq!(fixture.files(), Vec::<String>::new());
}

#[test]
fn too_little_space_is_reported_before_the_download() {
    let bytes = weights(0);
    let server = Server::start(move |_, _| Reply::whole(&bytes));
    let mut fixture = Fixture::new();
    fixture.folder.disk = SmallDisk::new(10_000_000, u64::MAX);
    let error = fixture.folder.pull_file(&request(&format!("{}/a.gguf", server.url), None), &NoProgress);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("68 MB needed, 10 MB free") && error.contains("XDG_CACHE_HOME"), "{error}");
    assert_eq!(fixture.files(), Vec::<String>::new());
}

#[test]
fn full_disk_keeps_the_bytes_and_the_next_pull_continues() {
    let bytes = weights(0);
    let content = bytes.clone();
    let server = Server::start(move |request, _| Reply::ranged(request, &content, ETAG));
    let mut fixture = Fixture::new();
    let real_disk = fixture.folder.disk.clone();
    fixture.folder.disk = SmallDisk::new(u64::MAX, 200_000);
    let request = request(&format!("{}/a.gguf", server.url), Some(sha256_of(&bytes)));
    let error = fixture.folder.pull_file(&request, &NoProgress).unwrap_err();
    assert!(matches!(error, FolderError::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("run the same command again"), "{error}");
    let stored_bytes = std::fs::metadata(fixture.partial_path()).unwrap().len();
    assert!((1..=200_000).contains(&stored_bytes), "{stored_bytes}");
    fixture.folder.disk = real_disk;
    fixture.folder.pull_file(&request, &NoProgress).unwrap();
    assert_eq!(std::fs::read(fixture.path()).unwrap(), bytes);
    let last = server.received().pop().unwrap();
    assert_eq!(last.header("range"), Some(format!("bytes={stored_bytes}-").as_str()));
}

#[test]
fn redirects_are_bounded_and_never_leave_for_cleartext() {
    let pull = |location: &'static str| {
        let server = Server::start(move |_, _| Reply::redirect(location));
        let fixture = Fixture::new();
        let request = request(&format!("{}/a.gguf", server.url), None);
        source_error(fixture.folder.pull_file(&request, &NoProgress).unwrap_err())
    };
    assert!(matches!(pull("/again"), SourceError::TooManyRedirects));
    for location in ["http://models.example/a.gguf", "ftp://127.0.0.1/a.gguf", "file:///etc/passwd"] {
        let error = pull(location);
        assert!(matches!(&error, SourceError::Insecure(url) if location == url), "{error}");
    }
}

#[test]
fn two_pulls_at_once_download_once() {
    let bytes = weights(0);
    let content = bytes.clone();
    let server = Server::start(move |_, _| Reply::whole(&content));
    let fixture = Fixture::new();
    let request = request(&format!("{}/a.gguf", server.url), Some(sha256_of(&bytes)));
    let pull = || fixture.folder.pull_file(&request, &NoProgress).unwrap().outcome;
    let mut outcomes = std::thread::scope(|scope| {
        let threads = [scope.spawn(pull), scope.spawn(pull)];
        threads.map(|thread| thread.join().unwrap())
    });
    outcomes.sort_by_key(|outcome| *outcome == StoreOutcome::AlreadyPresent);
    assert_eq!(outcomes, [StoreOutcome::Stored, StoreOutcome::AlreadyPresent]);
    assert_eq!(server.received().len(), 1);
    assert_eq!(std::fs::read(fixture.path()).unwrap(), bytes);
}
