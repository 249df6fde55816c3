//! What is answered to which request.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::gate::{self, Stranger};
use super::{Shared, lock};
use crate::observe::{metrics, page};

/// How often a stream says that it is still there: a page that went away is found out so.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// What a browser may do for the page: run its own script, and ask this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) fn router(shared: Arc<Shared>) -> Router {
    // Of the run, so only for whoever has the token.
    let told = Router::new()
        .route("/state.json", get(state))
        .route("/events", get(events))
        .route("/metrics", get(scrape))
        .route_layer(from_fn_with_state(shared.clone(), with_token));
    Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", page::HTML)))
        .route(
            "/page.css",
            get(|| file("text/css; charset=utf-8", page::CSS)),
        )
        .route(
            "/page.js",
            get(|| file("text/javascript; charset=utf-8", page::JS)),
        )
        .merge(told)
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                "there is /, /state.json, /events and /metrics\n",
            )
        })
        .layer(from_fn(from_here))
        .with_state(shared)
}

async fn from_here(request: Request, next: Next) -> Response {
    let mut response = match gate::check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(Stranger::Host) => {
            let told = "this server answers to localhost, 127.0.0.1 and [::1] only; open the address that the run has printed\n";
            (StatusCode::FORBIDDEN, told).into_response()
        }
        Err(Stranger::Origin) => {
            let told =
                "this server answers to its own page only, not to a page of another server\n";
            (StatusCode::FORBIDDEN, told).into_response()
        }
    };
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn with_token(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    if shared.token.is_shown(request.headers(), request.uri()) {
        return next.run(request).await;
    }
    let told = "the token is missing or wrong: open the whole address that the run has printed, or send `Authorization: Bearer TOKEN`\n";
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, challenge, told).into_response()
}

async fn file(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn state(State(shared): State<Arc<Shared>>) -> Response {
    let picture = shared.picture();
    let events = picture.totals.events + picture.totals.missed;
    let json = {
        // However many pages ask, it is written once.
        let mut json = lock(&shared.json);
        if json.1.is_empty() || json.0 != events {
            let text = serde_json::to_vec(&*picture).unwrap_or_default();
            *json = (events, Bytes::from(text));
        }
        json.1.clone()
    };
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

async fn scrape(State(shared): State<Arc<Shared>>) -> Response {
    let text = metrics::metrics(&shared.picture());
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

async fn events(State(shared): State<Arc<Shared>>) -> Response {
    match shared.clients.admit() {
        Some(listener) => {
            let stream = Sse::new(listener.lines());
            stream
                .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
                .into_response()
        }
        None => {
            let told = "too many pages listen already; close one of them\n";
            (StatusCode::SERVICE_UNAVAILABLE, told).into_response()
        }
    }
}
