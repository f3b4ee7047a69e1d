//! Metrics over HTTP: a request gets the text that was published last, and takes no sample. Which requests are answered is `serve`'s rule:
//! no page of a site whose name resolves to this machine reads them.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use unicorn_serve::axum::Router;
use unicorn_serve::axum::http::StatusCode;
use unicorn_serve::axum::http::header::CONTENT_TYPE;
use unicorn_serve::axum::routing::get;

use crate::error::CliError;
use unicorn_serve::{HttpLimits, HttpListener, guard};

/// Serves until the process ends.
pub struct Endpoint {
    address: SocketAddr,
    latest: Latest,
}

/// The text that is to be served, for one writer and many readers.
#[derive(Clone)]
struct Latest(Arc<Mutex<String>>);

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Endpoint {
    /// Serves at `address`, an address or a host's name with a port; port 0 is any free one. Requests may have that name in their `Host`
    /// header, or one of `allowed_hosts`.
    ///
    /// # Errors
    /// When nothing can be served there.
    pub fn open(address: &str, allowed_hosts: &[String]) -> Result<Endpoint, CliError> {
        let refused = |error: io::Error| CliError::new(format!("cannot serve metrics at {address}: {error}"));
        let listener = HttpListener::bind(address).map_err(refused)?;
        let named = address.rsplit_once(':').map(|(host, _)| host.to_owned());
        let hosts = allowed_hosts.iter().cloned().chain(named).collect();
        let address = listener.address().tcp().expect("it was bound to one");
        // Before the first sample.
        let latest = Latest(Arc::new(Mutex::new("# EOF\n".to_owned())));
        listener
            .serve("metrics", guard(routes(latest.clone()), address, hosts), HttpLimits::default())
            .map_err(refused)?;
        Ok(Endpoint { address, latest })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn publish(&self, text: String) {
        *self.latest.0.lock().expect("no thread panics while it holds the lock") = text;
    }
}

fn routes(latest: Latest) -> Router {
    let text = move || async move {
        let text = latest.0.lock().expect("no thread panics while it holds the lock").clone();
        ([(CONTENT_TYPE, OPENMETRICS)], text)
    };
    let elsewhere = || async { (StatusCode::NOT_FOUND, "metrics are at /metrics\n") };
    Router::new().route("/metrics", get(text)).fallback(elsewhere)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn request(line: &str) -> String {
        request_to("localhost", line)
    }

    fn request_to(host: &str, line: &str) -> String {
        format!("{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
    }

    #[test]
    fn the_newest_text_is_served_and_nothing_else() {
        let endpoint = Endpoint::open("127.0.0.1:0", &[]).unwrap();
        let get = |line: &str| ask(endpoint.address(), &request(line));
        assert!(get("GET /metrics").ends_with("\r\n\r\n# EOF\n"));
        endpoint.publish("newer\n# EOF\n".into());
        let answer = get("GET /metrics");
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nnewer\n# EOF\n"), "{answer}");
        assert!(answer.to_lowercase().contains(&format!("content-type: {OPENMETRICS}\r\n")), "{answer}");
        assert!(get("HEAD /metrics").ends_with("\r\n\r\n"));
        assert!(get("GET /").starts_with("HTTP/1.1 404 ") && get("GET /").ends_with("metrics are at /metrics\n"));
        assert!(get("POST /metrics").starts_with("HTTP/1.1 405 "));
        assert!(ask(endpoint.address(), "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        // A client that never ends its request does not delay others.
        let mut slow = TcpStream::connect(endpoint.address()).unwrap();
        slow.write_all(b"GET /met").unwrap();
        assert!(get("GET /metrics").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn a_site_whose_name_leads_here_is_refused() {
        let endpoint = Endpoint::open("127.0.0.1:0", &["gpu.example".into()]).unwrap();
        let status = |request: &str| ask(endpoint.address(), request)[9..12].to_owned();
        let get = |host: &str| status(&request_to(host, "GET /metrics"));
        let own = endpoint.address().to_string();
        assert_eq!(["localhost:1", &own, "gpu.example:9464"].map(get), ["200", "200", "200"]);
        assert_eq!(["other.example", "192.0.2.1"].map(get), ["403", "403"]);
        let page = request("GET /metrics").replace("Connection", "Origin: https://other.example\r\nConnection");
        assert_eq!(status(&page), "403");
    }

    #[test]
    fn a_place_that_cannot_be_had_is_named() {
        let first = Endpoint::open("127.0.0.1:0", &[]).unwrap();
        for place in [first.address().to_string().as_str(), "127.0.0.1", "127.0.0.1:x", "[::1", ""] {
            let Err(CliError::Failed(error)) = Endpoint::open(place, &[]) else { panic!("{place:?} was bound") };
            assert!(error.starts_with(&format!("cannot serve metrics at {place}: ")), "{error}");
        }
    }
}
