//! The way of a call, from bytes to bytes. Each step is a file in `call/`, and makes what the next one needs:
//!
//! ```text
//! open the record → admit → authenticate → budget → decode → view → resolve → forward → relay → settle
//! ```
//!
//! A step that could be skipped is a type that cannot be built without it: only `authenticate` makes a `Principal`, only
//! `resolve` makes a `Permit`, and the spec cache and `forward` take nothing but a `Permit`.
//!
//! What a warm `tools/call` costs in one process, in microseconds of processor time: 58, where a bare hyper hop costs 16
//! (`rollcall-loadtest compare`: one core, one connection). The steps are shares of the samples of `perf record --call-graph
//! dwarf`; a quarter of the stacks were cut short, so that a step may cost somewhat more, and the row of hyper and tokio,
//! which is what remains, less:
//!
//! | step | µs |
//! |---|---|
//! | the kernel: four reads and writes, two waits | 20 |
//! | hyper and tokio, towards the client and towards the server | 21 |
//! | `admit`, `budget` | 1 |
//! | `authenticate`: the hash of a token that is remembered | 1 |
//! | `decode` | 1.6 |
//! | `view`, `resolve` | 1 |
//! | `forward` | 1.3 |
//! | the worker: accept, borrow, build the request, read the answer | 7 |
//! | `relay`, `settle`, the record | 1.5 |
//! | what remains between them | 3 |

pub(crate) mod admit;
pub(crate) mod answer;
pub(crate) mod arguments;
pub(crate) mod authenticate;
pub(crate) mod budget;
pub(crate) mod decode;
pub(crate) mod forward;
pub(crate) mod record;
pub(crate) mod relay;
pub(crate) mod settle;

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;

pub(crate) use admit::Load;
pub(crate) use admit::{check_host, check_origin};
pub(crate) use record::{Audit, Record};
pub(crate) use settle::{json as settle_json, plain};

use crate::app::App;
use crate::body::Body;
use crate::http::Endpoint;
use crate::mcp;

/// Serves one POST to an MCP endpoint.
pub(crate) async fn serve(app: &Arc<App>, endpoint: &Endpoint, request: Request<Incoming>) -> Response<Body> {
    // Written in any case: also when the client hangs up and this future is dropped at one of its awaits.
    let mut recording = settle::Recording::new(app.clone(), Record::open("mcp"));
    let answer = steps(app, endpoint, request, recording.record()).await;
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(refused) => settle::refuse(app, endpoint, recording.record(), refused),
    };
    settle::settle(recording, &mut answer);
    answer
}

/// Serves a GET or a DELETE of an MCP endpoint: the legacy eras have streams and sessions of their own.
pub(crate) async fn serve_legacy(app: &Arc<App>, endpoint: &Endpoint, request: Request<Incoming>) -> Response<Body> {
    let mut recording = settle::Recording::new(app.clone(), Record::open("mcp"));
    recording.record().is_by(request.method());
    let answer = match *request.method() {
        http::Method::GET => mcp::listen::get(app, endpoint, &request, recording.record()).await,
        _ => mcp::session::delete(app, endpoint, &request, recording.record()).await,
    };
    let mut answer = answer.unwrap_or_else(|refusal| {
        let refused = decode::Misread { era: rollcall_shared::mcp::era::Era::Legacy, ..refusal.into() };
        settle::refuse(app, endpoint, recording.record(), refused)
    });
    settle::settle(recording, &mut answer);
    answer
}

async fn steps(
    app: &Arc<App>,
    endpoint: &Endpoint,
    request: Request<Incoming>,
    record: &mut Record,
) -> Result<Response<Body>, decode::Misread> {
    let admitted = admit::admit(app, &request)?;
    let principal = authenticate::authenticate(app, endpoint, request.headers()).await?;
    record.is_of(&principal);
    let (head, body, held) = budget::read(app, admitted, &principal, request).await?;
    if mcp::is_batch(&body, &head.headers) {
        let sight = app.live.sight(&principal).await?;
        return mcp::serve_batch(app, endpoint, &principal, &head.headers, &body, &sight).await;
    }
    let message = decode::decode(&body, &head.headers)?;
    record.asks(&message);
    let sight = app.live.sight(&principal).await.map_err(|refusal| message.misread(refusal))?;
    // What an upstream answers goes on to resolve → forward → relay; the rest is answered from the view.
    let parts = mcp::Parts { app, endpoint, principal: &principal, headers: &head.headers, body: &body };
    mcp::answer(parts, sight, &message, held, record).await.map_err(|refusal| message.misread(refusal))
}
