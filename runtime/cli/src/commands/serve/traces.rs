//! A span of OpenTelemetry for each request, sent to a collector by OTLP over HTTP. Names of attributes are those of OpenTelemetry's
//! conventions for HTTP and for generative models, and vLLM's where these have none.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, Status, Tracer, TracerProvider};
use opentelemetry::{Context, InstrumentationScope, Key, KeyValue, Value};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, SpanData, SpanExporter};
use unicorn_serve::{EndedRequest, Operation, RequestFailure, RequestObserver};

use crate::args::ServeArgs;
use crate::error::CliError;
use crate::terminal::output::note;

/// The collector for all signals, to whose URL `/v1/traces` is added.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Time for the last spans when the server ends.
const FLUSH_TIME: Duration = Duration::from_secs(5);
/// Methods that a span may name: a client may send any word.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// What makes and sends the spans. Those that are left are sent when it is dropped.
pub struct Traces {
    provider: SdkTracerProvider,
    spans: Arc<Spans>,
}

impl Traces {
    /// Begins to send, on a thread of its own, if options or the environment name a collector.
    ///
    /// # Errors
    /// For variables of the environment that are not what OpenTelemetry defines, and beside `--sandbox`.
    pub fn begin(args: &ServeArgs) -> Result<Option<Traces>, CliError> {
        if args.traces_endpoint().is_none() && env::var_os(ENDPOINT).is_none_or(|url| url.is_empty()) {
            return Ok(None);
        }
        if args.sandbox {
            return Err(CliError::new(format!(
                "--sandbox denies outgoing connections, and --otlp-traces-endpoint needs one: leave out one of them; \
                 OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and {ENDPOINT} count as the option"
            )));
        }
        let refused = |error: &dyn std::error::Error| CliError::new(format!("--otlp-traces-endpoint: {error}"));
        unicorn_registry::install_tls();
        let mut exporter = opentelemetry_otlp::SpanExporter::builder().with_http();
        if let Some(endpoint) = args.traces_endpoint() {
            exporter = exporter.with_endpoint(endpoint);
        }
        let exporter = exporter.build().map_err(|error| refused(&error))?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_batch_exporter(Reporting { exporter, is_failing: AtomicBool::new(false) })
            .build();
        let scope = InstrumentationScope::builder("unicorn-serve").with_version(VERSION).build();
        let spans = Spans {
            tracer: provider.tracer_with_scope(scope),
            propagator: TraceContextPropagator::new(),
            scheme: if args.ssl_cert_file.is_some() { "https" } else { "http" },
        };
        Ok(Some(Traces { provider, spans: Arc::new(spans) }))
    }

    /// What makes a span of each request.
    pub fn observer(&self) -> Arc<dyn RequestObserver> {
        self.spans.clone()
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // That spans cannot be sent was noted.
        let _ = self.provider.shutdown_with_timeout(FLUSH_TIME);
    }
}

/// What the spans are of: as the environment names it, else this program.
fn resource() -> Resource {
    let detected = Resource::builder().build();
    let name = detected.get(&Key::new("service.name"));
    let is_unknown = name.is_none_or(|name| name.as_str().starts_with("unknown_service"));
    let resource = Resource::builder().with_attribute(KeyValue::new("service.version", VERSION));
    if is_unknown { resource.with_service_name("unicorn-run").build() } else { resource.build() }
}

/// An exporter that notes when it begins to fail: the server goes on.
#[derive(Debug)]
struct Reporting {
    exporter: opentelemetry_otlp::SpanExporter,
    is_failing: AtomicBool,
}

impl SpanExporter for Reporting {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exported = self.exporter.export(batch).await;
        if !self.is_failing.swap(exported.is_err(), Ordering::Relaxed)
            && let Err(error) = &exported
        {
            note(format_args!("traces cannot be sent, and are dropped until they can: {error}"));
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Makes the spans.
#[derive(Debug)]
struct Spans {
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    /// `http` or `https`.
    scheme: &'static str,
}

impl RequestObserver for Spans {
    fn ended(&self, request: EndedRequest) {
        let parent = self.propagator.extract_with_context(&Context::new(), &Parent(&request));
        let mut attributes = attributes(&request);
        attributes.push(KeyValue::new("url.scheme", self.scheme));
        let mut span = self
            .tracer
            .span_builder(name(&request))
            .with_kind(SpanKind::Server)
            .with_start_time(request.begun)
            .with_attributes(attributes)
            .start_with_context(&self.tracer, &parent);
        // An error of the client is none of the server's span.
        if matches!(request.failure, Some(RequestFailure::Status(500..))) {
            span.set_status(Status::error(""));
        }
        span.end_with_timestamp(request.begun + request.duration);
    }
}

/// The headers that name the span of the client.
struct Parent<'a>(&'a EndedRequest);

impl Extractor for Parent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.0.traceparent.as_deref(),
            "tracestate" => self.0.tracestate.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// Method and endpoint: no part that clients choose, so that few names are in use.
fn name(request: &EndedRequest) -> String {
    let method = METHODS.iter().find(|method| **method == request.method).unwrap_or(&"HTTP");
    match &request.route {
        Some(route) => format!("{method} {route}"),
        None => (*method).to_owned(),
    }
}

fn attributes(request: &EndedRequest) -> Vec<KeyValue> {
    let method = METHODS.iter().find(|method| **method == request.method).unwrap_or(&"_OTHER");
    let mut attributes = vec![
        KeyValue::new("http.request.method", *method),
        KeyValue::new("url.path", request.path.clone()),
        KeyValue::new("gen_ai.request.id", request.id.clone()),
    ];
    let mut add = |name: &'static str, value: Option<Value>| attributes.extend(value.map(|it| KeyValue::new(name, it)));
    let tokens = |tokens: Option<u32>| tokens.map(|tokens| i64::from(tokens).into());
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64().into());
    add("http.route", request.route.clone().map(Value::from));
    add("http.response.status_code", request.status.map(|status| i64::from(status).into()));
    add("error.type", request.failure.map(failure));
    let operation = request.operation.map(|operation| match operation {
        Operation::Chat => "chat",
        Operation::Completion => "text_completion",
        Operation::Embeddings => "embeddings",
        _ => "rerank",
    });
    add("gen_ai.operation.name", operation.map(Value::from));
    add("gen_ai.provider.name", operation.map(|_| "unicorn".into()));
    let requested = request.requested_model.as_ref().or(request.model.as_ref());
    add("gen_ai.request.model", requested.cloned().map(Value::from));
    add("gen_ai.response.model", request.model.clone().map(Value::from));
    add("gen_ai.usage.input_tokens", tokens(request.input_tokens));
    add("gen_ai.usage.cache_read.input_tokens", tokens(request.cached_tokens));
    add("gen_ai.usage.output_tokens", tokens(request.output_tokens));
    add("gen_ai.latency.time_in_queue", seconds(request.queue_time));
    add("gen_ai.latency.time_to_first_token", seconds(request.time_to_first_token));
    attributes
}

/// The kind of failure, of few in all.
fn failure(failure: RequestFailure) -> Value {
    match failure {
        RequestFailure::Status(status) => status.to_string().into(),
        _ => "client_left".into(),
    }
}
