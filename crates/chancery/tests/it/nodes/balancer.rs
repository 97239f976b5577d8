//! A real HAProxy in front of the nodes, configured by `deploy/haproxy.cfg`; only the addresses are changed for the test.

use super::cluster::{Node, free_port};
use crate::server::Running;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Its ports, which the nodes need to know before they start.
pub struct Ports {
    pub api: u16,
    pub portal: u16,
    pub auth: u16,
}

impl Ports {
    pub fn choose() -> Self {
        Self { api: free_port(), portal: free_port(), auth: free_port() }
    }
}

pub struct Balancer {
    pub api: String,
    _process: Running,
    _folder: tempfile::TempDir,
}

impl Balancer {
    pub async fn start(ports: &Ports, nodes: &[Node]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("haproxy.cfg");
        std::fs::write(&file, configuration(ports, nodes)).unwrap();
        // Not on the PATH of ordinary users.
        let mut command = Command::new("/usr/sbin/haproxy");
        command.arg("-f").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let process = Running(command.spawn().expect("HAProxy is installed by `make test`"));
        let api = format!("http://127.0.0.1:{}", ports.api);
        let health = format!("{api}/openapi.json");
        crate::server::eventually("HAProxy has found the nodes", Duration::from_secs(20), async || {
            let reply = crate::server::client().get(&health).send().await;
            reply.is_ok_and(|reply| reply.status().as_u16() == 200)
        })
        .await;
        Self { api, _process: process, _folder: folder }
    }
}

/// The deployed configuration with the test's addresses; panics if one of the originals is missing.
fn configuration(ports: &Ports, nodes: &[Node]) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/haproxy.cfg");
    let mut text = std::fs::read_to_string(file).unwrap();
    let mut replace = |old: &str, new: &str| {
        assert_eq!(text.matches(old).count(), 1, "{old} in deploy/haproxy.cfg");
        text = text.replace(old, new);
    };
    for (old, new) in [(8080, ports.api), (8081, ports.portal), (8082, ports.auth)] {
        replace(&format!("bind :{old}\n"), &format!("bind 127.0.0.1:{new}\n"));
    }
    let port_of = |url: &str| url.rsplit_once(':').unwrap().1.to_owned();
    for (number, Node { server, .. }) in nodes.iter().enumerate() {
        for (old, url) in [(8080, &server.api), (8081, &server.portal), (8082, &server.auth)] {
            let (node, ops) = (port_of(url), port_of(&server.ops));
            replace(
                &format!(" 10.0.0.1{}:{old} check port 8083\n", number + 1),
                &format!(" 127.0.0.1:{node} check port {ops}\n"),
            );
        }
    }
    text
}
