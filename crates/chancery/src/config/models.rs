//! `[[models]]`: model names, the engine behind each, and token prices.

use super::bounds;
use super::reader::Reader;
use super::source::Origin;
use super::upstream::{self, UpstreamConfig};
use chancery_domain::{Prices, TokenPrice};
use chancery_engine_cpu::LoadOptions;
use chancery_model_files::catalog::{self, CatalogModel};
use chancery_model_files::{ModelFolder, ModelName};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    pub name: String,
    pub engine: EngineConfig,
    pub prices: Prices,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineConfig {
    Embedded(EmbeddedConfig),
    Upstream(UpstreamConfig),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedConfig {
    pub file: PathBuf,
    pub context_tokens: Option<u32>,
    pub slots: Option<usize>,
}

impl ModelConfig {
    pub fn embedded(&self) -> Option<&EmbeddedConfig> {
        match &self.engine {
            EngineConfig::Embedded(embedded) => Some(embedded),
            EngineConfig::Upstream(_) => None,
        }
    }

    /// Returns the arguments for loading an embedded model; `None` for an upstream model.
    pub fn to_load(&self) -> Option<(PathBuf, LoadOptions)> {
        let embedded = self.embedded()?;
        let options = LoadOptions {
            name: self.name.clone(),
            context_tokens: embedded.context_tokens,
            slots: embedded.slots,
            ..LoadOptions::default()
        };
        Some((embedded.file.clone(), options))
    }
}

pub(super) fn models(reader: &mut Reader, folder: &Path) -> Vec<ModelConfig> {
    let count = reader.array_len("models");
    if count > bounds::MODELS {
        reader.problem("models", format!("at most {} models are allowed; remove some", bounds::MODELS));
        return Vec::new();
    }
    let models: Vec<ModelConfig> =
        (0..count.max(1)).filter_map(|index| model(reader, folder, index)).collect();
    for (index, model) in models.iter().enumerate() {
        if models[..index].iter().any(|earlier| earlier.name == model.name) {
            reader.problem(
                &format!("models.{index}.name"),
                format!("duplicate model name {:?}; rename one", model.name),
            );
        }
    }
    models
}

/// The first model falls back to the default model, so that single keys of it can be overridden.
fn model(reader: &mut Reader, folder: &Path, index: usize) -> Option<ModelConfig> {
    let key = |name: &str| format!("models.{index}.{name}");
    let engine = reader.text(&key("engine"), "embedded");
    let is_upstream = engine == "upstream";
    if !is_upstream && engine != "embedded" {
        reader.problem(
            &key("engine"),
            format!(
                "unknown engine {engine:?}; use \"embedded\" for a model file, or \"upstream\" for servers"
            ),
        );
    }
    let is_default = !is_upstream && index == 0 && reader.origin(&key("file")) == Origin::Default;
    let name = match is_default {
        true => Some(reader.text(&key("name"), catalog::DEFAULT.name)),
        false => reader.optional_text(&key("name")),
    };
    if name.as_ref().is_none_or(|name| name.chars().any(char::is_control)) {
        reader.problem(&key("name"), "required: a model name, such as \"smollm2-135m\"");
    }
    // The catalogue describes a model file. The same name upstream may be any model.
    let known = name.as_deref().filter(|_| !is_upstream).and_then(catalog::named);
    let context_tokens = reader.optional_integer(&key("context_tokens"), bounds::CONTEXT_TOKENS);
    let context_tokens = context_tokens.and_then(|tokens| u32::try_from(tokens).ok());
    let engine = match is_upstream {
        true => {
            reject_other_engine_keys(reader, &["file", "slots"], "embedded", key);
            let upstream = upstream::upstream(reader, folder, name.as_deref(), key);
            upstream.map(|upstream| EngineConfig::Upstream(UpstreamConfig { context_tokens, ..upstream }))
        }
        false => {
            reject_other_engine_keys(reader, &upstream::KEYS, "upstream", key);
            let file = file(reader, folder, &key("file"), name.as_deref());
            let slots = reader.optional_integer(&key("slots"), bounds::SLOTS).map(|slots| slots as usize);
            file.map(|file| EngineConfig::Embedded(EmbeddedConfig { file, context_tokens, slots }))
        }
    };
    let prices = prices(reader, known, key);
    Some(ModelConfig { name: name?, engine: engine?, prices: prices? })
}

/// Rejects keys of the other engine: failing at startup is better than silently ignoring a setting.
fn reject_other_engine_keys(reader: &mut Reader, names: &[&str], engine: &str, key: impl Fn(&str) -> String) {
    for name in names {
        if reader.skip(&key(name)) {
            reader.problem(
                &key(name),
                format!("only valid with engine = \"{engine}\"; remove it, or change the engine"),
            );
        }
    }
}

/// Without `file`, the model folder has it: by a name of the catalogue, or by that of a file that was pulled or imported.
fn file(reader: &mut Reader, folder: &Path, key: &str, name: Option<&str>) -> Option<PathBuf> {
    let folder_path = name.and_then(|name| {
        let path = ModelFolder::default().path(name.parse::<ModelName>().ok()?.as_str());
        (catalog::named(name).is_some() || path.exists()).then_some(path)
    });
    match (reader.optional_text(key), folder_path) {
        (Some(file), _) if matches!(reader.origin(key), Origin::File { .. }) => Some(folder.join(file)),
        (Some(file), _) => Some(PathBuf::from(file)),
        (None, Some(file)) => {
            reader.show_as(key, file.display().to_string());
            Some(file)
        }
        (None, None) => {
            reader.problem(
                key,
                "required: the path of the model's GGUF file; or run `chancery model pull` or `chancery model import` with `--name` and this model's name",
            );
            None
        }
    }
}

/// Only models of the catalogue have default prices: a user's own model must not become free by omission. Cached tokens cost as
/// much as other input unless they have a price of their own.
fn prices(reader: &mut Reader, known: Option<&CatalogModel>, key: impl Fn(&str) -> String) -> Option<Prices> {
    let [input, cached_input, output] =
        ["input_per_million", "cached_input_per_million", "output_per_million"].map(key);
    let mut price = |key: &str, default: Option<&str>| -> Option<TokenPrice> {
        let text = match default {
            Some(default) => reader.text(key, default),
            None => match reader.optional_text(key) {
                Some(text) => text,
                None => {
                    reader.problem(key, "required: the price per million tokens, such as \"0.10\"");
                    return None;
                }
            },
        };
        text.parse().map_err(|error| reader.problem(key, error)).ok()
    };
    let input_price = price(&input, known.map(|known| known.input_per_million));
    let output_price = price(&output, known.map(|known| known.output_per_million));
    let cached_input_price = reader.optional_text(&cached_input).and_then(|text| {
        text.parse::<TokenPrice>().map_err(|error| reader.problem(&cached_input, error)).ok()
    });
    let prices =
        Prices::new(input_price?, output_price?).map_err(|error| reader.problem(&output, error)).ok()?;
    match cached_input_price {
        None => Some(prices),
        Some(price) => {
            prices.with_cached_input(price).map_err(|error| reader.problem(&cached_input, error)).ok()
        }
    }
}
