//! Threads that serve the API's connections, each with a runtime of its own. A connection stays on its thread, and so does what
//! its requests wake: their tasks, timers and connections to upstream servers. The shared runtime would wake another thread to look
//! for work whenever something is ready, which costs more than most requests' own work, and move requests between cores.

use std::io::{Error, Result};
use std::sync::{Arc, mpsc};
use std::thread;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// This many serve far more requests than one ledger can write.
pub const MAX_THREADS: usize = 16;
/// The epoll of a thread's runtime and a clone of it, an eventfd, and a socket for signals.
pub const DESCRIPTORS_PER_THREAD: usize = 4;

/// The threads end when this is dropped, and with them what still runs there.
pub struct ConnectionThreads {
    threads: Vec<ConnectionThread>,
    _running: DropGuard,
}

struct ConnectionThread {
    runtime: Handle,
    /// A clone for each open connection.
    connections: Arc<()>,
}

impl ConnectionThreads {
    /// Starts a thread for each core, up to `MAX_THREADS`.
    pub fn start() -> Result<Self> {
        Self::start_with(thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS))
    }

    fn start_with(count: usize) -> Result<Self> {
        let running = CancellationToken::new();
        let guard = running.clone().drop_guard();
        let threads = (0..count).map(|number| ConnectionThread::start(number, running.clone()));
        let threads = threads.collect::<Result<_>>()?;
        Ok(Self { threads, _running: guard })
    }

    /// Serves a connection on the thread that has the fewest.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        tracker: &TaskTracker,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) {
        let emptiest = self.threads.iter().min_by_key(|thread| Arc::strong_count(&thread.connections));
        // The stream belongs to the runtime that accepted it.
        let (Some(thread), Ok(stream)) = (emptiest, stream.into_std()) else { return };
        let connection = Arc::clone(&thread.connections);
        let serve = async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve(stream).await;
            }
            drop(connection);
        };
        tracker.spawn_on(serve, &thread.runtime);
    }
}

impl ConnectionThread {
    fn start(number: usize, running: CancellationToken) -> Result<Self> {
        let (opened, handle) = mpsc::channel();
        // The runtime is created and dropped on its thread: within another runtime, dropping it panics.
        let serve = move || match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let _ = opened.send(Ok(runtime.handle().clone()));
                runtime.block_on(running.cancelled());
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        thread::Builder::new().name(format!("api-{number}")).spawn(serve)?;
        let runtime = handle.recv().map_err(Error::other)??;
        Ok(Self { runtime, connections: Arc::new(()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    const ENOUGH_TIME: Duration = Duration::from_secs(20);

    /// Sends the number of its thread, and ends with its peer.
    async fn send_thread_number(mut stream: TcpStream) {
        let number = thread::current().name().and_then(|name| name.strip_prefix("api-")?.parse().ok());
        stream.write_u8(number.unwrap()).await.unwrap();
        let _ = stream.read_u8().await;
    }

    struct TestServer {
        listener: TcpListener,
        threads: ConnectionThreads,
        tracker: TaskTracker,
    }

    impl TestServer {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            Self { listener, threads: ConnectionThreads::start_with(2).unwrap(), tracker: TaskTracker::new() }
        }

        /// Returns the number of the thread that serves it, too.
        async fn connect(&self) -> (TcpStream, u8) {
            let mut client = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
            let (stream, _) = self.listener.accept().await.unwrap();
            self.threads.spawn(&self.tracker, stream, send_thread_number);
            let number = timeout(ENOUGH_TIME, client.read_u8()).await.unwrap().unwrap();
            (client, number)
        }
    }

    #[tokio::test]
    async fn new_connection_goes_to_the_thread_with_the_fewest() {
        let server = TestServer::start().await;
        let (first, second) = (server.connect().await, server.connect().await);
        assert_ne!(first.1, second.1);
        let (third, fourth) = (server.connect().await, server.connect().await);
        assert_ne!(third.1, fourth.1);
        let number = first.1;
        drop(first);
        let has_ended = async {
            while server.tracker.len() > 3 {
                tokio::task::yield_now().await;
            }
        };
        timeout(ENOUGH_TIME, has_ended).await.unwrap();
        assert_eq!(server.connect().await.1, number);
    }

    #[tokio::test]
    async fn connections_end_with_their_threads() {
        let server = TestServer::start().await;
        let (mut client, _) = server.connect().await;
        drop(server.threads);
        let end = timeout(ENOUGH_TIME, client.read_u8()).await.unwrap();
        assert!(end.is_err(), "it was not closed");
    }
}
