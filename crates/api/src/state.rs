//! State shared by all handlers.

use crate::body_bytes::BodyBytes;
use crate::route_metrics::Routes;
use chancery_domain::Currency;
use chancery_metering::Meter;
use std::sync::Arc;

#[derive(Clone)]
pub struct ApiState {
    pub(crate) meter: Arc<Meter>,
    pub(crate) currency: Currency,
    pub(crate) max_body_bytes: usize,
    pub(crate) body_bytes: Arc<BodyBytes>,
    pub(crate) routes: Arc<Routes>,
}

impl ApiState {
    pub fn new(meter: Arc<Meter>, currency: Currency, max_body_bytes: usize) -> Self {
        let body_bytes = BodyBytes::new(max_body_bytes);
        Self { meter, currency, max_body_bytes, body_bytes, routes: Arc::default() }
    }
}
