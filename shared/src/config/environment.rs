//! The environment's part in the configuration: overrides by `ROLLCALL__A__B`, values by `${NAME}`.

use std::collections::BTreeMap;

use crate::document::{Kind, Node, Place, Problems, from_yaml};

const PREFIX: &str = "ROLLCALL__";

/// A snapshot of environment variables, so that reading a configuration is a pure function.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Self {
        Self(std::env::vars().collect())
    }

    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Puts each `ROLLCALL__A__B` at `a.b`. The value is read like YAML, so that `true` and `5` are what they look like.
    pub(super) fn override_keys(&self, root: &mut Node, problems: &Problems) {
        for (name, value) in self.0.iter().filter_map(|(k, v)| Some((k.strip_prefix(PREFIX)?, v))) {
            let place = Place::Env(format!("{PREFIX}{name}"));
            let Some(mut node) = from_yaml(value, problems) else { continue };
            node.place = place.clone();
            let keys: Vec<String> = name.split("__").map(str::to_ascii_lowercase).collect();
            if keys.iter().any(String::is_empty) {
                problems.add(&place, "", "an empty key between `__`");
                continue;
            }
            put(root, &keys, node, &place, problems);
        }
    }

    /// Expands `${NAME}` in every text of the file but those below `tenants`.
    pub(super) fn expand_outside_tenants(&self, root: &mut Node, problems: &Problems) {
        if let Kind::Map(entries) = &mut root.kind {
            for (key, node) in entries.iter_mut().filter(|(key, _)| key != "tenants") {
                self.expand_all(node, key, problems);
            }
        }
    }

    fn expand_all(&self, node: &mut Node, path: &str, problems: &Problems) {
        match &mut node.kind {
            Kind::Text(text) => match expand(text, |name| self.get(name).map(str::to_owned)) {
                Ok(expanded) => *text = expanded,
                Err(what) => problems.add(&node.place, path, what),
            },
            Kind::List(nodes) => nodes.iter_mut().for_each(|node| self.expand_all(node, path, problems)),
            Kind::Map(entries) => {
                for (key, node) in entries {
                    self.expand_all(node, &format!("{path}.{key}"), problems);
                }
            }
            Kind::Null | Kind::Bool(_) | Kind::Number(_) => {}
        }
    }
}

fn put(root: &mut Node, keys: &[String], value: Node, place: &Place, problems: &Problems) {
    let Some((key, rest)) = keys.split_first() else {
        *root = value;
        return;
    };
    if root.kind == Kind::Null {
        root.kind = Kind::Map(Vec::new());
    }
    let Kind::Map(entries) = &mut root.kind else {
        problems.add(place, key, "overrides a key inside something that is no map");
        return;
    };
    match entries.iter_mut().find(|(k, _)| k == key) {
        Some((_, inner)) => put(inner, rest, value, place, problems),
        None => {
            let mut inner = Node { place: place.clone(), kind: Kind::Map(Vec::new()) };
            put(&mut inner, rest, value, place, problems);
            entries.push((key.clone(), inner));
        }
    }
}

/// `${NAME}` becomes the variable's value, `$${` a literal `${`. A variable that is not set is an error that names it.
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(literal) = before.strip_suffix('$') {
            out.push_str(literal);
            out.push_str("${");
            rest = after;
            continue;
        }
        out.push_str(before);
        let (name, tail) = after.split_once('}').ok_or("`${` without `}`")?;
        let valid = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !valid {
            return Err(format!("`${{{name}}}` is no variable; write `$${{` for a literal `${{`"));
        }
        out.push_str(&lookup(name).ok_or_else(|| format!("the environment has no {name}"))?);
        rest = tail;
    }
    out.push_str(rest);
    Ok(out)
}
