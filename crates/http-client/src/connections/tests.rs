//! Rules of connections to a server, on real sockets.

use super::*;
use chancery_domain::{ManualClock, UnixMillis};
use hyper::header::HOST;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
const WHOLE: &str = "content-length: 8\r\n\r\n12345678";

struct TestServer {
    uri: Uri,
    connections: Arc<AtomicUsize>,
    /// Connections that the peer has closed.
    closed: Arc<AtomicUsize>,
}

/// Answers every request with the same bytes, and leaves connections open.
async fn server(raw_response: &'static str) -> TestServer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (connections, closed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (accepted, ended) = (Arc::clone(&connections), Arc::clone(&closed));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            accepted.fetch_add(1, Ordering::SeqCst);
            let ended = Arc::clone(&ended);
            tokio::spawn(async move {
                let response = format!("HTTP/1.1 200 OK\r\n{raw_response}");
                while !matches!(stream.read(&mut [0; 4096]).await, Ok(0) | Err(_)) {
                    if stream.write_all(response.as_bytes()).await.is_err() || raw_response.contains("close")
                    {
                        break;
                    }
                }
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    TestServer { uri, connections, closed }
}

fn connections_to(server: &TestServer, clock: &Arc<ManualClock>) -> Arc<Connections> {
    let connector = Connector::http(Duration::from_secs(10));
    Arc::new(Connections::new(connector, server.uri.clone(), IDLE_TIMEOUT, Arc::<ManualClock>::clone(clock)))
}

fn manual_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(UnixMillis(0)))
}

fn request() -> Request<Full<Bytes>> {
    Request::builder().uri("/").header(HOST, "test").body(Full::default()).unwrap()
}

async fn read(connections: &Arc<Connections>) -> Result<Bytes, ReadError> {
    connections.send(request()).await.unwrap().read_body(8).await
}

/// Waits until an idle connection can be taken: the end of its last response may not have arrived.
async fn until_ready(connections: &Connections) {
    let is_ready = |idle: &mut IdleConnection| {
        idle.connection.update_idle();
        idle.connection.sender.is_ready()
    };
    while !connections.lock().iter_mut().any(is_ready) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn connection_is_reused_after_a_body_was_read_and_not_once_it_has_expired() {
    for response in [WHOLE, "transfer-encoding: chunked\r\n\r\n4\r\n1234\r\n4\r\n5678\r\n0\r\n\r\n"] {
        let (server, clock) = (server(response).await, manual_clock());
        let connections = connections_to(&server, &clock);
        for _ in 0..3 {
            assert_eq!(read(&connections).await.unwrap(), "12345678");
            until_ready(&connections).await;
        }
        assert_eq!(server.connections.load(Ordering::SeqCst), 1);
        clock.advance(IDLE_TIMEOUT);
        read(&connections).await.unwrap();
        assert_eq!(server.connections.load(Ordering::SeqCst), 2);
        assert_eq!(connections.lock().len(), 1, "the expired one was closed");
    }
}

#[tokio::test]
async fn connection_of_another_runtime_is_left_to_it() {
    let (server, clock) = (server(WHOLE).await, manual_clock());
    let connections = connections_to(&server, &clock);
    read(&connections).await.unwrap();
    until_ready(&connections).await;
    let elsewhere = Arc::clone(&connections);
    let other_runtime = move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { read(&elsewhere).await.unwrap() });
    };
    tokio::task::spawn_blocking(other_runtime).await.unwrap();
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
    until_ready(&connections).await;
    read(&connections).await.unwrap();
    assert_eq!(server.connections.load(Ordering::SeqCst), 2, "this runtime's own was not used again");
}

#[tokio::test]
async fn bytes_behind_a_response_are_not_taken_for_the_next_one() {
    let response = "content-length: 8\r\n\r\n12345678HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nsmuggled";
    let (server, clock) = (server(response).await, manual_clock());
    let connections = connections_to(&server, &clock);
    for _ in 0..3 {
        assert_eq!(read(&connections).await.unwrap(), "12345678");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 3, "a connection with such bytes is closed");
}

#[tokio::test]
async fn dropped_response_closes_its_connection() {
    let (server, clock) = (server("content-length: 8\r\n\r\n1234").await, manual_clock());
    let connections = connections_to(&server, &clock);
    let mut response = connections.send(request()).await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "1234");
    drop(response);
    let closing = async {
        while server.closed.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), closing).await.unwrap();
    assert!(connections.lock().is_empty());
}

#[tokio::test]
async fn body_over_the_limit_is_rejected() {
    let clock = manual_clock();
    for too_large in [
        "content-length: 9\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n4\r\n1234\r\n5\r\n56789\r\n0\r\n\r\n",
        "connection: close\r\n\r\n123456789",
    ] {
        let outcome = read(&connections_to(&server(too_large).await, &clock)).await;
        assert!(matches!(outcome, Err(ReadError::TooLarge { max_bytes: 8 })), "{too_large}: {outcome:?}");
    }
    let cut_off = "connection: close\r\ncontent-length: 8\r\n\r\n1234";
    let outcome = read(&connections_to(&server(cut_off).await, &clock)).await;
    assert!(matches!(outcome, Err(ReadError::Failed(_))), "{outcome:?}");
}

#[tokio::test]
async fn server_that_cannot_be_reached_is_told_from_one_that_closes() {
    let clock = manual_clock();
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let uri = format!("http://{unused}").parse().unwrap();
    let nobody = TestServer { uri, connections: Arc::default(), closed: Arc::default() };
    let outcome = connections_to(&nobody, &clock).send(request()).await;
    assert!(matches!(outcome, Err(SendError::Connect(_))));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
        }
    });
    let closing = TestServer { uri, connections: Arc::default(), closed: Arc::default() };
    let outcome = connections_to(&closing, &clock).send(request()).await;
    assert!(matches!(outcome, Err(SendError::Closed(_))));
}
