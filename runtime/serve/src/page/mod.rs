//! The chat page at `/`: HTML, style and modules of JavaScript, embedded in the program. It uses the APIs that every client uses, keeps
//! conversations in the browser, and loads nothing from elsewhere.

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::routing::get;

/// Nothing but the page's own files and the server's own endpoints. What the model writes can become text and elements, but no script:
/// strings are never parsed as HTML (`require-trusted-types-for`), and no other site can show the page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the page: where it is served, its type, its content.
type File = (&'static str, &'static str, &'static str);

const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [File; 10] = [
    ("/", "text/html; charset=utf-8", include_str!("index.html")),
    ("/page/style.css", "text/css; charset=utf-8", include_str!("style.css")),
    ("/page/icon.svg", "image/svg+xml", include_str!("icon.svg")),
    ("/page/main.js", SCRIPT, include_str!("main.js")),
    ("/page/api.js", SCRIPT, include_str!("api.js")),
    ("/page/chats.js", SCRIPT, include_str!("chats.js")),
    ("/page/messages.js", SCRIPT, include_str!("messages.js")),
    ("/page/markdown.js", SCRIPT, include_str!("markdown.js")),
    ("/page/panel.js", SCRIPT, include_str!("panel.js")),
    ("/page/dom.js", SCRIPT, include_str!("dom.js")),
];

/// Whether a path is one of the page's, which shows nothing of the model and needs no key.
pub(crate) fn is_of_page(path: &str) -> bool {
    FILES.iter().any(|(own, ..)| *own == path)
}

pub(crate) fn routes() -> Router {
    FILES.iter().fold(Router::new(), |routes, &(path, kind, content)| {
        let headers = [
            (CONTENT_TYPE, kind),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            // Another version of the program has other files under the same names.
            (CACHE_CONTROL, "no-cache"),
        ];
        routes.route(path, get(move || async move { (headers, content) }))
    })
}
