//! Chancery as a gateway in front of one upstream server: its configuration, and the command that starts it.

use crate::Outcome;
use crate::portal::SECRETS_KEY;
use crate::processes::free_address;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

#[derive(Clone, Copy, Debug)]
pub struct Gateway<'a> {
    /// Chancery's release build.
    pub binary: &'a Path,
    pub address: SocketAddr,
    pub database_url: &'a str,
    /// `None`: limits are counted in the process.
    pub redis: Option<&'a str>,
    pub model: &'a str,
    /// The upstream's URL, with `/v1`.
    pub upstream: &'a str,
}

impl Gateway<'_> {
    /// Only the API runs, with metering as by default. The folder gets the configuration and the data.
    pub fn command(&self, folder: &Path) -> Outcome<Command> {
        let config = folder.join("chancery.toml");
        std::fs::write(&config, self.config(free_address()?))?;
        let mut command = Command::new(self.binary);
        command.args(["serve", "--only", "api", "--config"]).arg(config);
        command.env("CHANCERY_SECRETS__KEY", SECRETS_KEY);
        Ok(command)
    }

    fn config(&self, ops: SocketAddr) -> String {
        let Self { address, database_url, redis, model, upstream, .. } = self;
        let limits = redis.map_or_else(String::new, |url| format!("[limits]\nstore = \"{url}\"\n"));
        format!(
            "data = \"data\"\n[api]\nlisten = \"{address}\"\n[ops]\nlisten = \"{ops}\"\n[database]\nurl = \"{database_url}\"\n{limits}\
             [[models]]\nname = \"{model}\"\nengine = \"upstream\"\nendpoints = [\"{upstream}\"]\n\
             input_per_million = \"0.10\"\noutput_per_million = \"0.40\"\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_has_a_limit_store_only_with_redis() {
        let gateway = Gateway {
            binary: Path::new("chancery"),
            address: "127.0.0.1:1".parse().unwrap(),
            database_url: "sqlite:/tmp/a.db",
            redis: None,
            model: "m",
            upstream: "http://127.0.0.1:2/v1",
        };
        let ops = "127.0.0.1:3".parse().unwrap();
        assert!(!gateway.config(ops).contains("[limits]"));
        let with_redis = Gateway { redis: Some("redis://127.0.0.1:4"), ..gateway };
        assert!(with_redis.config(ops).contains("[limits]\nstore = \"redis://127.0.0.1:4\"\n[[models]]"));
    }
}
