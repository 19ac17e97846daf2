//! The bridge for agents that write code: plain HTTP, one status, one JSON, as `get_api_spec` describes it.
//!
//! The same steps as an MCP call, the same resolver, the same view; only the answer differs. Its status says how it went,
//! so that `curl --fail-with-body` fails where the call did.

mod call;
mod read;
mod yaml;

use std::sync::Arc;

use http::{Method, Request, Response};
use hyper::body::Incoming;

use crate::app::App;
use crate::body::Body;
use crate::call::settle::{Recording, refuse_plainly, settle};
use crate::call::{Record, admit, authenticate, budget};
use crate::http::{Endpoint, decode, split_tenant};
use crate::identity::Principal;
use crate::refusal::Refusal;

/// What is addressed: a closed list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// `/tools/{name}`, and the older `/tools/custom/{name}`: a tool by its whole name.
    Tool(String),
    /// The older `/tools/mcp/{server}/{tool}`: by the name that the server knows.
    OfServer { server: String, tool: String },
    /// `/v1/specs`
    Specs,
    /// `/v1/manifest`
    Manifest,
    /// `/v1/instructions`
    Instructions,
    /// `/v1/tools/search`
    Search,
}

/// A path of the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) endpoint: Endpoint,
    pub(crate) target: Target,
}

impl Address {
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let (tenant, rest) = split_tenant(path)?;
        let parts: Vec<&str> = rest.strip_prefix('/')?.split('/').collect();
        let text = |part: &str| if part.is_empty() { None } else { decode(part) };
        let target = match parts.as_slice() {
            ["tools", name] | ["tools", "custom", name] => Target::Tool(text(name)?),
            ["tools", "mcp", server, tool] => Target::OfServer { server: text(server)?, tool: text(tool)? },
            ["v1", "specs"] => Target::Specs,
            ["v1", "manifest"] => Target::Manifest,
            ["v1", "instructions"] => Target::Instructions,
            ["v1", "tools", "search"] => Target::Search,
            _ => return None,
        };
        Some(Self { endpoint: Endpoint { path: path.to_owned(), tenant, server: None }, target })
    }

    /// The one method that it takes.
    pub(crate) fn method(&self) -> Method {
        match self.target {
            Target::Tool(_) | Target::OfServer { .. } | Target::Specs => Method::POST,
            Target::Manifest | Target::Instructions | Target::Search => Method::GET,
        }
    }

    /// What it is to metrics and audit.
    fn surface(&self) -> &'static str {
        match self.target {
            Target::Tool(_) | Target::OfServer { .. } => "tools",
            Target::Specs => "specs",
            Target::Manifest => "manifest",
            Target::Instructions => "instructions",
            Target::Search => "search",
        }
    }
}

/// Serves one request, of the method that its address takes.
pub(crate) async fn serve(app: &Arc<App>, address: &Address, request: Request<Incoming>) -> Response<Body> {
    let mut recording = Recording::new(app.clone(), Record::open(address.surface()));
    match &address.target {
        Target::Tool(name) => recording.record().is_call(name),
        Target::OfServer { server, tool } => {
            recording.record().is_call(tool);
            recording.record().server =
                Some(server.chars().take(rollcall_shared::limits::NEAREST_NAME_BYTES).collect::<String>().into());
        }
        Target::Specs | Target::Manifest | Target::Instructions | Target::Search => {
            recording.record().is_by(request.method());
        }
    }
    let mut answer = match steps(app, address, request, recording.record()).await {
        Ok(answer) => answer,
        Err(refusal) => refuse_plainly(app, &address.endpoint.path, recording.record(), &refusal),
    };
    settle(recording, &mut answer);
    answer
}

async fn steps(
    app: &Arc<App>,
    address: &Address,
    request: Request<Incoming>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let admitted = admit::admit(app, &request)?;
    let principal = authenticate::authenticate(app, &address.endpoint, request.headers()).await?;
    record.is_of(&principal);
    let by = By { app, principal: &principal };
    match &address.target {
        Target::Tool(_) | Target::OfServer { .. } => {
            let (_, body, held) = budget::read(app, admitted, &principal, request).await?;
            call::call(by, &address.target, body, held, record).await
        }
        Target::Specs => {
            let (head, body, _held) = budget::read(app, admitted, &principal, request).await?;
            read::specs(by, &head.headers, &body).await
        }
        Target::Manifest => read::manifest(by, &request).await,
        Target::Instructions => read::instructions(by, &request).await,
        Target::Search => read::search(by, &request).await,
    }
}

/// Who asks.
#[derive(Clone, Copy)]
struct By<'a> {
    app: &'a Arc<App>,
    principal: &'a Arc<Principal>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_what_they_name() {
        let case = |path: &str, expected: Option<Target>| {
            assert_eq!(Address::parse(path).map(|address| address.target), expected, "{path}");
        };
        case("/tools/neon__run_sql", Some(Target::Tool("neon__run_sql".into())));
        case("/t/acme/tools/x/", Some(Target::Tool("x".into())));
        case("/tools/custom/x", Some(Target::Tool("x".into())));
        case("/tools/mcp/a%20b/c%2Fd", Some(Target::OfServer { server: "a b".into(), tool: "c/d".into() }));
        case("/v1/manifest/", Some(Target::Manifest));
        case("/t/acme/v1/tools/search", Some(Target::Search));
        for path in [
            "/tools",
            "/tools/",
            "/tools//x",
            "/tools/mcp/a",
            "/tools/mcp/a/b/c",
            "/v1",
            "/v1/x",
            "/v1/manifest/x",
            "/v2/specs",
        ] {
            case(path, None);
        }
    }
}
