//! A balancer that is as unkind as one can be to whoever keeps something in a node: every connection goes to the next node.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{TcpListener, TcpStream};

pub struct Turns {
    task: tokio::task::JoinHandle<()>,
}

impl Turns {
    /// Binds its port, which the nodes are to be told before they start; takes connections once there are nodes.
    pub async fn bind() -> (u16, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        (listener.local_addr().unwrap().port(), listener)
    }

    /// `nodes` are the addresses of one part of every node, as `http://HOST:PORT`.
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

impl Drop for Turns {
    fn drop(&mut self) {
        self.task.abort();
    }
}
