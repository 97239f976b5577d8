//! Reads a whole body within a size limit. Timeouts are set by the client or the caller.

use reqwest::Response;

#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("larger than {max_bytes} bytes")]
    TooLarge { max_bytes: usize },
    #[error(transparent)]
    Failed(#[from] reqwest::Error),
}

/// Fails as soon as the body declares or reaches a larger size, before that much is in memory.
pub async fn read_body(response: &mut Response, max_bytes: usize) -> Result<Vec<u8>, BodyError> {
    if response.content_length().is_some_and(|bytes| bytes > max_bytes as u64) {
        return Err(BodyError::TooLarge { max_bytes });
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > max_bytes {
            return Err(BodyError::TooLarge { max_bytes });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Reads the body of a raw response, up to 8 bytes.
    async fn read(raw_response: &'static str) -> Result<Vec<u8>, BodyError> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{raw_response}").as_bytes()).await.unwrap();
        });
        let client = crate::client_builder().no_proxy().build().unwrap();
        read_body(&mut client.get(url).send().await.unwrap(), 8).await
    }

    #[tokio::test]
    async fn body_over_the_limit_is_rejected() {
        let whole = read("content-length: 8\r\n\r\n12345678").await.unwrap();
        assert_eq!(whole, b"12345678");
        let chunked = read("transfer-encoding: chunked\r\n\r\n4\r\n1234\r\n4\r\n5678\r\n0\r\n\r\n").await;
        assert_eq!(chunked.unwrap(), b"12345678");
        for too_large in [
            "content-length: 9\r\n\r\n",
            "transfer-encoding: chunked\r\n\r\n4\r\n1234\r\n5\r\n56789\r\n0\r\n\r\n",
            "connection: close\r\n\r\n123456789",
        ] {
            let outcome = read(too_large).await;
            assert!(matches!(outcome, Err(BodyError::TooLarge { max_bytes: 8 })), "{too_large}: {outcome:?}");
        }
        assert!(matches!(read("content-length: 8\r\n\r\n1234").await, Err(BodyError::Failed(_))));
    }
}
