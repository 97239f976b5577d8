//! The worst possible balancer for node-local state: every connection goes to the next node.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{TcpListener, TcpStream};

pub struct RoundRobinProxy {
    task: tokio::task::JoinHandle<()>,
}

impl RoundRobinProxy {
    /// Binds its port, which the nodes need before they start; accepts connections once there are nodes.
    pub async fn bind() -> (u16, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        (listener.local_addr().unwrap().port(), listener)
    }

    /// `nodes` are the addresses of one service on every node, as `http://HOST:PORT`.
    pub fn start(listener: TcpListener, nodes: &[String]) -> Self {
        let nodes: Vec<String> = nodes
            .iter()
            .map(|url| url.trim_start_matches("http://").replace("localhost", "127.0.0.1"))
            .collect();
        let (nodes, next) = (Arc::new(nodes), Arc::new(AtomicUsize::new(0)));
        let task = tokio::spawn(async move {
            while let Ok((mut caller, _)) = listener.accept().await {
                let nodes = Arc::clone(&nodes);
                let turn = next.fetch_add(1, Ordering::SeqCst) % nodes.len();
                tokio::spawn(async move {
                    let Ok(mut node) = TcpStream::connect(&nodes[turn]).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut caller, &mut node).await;
                });
            }
        });
        Self { task }
    }
}

impl Drop for RoundRobinProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
