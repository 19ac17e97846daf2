//! Decode: the envelope and what the caller said of itself; ids, params and arguments stay raw.
//!
//! The body decides the era; headers must agree with it (specification 2026-07-28, transports, section Headers). A
//! legacy request is one without a version in `_meta`.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::ACCEPT;
use rollcall_shared::mcp::era::{Era, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_VERSION, MODERN, is_served};
use rollcall_shared::mcp::headers::{self, decode as decode_value};
use rollcall_shared::mcp::jsonrpc::{self, Malformed, Message, Outcome};
use rollcall_shared::mcp::param_headers::{Mirrored, ParamHeader};
use rollcall_shared::mcp::raw;
use rollcall_shared::wire::{Caller, TraceContext};
use serde_json::value::RawValue;

use crate::refusal::Refusal;

/// One message, understood as far as a gateway must.
pub(crate) struct Decoded<'b> {
    pub(crate) era: Era,
    pub(crate) kind: Kind<'b>,
    /// Whether the answer may be an event stream.
    pub(crate) takes_stream: bool,
    /// Whether the answer may be one JSON object.
    pub(crate) takes_json: bool,
    /// Whether the client names event streams before JSON: it then gets a stream for every answer that can be one.
    pub(crate) prefers_stream: bool,
}

pub(crate) enum Kind<'b> {
    Request {
        id: &'b RawValue,
        method: String,
        params: Params<'b>,
    },
    Notification {
        method: String,
        params: Params<'b>,
    },
    /// A legacy client's answer to a request of ours.
    Response {
        id: Option<&'b RawValue>,
        outcome: Outcome<'b>,
    },
}

/// The members of `params`, and `_meta` taken apart.
#[derive(Default)]
pub(crate) struct Params<'b> {
    members: Vec<(Cow<'b, str>, &'b RawValue)>,
    pub(crate) meta: Meta<'b>,
}

/// What a request says of itself in `_meta`.
#[derive(Default)]
pub(crate) struct Meta<'b> {
    version: Option<&'b RawValue>,
    capabilities: Option<&'b RawValue>,
    info: Option<&'b RawValue>,
    log_level: Option<&'b RawValue>,
    progress_token: Option<&'b RawValue>,
    pub(crate) trace: Option<TraceContext>,
    rest: Vec<(Cow<'b, str>, &'b RawValue)>,
}

/// A refusal with what is needed to answer it: the id, and the era whose rules the answer follows.
pub(crate) struct Misread {
    pub(crate) refusal: Refusal,
    pub(crate) id: Option<String>,
    pub(crate) era: Era,
}

impl From<Refusal> for Misread {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, id: None, era: Era::Modern }
    }
}

impl Decoded<'_> {
    pub(crate) fn method(&self) -> &str {
        match &self.kind {
            Kind::Request { method, .. } | Kind::Notification { method, .. } => method,
            Kind::Response { .. } => "response",
        }
    }

    pub(crate) fn meta(&self) -> Option<&Meta<'_>> {
        match &self.kind {
            Kind::Request { params, .. } | Kind::Notification { params, .. } => Some(&params.meta),
            Kind::Response { .. } => None,
        }
    }

    pub(crate) fn misread(&self, refusal: Refusal) -> Misread {
        let id = match &self.kind {
            Kind::Request { id, .. } => Some(id.get().to_owned()),
            Kind::Notification { .. } | Kind::Response { .. } => None,
        };
        Misread { refusal, id, era: self.era }
    }
}

impl<'b> Params<'b> {
    fn read(params: Option<&'b RawValue>) -> Result<Self, Refusal> {
        let Some(params) = params else { return Ok(Self::default()) };
        let invalid = |e: serde_json::Error| Refusal::InvalidParams(format!("params: {e}"));
        let members = raw::members(params.get()).map_err(invalid)?;
        let twice =
            |(n, (key, _)): &(usize, &(Cow<'_, str>, _))| members.iter().skip(n + 1).any(|(other, _)| other == key);
        if let Some((_, (name, _))) = members.iter().enumerate().find(twice) {
            return Err(Refusal::InvalidParams(format!("`{}` is there twice", cut(name))));
        }
        let meta = members.iter().find(|(key, _)| key == "_meta").map(|(_, value)| *value);
        let meta = Meta::read(meta)?;
        Ok(Self { members, meta })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'b RawValue> {
        self.members.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
    }

    /// A member that must be a text where it is there.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        raw::string(value).map(Some).ok_or_else(|| Refusal::InvalidParams(format!("`{name}` must be a text")))
    }
}

impl<'b> Meta<'b> {
    fn read(meta: Option<&'b RawValue>) -> Result<Self, Refusal> {
        let Some(meta) = meta else { return Ok(Self::default()) };
        let members = raw::members(meta.get()).map_err(|_| Refusal::Meta("`_meta` must be an object".to_owned()))?;
        let mut out = Self::default();
        for (key, value) in members {
            let slot = match key.as_ref() {
                META_VERSION => &mut out.version,
                META_CAPABILITIES => &mut out.capabilities,
                META_CLIENT => &mut out.info,
                META_LOG_LEVEL => &mut out.log_level,
                "progressToken" => &mut out.progress_token,
                "traceparent" => {
                    out.trace = raw::string(value).as_deref().and_then(TraceContext::parse);
                    continue;
                }
                // Baggage ends at the tenant's boundary; our own keys are not the caller's to set.
                "tracestate" | "baggage" => continue,
                other if other.starts_with("io.rollcall/") => continue,
                _ => {
                    out.rest.push((key, value));
                    continue;
                }
            };
            if slot.replace(value).is_some() {
                return Err(Refusal::Meta(format!("`_meta` holds `{key}` twice")));
            }
        }
        Ok(out)
    }

    /// Whether the caller declares an extension with this request.
    pub(crate) fn declares_extension(&self, id: &str) -> bool {
        let inner = |value: &'b RawValue, name: &str| {
            let members = raw::members(value.get()).ok()?;
            members.into_iter().find(|(key, _)| key == name).map(|(_, value)| value)
        };
        self.capabilities.and_then(|c| inner(c, "extensions")).and_then(|e| inner(e, id)).is_some()
    }

    /// What goes upstream of it.
    pub(crate) fn caller(&self, era: Era) -> Result<Caller, Refusal> {
        let token_is_valid = self.progress_token.is_none_or(|token| {
            token.get().starts_with('"') || token.get().bytes().all(|b| b.is_ascii_digit() || b == b'-')
        });
        if !token_is_valid || self.progress_token.is_some_and(|token| token.get().len() > 256) {
            return Err(Refusal::InvalidParams(
                "`progressToken` must be a text or an integer of at most 256 bytes".to_owned(),
            ));
        }
        let owned = |value: Option<&RawValue>| value.map(ToOwned::to_owned);
        // What a legacy client can be asked, its session knows.
        let own = |value: Option<&RawValue>| owned(value).filter(|_| era == Era::Modern);
        Ok(Caller {
            era: Some(era),
            info: own(self.info),
            capabilities: own(self.capabilities),
            log_level: own(self.log_level),
            progress_token: owned(self.progress_token),
            request: String::new(),
            converses: false,
            meta: self.rest.iter().map(|(key, value)| (key.to_string(), (*value).to_owned())).collect(),
        })
    }
}

pub(crate) fn decode<'b>(body: &'b [u8], headers: &HeaderMap) -> Result<Decoded<'b>, Misread> {
    let accept = Accept::read(headers);
    if !accept.json && !accept.stream {
        return Err(Refusal::NotAcceptable.into());
    }
    let claims_modern = header_text(headers, headers::PROTOCOL_VERSION)?.is_some_and(|v| v == MODERN);
    let fallback = if claims_modern { Era::Modern } else { Era::Legacy };
    let message = jsonrpc::parse(body).map_err(|malformed| match malformed {
        Malformed::NotJson(what) => Misread { refusal: Refusal::Parse(what), id: None, era: fallback },
        Malformed::NotRequest { id, what } => Misread { refusal: Refusal::InvalidRequest(what), id, era: fallback },
    })?;
    let (kind, id) = match message {
        Message::Request { id, method, params } => {
            let fail = |refusal| Misread { refusal, id: Some(id.get().to_owned()), era: fallback };
            (Kind::Request { id, method, params: Params::read(params).map_err(fail)? }, Some(id.get().to_owned()))
        }
        Message::Notification { method, params } => {
            (Kind::Notification { method, params: Params::read(params)? }, None)
        }
        Message::Response { id, outcome } => (Kind::Response { id, outcome }, None),
    };
    let era = classify(&kind, headers).map_err(|refusal| Misread { refusal, id: id.clone(), era: fallback })?;
    let decoded = Decoded {
        era,
        kind,
        takes_stream: accept.stream,
        takes_json: accept.json,
        prefers_stream: accept.stream_first,
    };
    if era == Era::Modern {
        check_modern(&decoded, headers).map_err(|refusal| Misread { refusal, id, era })?;
    }
    Ok(decoded)
}

/// The era of a message, by its body first.
fn classify(kind: &Kind<'_>, headers: &HeaderMap) -> Result<Era, Refusal> {
    let header = header_text(headers, headers::PROTOCOL_VERSION)?;
    let (claim, method) = match kind {
        Kind::Request { method, params, .. } | Kind::Notification { method, params } => {
            (params.meta.version, method.as_str())
        }
        Kind::Response { .. } => (None, ""),
    };
    if let Some(claim) = claim {
        let version = raw::string(claim).ok_or_else(|| Refusal::Meta(format!("`{META_VERSION}` must be a text")))?;
        match header {
            None => return Err(Refusal::HeaderMismatch("MCP-Protocol-Version is missing".to_owned())),
            Some(header) if header != version => {
                return Err(Refusal::HeaderMismatch(format!("MCP-Protocol-Version is not {version:?}")));
            }
            Some(_) => {}
        }
        return if version == MODERN { Ok(Era::Modern) } else { Err(Refusal::Version(cut(&version))) };
    }
    if method == "initialize" {
        return Ok(Era::Legacy);
    }
    match header {
        Some(MODERN) if matches!(kind, Kind::Request { .. }) => {
            Err(Refusal::Meta(format!("`_meta` must hold `{META_VERSION}`")))
        }
        Some(MODERN) => Ok(Era::Modern),
        Some(header) if !is_served(header) => Err(Refusal::Version(cut(header))),
        _ => Ok(Era::Legacy),
    }
}

/// A text of the caller's as it is repeated to him.
fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

/// What the modern revision asks of every request.
fn check_modern(decoded: &Decoded<'_>, headers: &HeaderMap) -> Result<(), Refusal> {
    let Kind::Request { method, params, .. } = &decoded.kind else { return Ok(()) };
    let object = params.meta.capabilities.is_some_and(|c| c.get().starts_with('{'));
    if !object {
        return Err(Refusal::Meta(format!("`_meta` must hold `{META_CAPABILITIES}`, an object")));
    }
    let named = match method.as_str() {
        "tools/call" | "prompts/get" => params.text("name")?,
        "resources/read" => params.text("uri")?,
        "tasks/get" | "tasks/update" | "tasks/cancel" => params.text("taskId")?,
        _ => None,
    };
    must_equal(headers, headers::METHOD, method)?;
    match named {
        Some(name) => must_equal(headers, headers::NAME, &name),
        None => Ok(()),
    }
}

/// The header that mirrors an argument of a tool must say what the body says, or be absent where the body has none.
pub(crate) fn check_param(headers: &HeaderMap, header: &ParamHeader, value: Option<&Mirrored>) -> Result<(), Refusal> {
    let name = format!("{}{}", headers::PARAM_PREFIX, header.name);
    let mut given = headers.get_all(&name).iter();
    let mismatch = |what: &str| Refusal::HeaderMismatch(format!("Mcp-Param-{} {what}", header.name));
    match (given.next(), value) {
        _ if given.next().is_some() => Err(mismatch("is there twice")),
        (None, None) => Ok(()),
        (None, Some(_)) => Err(mismatch("is missing")),
        (Some(_), None) => Err(mismatch("is there without its argument")),
        (Some(given), Some(value)) => match decode_value(given.as_bytes()) {
            Some(text) if value.agrees(&text) => Ok(()),
            Some(_) => Err(mismatch("is not what the body says")),
            None => Err(mismatch("cannot be decoded")),
        },
    }
}

fn must_equal(headers: &HeaderMap, name: &'static str, expected: &str) -> Result<(), Refusal> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or_else(|| Refusal::HeaderMismatch(format!("{name} is missing")))?;
    if values.next().is_some() {
        return Err(Refusal::HeaderMismatch(format!("{name} is there twice")));
    }
    match decode_value(value.as_bytes()) {
        Some(text) if text == expected => Ok(()),
        Some(_) => Err(Refusal::HeaderMismatch(format!("{name} is not what the body says"))),
        None => Err(Refusal::HeaderMismatch(format!("{name} cannot be decoded"))),
    }
}

/// The value of a header that may be there once.
fn header_text<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::HeaderMismatch(format!("{name} is there twice")));
    }
    value.to_str().map(|text| Some(text.trim())).map_err(|_| Refusal::HeaderMismatch(format!("{name} is no text")))
}

/// Which answers the client takes. No header takes all.
struct Accept {
    json: bool,
    stream: bool,
    stream_first: bool,
}

impl Accept {
    fn read(headers: &HeaderMap) -> Self {
        let mut any = false;
        let mut out = Self { json: false, stream: false, stream_first: false };
        for value in headers.get_all(ACCEPT) {
            for range in value.to_str().unwrap_or_default().split(',') {
                any = true;
                let mut parts = range.split(';');
                let kind = parts.next().unwrap_or_default().trim();
                let is = |kinds: &[&str]| kinds.iter().any(|known| kind.eq_ignore_ascii_case(known));
                if parts.any(|p| matches!(p.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")) {
                    continue;
                }
                out.json |= is(&["application/json", "application/*", "*/*"]);
                out.stream_first |= is(&["text/event-stream"]) && !out.json;
                out.stream |= is(&["text/event-stream", "text/*", "*/*"]);
            }
        }
        if any { out } else { Self { json: true, stream: true, stream_first: false } }
    }
}

#[cfg(test)]
mod tests;
