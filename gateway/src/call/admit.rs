//! Admit: is this address ours, is this origin allowed, is there room?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Request, Uri};
use rollcall_shared::config::Limits;
use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use rollcall_shared::telemetry::Metrics;

use crate::app::App;
use crate::refusal::Refusal;

/// What is in flight, in the process and by tenant.
pub(crate) struct Load {
    limits: Limits,
    calls: AtomicUsize,
    bytes: AtomicUsize,
    tenants: DashMap<TenantId, Arc<TenantLoad>>,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
pub(super) struct TenantLoad {
    calls: AtomicUsize,
    bytes: AtomicUsize,
}

/// The right to be worked on; given back when dropped.
pub(crate) struct Admitted {
    load: Arc<Load>,
    tenant: Option<Arc<TenantLoad>>,
    bytes: usize,
}

/// Adds `n` unless that would exceed `limit`.
fn take(counter: &AtomicUsize, n: usize, limit: usize) -> bool {
    let add = |now: usize| now.checked_add(n).filter(|sum| *sum <= limit);
    counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
}

impl Load {
    pub(crate) fn new(limits: Limits, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            limits,
            calls: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            tenants: DashMap::new(),
            metrics,
        })
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }
}

/// Bytes of a result that are held until they are sent; given back when dropped.
pub(crate) struct Held {
    load: Arc<Load>,
    tenant: Option<Arc<TenantLoad>>,
    bytes: usize,
}

impl Load {
    /// Holds bytes that arrived for a tenant, if they fit the process and the tenant's share of it.
    pub(crate) fn hold(self: &Arc<Self>, tenant: &TenantId, bytes: usize) -> Option<Held> {
        let tenant = self.tenants.get(tenant).map(|load| load.clone());
        if !take(&self.bytes, bytes, self.limits.buffered_bytes) {
            return None;
        }
        let share = (self.limits.buffered_bytes / limits::TENANT_SHARE).max(self.limits.body_bytes);
        if tenant.as_ref().is_some_and(|tenant| !take(&tenant.bytes, bytes, share)) {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            return None;
        }
        self.metrics.buffered_bytes.add(i64::try_from(bytes).unwrap_or(i64::MAX), &[]);
        Some(Held { load: self.clone(), tenant, bytes })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.load.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        if let Some(tenant) = &self.tenant {
            tenant.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        }
        self.load.metrics.buffered_bytes.add(-i64::try_from(self.bytes).unwrap_or(i64::MAX), &[]);
    }
}

impl Admitted {
    /// Counts the call on its tenant too.
    pub(super) fn for_tenant(&mut self, tenant: &TenantId) -> Result<(), Refusal> {
        let load = match self.load.tenants.get(tenant) {
            Some(load) => load.clone(),
            None => self.load.tenants.entry(tenant.clone()).or_default().clone(),
        };
        if !take(&load.calls, 1, (self.load.limits.calls_in_flight / limits::TENANT_SHARE).max(1)) {
            return Err(Refusal::Overloaded);
        }
        self.tenant = Some(load);
        Ok(())
    }

    /// Reserves bytes before they are buffered.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), Refusal> {
        let limits = &self.load.limits;
        if !take(&self.load.bytes, bytes, limits.buffered_bytes) {
            return Err(Refusal::Overloaded);
        }
        let share = (limits.buffered_bytes / limits::TENANT_SHARE).max(limits.body_bytes);
        let fits = self.tenant.as_ref().is_none_or(|tenant| take(&tenant.bytes, bytes, share));
        if !fits {
            self.load.bytes.fetch_sub(bytes, Ordering::AcqRel);
            return Err(Refusal::Overloaded);
        }
        self.bytes += bytes;
        self.load.metrics.buffered_bytes.add(i64::try_from(bytes).unwrap_or(i64::MAX), &[]);
        Ok(())
    }
}

impl Admitted {
    /// Gives back what was reserved beyond `bytes`.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let extra = self.bytes.saturating_sub(bytes);
        self.bytes -= extra;
        self.load.bytes.fetch_sub(extra, Ordering::AcqRel);
        if let Some(tenant) = &self.tenant {
            tenant.bytes.fetch_sub(extra, Ordering::AcqRel);
        }
        self.load.metrics.buffered_bytes.add(-i64::try_from(extra).unwrap_or(i64::MAX), &[]);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.load.calls.fetch_sub(1, Ordering::AcqRel);
        self.load.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        if let Some(tenant) = &self.tenant {
            tenant.calls.fetch_sub(1, Ordering::AcqRel);
            tenant.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        }
        self.load.metrics.calls_in_flight.add(-1, &[]);
        self.load.metrics.buffered_bytes.add(-i64::try_from(self.bytes).unwrap_or(i64::MAX), &[]);
    }
}

pub(crate) fn admit<B>(app: &App, request: &Request<B>) -> Result<Admitted, Refusal> {
    check_host(app, request.headers(), request.uri())?;
    check_origin(app, request.headers())?;
    if !take(&app.load.calls, 1, app.load.limits.calls_in_flight) {
        return Err(Refusal::Overloaded);
    }
    app.load.metrics.calls_in_flight.add(1, &[]);
    Ok(Admitted { load: app.load.clone(), tenant: None, bytes: 0 })
}

/// The Host must be one of ours: a name that was rebound to this address must not reach it (DNS rebinding).
pub(crate) fn check_host(app: &App, headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().and_then(|v| v.to_str().ok()).or_else(|| uri.authority().map(http::uri::Authority::as_str));
    if hosts.next().is_some() {
        return Err(Refusal::Host);
    }
    let host = host.ok_or(Refusal::Host)?;
    // As most write it, without a copy.
    let ours = app.hosts.contains(host) || app.hosts.contains(&host.to_ascii_lowercase());
    if ours { Ok(()) } else { Err(Refusal::Host) }
}

/// A browser's Origin must be allowed by name; programs send none (specification 2026-07-28, transports, Security).
pub(crate) fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().map_err(|_| Refusal::Origin)?.to_ascii_lowercase();
    if app.origins.contains(&origin) { Ok(()) } else { Err(Refusal::Origin) }
}
