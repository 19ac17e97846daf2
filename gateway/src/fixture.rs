//! Registries for unit tests, made the way the program makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollcall_shared::config::{Config, Environment};
use rollcall_shared::document::{Problems, from_json};
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::mcp::era::Era;
use rollcall_shared::model::{Catalog, Policy, Settings};
use rollcall_shared::tenants::{Owned, Owner, TenantDocs};
use serde_json::value::RawValue;

use crate::registry::naming::{Newcomer, allot};
use crate::registry::{Listed, Registry, Segments};
use crate::view::{Sight, Views};

/// A tenant under construction.
#[derive(Default)]
pub(crate) struct Fixture {
    pub(crate) docs: TenantDocs,
    pub(crate) segments: Segments,
    pub(crate) views: Views,
    catalogs: BTreeMap<ServerId, Listed>,
}

pub(crate) fn policy(json: &str) -> Policy {
    let problems = Problems::new();
    let policy = from_json(json, &problems).and_then(|node| Policy::read(&node, "", &problems));
    let problems = problems.into_list();
    assert!(problems.is_empty(), "{json}: {problems:?}");
    policy.expect("a policy")
}

impl Fixture {
    /// A tenant as the configuration file writes it; servers get an alias each, and no catalog yet.
    pub(crate) fn new(tenant_yaml: &str) -> Self {
        let config = Config::read(&format!("tenants: {{acme: {tenant_yaml}}}"), &Environment::default())
            .unwrap_or_else(|problems| panic!("{problems:?}"));
        let file = config.tenants.into_values().next().expect("a tenant");
        let mut fixture = Self::default();
        fixture.docs.settings = Arc::new(file.settings);
        fixture.docs.tools = file
            .tools
            .into_iter()
            .map(|t| (t.name.clone(), Owned { owner: Owner::File, value: Arc::new(t) }))
            .collect();
        fixture.docs.bundles = file
            .bundles
            .into_iter()
            .map(|(name, b)| (name, Owned { owner: Owner::File, value: Arc::new(b) }))
            .collect();
        fixture.docs.servers = file
            .servers
            .into_iter()
            .map(|s| (s.id.clone(), Owned { owner: Owner::File, value: Arc::new(s) }))
            .collect();
        fixture.allot();
        fixture
    }

    pub(crate) fn settings(mut self, settings: Settings) -> Self {
        self.docs.settings = Arc::new(settings);
        self
    }

    fn allot(&mut self) {
        let change: Vec<Newcomer<'_>> = self
            .docs
            .servers
            .values()
            .map(|s| Newcomer {
                id: &s.value.id,
                name: s.value.name.as_deref().unwrap_or(s.value.id.as_str()),
                explicit: s.value.alias.as_ref(),
            })
            .collect();
        self.docs.allotment = Arc::new(allot(&self.docs.allotment, &change).expect("distinct aliases"));
    }

    /// Gives a server a catalog: each tool as JSON, or just its name.
    pub(crate) fn catalog(self, server: &str, tools: &[&str]) -> Self {
        let named = |t: &&str| if t.starts_with('{') { (*t).to_owned() } else { format!(r#"{{"name":"{t}"}}"#) };
        self.listing(server, Catalog { tools: raw_values(tools.iter().map(named)), ..Catalog::default() })
    }

    /// Gives a server a catalog of all kinds.
    pub(crate) fn listing(mut self, server: &str, catalog: Catalog) -> Self {
        let id = ServerId::parse(server).expect("an id");
        let digest = catalog.pack().expect("packed").0;
        let alias = &self.docs.allotment.servers.get(&id).expect("an alias").alias;
        let listing = self.segments.listing(alias, self.docs.settings.name_budget, &id, &catalog, &digest);
        self.catalogs.insert(id, Listed { listing, era: Era::Modern });
        self
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        let tenant = TenantId::parse("acme").expect("an id");
        let docs = Arc::new(self.docs.clone());
        let share = |segments| self.views.roster(segments);
        Arc::new(Registry::new(tenant, docs, &self.catalogs, &self.segments, share))
    }

    pub(crate) fn sight(&self, policy: Policy) -> Sight {
        self.sight_with(policy, &[])
    }

    pub(crate) fn sight_with(&self, policy: Policy, scopes: &[&str]) -> Sight {
        let scopes: BTreeSet<String> = scopes.iter().map(|s| (*s).to_owned()).collect();
        self.views.sight(self.registry(), Arc::new(policy), &scopes)
    }
}

pub(crate) fn raw_values(texts: impl Iterator<Item = String>) -> Vec<Box<RawValue>> {
    texts.map(|text| RawValue::from_string(text).expect("JSON")).collect()
}

/// The names of a view, bridge tools apart.
pub(crate) fn names(sight: &Sight) -> Vec<String> {
    sight.view.tools().filter_map(|p| sight.registry.definition(p)).map(|d| d.visible.to_string()).collect()
}
