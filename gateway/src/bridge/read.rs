//! What is read over HTTP: specs, the manifest, instructions, and search.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use rollcall_shared::digest::Digest;
use rollcall_shared::limits;
use rollcall_shared::model::Server;
use serde_json::json;

use super::{By, yaml};
use crate::body::Body;
use crate::call::settle_json;
use crate::http::text;
use crate::live::store_refusal;
use crate::own_tools::{self, By as ByOwn};
use crate::refusal::Refusal;
use crate::surface::instructions;
use crate::surface::manifest::Manifest;
use crate::surface::search::found::Found;
use crate::view::Sight;

/// Members of the query, each known; a misspelt one must not be passed over.
fn query<'r>(request: &'r Request<Incoming>, known: &[&str]) -> Result<BTreeMap<Cow<'r, str>, Cow<'r, str>>, Refusal> {
    let members: BTreeMap<_, _> =
        url::form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes()).collect();
    match members.keys().find(|name| !known.contains(&name.as_ref())) {
        Some(name) => {
            let name = crate::surface::text::line(name, 64);
            Err(Refusal::InvalidParams(format!(
                "unknown query parameter {name:?}; this path takes: {}",
                known.join(", ")
            )))
        }
        None => Ok(members),
    }
}

/// Whether the caller would rather have this kind than JSON.
fn prefers(headers: &HeaderMap, kinds: &[&str]) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut wanted = accept.split(',').map(|part| part.split(';').next().unwrap_or_default().trim());
    let first = wanted.find(|kind| *kind == "application/json" || *kind == "*/*" || kinds.contains(kind));
    first.is_some_and(|kind| kinds.contains(&kind))
}

/// `POST /v1/specs`: `get_api_spec` over HTTP, as JSON or YAML.
pub(super) async fn specs(by: By<'_>, headers: &HeaderMap, body: &Bytes) -> Result<Response<Body>, Refusal> {
    let sight = by.app.live.sight(by.principal).await?;
    let own = ByOwn { app: by.app, tenant: &by.principal.tenant, sight: &sight };
    let text = std::str::from_utf8(body).map_err(|e| Refusal::Parse(e.to_string()))?;
    let asked = own_tools::read_asked(own, Some(text)).map_err(Refusal::InvalidParams)?;
    let document = own_tools::document(own, &asked)?;
    if prefers(headers, &["application/yaml", "application/x-yaml", "text/yaml"]) {
        return Ok(self::text(StatusCode::OK, "application/yaml", yaml::of(&document)));
    }
    Ok(settle_json(StatusCode::OK, document))
}

/// The manifest of this moment.
fn manifest_of(by: By<'_>, sight: &Sight) -> Manifest {
    let live = &by.app.live;
    let tenant = &by.principal.tenant;
    Manifest::new(sight, &by.app.public_url, &|server: &Server| live.unreachable(tenant, server))
}

/// `GET /v1/manifest`, as JSON or text; `?names=all` adds every whole name, for tools that check what people wrote.
pub(super) async fn manifest(by: By<'_>, request: &Request<Incoming>) -> Result<Response<Body>, Refusal> {
    let names = match query(request, &["names"])?.get("names").map(AsRef::as_ref) {
        None => false,
        Some("all") => true,
        Some(_) => return Err(Refusal::InvalidParams("`names` can only be `all`".to_owned())),
    };
    let sight = by.app.live.sight(by.principal).await?;
    let manifest = manifest_of(by, &sight);
    if prefers(request.headers(), &["text/plain"]) {
        return Ok(tagged(request.headers(), "text/plain; charset=utf-8", manifest.text()));
    }
    let mut value = manifest.json();
    if let (true, Some(members)) = (names, value.as_object_mut()) {
        let definitions = sight.view.tools().filter_map(|place| sight.registry.definition(place));
        let mut all: Vec<&str> = definitions.map(|definition| &*definition.visible).collect();
        all.extend(sight.view.bridge_tools_over_http().map(|name| -> &str { name }));
        members.insert("names".to_owned(), json!(all));
    }
    Ok(tagged(request.headers(), "application/json", value.to_string()))
}

/// `GET /v1/instructions`: the text as it is sent; `?part=base` for a sub-agent.
pub(super) async fn instructions(by: By<'_>, request: &Request<Incoming>) -> Result<Response<Body>, Refusal> {
    let query = query(request, &["part"])?;
    let base = match query.get("part").map(AsRef::as_ref) {
        None => false,
        Some("base") => true,
        Some(_) => return Err(Refusal::InvalidParams("`part` can only be `base`".to_owned())),
    };
    let sight = by.app.live.sight(by.principal).await?;
    let tenants = by.app.live.tenants();
    let written = tenants.instructions(&by.principal.tenant, &by.principal.session_id()).await;
    let written = written.map_err(|e| store_refusal(&e))?;
    let text = match base {
        true => instructions::base(&written),
        false => instructions::compose(
            &written,
            &instructions::of_servers(&sight),
            &by.app.public_url,
            &manifest_of(by, &sight).text(),
        ),
    };
    Ok(tagged(request.headers(), "text/plain; charset=utf-8", text))
}

/// `GET /v1/tools/search?q=…&limit=…`
pub(super) async fn search(by: By<'_>, request: &Request<Incoming>) -> Result<Response<Body>, Refusal> {
    let query = query(request, &["q", "limit"])?;
    let words = query.get("q").map(AsRef::as_ref).filter(|words: &&str| !words.trim().is_empty());
    let words =
        words.ok_or_else(|| Refusal::InvalidParams("`q` is missing: say what the tool should do".to_owned()))?;
    let limit = match query.get("limit").map(|limit| limit.parse()) {
        None => limits::SEARCH_FOUND,
        Some(Ok(limit)) if (1..=limits::SEARCH_FOUND_MOST).contains(&limit) => limit,
        Some(_) => {
            return Err(Refusal::InvalidParams(format!("`limit` must be between 1 and {}", limits::SEARCH_FOUND_MOST)));
        }
    };
    let sight = by.app.live.sight(by.principal).await?;
    let own = ByOwn { app: by.app, tenant: &by.principal.tenant, sight: &sight };
    let Found { query, tools, total, hint } = own_tools::find(own, words, limit).await;
    let body = json!({
        "success": true, "view": sight.view.tag(), "query": query, "tools": tools, "total": total, "hint": hint,
    });
    Ok(settle_json(StatusCode::OK, body.to_string()))
}

/// An answer with the tag of its bytes; whoever has them already gets none (RFC 9110, section 13.1.2).
fn tagged(headers: &HeaderMap, kind: &'static str, body: String) -> Response<Body> {
    let tag = format!("\"{}\"", Digest::of(body.as_bytes()).hex(32));
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let has = known.split(',').map(str::trim).any(|known| known == "*" || known.trim_start_matches("W/") == tag);
    let mut response = match has {
        true => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
        false => text(StatusCode::OK, kind, body),
    };
    response.headers_mut().extend(HeaderValue::from_str(&tag).ok().map(|tag| (header::ETAG, tag)));
    response
}
