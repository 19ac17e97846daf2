//! Issuers with their keys: fetched once for many waiting requests, at a bounded rate, last good ones kept.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rollcall_shared::config::{Issuer, KeySource};
use rollcall_shared::limits;
use rollcall_shared::task::Tasks;
use tokio::sync::{Mutex, Semaphore, oneshot};
use tokio::time::Instant;

use super::keys::KeySet;
use super::principal::Principal;
use super::verify;
use crate::refusal::Refusal;
use rollcall_shared::telemetry::{Metrics, label};

/// Keys of one issuer.
pub(super) struct IssuerState {
    pub(super) config: Issuer,
    keys: ArcSwapOption<Loaded>,
    /// Raised with each new key set: what was verified with an older one is verified again.
    generation: AtomicU64,
    /// When a fetch was last begun. The lock makes many waiting requests one fetch, which goes on when they leave.
    fetch: Mutex<Option<Instant>>,
    /// Who may wait for a fetch.
    waiters: Arc<Semaphore>,
    /// Key ids that no fetch found, so that made-up ones cost nothing.
    absent: moka::sync::Cache<String, ()>,
}

pub(super) struct Loaded {
    pub(super) set: KeySet,
    at: Instant,
}

/// A token that was verified, with the generation of keys that did it.
#[derive(Clone)]
struct Verified {
    principal: Arc<Principal>,
    generation: u64,
    issuer: Arc<IssuerState>,
}

/// All issuers, and the tokens that were verified lately.
pub struct Issuers {
    by_name: HashMap<String, Arc<IssuerState>>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    tokens: moka::sync::Cache<blake3::Hash, Verified, foldhash::fast::RandomState>,
    metrics: Arc<Metrics>,
    tasks: Tasks,
}

/// Keys older than this are fetched anew in the background; a token stays remembered until its own end at the most.
struct UntilExpiry;

impl moka::Expiry<blake3::Hash, Verified> for UntilExpiry {
    fn expire_after_create(
        &self,
        _: &blake3::Hash,
        verified: &Verified,
        _: std::time::Instant,
    ) -> Option<std::time::Duration> {
        let left = verified.principal.expires_at.saturating_sub(rollcall_shared::clock::unix_s());
        Some(std::time::Duration::from_secs(left).min(limits::TOKEN_CACHED_FOR))
    }
}

impl Issuers {
    pub fn new(configs: Vec<Issuer>, metrics: Arc<Metrics>, tasks: Tasks) -> std::io::Result<Self> {
        let connector = HttpsConnectorBuilder::new().with_native_roots()?.https_or_http().enable_all_versions().build();
        let by_name = configs
            .into_iter()
            .map(|config| {
                let state = IssuerState {
                    keys: ArcSwapOption::empty(),
                    generation: AtomicU64::new(0),
                    fetch: Mutex::new(None),
                    waiters: Arc::new(Semaphore::new(limits::JWKS_WAITERS)),
                    absent: moka::sync::Cache::builder()
                        .max_capacity(1_000)
                        .time_to_live(limits::JWKS_REFETCH_PAUSE)
                        .build(),
                    config,
                };
                (state.config.issuer.to_string(), Arc::new(state))
            })
            .collect();
        let tokens = moka::sync::Cache::builder()
            .max_capacity(limits::TOKENS_CACHED)
            .expire_after(UntilExpiry)
            .build_with_hasher(foldhash::fast::RandomState::default());
        Ok(Self { by_name, client: Client::builder(TokioExecutor::new()).build(connector), tokens, metrics, tasks })
    }

    /// The issuers that may speak for a tenant, or all.
    pub fn names(&self, tenant: Option<&rollcall_shared::ids::TenantId>) -> Vec<String> {
        let mut names: Vec<String> = self
            .by_name
            .values()
            .filter(|state| tenant.is_none_or(|tenant| state.config.tenants.covers(tenant)))
            .map(|state| state.config.issuer.to_string())
            .collect();
        names.sort();
        names
    }

    /// Verifies a token, or remembers that it did. Cheap checks come before the signature.
    pub async fn authenticate(&self, token: &str) -> Result<Arc<Principal>, Refusal> {
        if token.len() > limits::TOKEN_BYTES {
            return Err(self.refused(Refusal::Unauthenticated { presented: true, why: "the token is too large" }));
        }
        let key = blake3::hash(token.as_bytes());
        if let Some(verified) = self.tokens.get(&key)
            && verified.generation == verified.issuer.generation.load(Ordering::Acquire)
            && verified.principal.expires_at + limits::TOKEN_LEEWAY_S > rollcall_shared::clock::unix_s()
        {
            self.metrics.tokens.add(1, &[label("outcome", "cached")]);
            return Ok(verified.principal);
        }
        let (principal, issuer, generation) = self.verify(token).await.map_err(|refusal| self.refused(refusal))?;
        let principal = Arc::new(principal);
        self.tokens.insert(key, Verified { principal: principal.clone(), generation, issuer });
        self.metrics.tokens.add(1, &[label("outcome", "verified")]);
        Ok(principal)
    }

    fn refused(&self, refusal: Refusal) -> Refusal {
        self.metrics.tokens.add(1, &[label("outcome", "refused")]);
        refusal
    }

    async fn verify(&self, token: &str) -> Result<(Principal, Arc<IssuerState>, u64), Refusal> {
        let unsigned = verify::peek(token)?;
        let issuer = self
            .by_name
            .get(&unsigned.issuer)
            .ok_or(Refusal::Unauthenticated { presented: true, why: "the token's issuer is not trusted here" })?;
        let kid = unsigned.kid.as_deref();
        let generation = issuer.generation.load(Ordering::Acquire);
        let mut loaded = self.keys(issuer).await.ok_or(Refusal::KeysUnavailable)?;
        if loaded.set.find(kid).is_none() {
            loaded = self.keys_with(issuer, kid).await.unwrap_or(loaded);
        }
        let key = loaded
            .set
            .find(kid)
            .ok_or(Refusal::Unauthenticated { presented: true, why: "the token's key is not known" })?;
        let principal = verify::verify(token, key, &issuer.config)?;
        Ok((principal, issuer.clone(), generation))
    }

    /// The keys at hand, fetched if there are none; aged ones are fetched anew in the background.
    async fn keys(&self, issuer: &Arc<IssuerState>) -> Option<Arc<Loaded>> {
        let Some(loaded) = issuer.keys.load_full() else { return self.fetch(issuer).await };
        let age = loaded.at.elapsed();
        if age > limits::JWKS_KEPT_FOR {
            return self.fetch(issuer).await;
        }
        if age > limits::JWKS_MAX_AGE
            && !matches!(issuer.config.keys, KeySource::Hs256(_))
            && issuer.fetch.try_lock().is_ok_and(|last| last.is_none_or(|l| l.elapsed() >= limits::JWKS_REFETCH_PAUSE))
        {
            let (client, issuer) = (self.client.clone(), issuer.clone());
            self.tasks.spawn_until_stop("keys", async move {
                fetch_once(&client, &issuer).await;
            });
        }
        Some(loaded)
    }

    /// The keys after a fetch for an unknown key id. Made-up ids cause one fetch in ten seconds at the most.
    async fn keys_with(&self, issuer: &Arc<IssuerState>, kid: Option<&str>) -> Option<Arc<Loaded>> {
        let name = kid.unwrap_or_default().to_owned();
        if issuer.absent.contains_key(&name) {
            return None;
        }
        let loaded = self.fetch(issuer).await?;
        if loaded.set.find(kid).is_none() {
            issuer.absent.insert(name, ());
        }
        Some(loaded)
    }

    async fn fetch(&self, issuer: &Arc<IssuerState>) -> Option<Arc<Loaded>> {
        let waiting = issuer.waiters.clone().try_acquire_owned().ok()?;
        let (sender, fetched) = oneshot::channel();
        let (client, issuer) = (self.client.clone(), issuer.clone());
        // A task of its own: a client that asks and hangs up must not abort the fetch for the others.
        self.tasks.spawn_until_stop("keys", async move {
            let _waiting = waiting;
            sender.send(fetch_once(&client, &issuer).await).ok();
        });
        fetched.await.ok().flatten()
    }
}

/// Fetches the keys unless that was just tried; gives the newest that are at hand and not too old.
async fn fetch_once(
    client: &Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    issuer: &IssuerState,
) -> Option<Arc<Loaded>> {
    let mut last = issuer.fetch.lock().await;
    if last.is_none_or(|last| last.elapsed() >= limits::JWKS_REFETCH_PAUSE) {
        *last = Some(Instant::now());
        match read_keys(client, &issuer.config).await {
            Ok(set) => {
                issuer.keys.store(Some(Arc::new(Loaded { set, at: Instant::now() })));
                issuer.generation.fetch_add(1, Ordering::AcqRel);
            }
            Err(cause) => tracing::error!(issuer = %issuer.config.issuer, cause, "the issuer's keys cannot be had"),
        }
    }
    issuer.keys.load_full().filter(|loaded| loaded.at.elapsed() <= limits::JWKS_KEPT_FOR)
}

async fn read_keys(
    client: &Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    issuer: &Issuer,
) -> Result<KeySet, String> {
    match &issuer.keys {
        KeySource::Hs256(secret) => KeySet::shared_secret(secret.expose(), issuer),
        KeySource::JwksFile(path) => KeySet::read(&read_file(path).await?, issuer),
        KeySource::JwksUrl(url) => {
            let request = Request::get(url.as_str())
                .header(http::header::ACCEPT, "application/jwk-set+json, application/json")
                .body(Full::default())
                .map_err(|e| e.to_string())?;
            let fetching = async {
                let response = client.request(request).await.map_err(|e| e.to_string())?;
                if !response.status().is_success() {
                    return Err(format!("{url} answers {}", response.status()));
                }
                let body = Limited::new(response.into_body(), limits::JWKS_BYTES).collect().await;
                Ok(body.map_err(|e| e.to_string())?.to_bytes())
            };
            let body = tokio::time::timeout(limits::JWKS_TIMEOUT, fetching)
                .await
                .map_err(|_| format!("{url} does not answer in time"))??;
            KeySet::read(&body, issuer)
        }
    }
}

async fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let problem = |e: std::io::Error| format!("{}: {e}", path.display());
    let size = tokio::fs::metadata(path).await.map_err(problem)?.len();
    if size > limits::JWKS_BYTES as u64 {
        return Err(format!("{} is larger than {} bytes", path.display(), limits::JWKS_BYTES));
    }
    tokio::fs::read(path).await.map_err(problem)
}
