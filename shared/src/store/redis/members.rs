//! Leases, claims, locks and counters in the shared store.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::link::unavailable;
use super::{MEMBERS_CHANNEL, RedisStore, key};
use crate::digest::unguessable;
use crate::ids::TenantId;
use crate::limits;
use crate::store::membership::{Claim, Counters, Member, Members, Membership};
use crate::store::{StoreError, partition};

const MEMBERS: &str = "rc:{m}:members";
const LEASES: &str = "rc:{m}:leases";
const VERSION: &str = "rc:{m}:ver";
const GRACE: &str = "rc:{m}:grace";

fn of_tenant(tenant: &TenantId, what: &str, name: &str) -> String {
    key(partition(tenant), &format!("{what}:{tenant}:{name}"))
}

impl RedisStore {
    /// Renews a lease, if one is given, and lets go of those that ended.
    async fn renew(&self, member: Option<&Member>, lease: Duration, renews: bool) -> Result<bool, StoreError> {
        let mut script = self.scripts.beat.prepare_invoke();
        script.key(MEMBERS).key(LEASES).key(VERSION).key(GRACE);
        let text = member.map(|member| serde_json::to_string(member).unwrap_or_default()).unwrap_or_default();
        script.arg(member.map(|member| member.incarnation.to_string()).unwrap_or_default()).arg(text);
        script.arg(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)).arg(MEMBERS_CHANNEL).arg(self.publishes());
        script.arg(if renews { "1" } else { "0" });
        let mut connection = self.link.reads()?;
        script.invoke_async(&mut connection).await.map_err(|e| unavailable(&e))
    }
}

impl Membership for RedisStore {
    fn beat<'a>(
        &'a self,
        member: &'a Member,
        lease: Duration,
        renews: bool,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.renew(Some(member), lease, renews).boxed()
    }

    fn leave(&self, incarnation: u64) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let mut script = self.scripts.leave.prepare_invoke();
            script.key(MEMBERS).key(LEASES).key(VERSION);
            script.arg(incarnation).arg(MEMBERS_CHANNEL).arg(self.publishes());
            let mut connection = self.link.reads()?;
            script.invoke_async(&mut connection).await.map_err(|e| unavailable(&e))
        }
        .boxed()
    }

    fn members(&self) -> BoxFuture<'_, Result<Members, StoreError>> {
        async move {
            // A worker that died is let go of by whoever looks first.
            self.renew(None, limits::WORKER_LEASE, false).await?;
            let mut connection = self.link.reads()?;
            let found: HashMap<String, String> =
                redis::cmd("HGETALL").arg(MEMBERS).query_async(&mut connection).await.map_err(|e| unavailable(&e))?;
            let read = |(field, text): (String, String)| {
                let incarnation: u64 = field.parse().ok()?;
                let member: Member = serde_json::from_str(&text).ok()?;
                (member.incarnation == incarnation).then_some((incarnation, member))
            };
            Ok(Members(found.into_iter().filter_map(read).collect()))
        }
        .boxed()
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.members.subscribe()
    }

    fn claim<'a>(
        &'a self,
        tenant: &'a TenantId,
        thing: &'a str,
        who: u64,
        gone: Option<u64>,
    ) -> BoxFuture<'a, Result<Claim, StoreError>> {
        async move {
            let mut script = self.scripts.claim.prepare_invoke();
            script.key(of_tenant(tenant, "own", thing)).arg(who);
            script.arg(gone.map(|gone| gone.to_string()).unwrap_or_else(|| "-".to_owned()));
            script.arg(limits::CLAIM_KEPT_FOR.as_secs());
            let mut connection = self.link.reads()?;
            let (epoch, holder, trace): (u64, String, String) =
                script.invoke_async(&mut connection).await.map_err(|e| unavailable(&e))?;
            match holder.parse() {
                Ok(by) if by == who => Ok(Claim::Ours { epoch, trace: Some(trace).filter(|trace| !trace.is_empty()) }),
                Ok(by) => Ok(Claim::Held { by }),
                Err(_) => Err(StoreError::Damaged(format!("the holder of {thing}"))),
            }
        }
        .boxed()
    }

    fn note<'a>(
        &'a self,
        tenant: &'a TenantId,
        thing: &'a str,
        claim: (u64, u64),
        trace: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.alter(of_tenant(tenant, "own", thing), claim, "trace", trace).boxed()
    }

    fn release<'a>(
        &'a self,
        tenant: &'a TenantId,
        thing: &'a str,
        claim: (u64, u64),
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.alter(of_tenant(tenant, "own", thing), claim, "by", "").boxed()
    }

    fn lock<'a>(
        &'a self,
        tenant: &'a TenantId,
        name: &'a str,
        lasts: Duration,
    ) -> BoxFuture<'a, Result<Option<String>, StoreError>> {
        async move {
            let token = unguessable();
            let mut command = redis::cmd("SET");
            command.arg(of_tenant(tenant, "lock", name)).arg(&token).arg("NX").arg("PX");
            command.arg(u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
            let mut connection = self.link.reads()?;
            let taken: Option<String> = command.query_async(&mut connection).await.map_err(|e| unavailable(&e))?;
            Ok(taken.map(|_| token))
        }
        .boxed()
    }

    fn unlock<'a>(
        &'a self,
        tenant: &'a TenantId,
        name: &'a str,
        token: &'a str,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let mut script = self.scripts.unlock.prepare_invoke();
            script.key(of_tenant(tenant, "lock", name)).arg(token);
            let mut connection = self.link.reads()?;
            script.invoke_async(&mut connection).await.map_err(|e| unavailable(&e))
        }
        .boxed()
    }
}

impl RedisStore {
    async fn alter(&self, record: String, claim: (u64, u64), field: &str, value: &str) -> Result<bool, StoreError> {
        let mut script = self.scripts.note.prepare_invoke();
        script.key(record).arg(claim.0).arg(claim.1).arg(field).arg(value);
        let mut connection = self.link.reads()?;
        script.invoke_async(&mut connection).await.map_err(|e| unavailable(&e))
    }
}

impl Counters for RedisStore {
    fn add<'a>(
        &'a self,
        tenant: &'a TenantId,
        name: &'a str,
        amount: u64,
        window: Duration,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        async move {
            let mut script = self.scripts.count.prepare_invoke();
            script.key(of_tenant(tenant, "count", name)).arg(amount).arg(window.as_secs().max(1));
            let mut connection = self.link.reads()?;
            script.invoke_async(&mut connection).await.map_err(|e| unavailable(&e))
        }
        .boxed()
    }
}
