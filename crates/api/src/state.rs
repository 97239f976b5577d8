//! State shared by all handlers.

use crate::body_bytes::BodyBytes;
use chancery_domain::Currency;
use chancery_metering::Meter;
use std::sync::Arc;

#[derive(Clone)]
pub struct ApiState {
    pub(crate) meter: Arc<Meter>,
    pub(crate) currency: Currency,
    pub(crate) max_body_bytes: usize,
    pub(crate) body_bytes: Arc<BodyBytes>,
}

impl ApiState {
    pub fn new(meter: Arc<Meter>, currency: Currency, max_body_bytes: usize) -> Self {
        Self { meter, currency, max_body_bytes, body_bytes: BodyBytes::new(max_body_bytes) }
    }
}
