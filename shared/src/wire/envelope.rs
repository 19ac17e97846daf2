//! The envelope: what a worker needs to make one call, and nothing of the caller's credentials.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::digest::hex;
use crate::ids::{PlatformName, ServerId, TenantId};
use crate::mcp::era::Era;

/// What is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A tool of an upstream server, by its real name.
    Server {
        id: ServerId,
        tool: String,
    },
    Platform {
        tool: PlatformName,
    },
}

/// What a request said of its caller, for upstreams that take it per request. Raw JSON, unverified by nature.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Caller {
    pub era: Option<Era>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<Box<RawValue>>,
    /// The caller's progress token; interim progress carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_token: Option<Box<RawValue>>,
    /// Members of `_meta` that are nobody's reserved keys, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub meta: Vec<(String, Box<RawValue>)>,
}

/// Everything but the arguments.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Head {
    pub tenant: TenantId,
    pub target: Target,
    /// For `isolation: session`: which session, as a digest that names nobody.
    pub session: String,
    /// Milliseconds that are left.
    pub deadline_ms: u64,
    pub trace: TraceContext,
    pub caller: Caller,
}

/// One call on its way to a worker.
#[derive(Debug, Clone)]
pub struct Envelope {
    pub head: Head,
    /// The raw JSON object of arguments, if there is one.
    pub arguments: Option<Bytes>,
}

/// A W3C trace context (https://www.w3.org/TR/trace-context/, version 00).
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceContext {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    pub sampled: bool,
}

impl TraceContext {
    /// A new trace that nobody asked to sample.
    pub fn fresh() -> Self {
        let random = crate::digest::random();
        let mut span = [0; 8];
        span.copy_from_slice(random.first_chunk::<8>().unwrap_or(&[1; 8]));
        Self { trace: crate::digest::random(), span, sampled: false }
    }

    /// Reads `00-<32 hex>-<16 hex>-<2 hex>`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let lower = |t: &str| t.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let known = version != "ff" && version.len() == 2 && (version != "00" || parts.next().is_none());
        if !known || trace.len() != 32 || span.len() != 16 || flags.len() != 2 || !lower(trace) || !lower(span) {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|n| *n != 0)?;
        let span = u64::from_str_radix(span, 16).ok().filter(|n| *n != 0)?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        Some(Self { trace: trace.to_be_bytes(), span: span.to_be_bytes(), sampled: flags & 1 == 1 })
    }

    /// 32 hex digits.
    pub fn trace_id(&self) -> String {
        hex(&self.trace)
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", hex(&self.trace), hex(&self.span), u8::from(self.sampled))
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl TryFrom<String> for TraceContext {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("no W3C trace context")
    }
}

impl From<TraceContext> for String {
    fn from(context: TraceContext) -> String {
        context.to_string()
    }
}
