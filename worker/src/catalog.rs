//! Catalogs: whole listings, published only when they are whole and only when they changed.
//!
//! A listing follows every page, within bounds. The last good catalog stays when the upstream fails. Listings of one
//! server never overlap, and one that keeps announcing changes is listed at most once a second.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use dashmap::DashMap;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared as SharedFuture};
use rollcall_shared::clock::unix_s;
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::{param_headers, raw};
use rollcall_shared::model::{Catalog, CatalogPointer, Server};
use rollcall_shared::store::{self, Expect, Key, Kind, Write};
use rollcall_shared::telemetry::label;
use rollcall_shared::tenants::Owned;
use rollcall_shared::wire::{Failure, Final, Reason};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::call::finish_report;
use crate::upstream::pool::Wanted;
use crate::upstream::{Broken, Connection};
use crate::worker::Shared;

type Listing = SharedFuture<BoxFuture<'static, Result<(), Failure>>>;

#[derive(Default)]
struct Entry {
    running: Option<Listing>,
    /// A change was announced while a listing ran: list once more.
    again: bool,
    last: Option<Instant>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Catalogs {
    entries: DashMap<(TenantId, ServerId), Arc<Mutex<Entry>>>,
}

fn lock(entry: &Mutex<Entry>) -> std::sync::MutexGuard<'_, Entry> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Catalogs {
    /// Lists a server now, or joins the listing that runs.
    pub(crate) async fn refresh(
        &self,
        shared: &Arc<Shared>,
        tenant: &TenantId,
        server: &ServerId,
    ) -> Result<(), Failure> {
        self.start(shared, tenant, server).await
    }

    /// The server said that its tools changed.
    pub(crate) fn changed(&self, shared: &Arc<Shared>, tenant: &TenantId, server: &ServerId) {
        let entry = self.entry(tenant, server);
        let mut state = lock(&entry);
        if state.running.is_some() {
            state.again = true;
            return;
        }
        drop(state);
        drop(self.start(shared, tenant, server));
    }

    /// The server was used: list it again where its catalog has aged.
    pub(crate) fn used(&self, shared: &Arc<Shared>, tenant: &TenantId, server: &Owned<Server>) {
        let entry = self.entry(tenant, &server.value.id);
        let aged = lock(&entry).last.is_none_or(|last| last.elapsed() > server.value.catalog_age());
        if aged {
            drop(self.start(shared, tenant, &server.value.id));
        }
    }

    fn entry(&self, tenant: &TenantId, server: &ServerId) -> Arc<Mutex<Entry>> {
        self.entries.entry((tenant.clone(), server.clone())).or_default().clone()
    }

    /// Starts a listing as a task of its own, or joins the one that runs.
    fn start(&self, shared: &Arc<Shared>, tenant: &TenantId, server: &ServerId) -> Listing {
        let entry = self.entry(tenant, server);
        let mut state = lock(&entry);
        if let Some(running) = &state.running {
            return running.clone();
        }
        let pause =
            state.last.map_or(std::time::Duration::ZERO, |last| limits::CATALOG_PAUSE.saturating_sub(last.elapsed()));
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let listing: Listing = async move {
            receiver.await.unwrap_or_else(|_| Err(Failure::unsent(Reason::NoWorker, "the worker is shutting down")))
        }
        .boxed()
        .shared();
        state.running = Some(listing.clone());
        drop(state);
        let (shared, tenant, server) = (shared.clone(), tenant.clone(), server.clone());
        let tasks = shared.tasks.clone();
        tasks.spawn_until_stop("listing", async move {
            tokio::time::sleep(pause).await;
            let mut unfinished = Unfinished(Some(entry.clone()));
            let mut result = run(&shared, &tenant, &server).await;
            if matches!(&result, Err(f) if f.reason == Reason::NotConfigured) {
                // Whoever joined this listing after the change waits for the server as it is now.
                result = run(&shared, &tenant, &server).await;
            }
            let again = {
                let mut state = lock(&entry);
                unfinished.0 = None;
                state.running = None;
                state.last = Some(Instant::now());
                std::mem::take(&mut state.again)
            };
            sender.send(result).ok();
            if again {
                drop(shared.catalogs.start(&shared, &tenant, &server));
            }
        });
        listing
    }
}

/// A listing that panics must not be joined for ever.
struct Unfinished(Option<Arc<Mutex<Entry>>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(entry) = self.0.take() {
            lock(&entry).running = None;
        }
    }
}

async fn run(shared: &Arc<Shared>, tenant: &TenantId, server: &ServerId) -> Result<(), Failure> {
    let listed = tokio::time::timeout(limits::LISTING_TIMEOUT, list(shared, tenant, server))
        .await
        .unwrap_or_else(|_| Err(Failure::unsent(Reason::TimedOut, "the listing took too long")));
    let outcome = match &listed {
        Ok(true) => "changed",
        Ok(false) => "unchanged",
        // Whoever holds it lists it.
        Err(failure) if failure.reason == Reason::Elsewhere => "elsewhere",
        Err(failure) => {
            finish_report(shared, server.as_str(), failure);
            "failed"
        }
    };
    shared.metrics.listings.add(1, &[label("outcome", outcome)]);
    listed.map(|_| ())
}

/// Lists and publishes. Says whether anything changed.
async fn list(shared: &Arc<Shared>, tenant: &TenantId, id: &ServerId) -> Result<bool, Failure> {
    let store_down = |e: store::StoreError| Failure::unsent(Reason::NoWorker, e.to_string());
    let gone = || Failure::unsent(Reason::NotConfigured, "the server is not configured any more");
    let at_hand = shared.tenants.get(tenant).await.map_err(store_down)?.ok_or_else(gone)?;
    let docs = at_hand.docs();
    let server = docs.servers.get(id).ok_or_else(gone)?;
    let mut attempts = 0;
    let (catalog, era) = loop {
        attempts += 1;
        let borrowed = shared.pool.borrow(shared, Wanted::of(tenant, server, "")).await?;
        match everything(borrowed.connection()).await {
            Ok(catalog) => break (catalog, borrowed.connection().era()),
            Err(Broken::Failed(failure)) => return Err(failure),
            Err(Broken::Unsent(failure)) if attempts > 1 => return Err(failure),
            Err(Broken::LostSession) if attempts > 1 => {
                return Err(Failure::unsent(Reason::ConnectionLost, "the session was lost twice"));
            }
            Err(Broken::Unsent(_) | Broken::LostSession) => borrowed.discard(shared),
        }
    };
    let (digest, packed) = catalog.pack().map_err(|e| Failure::unsent(Reason::BadAnswer, e.to_string()))?;
    let of = server.value.fingerprint();
    let pointer = CatalogPointer { digest: digest.to_string(), era, listed_at: unix_s(), of };
    // The server may have been moved or removed while it was listed: its tools must not stand for another one's.
    let now = shared.tenants.get(tenant).await.map_err(store_down)?.map(|tenant| tenant.docs());
    let now = now.ok_or_else(gone)?;
    if now.servers.get(id).is_none_or(|s| s.value.fingerprint() != pointer.of) {
        return Err(Failure::unsent(Reason::NotConfigured, "the server was changed while it was listed"));
    }
    let documents = shared.tenants.documents();
    let known = now.catalogs.get(id);
    let unchanged =
        known.is_some_and(|old| old.digest == pointer.digest && old.era == pointer.era && old.of == pointer.of);
    // A content that the store lost is put there again.
    if unchanged && documents.keep_blob(&digest).await.map_err(store_down)? {
        return Ok(false);
    }
    documents.put_blob(&digest, packed).await.map_err(store_down)?;
    let key = Key::new(tenant, Kind::Catalog, id.as_str());
    let version = documents
        .write(tenant, vec![Write::put(key, Expect::Any, store::encode(&pointer))])
        .await
        .map_err(store_down)?;
    shared.tenants.applied(tenant, version).await;
    tracing::info!(server = %id, tools = catalog.tools.len(), "a catalog was published");
    Ok(true)
}

/// All that the server lists, and what it says of itself.
async fn everything(connection: &Connection) -> Result<Catalog, Broken> {
    let peer = connection.peer();
    let mut bytes = 0;
    let mut tools = if peer.offers("tools") {
        all(connection, "tools/list", "tools", &mut bytes).await?.map_err(|error| Broken::Failed(bad_answer(error)))?
    } else {
        Vec::new()
    };
    if peer.era == Era::Modern && connection.transport() == "http" {
        tools.retain(|tool| has_valid_headers(tool));
    }
    let mut optional = async |capability: &str, method: &'static str, member: &str| {
        if !peer.offers(capability) {
            return Ok(Vec::new());
        }
        Ok(all(connection, method, member, &mut bytes).await?.unwrap_or_else(|error| {
            // Many servers announce more than they offer; their tools must not suffer for it.
            tracing::warn!(method, error, "a server does not list what it announces");
            Vec::new()
        }))
    };
    let prompts = optional("prompts", "prompts/list", "prompts").await?;
    let resources = optional("resources", "resources/list", "resources").await?;
    let templates = optional("resources", "resources/templates/list", "resourceTemplates").await?;
    Ok(Catalog { about: peer.about.clone(), tools, prompts, resources, templates })
}

fn bad_answer(detail: String) -> Failure {
    Failure::unsent(Reason::BadAnswer, detail)
}

/// A client that speaks HTTP must leave out a tool whose headers it cannot compute.
fn has_valid_headers(tool: &RawValue) -> bool {
    let members = raw::members(tool.get()).unwrap_or_default();
    let get = |key: &str| members.iter().find(|(k, _)| k == key).map(|(_, value)| *value);
    match get("inputSchema").map(|schema| param_headers::declared(schema.get())) {
        Some(Err(why)) => {
            let name = get("name").and_then(raw::string).unwrap_or_default();
            tracing::warn!(name, why, "a tool is left out: its header annotations are not valid");
            false
        }
        Some(Ok(_)) | None => true,
    }
}

/// All pages, or a failure: a part of a listing is no listing. The inner error is one that the server answered.
async fn all(
    connection: &Connection,
    method: &'static str,
    member: &str,
    bytes: &mut usize,
) -> Result<Result<Vec<Box<RawValue>>, String>, Broken> {
    let bad = |detail: String| Broken::Failed(bad_answer(format!("{method}: {detail}")));
    let mut elements = Vec::new();
    let mut seen = BTreeSet::new();
    let mut cursor: Option<String> = None;
    for _ in 0..limits::LISTING_PAGES {
        let members = cursor.as_ref().map_or_else(String::new, |c| format!(r#""cursor":{}"#, raw::quote(c)));
        let result = match connection.ask_ourselves(method, &members).await? {
            Final::Result(result) => result,
            Final::Error(error) => return Ok(Err(format!("{method}: {}", String::from_utf8_lossy(&error)))),
            Final::Parked { .. } => return Err(bad("it waits for input".to_owned())),
            Final::Failed(failure) => return Err(Broken::Failed(failure)),
        };
        *bytes += result.len();
        if *bytes > limits::LISTING_BYTES {
            return Err(Broken::Failed(Failure::unsent(Reason::TooLarge, "the listing")));
        }
        let page = read_page(&result, member).map_err(&bad)?;
        elements.extend(page.elements);
        if elements.len() > limits::LISTING_TOOLS {
            return Err(Broken::Failed(Failure::unsent(Reason::TooLarge, "the listing")));
        }
        // An absent cursor is the end; an empty one is a cursor like any other.
        match page.next {
            None => return Ok(Ok(elements)),
            Some(next) if !seen.insert(next.clone()) => return Err(bad(format!("the cursor {next:?} came twice"))),
            Some(next) => cursor = Some(next),
        }
    }
    Err(bad(format!("more than {} pages", limits::LISTING_PAGES)))
}

struct Page {
    elements: Vec<Box<RawValue>>,
    next: Option<String>,
}

fn read_page(result: &[u8], member: &str) -> Result<Page, String> {
    let text = std::str::from_utf8(result).map_err(|e| e.to_string())?;
    let members = raw::members(text).map_err(|e| e.to_string())?;
    let get = |key: &str| members.iter().find(|(k, _)| k == key).map(|(_, value)| value.get());
    let listed = get(member).ok_or_else(|| format!("no `{member}`"))?;
    let elements = raw::elements(listed).map_err(|e| e.to_string())?;
    let next = match get("nextCursor") {
        None | Some("null") => None,
        Some(value) => Some(raw::string_of(value).ok_or("`nextCursor` is no text")?),
    };
    Ok(Page { elements: elements.into_iter().map(ToOwned::to_owned).collect(), next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_whole_or_refused() {
        let page =
            read_page(br#"{"tools":[{"name":"a","n":9007199254740993}],"nextCursor":""}"#, "tools").expect("a page");
        assert_eq!(page.next.as_deref(), Some(""), "an empty cursor is a cursor");
        assert_eq!(page.elements[0].get(), r#"{"name":"a","n":9007199254740993}"#);
        assert!(read_page(br#"{"tools":[]}"#, "tools").is_ok_and(|p| p.next.is_none()));
        for bad in ["{}", r#"{"tools":{}}"#, r#"{"tools":[],"nextCursor":3}"#, "[]", "<html>"] {
            assert!(read_page(bad.as_bytes(), "tools").is_err(), "{bad}");
        }
    }
}
