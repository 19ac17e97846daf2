//! A budget of connections that are being opened at once: after an outage everybody comes back at the same moment, and a
//! tenant whose servers take long to refuse must not hold up another's.

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// See the module.
pub(super) struct Openings {
    all: Arc<Semaphore>,
    tenants: DashMap<TenantId, Weak<Semaphore>>,
}

/// The right to open one connection.
pub(super) struct Turn {
    _of_tenant: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl Default for Openings {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(limits::OPENINGS)), tenants: DashMap::new() }
    }
}

impl Openings {
    /// The tenant's own turn comes first, so that who waits for it takes no one else's.
    pub(super) async fn turn(&self, tenant: &TenantId) -> Turn {
        let of_tenant = self.of(tenant).acquire_owned().await.ok();
        Turn { _of_tenant: of_tenant, _of_all: self.all.clone().acquire_owned().await.ok() }
    }

    fn of(&self, tenant: &TenantId) -> Arc<Semaphore> {
        let mut entry = self.tenants.entry(tenant.clone()).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let fresh = Arc::new(Semaphore::new(limits::OPENINGS_PER_TENANT));
            *entry = Arc::downgrade(&fresh);
            fresh
        })
    }

    /// Tenants that open nothing are forgotten.
    pub(super) fn sweep(&self) {
        self.tenants.retain(|_, of_tenant| of_tenant.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_tenant_has_its_share_and_what_is_given_back_is_had_again() {
        let openings = Openings::default();
        let tenant = |name: &str| TenantId::parse(name).unwrap_or_else(|e| panic!("{e:?}"));
        let in_time = async |name: &str| {
            let tenant = tenant(name);
            tokio::time::timeout(Duration::from_millis(20), openings.turn(&tenant)).await.ok()
        };
        let mut held = Vec::new();
        for _ in 0..limits::OPENINGS_PER_TENANT {
            held.push(in_time("acme").await);
        }
        assert!(held.iter().all(Option::is_some) && in_time("acme").await.is_none());
        openings.sweep();
        assert!(in_time("acme").await.is_none(), "who has turns is not forgotten");
        assert!(in_time("calm").await.is_some());
        held.pop();
        assert!(in_time("acme").await.is_some());
        held.clear();
        openings.sweep();
        assert!(openings.tenants.is_empty());
        assert_eq!(openings.all.available_permits(), limits::OPENINGS);
        for n in 0..limits::OPENINGS {
            held.push(in_time(&format!("t{n}")).await);
        }
        assert!(held.iter().all(Option::is_some) && in_time("late").await.is_none(), "the worker's own bound");
    }
}
