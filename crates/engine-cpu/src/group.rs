//! The engines of one process, which share its cores and its memory, whenever they are loaded. A model is planned beside the
//! running ones: their memory is in use already, or reserved for them.

use crate::engine::CpuEngine;
use crate::error::LoadError;
use crate::memory::{AvailableMemory, RunningModelMemory};
use crate::plan::{LoadOptions, Plan, usable_bytes};
use crate::step_lock::StepLock;
use std::path::PathBuf;

/// Engines that take turns step by step. Clones are the same group.
#[derive(Clone, Debug, Default)]
pub struct EngineGroup {
    step_lock: StepLock,
}

impl EngineGroup {
    /// Plans models for this group: a file and its options for each. `running` are its loaded engines, and `freed` is one of
    /// them that will be dropped before these models are loaded.
    pub fn plan(
        &self,
        models: &[(PathBuf, LoadOptions)],
        running: &[&CpuEngine],
        freed: Option<&CpuEngine>,
    ) -> Result<Vec<Plan>, LoadError> {
        let running = running_memory(running, freed);
        self.fit(models, AvailableMemory::read_beside(running), running.uncommitted_bytes)
    }

    fn fit(
        &self,
        models: &[(PathBuf, LoadOptions)],
        available: Option<AvailableMemory>,
        reserved_bytes: u64,
    ) -> Result<Vec<Plan>, LoadError> {
        let plans = Plan::fit(models, available).map_err(|error| match error {
            LoadError::Memory(insufficient) => LoadError::Memory(insufficient.beside(reserved_bytes)),
            error => error,
        })?;
        Ok(plans.into_iter().map(|plan| Plan { step_lock: self.step_lock.clone(), ..plan }).collect())
    }

    /// Memory that another model could use beside these; `None` if the system does not report it.
    pub fn usable_bytes(&self, running: &[&CpuEngine]) -> Option<u64> {
        AvailableMemory::read_beside(running_memory(running, None)).map(usable_bytes)
    }
}

fn running_memory(running: &[&CpuEngine], freed: Option<&CpuEngine>) -> RunningModelMemory {
    let stays = |engine: &&&CpuEngine| freed.is_none_or(|freed| !std::ptr::eq(**engine, freed));
    let uncommitted = running.iter().filter(stays).map(|engine| engine.uncommitted_bytes());
    RunningModelMemory {
        uncommitted_bytes: uncommitted.fold(0, u64::saturating_add),
        freed_bytes: freed
            .map_or(0, |engine| engine.memory_bytes().saturating_sub(engine.uncommitted_bytes())),
        freed_address_bytes: freed.map_or(0, CpuEngine::memory_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBound;
    use crate::plan::tests::Folder;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn model_without_room_beside_running_ones_is_rejected_with_their_share() {
        let folder = Folder::new();
        let options =
            LoadOptions { name: "added".to_owned(), context_tokens: Some(8_192), ..LoadOptions::default() };
        let models = [(folder.model("m", 8_192), options)];
        let fit = |gigabytes: u64, reserved_bytes| {
            let available = AvailableMemory { bytes: gigabytes * GB, bound: MemoryBound::Machine };
            EngineGroup::default().fit(&models, Some(available), reserved_bytes)
        };
        assert!(fit(3, 0).is_ok());
        let text = fit(1, 2 * GB).unwrap_err().to_string();
        for part in [
            "added needs",
            "1.0 GB available on this machine beside 2.0 GB for the KV caches of running models",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn plans_of_a_group_share_its_turns() {
        let folder = Folder::new();
        let model = |name: &str| {
            (folder.model(name, 4_096), LoadOptions { name: name.to_owned(), ..LoadOptions::default() })
        };
        let group = EngineGroup::default();
        let [first, second] =
            ["one", "two"].map(|name| group.fit(&[model(name)], None, 0).unwrap().remove(0).step_lock);
        assert!(first.is_shared_with(&second));
        assert!(!first.is_shared_with(&StepLock::default()));
    }
}
