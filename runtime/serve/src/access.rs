//! Which requests a browser may make for a page: a page on any site can send requests to a server on this machine, and by DNS
//! rebinding (a name of its own that resolves to 127.0.0.1) read the answers.
//!
//! ```text
//! Host          a name that the page's site cannot have, so that no rebound name is answered
//! Origin        the server's own, or one that the operator named
//! Content-Type  application/json, which a page of another origin may only send after a preflight
//! key           one of the operator's, where there are any, except for paths that show only that the server runs
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, ORIGIN, RETRY_AFTER,
};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, AllowPrivateNetwork, CorsLayer};

use crate::api::endpoint::Api;
use crate::api::error::ApiError;
use crate::log;
use crate::observer::{RequestObserver, observed};
use crate::options::ServeOptions;
use crate::page::is_of_page;

/// Stands for every host or every origin.
const ANY: &str = "*";
/// Stands for every origin of this machine, whatever its port, as in llama-server.
const LOCALHOST: &str = "localhost";
/// How long a browser may cache that an origin has access.
const CORS_MAX_AGE: Duration = Duration::from_secs(600);

/// The hosts and origins that have access.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    /// Where the server listens; `None`: unknown, so that only loopback addresses are the server's own.
    pub(crate) address: Option<SocketAddr>,
    /// Names, and addresses without a port, in addition to `localhost` and the server's own address.
    pub(crate) hosts: Vec<String>,
    /// Origins as browsers write them: `https://chat.example`.
    pub(crate) origins: Vec<String>,
    /// Accepted keys; empty: requests need none.
    pub(crate) keys: Vec<String>,
    /// Learns of each request, also of those that are refused.
    pub(crate) observer: Option<Arc<dyn RequestObserver>>,
}

/// Paths that need no key, as on llama-server, in addition to those of the chat page.
const PUBLIC: [&str; 6] = ["/health", "/v1/health", "/ping", "/models", "/v1/models", "/api/tags"];
/// Anthropic's header for a key.
const API_KEY: &str = "x-api-key";

impl Access {
    pub(crate) fn of(options: &ServeOptions) -> Access {
        let ServeOptions { address, allowed_hosts: hosts, cors: origins, api_keys: keys, observer, .. } =
            options.clone();
        Access { address, hosts, origins, keys, observer }
    }

    /// `routes` for clients that have access. A panic there is an answer with status 500.
    pub(crate) fn guard(self, routes: Router) -> Router {
        let routes = match self.cors() {
            Some(cors) => routes.layer(cors),
            None => routes,
        };
        let observer = self.observer.clone();
        let routes = routes
            .layer(middleware::from_fn_with_state(Arc::new(self), Access::check))
            .layer(CatchPanicLayer::custom(|_| ApiError::failed("request was not handled: a panic").into_response()));
        log::requests(observed(routes, observer))
    }

    /// Refuses requests to other hosts, those of pages of other origins, and those without a key. A preflight, which has no key and
    /// changes nothing, gets status 200, and CORS headers where its origin has access.
    pub(crate) async fn check(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
        let headers = request.headers();
        let is_preflight = request.method() == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        if is_preflight && access.host_refusal(headers).is_none() {
            return match access.origins.is_empty() {
                true => StatusCode::OK.into_response(),
                false => next.run(request).await,
            };
        }
        let unauthorized = || {
            let path = request.uri().path();
            let is_open = access.keys.is_empty() || PUBLIC.contains(&path) || is_of_page(path);
            (!is_open && !access.has_key(request.headers())).then(ApiError::unauthorized)
        };
        match access.refusal(request.headers()).or_else(unauthorized) {
            None => next.run(request).await,
            Some(refusal) => Api::of(request.uri().path()).error(&refusal),
        }
    }

    /// Lets pages of the named origins read answers; `None`: there are none.
    fn cors(&self) -> Option<CorsLayer> {
        if self.origins.is_empty() {
            return None;
        }
        let origins = match self.origins.iter().any(|origin| origin == ANY) {
            true => AllowOrigin::any(),
            false => {
                let access = self.clone();
                AllowOrigin::predicate(move |origin: &HeaderValue, _| access.names(origin.to_str().unwrap_or_default()))
            }
        };
        Some(
            CorsLayer::new()
                .allow_origin(origins)
                .allow_methods([Method::GET, Method::POST])
                .allow_headers(AllowHeaders::mirror_request())
                .expose_headers([RETRY_AFTER])
                .allow_private_network(AllowPrivateNetwork::yes())
                .max_age(CORS_MAX_AGE),
        )
    }

    fn has_key(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let key = bearer.or_else(|| headers.get(API_KEY).and_then(|value| value.to_str().ok()));
        // All keys are compared, each to its end, so that the time does not depend on their bytes.
        key.is_some_and(|key| self.keys.iter().fold(false, |found, known| found | is_equal(known, key)))
    }

    /// Whether the operator gave an origin access.
    fn names(&self, origin: &str) -> bool {
        let is_of_this_machine = || {
            let host = ["http://", "https://"].iter().find_map(|scheme| origin.strip_prefix(scheme));
            host.and_then(|host| host.parse::<Authority>().ok()).is_some_and(|authority| {
                ["localhost", "127.0.0.1", "[::1]"].contains(&authority.host()) && !origin.contains('@')
            })
        };
        self.origins.iter().any(|named| match named.as_str() {
            ANY => true,
            LOCALHOST => is_of_this_machine(),
            named => named == origin,
        })
    }

    fn refusal(&self, headers: &HeaderMap) -> Option<ApiError> {
        self.host_refusal(headers).or_else(|| self.origin_refusal(headers))
    }

    fn host_refusal(&self, headers: &HeaderMap) -> Option<ApiError> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).filter(|_| hosts.next().is_none());
        let Some(authority) = host.and_then(|host| host.parse::<Authority>().ok()) else {
            return Some(ApiError::bad_request("host: expected one Host header with a name or an address"));
        };
        if !self.is_own(authority.host()) {
            let message = format!(
                "host: expected localhost or the server's address, found {:?}, which may be added to the server's allowed hosts",
                authority.host()
            );
            return Some(ApiError::forbidden(message));
        }
        None
    }

    /// Refusal of a page whose origin has no access, in a request that names the server's own host.
    fn origin_refusal(&self, headers: &HeaderMap) -> Option<ApiError> {
        let origin = headers.get(ORIGIN)?.to_str().unwrap_or_default();
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        // A page that this host serves, itself or behind a proxy with TLS.
        let is_own = ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme) == Some(host));
        let message =
            || format!("origin: page of {origin:?} has no access; it may be added to the server's CORS origins");
        (!self.names(origin) && !is_own).then(|| ApiError::forbidden(message()))
    }

    /// Whether a host is one that no other site's name resolves to. The port is ignored.
    fn is_own(&self, host: &str) -> bool {
        let named = self.hosts.iter().any(|named| named == ANY || named.eq_ignore_ascii_case(host));
        if named || host.eq_ignore_ascii_case("localhost") {
            return true;
        }
        // An address of IPv6 is in brackets.
        let Ok(ip) = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() else { return false };
        // A browser that names an address has connected to it. A server at all addresses of a machine may have more of them.
        let is_bound = self.address.is_some_and(|address| address.ip() == ip || address.ip().is_unspecified());
        ip.is_loopback() || is_bound
    }
}

/// `routes` of a program beside a server, for requests that a server at `address` with these
/// [`ServeOptions::allowed_hosts`] would accept: no page of another site reads them.
pub fn guard(routes: Router, address: SocketAddr, allowed_hosts: Vec<String>) -> Router {
    Access { address: Some(address), hosts: allowed_hosts, ..Access::default() }.guard(routes)
}

/// Refuses bodies that are not declared as JSON: a form or plain text is what a page of any origin may send without a preflight. One that is
/// not declared at all is read if no browser sends it, which states an origin: litellm sends such bodies to Ollama.
pub(crate) fn expect_json(headers: &HeaderMap) -> Result<(), ApiError> {
    if [CONTENT_TYPE.as_str(), ORIGIN.as_str(), "sec-fetch-site"].iter().all(|name| !headers.contains_key(*name)) {
        return Ok(());
    }
    let declared = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = declared.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let found = if declared.is_empty() { "none".to_owned() } else { format!("{declared:?}") };
    let message = format!("content-type: expected application/json, found {found}");
    Err(ApiError { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, ..ApiError::bad_request(message) })
}

fn is_equal(known: &str, found: &str) -> bool {
    let differences =
        known.bytes().zip(found.bytes()).fold(0, |differences, (known, found)| differences | (known ^ found));
    known.len() == found.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn access(address: &str, hosts: &[&str], origins: &[&str]) -> Access {
        let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Access { address: address.parse().ok(), hosts: own(hosts), origins: own(origins), ..Access::default() }
    }

    /// A handler that panics costs its own request alone: the same routes answer the next one.
    #[test]
    fn a_panic_is_an_answer_with_status_500() {
        let routes = Router::new().route("/", get(|| async { "here" })).route("/panic", get(panics));
        let routes = Access::default().guard(routes);
        let event_loop = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (path, expected) in [("/panic", StatusCode::INTERNAL_SERVER_ERROR), ("/", StatusCode::OK)] {
            let request = Request::get(path).header(HOST, "localhost").body(Body::empty()).unwrap();
            let response = event_loop.block_on(routes.clone().oneshot(request)).unwrap();
            assert_eq!(response.status(), expected, "{path}");
        }
    }

    async fn panics() {
        panic!("this one is expected");
    }

    #[test]
    fn a_host_is_the_server_s_own_or_named() {
        let passes = |access: &Access, host: &str| access.refusal(&headers(&[("host", host)])).is_none();
        let loopback = access("127.0.0.1:8006", &[], &[]);
        for host in ["127.0.0.1:8006", "localhost:8006", "LOCALHOST", "127.0.0.1", "[::1]:8006"] {
            assert!(passes(&loopback, host), "{host}");
        }
        // The last one begins like an address, but is a name.
        for host in ["evil.example:8006", "192.168.1.5:8006", "localhost.evil.example", "127.0.0.1.evil.example"] {
            assert!(!passes(&loopback, host), "{host}");
        }
        assert!(passes(&access("192.168.1.5:1", &[], &[]), "192.168.1.5:1"));
        let everywhere = access("0.0.0.0:8006", &["gpu.lan"], &[]);
        assert!(passes(&everywhere, "192.168.1.5:8006") && passes(&everywhere, "GPU.lan:8006"));
        assert!(!passes(&everywhere, "evil.example"));
        assert!(passes(&access("127.0.0.1:1", &["*"], &[]), "any.example"));
        assert!(!passes(&access("", &[], &[]), "192.168.1.5"));
    }

    #[test]
    fn a_request_names_one_host() {
        let loopback = access("127.0.0.1:8006", &[], &[]);
        for pairs in [&[][..], &[("host", "")], &[("host", "a b")]] {
            assert_eq!(loopback.refusal(&headers(pairs)).unwrap().status, StatusCode::BAD_REQUEST, "{pairs:?}");
        }
        let mut twice = headers(&[("host", "localhost")]);
        twice.append(HOST, HeaderValue::from_static("localhost"));
        assert_eq!(loopback.refusal(&twice).unwrap().status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn a_page_of_another_origin_is_refused_unless_it_is_named() {
        let status = |access: &Access, origin: &str| {
            access.refusal(&headers(&[("host", "localhost:8006"), ("origin", origin)])).map(|refusal| refusal.status)
        };
        let closed = access("127.0.0.1:8006", &[], &[]);
        assert_eq!(status(&closed, "http://localhost:8006"), None);
        for foreign in ["http://evil.example", "http://localhost:3000", "null", "", "file://"] {
            assert_eq!(status(&closed, foreign), Some(StatusCode::FORBIDDEN), "{foreign}");
        }
        let open = access("127.0.0.1:8006", &[], &["http://localhost:3000"]);
        assert_eq!(status(&open, "http://localhost:3000"), None);
        assert_eq!(status(&open, "http://evil.example"), Some(StatusCode::FORBIDDEN));
        assert_eq!(status(&access("127.0.0.1:8006", &[], &["*"]), "null"), None);
        let local = access("127.0.0.1:8006", &[], &["localhost"]);
        for origin in ["http://localhost", "https://localhost:8080", "http://127.0.0.1:3000", "http://[::1]:3000"] {
            assert_eq!(status(&local, origin), None, "{origin}");
        }
        for origin in ["http://notlocalhost", "http://localhost.evil.com", "localhost", "http://a@localhost", "null"] {
            assert_eq!(status(&local, origin), Some(StatusCode::FORBIDDEN), "{origin}");
        }
    }

    #[test]
    fn only_json_is_read() {
        let status = |kind: &str| expect_json(&headers(&[("content-type", kind)])).map_err(|refusal| refusal.status);
        assert_eq!(status("application/json"), Ok(()));
        assert_eq!(status("Application/JSON; charset=utf-8"), Ok(()));
        for other in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json", ""] {
            assert_eq!(status(other), Err(StatusCode::UNSUPPORTED_MEDIA_TYPE), "{other}");
        }
    }

    #[test]
    fn a_body_that_is_not_declared_is_read_unless_a_browser_sends_it() {
        assert!(expect_json(&headers(&[("host", "localhost"), ("user-agent", "litellm/1.81.10")])).is_ok());
        for header in [("origin", "http://127.0.0.1:8006"), ("origin", "null"), ("sec-fetch-site", "cross-site")] {
            let refused = expect_json(&headers(&[header])).unwrap_err();
            assert_eq!(refused.message, "content-type: expected application/json, found none", "{header:?}");
        }
    }

    #[test]
    fn a_key_comes_in_one_of_two_headers() {
        let access = Access { keys: vec!["one".into(), "two".into()], ..Access::default() };
        let has_key = |name: &'static str, value: &str| access.has_key(&headers(&[(name, value)]));
        assert!(has_key("authorization", "Bearer two") && has_key("x-api-key", "one"));
        for wrong in ["Bearer tw", "Bearer two2", "Bearer ", "two", "Basic two"] {
            assert!(!has_key("authorization", wrong), "{wrong}");
        }
        assert!(!access.has_key(&HeaderMap::new()) && !has_key("x-api-key", ""));
    }
}
