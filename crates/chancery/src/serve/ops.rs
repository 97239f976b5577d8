//! The operations listener: `/livez`, `/readyz`, `/metrics`. It needs no key, so bind it to an address that only
//! operators can reach.

use super::prometheus::{Metrics, Page};
use super::tls::ServedCertificate;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use chancery_engine::{EndpointState, EndpointStatus};
use chancery_metering::{Meter, Models};
use chancery_store::Health;
use metrics::Key;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio_util::sync::CancellationToken;

/// Ready once every service answers, until draining begins.
#[derive(Clone, Default)]
pub struct Readiness(Arc<ReadinessState>);

#[derive(Default)]
struct ReadinessState {
    serving: OnceLock<Serving>,
    /// What a start waits for, with the reason.
    waiting_for: Mutex<Option<String>>,
}

pub struct Serving {
    pub health: Health,
    /// `None` if this process does not serve the API.
    pub meter: Option<Arc<Meter>>,
    /// Cancelled by the first shutdown signal.
    pub leaving: CancellationToken,
}

impl Readiness {
    pub fn set_ready(&self, serving: Serving) {
        let _ = self.0.serving.set(serving);
    }

    pub fn set_waiting_for(&self, waiting_for: Option<String>) {
        *self.0.waiting_for.lock().unwrap_or_else(PoisonError::into_inner) = waiting_for;
    }

    fn reason_not_started(&self) -> String {
        let waiting_for = self.0.waiting_for.lock().unwrap_or_else(PoisonError::into_inner);
        waiting_for.as_ref().map_or_else(
            || "starting".to_owned(),
            |waiting_for| format!("starting: waiting for {waiting_for}"),
        )
    }

    fn meter(&self) -> Option<&Meter> {
        self.0.serving.get()?.meter.as_deref()
    }

    /// The models that are offered; none before the server is ready.
    fn models(&self) -> Arc<Models> {
        self.meter().map_or_else(Arc::default, Meter::models)
    }

    async fn reason_not_ready(&self) -> Option<String> {
        let Some(serving) = self.0.serving.get() else { return Some(self.reason_not_started()) };
        if serving.leaving.is_cancelled() {
            return Some("shutting down".to_owned());
        }
        if let Err(error) = serving.health.ping().await {
            return Some(error.to_string());
        }
        let meter = serving.meter.as_ref()?;
        if let Err(error) = meter.ping_limiter().await {
            return Some(error.to_string());
        }
        if let Err(error) = meter.can_record() {
            return Some(error.to_string());
        }
        let outages = self.outages();
        let all_are_out = meter.models().iter().all(|model| outages.contains_key(&model.name));
        all_are_out.then(|| "no model available".to_owned())
    }

    /// Returns the unavailable models and the reason for each. One unavailable model does not make the server unready:
    /// it still serves the others and everything else.
    fn outages(&self) -> BTreeMap<String, String> {
        let models = self.models();
        models.iter().filter_map(|model| Some((model.name.clone(), model.engine.outage()?))).collect()
    }

    /// Returns the servers of every upstream model.
    fn endpoints(&self) -> BTreeMap<String, Vec<EndpointStatus>> {
        let models = self.models();
        let endpoints = models.iter().map(|model| (model.name.clone(), model.engine.endpoints()));
        endpoints.filter(|(_, endpoints)| !endpoints.is_empty()).collect()
    }
}

#[derive(Clone)]
struct OpsState {
    readiness: Readiness,
    metrics: Metrics,
    certificates: Arc<[ServedBySection]>,
}

/// The section of the configuration, and its certificate.
type ServedBySection = (&'static str, Arc<ServedCertificate>);

pub fn router(readiness: Readiness, metrics: Metrics, certificates: Vec<ServedBySection>) -> Router {
    Router::new()
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render_metrics))
        .with_state(OpsState { readiness, metrics, certificates: certificates.into() })
}

async fn readyz(State(state): State<OpsState>) -> (StatusCode, Json<Value>) {
    let has_certificates =
        state.certificates.iter().all(|(_, certificate)| certificate.expires_at_s().is_some());
    let reason = match state.readiness.reason_not_ready().await {
        // Certificates are obtained after the start, so what the start waits for comes first.
        None if !has_certificates => Some("waiting for a certificate".to_owned()),
        reason => reason,
    };
    let (status, mut body) = match reason {
        None => (StatusCode::OK, json!({"ready": true})),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, json!({"ready": false, "reason": reason})),
    };
    let outages = state.readiness.outages();
    if !outages.is_empty() {
        body["models_out"] = json!(outages);
    }
    let endpoints = state.readiness.endpoints();
    if !endpoints.is_empty() {
        body["endpoints"] = json!(endpoints);
    }
    (status, Json(body))
}

async fn render_metrics(State(state): State<OpsState>) -> String {
    let count = |of: fn(&Meter) -> usize| state.readiness.meter().map_or(0, of) as f64;
    metrics::gauge!("chancery_running_requests").set(count(Meter::running_requests));
    metrics::gauge!("chancery_unrecorded_requests").set(count(Meter::unrecorded_requests));
    metrics::gauge!("chancery_journaled_requests").set(count(Meter::journaled_requests));
    for (section, certificate) in state.certificates.iter() {
        if let Some(expires_at_s) = certificate.expires_at_s() {
            metrics::gauge!("chancery_tls_certificate_expires_at_seconds", "section" => *section)
                .set(expires_at_s as f64);
        }
    }
    let offered = state.readiness.meter().map(Meter::models);
    let is_offered =
        |model: &str| offered.as_ref().is_none_or(|models| models.iter().any(|it| it.name == model));
    let mut page = state.metrics.page(|key| !is_of_withdrawn_model(key, is_offered));
    write_upstream_gauges(&mut page, &state.readiness.endpoints());
    page.text
}

/// Whether the metric is that of an engine whose model is no longer offered: the recorder keeps it forever.
fn is_of_withdrawn_model(key: &Key, is_offered: impl Fn(&str) -> bool) -> bool {
    let is_of_engine = ["chancery_engine_", "chancery_upstream_"].iter().any(|it| key.name().starts_with(it));
    is_of_engine && key.labels().any(|label| label.key() == "model" && !is_offered(label.value()))
}

/// Writes gauges for current servers only: the recorder would keep those of a removed server forever.
fn write_upstream_gauges(page: &mut Page, endpoints: &BTreeMap<String, Vec<EndpointStatus>>) {
    let mut gauge = |name: &str, value: fn(&EndpointStatus) -> u64| {
        for (model, statuses) in endpoints {
            for status in statuses {
                page.start("gauge", name);
                page.line(name, &[("model", model), ("endpoint", &status.url)], value(status));
            }
        }
    };
    gauge("chancery_upstream_usable", |status| u64::from(status.state == EndpointState::Up));
    gauge("chancery_upstream_outstanding_tokens", |status| status.outstanding_tokens);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_withdrawn_models_are_left_out_and_their_tokens_stay() {
        for (name, model, is_withdrawn) in [
            ("chancery_engine_running", "one", false),
            ("chancery_engine_running", "one\"s", true),
            ("chancery_upstream_retries_total", "gone", true),
            ("chancery_output_tokens_total", "gone", false),
        ] {
            let key = Key::from_parts(name, &[("model", model)]);
            assert_eq!(is_of_withdrawn_model(&key, |model| model == "one"), is_withdrawn, "{key}");
        }
        assert!(!is_of_withdrawn_model(&Key::from_name("chancery_engine_threads"), |_| false));
    }
}
