//! The models that callers can name, each with its engine and its prices.

use crate::MeterError;
use chancery_domain::Prices;
use chancery_engine::Engine;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone)]
pub struct Model {
    pub name: String,
    pub engine: Arc<dyn Engine>,
    pub prices: Prices,
}

#[derive(Clone, Default)]
pub struct Models(BTreeMap<String, Arc<Model>>);

impl Models {
    pub fn new(models: impl IntoIterator<Item = Model>) -> Self {
        Self(models.into_iter().map(|model| (model.name.clone(), Arc::new(model))).collect())
    }

    pub fn named(&self, name: &str) -> Result<&Arc<Model>, MeterError> {
        self.0.get(name).ok_or_else(|| MeterError::UnknownModel(name.to_owned()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Model> {
        self.0.values().map(Arc::as_ref)
    }
}
