//! Records the metrics of this process and writes them as Prometheus's text format: counters, gauges, and histograms of
//! durations. Nothing expires, and there are neither descriptions nor summaries.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>

use anyhow::Context;
use metrics::{
    Counter, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use std::collections::HashMap;
use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Upper bounds of the buckets of every histogram, in seconds.
const BUCKETS_S: [f64; 12] = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0];

/// The metrics of this process.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Kinds>);

#[derive(Default)]
struct Kinds {
    counters: Series<AtomicU64>,
    /// Each is the bits of an `f64`.
    gauges: Series<AtomicU64>,
    histograms: Series<Durations>,
}

/// Every name and set of labels that was used, with its value. The macros of `metrics` look their value up at each use.
#[derive(Default)]
struct Series<T>(RwLock<HashMap<Key, Arc<T>>>);

impl<T: Default> Series<T> {
    fn get_or_add(&self, key: &Key) -> Arc<T> {
        if let Some(value) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return Arc::clone(value);
        }
        let mut values = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(values.entry(key.to_retained()).or_default())
    }

    /// A copy by name and labels, so that nobody who adds one waits until the page is written.
    fn sorted(&self) -> Vec<(Key, Arc<T>)> {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut sorted: Vec<_> = values.iter().map(|(key, value)| (key.clone(), Arc::clone(value))).collect();
        drop(values);
        sorted.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        sorted
    }
}

#[derive(Default)]
struct Durations {
    /// How many durations are in each bucket and not in the one before; the last has no bound.
    counts: [AtomicU64; BUCKETS_S.len() + 1],
    /// The bits of an `f64`.
    sum_s: AtomicU64,
}

impl HistogramFn for Durations {
    fn record(&self, value: f64) {
        let bucket = BUCKETS_S.iter().position(|bound| value <= *bound).unwrap_or(BUCKETS_S.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        GaugeFn::increment(&self.sum_s, value);
    }
}

impl Recorder for Metrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.0.counters.get_or_add(key).into()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.0.gauges.get_or_add(key).into()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.0.histograms.get_or_add(key).into()
    }
}

impl Metrics {
    /// From now on, the macros of `metrics` record here.
    pub fn install() -> anyhow::Result<Self> {
        let metrics = Self::default();
        metrics::set_global_recorder(metrics.clone()).context("cannot set up metrics")?;
        Ok(metrics)
    }

    /// Writes those that are shown, by kind, name and labels.
    pub fn page(&self, is_shown: impl Fn(&Key) -> bool) -> Page {
        let mut page = Page::default();
        for (key, count) in self.0.counters.sorted().iter().filter(|(key, _)| is_shown(key)) {
            page.start("counter", key.name());
            page.line(key.name(), &labels(key), count.load(Ordering::Relaxed));
        }
        for (key, bits) in self.0.gauges.sorted().iter().filter(|(key, _)| is_shown(key)) {
            page.start("gauge", key.name());
            page.line(key.name(), &labels(key), f64::from_bits(bits.load(Ordering::Relaxed)));
        }
        for (key, durations) in self.0.histograms.sorted().iter().filter(|(key, _)| is_shown(key)) {
            page.start("histogram", key.name());
            page.histogram(key, durations);
        }
        page
    }
}

fn labels(key: &Key) -> Vec<(&str, &str)> {
    key.labels().map(|label| (label.key(), label.value())).collect()
}

/// A page of Prometheus's text format.
#[derive(Default)]
pub struct Page {
    pub text: String,
    /// The metric whose lines are being written.
    name: String,
}

impl Page {
    /// Writes the type of a metric before its first line.
    pub fn start(&mut self, kind: &str, name: &str) {
        if self.name != name {
            let separator = if self.name.is_empty() { "" } else { "\n" };
            name.clone_into(&mut self.name);
            // Writing to a `String` cannot fail, here and below.
            let _ = writeln!(self.text, "{separator}# TYPE {} {kind}", identifier(name));
        }
    }

    pub fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text += &identifier(name);
        for (index, (label, value)) in labels.iter().enumerate() {
            let separator = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{separator}{}=\"{}\"", identifier(label), escape(value));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    fn histogram(&mut self, key: &Key, durations: &Durations) {
        let (name, labels) = (key.name(), labels(key));
        let bounds = BUCKETS_S.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (bound, in_bucket) in bounds.zip(&durations.counts) {
            count += in_bucket.load(Ordering::Relaxed);
            self.line(&format!("{name}_bucket"), &[&labels[..], &[("le", bound.as_str())]].concat(), count);
        }
        let sum_s = f64::from_bits(durations.sum_s.load(Ordering::Relaxed));
        self.line(&format!("{name}_sum"), &labels, sum_s);
        self.line(&format!("{name}_count"), &labels, count);
    }
}

/// Replaces what names of metrics and labels may not contain.
fn identifier(text: &str) -> String {
    let is_allowed = |at, c: char| c == '_' || c.is_ascii_alphabetic() || (at > 0 && c.is_ascii_digit());
    text.chars().enumerate().map(|(at, c)| if is_allowed(at, c) { c } else { '_' }).collect()
}

/// Escapes the value of a label.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(record: impl FnOnce()) -> String {
        let metrics = Metrics::default();
        metrics::with_local_recorder(&metrics, record);
        metrics.page(|_| true).text
    }

    #[test]
    fn page_is_sorted_by_kind_name_and_labels() {
        let page = page_of(|| {
            metrics::gauge!("queue").set(2.5);
            metrics::counter!("rows", "model" => "two", "log" => "a").increment(2);
            metrics::counter!("rows", "model" => "one", "log" => "a").increment(1);
            metrics::counter!("rows", "log" => "a", "model" => "two").increment(3);
            metrics::counter!("calls").absolute(7);
        });
        let expected = "# TYPE calls counter\n\
                        calls 7\n\
                        \n\
                        # TYPE rows counter\n\
                        rows{model=\"one\",log=\"a\"} 1\n\
                        rows{model=\"two\",log=\"a\"} 5\n\
                        \n\
                        # TYPE queue gauge\n\
                        queue 2.5\n";
        assert_eq!(page, expected);
    }

    #[test]
    fn gauges_go_up_and_down_and_counters_only_up() {
        let page = page_of(|| {
            metrics::gauge!("gauge").set(1);
            metrics::gauge!("gauge").increment(2.5);
            metrics::gauge!("gauge").decrement(7);
            metrics::counter!("counter").absolute(5);
            metrics::counter!("counter").absolute(3);
        });
        assert_eq!(page, "# TYPE counter counter\ncounter 5\n\n# TYPE gauge gauge\ngauge -3.5\n");
    }

    #[test]
    fn each_bucket_counts_durations_up_to_its_bound() {
        let page = page_of(|| {
            for duration_s in [0.0, 0.25, 0.375, 600.0, 600.5] {
                metrics::histogram!("wait_seconds", "path" => "/").record(duration_s);
            }
        });
        let expected = "# TYPE wait_seconds histogram\n\
                        wait_seconds_bucket{path=\"/\",le=\"0.001\"} 1\n\
                        wait_seconds_bucket{path=\"/\",le=\"0.005\"} 1\n\
                        wait_seconds_bucket{path=\"/\",le=\"0.02\"} 1\n\
                        wait_seconds_bucket{path=\"/\",le=\"0.1\"} 1\n\
                        wait_seconds_bucket{path=\"/\",le=\"0.25\"} 2\n\
                        wait_seconds_bucket{path=\"/\",le=\"0.5\"} 3\n\
                        wait_seconds_bucket{path=\"/\",le=\"1\"} 3\n\
                        wait_seconds_bucket{path=\"/\",le=\"2.5\"} 3\n\
                        wait_seconds_bucket{path=\"/\",le=\"5\"} 3\n\
                        wait_seconds_bucket{path=\"/\",le=\"10\"} 3\n\
                        wait_seconds_bucket{path=\"/\",le=\"60\"} 3\n\
                        wait_seconds_bucket{path=\"/\",le=\"600\"} 4\n\
                        wait_seconds_bucket{path=\"/\",le=\"+Inf\"} 5\n\
                        wait_seconds_sum{path=\"/\"} 1201.125\n\
                        wait_seconds_count{path=\"/\"} 5\n";
        assert_eq!(page, expected);
    }

    #[test]
    fn concurrent_use_loses_nothing() {
        let metrics = Metrics::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    metrics::with_local_recorder(&metrics, || {
                        for index in 0..1_000 {
                            metrics::counter!("calls", "path" => (index % 10).to_string()).increment(1);
                            metrics::gauge!("open").increment(1);
                            metrics::histogram!("wait_seconds").record(0.5);
                        }
                    });
                });
            }
        });
        let page = metrics.page(|_| true).text;
        assert_eq!(
            page.lines().filter(|line| line.starts_with("calls{") && line.ends_with(" 800")).count(),
            10
        );
        for line in ["open 8000", "wait_seconds_bucket{le=\"0.5\"} 8000", "wait_seconds_sum 4000"] {
            assert!(page.lines().any(|other| other == line), "{line}: {page}");
        }
    }

    #[test]
    fn label_values_are_escaped_and_names_sanitized() {
        let page = page_of(|| metrics::counter!("1.calls-2", "a.b" => "\"C:\\\\x\\y\"\nz").increment(1));
        assert_eq!(page, "# TYPE __calls_2 counter\n__calls_2{a_b=\"\\\"C:\\\\\\\\x\\\\y\\\"\\nz\"} 1\n");
    }
}
