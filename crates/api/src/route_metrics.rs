//! The metrics of each route. A metric is looked up by its labels once: that costs more than counting, and almost every request has
//! the same labels as the one before.

use metrics::{Counter, Histogram, SharedString};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

const SUCCESS: u16 = 200;

/// The routes that have been requested; there are only those of the router.
#[derive(Default)]
pub(crate) struct Routes(RwLock<HashMap<Box<str>, Arc<Route>>>);

pub(crate) struct Route {
    path: Arc<str>,
    succeeded: OnceLock<Counter>,
    seconds: OnceLock<Histogram>,
}

impl Routes {
    pub(crate) fn route(&self, path: &str) -> Arc<Route> {
        if let Some(route) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(path) {
            return Arc::clone(route);
        }
        let mut routes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(routes.entry(path.into()).or_insert_with(|| Arc::new(Route::new(path))))
    }
}

impl Route {
    fn new(path: &str) -> Self {
        Self { path: path.into(), succeeded: OnceLock::new(), seconds: OnceLock::new() }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// `code` is that of the error, or empty.
    pub(crate) fn record(&self, status: u16, code: &'static str, duration: Duration) {
        if status == SUCCESS && code.is_empty() {
            self.succeeded.get_or_init(|| self.counter(status, code)).increment(1);
        } else {
            self.counter(status, code).increment(1);
        }
        let seconds = self.seconds.get_or_init(
            || metrics::histogram!("chancery_http_request_seconds", "path" => self.path_label()),
        );
        seconds.record(duration.as_secs_f64());
    }

    fn counter(&self, status: u16, code: &'static str) -> Counter {
        let status = status.to_string();
        metrics::counter!("chancery_http_requests_total", "path" => self.path_label(), "status" => status, "code" => code)
    }

    fn path_label(&self) -> SharedString {
        SharedString::from_shared(Arc::clone(&self.path))
    }
}
