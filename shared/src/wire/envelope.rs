//! The envelope: what a worker needs to do one thing, and nothing of the caller's credentials.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::digest::hex;
use crate::ids::{PlatformName, ServerId, TenantId};
use crate::mcp::era::Era;

/// The requests of callers that go to an upstream server: a closed list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Method {
    #[serde(rename = "tools/call")]
    CallTool,
    #[serde(rename = "prompts/get")]
    GetPrompt,
    #[serde(rename = "resources/read")]
    ReadResource,
    #[serde(rename = "completion/complete")]
    Complete,
    #[serde(rename = "tasks/get")]
    GetTask,
    #[serde(rename = "tasks/update")]
    UpdateTask,
    #[serde(rename = "tasks/cancel")]
    CancelTask,
}

impl Method {
    pub fn as_str(self) -> &'static str {
        match self {
            Method::CallTool => "tools/call",
            Method::GetPrompt => "prompts/get",
            Method::ReadResource => "resources/read",
            Method::Complete => "completion/complete",
            Method::GetTask => "tasks/get",
            Method::UpdateTask => "tasks/update",
            Method::CancelTask => "tasks/cancel",
        }
    }
}

/// One call, as gateway and worker know it: unguessable, and never shown to anybody unsealed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CallId([u8; 16]);

impl CallId {
    pub fn fresh() -> Self {
        Self(crate::digest::random())
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl From<CallId> for String {
    fn from(id: CallId) -> String {
        hex(&id.0)
    }
}

impl TryFrom<String> for CallId {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let number = u128::from_str_radix(&text, 16).ok().filter(|_| text.len() == 32);
        number.map(|n| Self(n.to_be_bytes())).ok_or("no call id")
    }
}

/// What a worker is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A request to an upstream server.
    Ask {
        server: ServerId,
        method: Method,
        /// The upstream's own name of what is asked for: tool, prompt, URI or task id. It goes into `Mcp-Name`.
        name: Option<String>,
        /// `Mcp-Param-*` headers for upstreams that are reached by HTTP: name behind the prefix, value before encoding.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        headers: Vec<(String, String)>,
    },
    Platform {
        tool: PlatformName,
    },
    /// Goes on with a call that was parked, in the round that its handle names. Answers are in `inputResponses`.
    Resume {
        call: CallId,
        round: u32,
    },
    /// Attaches to a call that goes on, or ended a moment ago: what was told after `after`, and all that follows.
    Replay {
        call: CallId,
        after: u64,
    },
    /// The caller's answer to a request that was sent to it in the course of a call: `result` or `error`.
    Answer {
        call: CallId,
        seq: u64,
    },
    /// The caller takes back its request with this id, as the JSON that it sent.
    Cancel {
        request: String,
    },
    /// Tells of updates of these resources until the caller is gone or the upstream is.
    Watch {
        server: ServerId,
        uris: Vec<String>,
        tasks: Vec<String>,
    },
    /// Lists a server anew; when this is answered, the catalog is published or the failure known.
    Refresh {
        server: ServerId,
    },
}

/// What a request said of its caller, for upstreams that take it per request. Raw JSON, unverified by nature.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Caller {
    pub era: Option<Era>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<Box<RawValue>>,
    /// What the caller can be asked for; absent is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<Box<RawValue>>,
    /// The caller's progress token; interim progress carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_token: Option<Box<RawValue>>,
    /// The request's id as the caller wrote it, by which a legacy caller cancels it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// A legacy caller with a session and a stream: requests can be sent to it, and what it missed again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub converses: bool,
    /// Members of `_meta` that Rollcall does not set itself, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub meta: Vec<(String, Box<RawValue>)>,
}

/// Everything but the params.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Head {
    pub tenant: TenantId,
    pub op: Op,
    pub call: CallId,
    /// Whose call it is, as a digest that names nobody: for `isolation: session`, and for handles.
    pub session: String,
    /// Seconds since 1970 at which it was sent: a worker does nothing that was asked at another time.
    pub sent_at: u64,
    /// Milliseconds that are left.
    pub deadline_ms: u64,
    pub trace: TraceContext,
    pub caller: Caller,
}

/// The members of `params` that a gateway passes on: a closed list, so that a caller's bytes never become another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Member {
    Name,
    Arguments,
    Uri,
    Ref,
    Argument,
    Context,
    InputResponses,
    RequestState,
    TaskId,
    Result,
    Error,
}

impl Member {
    pub const ALL: [Member; 11] = [
        Member::Name,
        Member::Arguments,
        Member::Uri,
        Member::Ref,
        Member::Argument,
        Member::Context,
        Member::InputResponses,
        Member::RequestState,
        Member::TaskId,
        Member::Result,
        Member::Error,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Member::Name => "name",
            Member::Arguments => "arguments",
            Member::Uri => "uri",
            Member::Ref => "ref",
            Member::Argument => "argument",
            Member::Context => "context",
            Member::InputResponses => "inputResponses",
            Member::RequestState => "requestState",
            Member::TaskId => "taskId",
            Member::Result => "result",
            Member::Error => "error",
        }
    }
}

/// Members of `params` with their raw JSON values, `_meta` apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Params(pub SmallVec<[(Member, Bytes); 3]>);

impl Params {
    pub fn get(&self, member: Member) -> Option<&Bytes> {
        self.0.iter().find(|(m, _)| *m == member).map(|(_, value)| value)
    }

    pub fn push(&mut self, member: Member, value: impl Into<Bytes>) {
        self.0.push((member, value.into()));
    }

    pub fn set(&mut self, member: Member, value: impl Into<Bytes>) {
        self.0.retain(|(m, _)| *m != member);
        self.push(member, value);
    }
}

/// One thing to do, on its way to a worker.
#[derive(Debug, Clone)]
pub struct Envelope {
    pub head: Head,
    pub params: Params,
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
