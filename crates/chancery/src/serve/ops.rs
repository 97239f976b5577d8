//! The operations listener: `/livez`, `/readyz`, `/metrics`. It needs no key, so bind it to an address that only
//! operators can reach.

use super::tls::ServedCertificate;
use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use chancery_engine::{EndpointState, EndpointStatus};
use chancery_metering::{Meter, Models};
use chancery_store::Health;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Upper bounds of the request duration buckets, in seconds.
const REQUEST_SECONDS: [f64; 12] = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0];

const METRICS_UPKEEP: Duration = Duration::from_secs(5);

pub fn install_metrics() -> anyhow::Result<PrometheusHandle> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &REQUEST_SECONDS)
        .and_then(PrometheusBuilder::install_recorder)
        .context("cannot set up metrics")
}

/// Histograms accumulate samples until upkeep aggregates them; this runs it even if no one scrapes the metrics.
pub async fn keep_metrics_small(recorder: PrometheusHandle) {
    let mut ticks = tokio::time::interval(METRICS_UPKEEP);
    loop {
        ticks.tick().await;
        recorder.run_upkeep();
    }
}

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
    metrics: PrometheusHandle,
    certificates: Arc<[ServedBySection]>,
}

/// The section of the configuration, and its certificate.
type ServedBySection = (&'static str, Arc<ServedCertificate>);

pub fn router(readiness: Readiness, metrics: PrometheusHandle, certificates: Vec<ServedBySection>) -> Router {
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
    let mut text = state.metrics.render();
    if state.readiness.meter().is_some() {
        let offered = state.readiness.models();
        let offered: Vec<&str> = offered.iter().map(|model| model.name.as_str()).collect();
        text = without_withdrawn_models(&text, &offered);
    }
    upstream_gauges(&mut text, &state.readiness.endpoints());
    text
}

/// Leaves out the engines of models that are no longer offered: the recorder would keep them forever.
fn without_withdrawn_models(text: &str, offered: &[&str]) -> String {
    let offered: Vec<String> = offered.iter().map(|name| format!("model=\"{}\"", label(name))).collect();
    let is_current = |line: &&str| {
        let is_of_engine = line.starts_with("chancery_engine_") || line.starts_with("chancery_upstream_");
        !is_of_engine || !line.contains("model=\"") || offered.iter().any(|name| line.contains(name.as_str()))
    };
    text.lines().filter(is_current).flat_map(|line| [line, "\n"]).collect()
}

/// Writes gauges for current servers only: the recorder would keep those of a removed server forever.
fn upstream_gauges(text: &mut String, endpoints: &BTreeMap<String, Vec<EndpointStatus>>) {
    if endpoints.is_empty() {
        return;
    }
    let mut gauge = |name: &str, value: &dyn Fn(&EndpointStatus) -> u64| {
        *text += &format!("# TYPE {name} gauge\n");
        for (model, statuses) in endpoints {
            for status in statuses {
                let (model, endpoint) = (label(model), label(&status.url));
                *text += &format!("{name}{{model=\"{model}\",endpoint=\"{endpoint}\"}} {}\n", value(status));
            }
        }
    };
    gauge("chancery_upstream_usable", &|status| u64::from(status.state == EndpointState::Up));
    gauge("chancery_upstream_outstanding_tokens", &|status| status.outstanding_tokens);
}

/// Escapes a Prometheus label value.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_withdrawn_models_are_left_out_and_their_tokens_stay() {
        let text = "# TYPE chancery_engine_running gauge\n\
                    chancery_engine_running{model=\"one\"} 2\n\
                    chancery_engine_running{model=\"one\\\"s\"} 1\n\
                    chancery_upstream_retries_total{model=\"gone\"} 3\n\
                    chancery_output_tokens_total{model=\"gone\"} 4\n\
                    chancery_running_requests 0\n";
        let expected = "# TYPE chancery_engine_running gauge\n\
                        chancery_engine_running{model=\"one\"} 2\n\
                        chancery_output_tokens_total{model=\"gone\"} 4\n\
                        chancery_running_requests 0\n";
        assert_eq!(without_withdrawn_models(text, &["one"]), expected);
        assert!(without_withdrawn_models(text, &["one\"s"]).contains("running{model=\"one\\\"s\"} 1"));
    }
}
