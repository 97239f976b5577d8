//! State shared by all handlers.

use chancery_domain::Currency;
use chancery_metering::Meter;
use std::sync::Arc;

#[derive(Clone)]
pub struct ApiState {
    pub meter: Arc<Meter>,
    pub currency: Currency,
    pub max_body_bytes: usize,
}
