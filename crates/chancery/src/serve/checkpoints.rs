//! Starts the checkpointer. Every process runs it, whatever it serves: the database decides which of them signs.

use super::people::SharedDeps;
use super::shutdown;
use crate::data_dir::DataDir;
use crate::secret_file;
use anyhow::Context;
use chancery_listener::ShutdownTokens;
use chancery_transparency::{
    CheckpointFolder, Checkpointer, Destinations, PUBLIC_KEY_FILE, load_or_create_key, load_verifier_keys,
};
use std::sync::Arc;
use tokio::task::JoinHandle;

pub struct Checkpoints {
    checkpointer: Arc<Checkpointer>,
    task: JoinHandle<()>,
}

impl Checkpoints {
    /// The task ends when the server closes.
    pub fn start(
        data: &DataDir,
        destinations: Destinations,
        api_url: &str,
        deps: &SharedDeps,
        shutdown_tokens: &ShutdownTokens,
    ) -> anyhow::Result<Self> {
        let credentials = secret_file::credentials_directory();
        let (site, randomness) = (site_name(api_url), deps.randomness.as_ref());
        let key = load_or_create_key(data.path(), credentials.as_deref(), &site, randomness)
            .context("cannot use the key of checkpoints")?;
        let keys = load_verifier_keys(&data.join(PUBLIC_KEY_FILE))?;
        let folder = CheckpointFolder::open(data.path())?;
        let checkpointer = Checkpointer::new(deps.store.logs(), folder, key, keys, Arc::clone(&deps.clock))?;
        let checkpointer = Arc::new(checkpointer.with_destinations(destinations));
        let (runner, stop) = (Arc::clone(&checkpointer), shutdown_tokens.closing.clone());
        let task = tokio::spawn(async move { runner.run(stop).await });
        Ok(Self { checkpointer, task })
    }

    /// The last checkpoint. Call it when nothing is written any more, while the store is still open.
    pub async fn finish(self) {
        // It has no result worth checking.
        let _ = self.task.await;
        shutdown::sign_last_checkpoint(&self.checkpointer).await;
    }
}

/// The part of the URL that names the site. A key keeps the name that it was created with.
fn site_name(api_url: &str) -> String {
    let site = api_url.split_once("://").map_or(api_url, |(_, site)| site);
    site.split('/').next().unwrap_or(site).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn site_is_named_by_host_and_port() {
        assert_eq!(site_name("https://api.example.com"), "api.example.com");
        assert_eq!(site_name("http://localhost:8080/"), "localhost:8080");
    }
}
