//! Downloads one URL into a partial file and continues where an earlier attempt ended:
//!
//! 1. The state beside the partial file has the source, the server's ETag and the size. Another source starts again.
//! 2. `Range` asks for the rest, with `If-Range` and the ETag. Without a strong ETag, the rest is only asked for if the
//!    checksum is known, which then decides.
//! 3. Status 206 continues; 200 starts again, because the file changed or the server has no ranges. So does a 206 with
//!    another ETag, from a server that ignores `If-Range`.
//! 4. A broken connection is tried again, as long as attempts bring new bytes.
//!
//! Redirects are followed here, with a bound, and never to cleartext. The access token goes to the first server alone,
//! and not in cleartext.
//! Whether the bytes are the right ones is decided by the caller.

use crate::checksum::Sha256Hex;
use crate::error::{FolderError, SourceError};
use crate::hugging_face::HuggingFace;
use crate::limits::{CONNECT_TIMEOUT, MAX_FILE_BYTES, MAX_REDIRECTS, MAX_STALLED_ATTEMPTS, READ_TIMEOUT};
use crate::partial::{Partial, PartialState};
use crate::progress::{Progress, Stage};
use crate::reference::{is_private, without_query};
use chancery_domain::is_loopback_host;
use chancery_http_client::{client_builder, describe};
use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, IF_RANGE, LOCATION, RANGE,
};
use reqwest::{Client, Response, StatusCode, Url};
use std::fs::File;
use std::time::Duration;

/// On Hugging Face, the SHA-256 of a large file.
const LINKED_ETAG: &str = "x-linked-etag";

pub(crate) struct HttpDownload<'a> {
    pub url: &'a Url,
    /// If `url` is one of its addresses: the token, for this server alone, and its header with the checksum.
    pub hugging_face: Option<&'a HuggingFace>,
    pub expected_bytes: Option<u64>,
    pub expected_sha256: Option<&'a Sha256Hex>,
    pub allow_http: bool,
    pub retry_delay: Duration,
    pub partial: &'a Partial<'a>,
    pub progress: &'a dyn Progress,
}

/// A response whose body is wanted, after all redirects.
struct Opened {
    response: Response,
    stated_sha256: Option<Sha256Hex>,
}

/// Where a body continues, and how long the whole file is.
struct Extent {
    offset: u64,
    total_bytes: Option<u64>,
}

impl HttpDownload<'_> {
    /// Returns the checksum that the server states, if any.
    pub async fn run(&self) -> Result<Option<Sha256Hex>, SourceError> {
        let client = self.client()?;
        let initial_bytes = self.stored_bytes();
        let mut max_bytes = initial_bytes;
        let mut stalled_attempts = 0;
        loop {
            let outcome = self.attempt(&client).await;
            self.progress.finish();
            let error = match outcome {
                Ok(stated_sha256) => return Ok(stated_sha256),
                Err(error) => error,
            };
            let has_received = max_bytes > initial_bytes;
            let stored_bytes = self.stored_bytes();
            match stored_bytes > max_bytes {
                true => stalled_attempts = 0,
                false => stalled_attempts += 1,
            }
            max_bytes = max_bytes.max(stored_bytes);
            if !is_transient(&error, has_received) || stalled_attempts >= MAX_STALLED_ATTEMPTS {
                return Err(error);
            }
            self.progress.message(&format!("{}: {error}; trying again", self.host()));
            tokio::time::sleep(self.retry_delay).await;
        }
    }

    fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    fn origin(&self) -> String {
        without_query(self.url).to_string()
    }

    /// Bytes of this source in the partial file.
    fn stored_bytes(&self) -> u64 {
        self.partial.state(&self.origin()).map_or(0, |_| self.partial.len())
    }

    fn client(&self) -> Result<Client, SourceError> {
        let builder = client_builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT);
        let builder = if is_loopback_host(self.host()) { builder.no_proxy() } else { builder };
        builder.build().map_err(|error| SourceError::Connect(describe(error)))
    }

    async fn attempt(&self, client: &Client) -> Result<Option<Sha256Hex>, SourceError> {
        let state = self.resumable_state();
        let stored_bytes = state.as_ref().map_or(0, |_| self.partial.len());
        if let Some(state) = &state
            && state.total_bytes == Some(stored_bytes)
        {
            return Ok(state.stated_sha256.as_ref().and_then(|sha256| sha256.parse().ok()));
        }
        let etag = state.as_ref().and_then(|state| state.etag.as_deref());
        let Opened { mut response, stated_sha256 } = self.open(client, stored_bytes, etag).await?;
        if let (Some(expected), Some(stated)) = (self.expected_sha256, &stated_sha256)
            && expected != stated
        {
            return Err(SourceError::WrongChecksum { expected: expected.clone(), received: stated.clone() });
        }
        let extent = self.extent(&response, stored_bytes, state.as_ref())?;
        if let Some(total_bytes) = extent.total_bytes {
            self.ensure_size(total_bytes)?;
            self.partial.ensure_space(total_bytes.saturating_sub(extent.offset))?;
        }
        // Some servers leave it out of the rest of a file.
        let continued_etag = etag.filter(|_| extent.offset > 0);
        let mut state = PartialState {
            origin: self.origin(),
            etag: strong_etag(response.headers()).or_else(|| continued_etag.map(str::to_owned)),
            total_bytes: extent.total_bytes,
            stated_sha256: stated_sha256.as_ref().map(ToString::to_string),
            part_bytes: Vec::new(),
        };
        // Cut to its new length first: bytes of another version must never be described by this state.
        let mut file = self.partial.open_at(extent.offset)?;
        self.partial.write_state(&state)?;
        if stored_bytes > 0 && extent.offset == 0 {
            self.progress
                .message("the server sends the file from the beginning: it changed, or cannot be continued");
        }
        let received = self.receive(&mut response, &mut file, &extent).await?;
        file.sync_all().map_err(FolderError::io("write", self.partial.path()))?;
        state.total_bytes = Some(received);
        self.partial.write_state(&state)?;
        Ok(stated_sha256)
    }

    /// The state, if the bytes so far can be trusted to belong to the same file, or if the checksum will tell.
    fn resumable_state(&self) -> Option<PartialState> {
        let state = self.partial.state(&self.origin())?;
        let is_sound = state.part_bytes.is_empty()
            && state.total_bytes.is_none_or(|total_bytes| self.partial.len() <= total_bytes)
            && (self.expected_bytes.is_none() || state.total_bytes == self.expected_bytes)
            && (state.etag.is_some() || self.expected_sha256.is_some());
        is_sound.then_some(state)
    }

    async fn open(&self, client: &Client, offset: u64, etag: Option<&str>) -> Result<Opened, SourceError> {
        let mut url = self.url.clone();
        let mut stated_sha256 = None;
        for _ in 0..=MAX_REDIRECTS {
            let is_allowed_http = self.allow_http && self.url.scheme() == "http" && url.scheme() == "http";
            if !is_private(&url) && !is_allowed_http {
                return Err(SourceError::Insecure(without_query(&url).to_string()));
            }
            let is_first_server = url.origin() == self.url.origin();
            let mut request = client.get(url.clone()).header(ACCEPT_ENCODING, "identity");
            if offset > 0 {
                request = request.header(RANGE, format!("bytes={offset}-"));
                if let Some(etag) = etag {
                    request = request.header(IF_RANGE, etag);
                }
            }
            let hugging_face = self.hugging_face.filter(|_| is_first_server);
            let token = hugging_face.and_then(|hugging_face| hugging_face.token.as_deref());
            if let Some(token) = token.filter(|_| is_private(&url)) {
                request = request.bearer_auth(token);
            }
            let response = request.send().await.map_err(|error| self.request_error(error))?;
            if hugging_face.is_some() {
                stated_sha256 = stated_sha256.or_else(|| linked_sha256(response.headers()));
            }
            if !is_redirect(response.status()) {
                return Ok(Opened { response, stated_sha256 });
            }
            let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
            let next = location.and_then(|location| url.join(location).ok());
            let next = next.ok_or(SourceError::InvalidRedirect)?;
            if url.scheme() == "https" && next.scheme() != "https" {
                return Err(SourceError::Insecure(without_query(&next).to_string()));
            }
            url = next;
        }
        Err(SourceError::TooManyRedirects)
    }

    fn request_error(&self, error: reqwest::Error) -> SourceError {
        match error.is_connect() {
            true => SourceError::Connect(describe(error)),
            false => SourceError::Interrupted { detail: describe(error), stored_bytes: self.stored_bytes() },
        }
    }

    fn extent(
        &self,
        response: &Response,
        stored_bytes: u64,
        state: Option<&PartialState>,
    ) -> Result<Extent, SourceError> {
        match response.status() {
            StatusCode::OK => Ok(Extent { offset: 0, total_bytes: response.content_length() }),
            StatusCode::PARTIAL_CONTENT => {
                let range = content_range(response.headers());
                let known_bytes = state.and_then(|state| state.total_bytes);
                let known_etag = state.and_then(|state| state.etag.as_deref());
                let etag = strong_etag(response.headers());
                // With a checksum, storage that states another ETag for the same bytes may continue.
                let has_same_etag = self.expected_sha256.is_some()
                    || known_etag.is_none_or(|known| etag.is_none_or(|etag| etag == known));
                match range {
                    Some((start, total_bytes))
                        if start == stored_bytes
                            && known_bytes.is_none_or(|known| known == total_bytes)
                            && has_same_etag =>
                    {
                        Ok(Extent { offset: stored_bytes, total_bytes: Some(total_bytes) })
                    }
                    _ => self.start_again(),
                }
            }
            StatusCode::RANGE_NOT_SATISFIABLE if stored_bytes > 0 => self.start_again(),
            status => Err(SourceError::Status { status: status.as_u16() }),
        }
    }

    /// The next attempt asks for the whole file.
    fn start_again(&self) -> Result<Extent, SourceError> {
        self.partial.remove()?;
        Err(SourceError::Changed)
    }

    fn ensure_size(&self, total_bytes: u64) -> Result<(), SourceError> {
        match self.expected_bytes {
            Some(expected_bytes) if total_bytes != expected_bytes => {
                Err(SourceError::WrongSize { received_bytes: total_bytes, expected_bytes })
            }
            None if total_bytes > MAX_FILE_BYTES => Err(SourceError::TooLarge { max_bytes: MAX_FILE_BYTES }),
            _ => Ok(()),
        }
    }

    /// Returns the length of the file.
    async fn receive(
        &self,
        response: &mut Response,
        file: &mut File,
        extent: &Extent,
    ) -> Result<u64, SourceError> {
        let max_bytes = extent.total_bytes.or(self.expected_bytes).unwrap_or(MAX_FILE_BYTES);
        let mut stored_bytes = extent.offset;
        self.progress.start(Stage::Downloading, extent.total_bytes.or(self.expected_bytes));
        self.progress.set(stored_bytes);
        let interrupted = |detail: String, stored_bytes| SourceError::Interrupted { detail, stored_bytes };
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(error) => return Err(interrupted(describe(error), stored_bytes)),
            };
            if stored_bytes + chunk.len() as u64 > max_bytes {
                self.partial.remove()?;
                return Err(SourceError::TooLarge { max_bytes });
            }
            self.partial.write(file, &chunk)?;
            stored_bytes += chunk.len() as u64;
            self.progress.set(stored_bytes);
        }
        match extent.total_bytes {
            Some(total_bytes) if stored_bytes < total_bytes => {
                Err(interrupted("connection closed".to_owned(), stored_bytes))
            }
            _ => Ok(stored_bytes),
        }
    }
}

/// Whether the same source may work a moment later. A server that cannot be reached at all is left for the next source.
fn is_transient(error: &SourceError, has_received: bool) -> bool {
    match error {
        SourceError::Interrupted { .. } | SourceError::Changed => true,
        SourceError::Connect(_) => has_received,
        SourceError::Status { status } => matches!(status, 408 | 429 | 500..=599),
        _ => false,
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Without weak validators, which `If-Range` does not allow (RFC 9110, section 13.1.5).
fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get(ETAG)?.to_str().ok()?;
    etag.starts_with('"').then(|| etag.to_owned())
}

fn linked_sha256(headers: &HeaderMap) -> Option<Sha256Hex> {
    let etag = headers.get(HeaderName::from_static(LINKED_ETAG))?.to_str().ok()?;
    etag.trim_matches('"').parse().ok()
}

/// The first byte and the size of the whole file: `bytes 100-199/200`.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
    let (range, total_bytes) = text.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total_bytes.parse().ok()?))
}
