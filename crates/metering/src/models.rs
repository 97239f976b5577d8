//! The models that callers can name, each with its engine and its prices. They can be added, replaced and removed while requests
//! run: a request keeps the model that it was prepared with, until it is settled.

use crate::MeterError;
use chancery_domain::Prices;
use chancery_engine::Engine;
use metrics::Counter;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

#[derive(Clone)]
pub struct Model {
    pub name: String,
    pub engine: Arc<dyn Engine>,
    pub prices: Prices,
}

/// A model with what all its requests share.
pub struct OfferedModel {
    model: Model,
    token_counters: OnceLock<TokenCounters>,
}

/// Looked up once, because finding a metric by its labels costs more than counting.
struct TokenCounters {
    input: Counter,
    output: Counter,
}

impl Deref for OfferedModel {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl OfferedModel {
    fn new(model: Model) -> Self {
        Self { model, token_counters: OnceLock::new() }
    }

    /// Adds billed tokens to the metrics.
    pub(crate) fn record_tokens(&self, input_tokens: u32, output_tokens: u32) {
        let counters = self.token_counters.get_or_init(|| {
            let name = &self.model.name;
            TokenCounters {
                input: metrics::counter!("chancery_input_tokens_total", "model" => name.clone()),
                output: metrics::counter!("chancery_output_tokens_total", "model" => name.clone()),
            }
        });
        counters.input.increment(u64::from(input_tokens));
        counters.output.increment(u64::from(output_tokens));
    }
}

#[derive(Clone, Default)]
pub struct Models(BTreeMap<String, Arc<OfferedModel>>);

impl Models {
    pub fn new(models: impl IntoIterator<Item = Model>) -> Self {
        let mut offered = BTreeMap::new();
        for model in models {
            offered.insert(model.name.clone(), Arc::new(OfferedModel::new(model)));
        }
        Self(offered)
    }

    pub fn named(&self, name: &str) -> Result<&Arc<OfferedModel>, MeterError> {
        self.0.get(name).ok_or_else(|| MeterError::UnknownModel(name.to_owned()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Model> {
        self.0.values().map(|offered| &offered.model)
    }
}

/// The models that are offered right now. A change replaces the whole set, so that no reader sees half of one.
pub(crate) struct ModelRegistry(RwLock<Arc<Models>>);

impl ModelRegistry {
    pub(crate) fn new(models: Models) -> Self {
        Self(RwLock::new(Arc::new(models)))
    }

    pub(crate) fn current(&self) -> Arc<Models> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Offers a model, instead of one of the same name.
    pub(crate) fn insert(&self, model: Model) {
        self.change(|models| {
            models.insert(model.name.clone(), Arc::new(OfferedModel::new(model)));
        });
    }

    pub(crate) fn remove(&self, name: &str) {
        self.change(|models| {
            models.remove(name);
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Arc<OfferedModel>>)) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut models = Models::clone(&current);
        change(&mut models.0);
        *current = Arc::new(models);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_engine::ScriptedEngine;

    fn model(name: &str, output: &str) -> Model {
        let prices = Prices::new("0.10".parse().unwrap(), output.parse().unwrap()).unwrap();
        Model { name: name.to_owned(), engine: Arc::new(ScriptedEngine::new(16, |_, _| {})), prices }
    }

    fn names(registry: &ModelRegistry) -> Vec<String> {
        registry.current().iter().map(|model| model.name.clone()).collect()
    }

    #[test]
    fn change_is_seen_by_new_readers_only() {
        let registry = ModelRegistry::new(Models::new([model("one", "1")]));
        let before = registry.current();
        registry.insert(model("two", "1"));
        assert_eq!(names(&registry), ["one", "two"]);
        assert!(before.named("two").is_err());
        registry.remove("one");
        registry.remove("never there");
        assert_eq!(names(&registry), ["two"]);
        assert!(
            matches!(registry.current().named("one"), Err(MeterError::UnknownModel(name)) if name == "one")
        );
    }

    #[test]
    fn request_keeps_the_engine_and_prices_it_was_prepared_with() {
        let registry = ModelRegistry::new(Models::new([model("one", "1")]));
        let prepared = Arc::clone(registry.current().named("one").unwrap());
        registry.insert(model("one", "2"));
        let offered = Arc::clone(registry.current().named("one").unwrap());
        assert_eq!([&prepared, &offered].map(|model| model.prices.output.to_string()), ["1.00", "2.00"]);
        assert!(!Arc::ptr_eq(&prepared.engine, &offered.engine));
        registry.remove("one");
        assert_eq!(Arc::strong_count(&prepared), 1, "only the request has it");
    }
}
