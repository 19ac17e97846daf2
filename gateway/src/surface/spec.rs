//! `get_api_spec`: OpenAPI 3.1 for exactly the tools that were asked for, from permits alone.
//!
//! The cache of rendered fragments is independent of policy and is consulted only with permits, so no one learns from it
//! what they may not use. Its key is (tenant, server id, real name) or (tenant, platform tool); the value is valid for
//! one definition under one visible name only, and shares its bytes with every tenant that has the same.

use std::sync::{Arc, Weak};

use dashmap::DashMap;
use rollcall_shared::digest::Digest;
use rollcall_shared::ids::{ServerId, TenantId};
use rollcall_shared::limits;
use rollcall_shared::mcp::raw;
use rollcall_shared::telemetry::{Metrics, label};
use serde_json::json;
use url::Url;

use super::own;
use super::schema::relocate;
use crate::view::{Permit, View};

/// One tool's part of an OpenAPI document.
#[derive(Debug)]
pub struct Fragment {
    /// What it was rendered from: definition and visible name.
    source: Digest,
    /// `"/tools/x":{…}`
    path: String,
    /// `"x.input":{…}`, and `"x.output":{…}` where the tool has an output schema.
    schemas: String,
}

type Key = (TenantId, Option<ServerId>, Box<str>);

/// See the module.
pub struct SpecCache {
    fragments: moka::sync::Cache<Key, Arc<Fragment>>,
    by_source: DashMap<Digest, Weak<Fragment>>,
    metrics: Arc<Metrics>,
    lookups: std::sync::atomic::AtomicU64,
}

impl SpecCache {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let fragments = moka::sync::Cache::builder()
            .max_capacity(limits::SPEC_FRAGMENT_BYTES)
            .weigher(|_, fragment: &Arc<Fragment>| {
                u32::try_from(fragment.path.len() + fragment.schemas.len() + 256).unwrap_or(u32::MAX)
            })
            .build();
        Self { fragments, by_source: DashMap::new(), metrics, lookups: std::sync::atomic::AtomicU64::new(0) }
    }

    /// Look-ups so far: a refused request makes none.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The fragment of a permitted tool.
    fn get(&self, permit: Permit<'_>) -> Arc<Fragment> {
        self.lookups.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let definition = permit.definition();
        let source = Digest::of_parts([&definition.digest.as_bytes()[..], definition.visible.as_bytes()]);
        let key: Key =
            (permit.registry().tenant.clone(), permit.server().map(|s| s.id.clone()), definition.real.clone());
        if let Some(fragment) = self.fragments.get(&key).filter(|f| f.source == source) {
            self.metrics.spec_lookups.add(1, &[label("outcome", "hit")]);
            return fragment;
        }
        self.metrics.spec_lookups.add(1, &[label("outcome", "miss")]);
        let fragment = self.share(source, || render(permit, source));
        self.fragments.insert(key, fragment.clone());
        fragment
    }

    fn share(&self, source: Digest, render: impl FnOnce() -> Fragment) -> Arc<Fragment> {
        if let Some(fragment) = self.by_source.get(&source).and_then(|weak| weak.upgrade()) {
            return fragment;
        }
        let fragment = Arc::new(render());
        self.by_source.insert(source, Arc::downgrade(&fragment));
        if self.by_source.len().is_power_of_two() && self.by_source.len() >= 1024 {
            self.by_source.retain(|_, weak| weak.strong_count() > 0);
        }
        fragment
    }

    /// An OpenAPI 3.1 document (https://spec.openapis.org/oas/v3.1.1) of the permitted tools, in the order given; and of
    /// our own ones that the view offers.
    pub fn document(&self, permits: &[Permit<'_>], view: &View, own: &[&str], public_url: &Url) -> String {
        let mut seen = std::collections::BTreeSet::new();
        let mut fragments: Vec<Arc<Fragment>> =
            permits.iter().filter(|p| seen.insert(&*p.definition().visible)).map(|p| self.get(*p)).collect();
        fragments
            .extend(own.iter().filter(|name| seen.insert(**name)).map(|name| Arc::new(fragment_of_own(view, name))));
        let size: usize = fragments.iter().map(|f| f.path.len() + f.schemas.len() + 2).sum();
        let mut out = String::with_capacity(size + 1024);
        out.push_str(r#"{"openapi":"3.1.0","info":{"title":"Tools of this session","version":"1"},"servers":[{"url":"#);
        out.push_str(&raw::quote(public_url.as_str().trim_end_matches('/')));
        out.push_str(r#"}],"security":[{"session":[]}],"paths":{"#);
        join(&mut out, fragments.iter().map(|f| f.path.as_str()));
        out.push_str(r#"},"components":{"securitySchemes":{"session":{"type":"http","scheme":"bearer"}},"schemas":{"#);
        join(&mut out, fragments.iter().map(|f| f.schemas.as_str()));
        out.push_str("}}}");
        out
    }
}

fn join<'a>(out: &mut String, parts: impl Iterator<Item = &'a str>) {
    for (index, part) in parts.enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(part);
    }
}

fn render(permit: Permit<'_>, source: Digest) -> Fragment {
    let definition = permit.definition();
    fragment(&definition.visible, source, |key| definition.member(key).map(str::to_owned))
}

fn fragment_of_own(view: &View, name: &str) -> Fragment {
    let definition = own::definition(view, name);
    let members = raw::members(&definition).unwrap_or_default();
    let member = |key: &str| members.iter().find(|(k, _)| k == key).map(|(_, value)| value.get().to_owned());
    fragment(name, Digest::of(definition.as_bytes()), member)
}

fn fragment(name: &str, source: Digest, member: impl Fn(&str) -> Option<String>) -> Fragment {
    let (input, output) = (format!("{name}.input"), format!("{name}.output"));
    let pointer = |schema: &str| format!("#/components/schemas/{schema}");
    let schema = member("inputSchema").unwrap_or_else(|| r#"{"type":"object"}"#.to_owned());
    let mut schemas = format!("{}:{}", raw::quote(&input), relocate(&schema, &pointer(&input)));
    let result = match member("outputSchema") {
        Some(schema) => {
            schemas.push_str(&format!(",{}:{}", raw::quote(&output), relocate(&schema, &pointer(&output))));
            json!({"$ref": pointer(&output)})
        }
        None => json!(true),
    };
    let text = |key: &str| member(key).and_then(|json| raw::string_of(&json));
    let mut operation = json!({
        "operationId": name,
        "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": pointer(&input)}}}},
        "responses": {
            "200": {"description": "The tool's result", "content": {"application/json": {"schema": {
                "type": "object",
                "required": ["success", "result"],
                "properties": {
                    "success": {"const": true},
                    "result": {"type": "object", "properties": {"structuredContent": result}},
                },
            }}}},
            "default": {"description": "A refusal, or the tool's own error", "content": {"application/json": {"schema": {
                "type": "object",
                "required": ["success", "error"],
                "properties": {
                    "success": {"const": false},
                    "error": {"type": "string"},
                    "message": {"type": "string"},
                },
            }}}},
        },
    });
    if let Some(members) = operation.as_object_mut() {
        members.extend(text("title").map(|t| ("summary".to_owned(), t.into())));
        members.extend(text("description").map(|t| ("description".to_owned(), t.into())));
    }
    let path = format!(r#"{}:{{"post":{operation}}}"#, raw::quote(&format!("/tools/{name}")));
    Fragment { source, path, schemas }
}
