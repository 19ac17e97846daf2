//! One stored document put into a tenant's place for it. What the file owns stays the file's.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{Owned, Owner, TenantDocs, Tenants};
use crate::ids::{BundleName, PlatformName, ServerId, TenantId};
use crate::model::Entry;
use crate::store::{self, Key, Kind};

impl Tenants {
    pub(super) fn of_file(&self, id: &TenantId) -> TenantDocs {
        let Some(file) = self.file.get(id) else { return TenantDocs::default() };
        fn owned<T: Clone>(value: &T) -> Owned<T> {
            Owned { owner: Owner::File, value: Arc::new(value.clone()) }
        }
        TenantDocs {
            settings: Arc::new(file.settings.clone()),
            settings_owner: Some(Owner::File),
            servers: file.servers.iter().map(|s| (s.id.clone(), owned(s))).collect(),
            tools: file.tools.iter().map(|t| (t.name.clone(), owned(t))).collect(),
            bundles: file.bundles.iter().map(|(name, b)| (name.clone(), owned(b))).collect(),
            broken: file.broken.clone(),
            ..TenantDocs::default()
        }
    }

    /// Puts one stored document, or its absence, into `docs`. What the file owns stays the file's.
    pub(super) fn apply(&self, docs: &mut TenantDocs, key: &Key, body: Option<&[u8]>) {
        match key.kind {
            Kind::Settings => {
                if docs.settings_owner != Some(Owner::File) {
                    docs.settings_owner = body.map(|_| Owner::Store);
                    match body {
                        // A tenant whose settings are unreadable keeps the last good ones, else those that allow nothing.
                        Some(body) => {
                            if let Some(settings) = self.read(key, body) {
                                docs.settings = Arc::new(settings);
                            }
                        }
                        None => docs.settings = Arc::default(),
                    }
                }
            }
            Kind::Server => {
                if let Ok(id) = ServerId::parse(&key.id) {
                    self.apply_owned(&mut docs.servers, id, key, body);
                }
            }
            Kind::Tool => {
                if let Ok(name) = PlatformName::parse(&key.id) {
                    self.apply_owned(&mut docs.tools, name, key, body);
                }
            }
            Kind::Bundle => {
                if let Ok(name) = BundleName::parse(&key.id) {
                    self.apply_owned(&mut docs.bundles, name, key, body);
                }
            }
            Kind::Aliases => match body {
                Some(body) => {
                    if let Some(allotment) = self.read(key, body) {
                        docs.allotment = Arc::new(allotment);
                    }
                }
                None => docs.allotment = Arc::default(),
            },
            Kind::Catalog => {
                if let Ok(id) = ServerId::parse(&key.id) {
                    match body {
                        Some(body) => {
                            if let Some(pointer) = self.read(key, body) {
                                docs.catalogs.insert(id, pointer);
                            }
                        }
                        None => {
                            docs.catalogs.remove(&id);
                        }
                    }
                }
            }
            Kind::Revoked if key.id.is_empty() => docs.revoked = body.is_some(),
            Kind::Revoked => match (body, Entry::parse(&key.id)) {
                (Some(_), Ok(entry)) => {
                    docs.revoked_entries.insert(key.id.clone(), entry);
                }
                // A revocation that nobody understands might be of anything.
                (Some(_), Err(_)) => docs.revoked = true,
                (None, _) => {
                    docs.revoked_entries.remove(&key.id);
                }
            },
            Kind::Policy | Kind::SessionRevoked | Kind::McpSession | Kind::Instructions => {}
        }
    }

    fn apply_owned<K: Ord, T: DeserializeOwned>(
        &self,
        map: &mut BTreeMap<K, Owned<T>>,
        id: K,
        key: &Key,
        body: Option<&[u8]>,
    ) {
        if map.get(&id).is_some_and(|owned| owned.owner == Owner::File) {
            return;
        }
        match body {
            Some(body) => {
                if let Some(value) = self.read(key, body) {
                    map.insert(id, Owned { owner: Owner::Store, value: Arc::new(value) });
                }
            }
            None => {
                map.remove(&id);
            }
        }
    }

    pub(super) fn read<T: DeserializeOwned>(&self, key: &Key, body: &[u8]) -> Option<T> {
        store::decode(body)
            .inspect_err(|error| {
                self.metrics.broken_documents.add(1, &[]);
                tracing::error!(%key, %error, "a stored document cannot be read; its last good form is kept, if any");
            })
            .ok()
    }
}
