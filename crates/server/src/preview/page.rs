//! What a visitor reads when the server inside cannot be shown: a small page for people, the
//! contract's own form for programs.

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use cove_api::ErrorCode;

use crate::extract::accepts;
use crate::failure::{Failure, Told};
use crate::guard::REQUEST_ID;

pub fn refusal(failure: Failure, headers: &HeaderMap, request_id: &str) -> Response {
    if failure.code.status() >= 500 && failure.cause.is_some() {
        tracing::warn!(
            request_id,
            code = failure.code.as_str(),
            message = failure.message,
            cause = failure.cause.as_deref().unwrap_or(""),
            "a visit failed"
        );
    }
    let mut response = failure.into_response();
    let Some(told) = response.extensions_mut().remove::<Told>() else {
        return response;
    };
    let body = match accepts(headers, "text/html") {
        true => Html(page(&told, request_id)).into_response(),
        false => told.body(request_id),
    };
    let (parts, _) = response.into_parts();
    let mut response = body;
    *response.status_mut() = parts.status;
    response.headers_mut().extend(parts.headers);
    let fixed = [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
    ];
    for (name, value) in fixed {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    if let Ok(id) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

fn page(told: &Told, request_id: &str) -> String {
    let title = match told.code {
        ErrorCode::Unauthenticated => "This preview is private",
        ErrorCode::PortClosed => "Nothing listens here yet",
        ErrorCode::Conflict => "The sandbox is not running",
        ErrorCode::NotFound => "There is no such preview",
        _ => "The preview cannot be shown",
    };
    let message = escape(&told.message);
    let hint = told.hint.as_deref().map(escape).unwrap_or_default();
    let code = told.code.as_str();
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>\
         <meta name=viewport content=\"width=device-width\">\
         <style>body{{font:16px/1.5 system-ui,sans-serif;max-width:34em;margin:15vh auto;padding:0 1em;\
         color:#222;background:#fff}}code{{color:#667}}@media(prefers-color-scheme:dark)\
         {{body{{color:#ddd;background:#16181d}}}}</style>\
         <h1>{title}</h1><p>{message}</p><p>{hint}</p><p><code>{code} {request_id}</code></p></html>\n"
    )
}

/// Messages may hold what a guest said.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
    out
}
