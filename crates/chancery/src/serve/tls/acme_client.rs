//! The HTTP client of the ACME library: ours, with its limits on time and size.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, Response};
use chancery_http_client::{client_builder, describe, read_body};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use std::pin::Pin;
use std::time::Duration;

/// An authority answers within seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Far more than a certificate with its chain, or a directory, has.
const MAX_REPLY_BYTES: usize = 1024 * 1024;
/// Our own requests have a few kilobytes.
const MAX_REQUEST_BYTES: usize = 1024 * 1024;

pub struct AcmeClient(reqwest::Client);

impl AcmeClient {
    pub fn new() -> Result<Self, reqwest::Error> {
        Ok(Self(client_builder().user_agent("chancery").timeout(REQUEST_TIMEOUT).build()?))
    }
}

impl HttpClient for AcmeClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.0.clone();
        Box::pin(async move { send(&client, request).await })
    }
}

async fn send(
    client: &reqwest::Client,
    request: Request<BodyWrapper<Bytes>>,
) -> Result<BytesResponse, Error> {
    let failed = |error: reqwest::Error| Error::Other(describe(error).into());
    let (parts, body) = request.into_parts();
    let body =
        to_bytes(Body::new(body), MAX_REQUEST_BYTES).await.map_err(|error| Error::Other(error.into()))?;
    let request = reqwest::Request::try_from(Request::from_parts(parts, body)).map_err(failed)?;
    let mut reply = client.execute(request).await.map_err(failed)?;
    let body = read_body(&mut reply, MAX_REPLY_BYTES).await.map_err(|error| Error::Other(error.into()))?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = reply.status();
    *response.headers_mut() = std::mem::take(reply.headers_mut());
    Ok(BytesResponse::from(response))
}
