//! Every way in which a request is refused: a closed list, matched without a wildcard.
//!
//! Each knows its HTTP status, its JSON-RPC code, its text and its metric label. Causes that are nobody's business stay
//! in the log.

use rollcall_shared::mcp::era::{Era, REVISIONS};
use rollcall_shared::mcp::jsonrpc::code;
use rollcall_shared::mcp::raw;

use crate::view::Refused;

/// See the module.
#[derive(Debug)]
pub enum Refusal {
    /// The Host header names nobody we are.
    Host,
    Origin,
    NotFound,
    /// What the path allows, for the `Allow` header.
    Method(&'static str),
    MediaType,
    NotAcceptable,
    TooLarge {
        limit: usize,
    },
    /// The body did not come in time.
    Slow,
    /// The client broke the request off, or framed it wrongly.
    BrokenBody,
    Unauthenticated {
        presented: bool,
        why: &'static str,
    },
    /// The token is good, but speaks for another tenant than the address.
    OtherTenant,
    /// The token's tenant is not configured.
    UnknownTenant,
    Overloaded,
    Parse(String),
    InvalidRequest(String),
    /// A required member of `_meta` is missing or malformed.
    Meta(String),
    HeaderMismatch(String),
    Version(String),
    MethodNotFound(String),
    InvalidParams(String),
    Tools(Box<Refused>),
    /// `/servers/{server}/mcp` for a server that the tenant does not have.
    NoSuchServer,
    /// The legacy session is unknown here, of somebody else, or over.
    NoSuchSession,
    /// No resource of this URI for this caller.
    NoSuchResource(String),
    /// No prompt of this name for this caller; what it may have instead.
    NoSuchPrompt(String),
    /// What the caller must declare, as a JSON object of capabilities.
    MissingCapability(String),
    TenantBroken(String),
    /// The keys of the token's issuer cannot be had now.
    KeysUnavailable,
    StoreUnavailable,
    Internal,
}

impl Refusal {
    /// The HTTP status. In the modern era protocol errors have one of their own (specification 2026-07-28, transports,
    /// section Status); the legacy eras answer most of them with 200.
    pub fn status(&self, era: Era) -> u16 {
        let modern = |status| if era == Era::Modern { status } else { 200 };
        match self {
            Refusal::Host => 421,
            Refusal::Origin | Refusal::OtherTenant | Refusal::UnknownTenant => 403,
            Refusal::NotFound | Refusal::NoSuchServer | Refusal::NoSuchSession => 404,
            Refusal::Method(_) => 405,
            Refusal::MediaType => 415,
            Refusal::NotAcceptable => 406,
            Refusal::TooLarge { .. } => 413,
            Refusal::Slow => 408,
            Refusal::BrokenBody
            | Refusal::Parse(_)
            | Refusal::InvalidRequest(_)
            | Refusal::Meta(_)
            | Refusal::HeaderMismatch(_)
            | Refusal::Version(_) => 400,
            Refusal::Unauthenticated { .. } => 401,
            Refusal::MethodNotFound(_) => modern(404),
            Refusal::MissingCapability(_) => modern(400),
            Refusal::InvalidParams(_) | Refusal::Tools(_) | Refusal::NoSuchResource(_) | Refusal::NoSuchPrompt(_) => {
                200
            }
            Refusal::Overloaded | Refusal::TenantBroken(_) | Refusal::KeysUnavailable | Refusal::StoreUnavailable => {
                503
            }
            Refusal::Internal => 500,
        }
    }

    /// The JSON-RPC code of refusals that are answers to a message.
    pub fn code(&self, era: Era) -> Option<i32> {
        match self {
            Refusal::Parse(_) => Some(code::PARSE),
            Refusal::InvalidRequest(_) | Refusal::NoSuchSession => Some(code::INVALID_REQUEST),
            Refusal::NoSuchResource(_) if era == Era::Legacy => Some(code::RESOURCE_NOT_FOUND),
            Refusal::MissingCapability(_) => Some(code::MISSING_CAPABILITY),
            Refusal::HeaderMismatch(_) => Some(code::HEADER_MISMATCH),
            Refusal::Version(_) => Some(code::UNSUPPORTED_VERSION),
            Refusal::MethodNotFound(_) => Some(code::METHOD_NOT_FOUND),
            Refusal::Meta(_)
            | Refusal::InvalidParams(_)
            | Refusal::Tools(_)
            | Refusal::NoSuchResource(_)
            | Refusal::NoSuchPrompt(_) => Some(code::INVALID_PARAMS),
            Refusal::Internal => Some(code::INTERNAL),
            Refusal::Host
            | Refusal::Origin
            | Refusal::NotFound
            | Refusal::Method(_)
            | Refusal::MediaType
            | Refusal::NotAcceptable
            | Refusal::TooLarge { .. }
            | Refusal::Slow
            | Refusal::BrokenBody
            | Refusal::Unauthenticated { .. }
            | Refusal::OtherTenant
            | Refusal::UnknownTenant
            | Refusal::Overloaded
            | Refusal::NoSuchServer
            | Refusal::TenantBroken(_)
            | Refusal::KeysUnavailable
            | Refusal::StoreUnavailable => None,
        }
    }

    /// The word by which it is counted and audited.
    pub fn label(&self) -> &'static str {
        match self {
            Refusal::Host => "host",
            Refusal::Origin => "origin",
            Refusal::NotFound => "not_found",
            Refusal::Method(_) => "method",
            Refusal::MediaType => "media_type",
            Refusal::NotAcceptable => "not_acceptable",
            Refusal::TooLarge { .. } => "too_large",
            Refusal::Slow => "slow_body",
            Refusal::BrokenBody => "broken_body",
            Refusal::Unauthenticated { .. } => "unauthenticated",
            Refusal::OtherTenant => "other_tenant",
            Refusal::UnknownTenant => "unknown_tenant",
            Refusal::Overloaded => "overloaded",
            Refusal::Parse(_) => "parse",
            Refusal::InvalidRequest(_) => "invalid_request",
            Refusal::Meta(_) => "meta",
            Refusal::HeaderMismatch(_) => "header_mismatch",
            Refusal::Version(_) => "version",
            Refusal::MethodNotFound(_) => "method_not_found",
            Refusal::InvalidParams(_) => "invalid_params",
            Refusal::Tools(refused) => {
                if !refused.unknown.is_empty() {
                    "unknown_tool"
                } else if !refused.not_allowed.is_empty() {
                    "not_allowed"
                } else {
                    "unavailable"
                }
            }
            Refusal::NoSuchServer => "no_such_server",
            Refusal::NoSuchSession => "no_such_session",
            Refusal::NoSuchResource(_) => "no_such_resource",
            Refusal::NoSuchPrompt(_) => "no_such_prompt",
            Refusal::MissingCapability(_) => "missing_capability",
            Refusal::TenantBroken(_) => "tenant_broken",
            Refusal::KeysUnavailable => "keys_unavailable",
            Refusal::StoreUnavailable => "store_unavailable",
            Refusal::Internal => "internal",
        }
    }

    /// What the caller reads.
    pub fn text(&self) -> String {
        match self {
            Refusal::Host => "this Host is not served here".to_owned(),
            Refusal::Origin => "this Origin is not allowed".to_owned(),
            Refusal::NotFound => "there is nothing at this path".to_owned(),
            Refusal::Method(allow) => format!("this path takes {allow}"),
            Refusal::MediaType => "the body must be application/json".to_owned(),
            Refusal::NotAcceptable => "Accept must allow application/json or text/event-stream".to_owned(),
            Refusal::TooLarge { limit } => format!("the body is larger than limits.body_bytes = {limit}"),
            Refusal::Slow => "the body did not arrive in time".to_owned(),
            Refusal::BrokenBody => "the body could not be read".to_owned(),
            Refusal::Unauthenticated { why, .. } => (*why).to_owned(),
            Refusal::OtherTenant => "the token speaks for another tenant than this address".to_owned(),
            Refusal::UnknownTenant => "the token's tenant is not configured".to_owned(),
            Refusal::Overloaded => "too much is in flight; try again shortly".to_owned(),
            Refusal::Parse(what) => format!("not JSON: {what}"),
            Refusal::InvalidRequest(what)
            | Refusal::Meta(what)
            | Refusal::InvalidParams(what)
            | Refusal::NoSuchPrompt(what) => what.clone(),
            Refusal::HeaderMismatch(what) => format!("header mismatch: {what}"),
            Refusal::Version(asked) => format!("unsupported protocol version {asked:?}"),
            Refusal::MethodNotFound(method) => format!("method {method:?} is not offered"),
            Refusal::Tools(refused) => refused.message.clone(),
            Refusal::NoSuchServer => "this tenant has no such server".to_owned(),
            Refusal::NoSuchSession => "this session is unknown here or over: initialize again".to_owned(),
            Refusal::NoSuchResource(uri) => format!("there is no resource {uri} for this session"),
            Refusal::MissingCapability(_) => "this needs a capability that the request does not declare".to_owned(),
            Refusal::TenantBroken(cause) => format!("the tenant's configuration contradicts itself: {cause}"),
            Refusal::KeysUnavailable => "the issuer's keys cannot be had now".to_owned(),
            Refusal::StoreUnavailable => "the store cannot be asked now".to_owned(),
            Refusal::Internal => "internal error".to_owned(),
        }
    }

    /// `error.data`, as JSON.
    pub fn data(&self) -> Option<String> {
        if let Refusal::Tools(refused) = self {
            return Some(refused.to_json());
        }
        if let Refusal::NoSuchResource(uri) = self {
            return Some(format!(r#"{{"uri":{}}}"#, raw::quote(uri)));
        }
        if let Refusal::MissingCapability(required) = self {
            return Some(format!(r#"{{"requiredCapabilities":{required}}}"#));
        }
        if let Refusal::Version(asked) = self {
            let supported = serde_json::to_string(&REVISIONS).unwrap_or_default();
            return Some(format!(r#"{{"supported":{supported},"requested":{}}}"#, raw::quote(asked)));
        }
        None
    }

    /// Seconds after which another attempt makes sense: for every 503, and for nothing else.
    pub fn retry_after_s(&self) -> Option<u32> {
        if let Refusal::Tools(refused) = self {
            refused.unavailable.iter().filter_map(|tool| tool.retry_after_s).max()
        } else if matches!(self, Refusal::Overloaded) {
            Some(1)
        } else if matches!(self, Refusal::KeysUnavailable | Refusal::StoreUnavailable) {
            Some(5)
        } else if matches!(self, Refusal::TenantBroken(_)) {
            Some(60)
        } else {
            None
        }
    }
}
