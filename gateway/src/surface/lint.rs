//! Lint: what people wrote, in prompts, tests and docs, against what there is. Pure: a text and a catalog in, findings out.
//!
//! Shaped like a tool id are visible names (`alias__tool`), `alias:tool` of a known server, and the bridge's routes. An id
//! that is absent on purpose is declared in the file that names it, `rollcall-lint: absent alias__tool, …`, and must be.

use std::collections::{BTreeMap, BTreeSet};

use rollcall_shared::limits;
use serde_json::Value;

use super::recovery;
use crate::registry::naming::SEPARATOR;

/// What declares ids that are absent on purpose.
const ABSENT: &str = "rollcall-lint: absent ";

/// The names that exist: of a `tools/list` result, of a manifest with all its names, or a plain list of names.
#[derive(Debug, Default)]
pub struct Catalog {
    names: BTreeSet<String>,
    /// By alias, what tools are called at the server.
    servers: BTreeMap<String, BTreeSet<String>>,
}

impl Catalog {
    pub fn read(value: &Value) -> Result<Self, String> {
        let at = |path: &str| value.pointer(path).and_then(Value::as_array);
        let list = at("/names").or_else(|| at("/tools")).or_else(|| at("/result/tools")).or_else(|| at(""));
        let list = list.ok_or("neither a tools/list result, nor a manifest with names, nor a list of names")?;
        let mut out = Self::default();
        for entry in list {
            let name = entry.as_str().or_else(|| entry.get("name")?.as_str()).ok_or("an entry without a name")?;
            if let Some((alias, tool)) = name.split_once(SEPARATOR) {
                out.servers.entry(alias.to_owned()).or_default().insert(tool.to_owned());
            }
            out.names.insert(name.to_owned());
        }
        for (alias, server) in value.get("mcp_servers").and_then(Value::as_object).into_iter().flatten() {
            let tools = server.get("tools").and_then(Value::as_array).into_iter().flatten();
            let known = out.servers.entry(alias.clone()).or_default();
            known.extend(tools.filter_map(Value::as_str).map(str::to_owned));
        }
        if out.names.is_empty() { Err("the catalog holds no names".to_owned()) } else { Ok(out) }
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn has_at(&self, server: &str, tool: &str) -> bool {
        self.servers.get(server).is_some_and(|tools| tools.contains(tool))
    }

    /// The name that was meant, if one is near.
    fn nearest(&self, id: &str) -> Option<String> {
        let bare = |name: &str| name.rsplit([':', '/']).next().unwrap_or(name).to_ascii_lowercase();
        let wanted = bare(id);
        let tool_of =
            |name: &str| name.split_once(SEPARATOR).map_or_else(|| name.to_owned(), |(_, tool)| tool.to_owned());
        let distance = |name: &str| {
            let whole = recovery::within(&wanted, &name.to_ascii_lowercase(), wanted.len().max(name.len()) / 3);
            let (tool, wanted) = (tool_of(name).to_ascii_lowercase(), tool_of(&wanted));
            let part = recovery::within(&wanted, &tool, wanted.len().max(tool.len()) / 3);
            whole.into_iter().chain(part).min()
        };
        let near = self.names.iter().filter_map(|name| Some((distance(name)?, name)));
        near.min().map(|(_, name)| name.clone())
    }
}

/// What is wrong with an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Nothing has this name.
    Unknown,
    /// Declared to be absent, and there.
    Present,
    /// Declared to be absent, and not named in the file.
    Unused,
}

/// One place where something is wrong.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// Both from 1; the column in characters.
    pub line: usize,
    pub column: usize,
    pub id: String,
    pub fault: Fault,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
}

/// What one text holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Ids that were checked, declared ones apart.
    pub ids: usize,
    pub findings: Vec<Finding>,
}

/// An id as it stands in a line.
struct Id<'t> {
    at: usize,
    text: &'t str,
    exists: bool,
}

/// Checks one text.
pub fn scan(text: &str, catalog: &Catalog) -> Scan {
    let mut declared: BTreeMap<&str, (usize, usize, bool)> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let Some((before, list)) = line.split_once(ABSENT) else { continue };
        for id in list
            .split(',')
            .map(|id| id.trim().split(|c: char| !is_part(c) && !":/".contains(c)).next().unwrap_or_default())
        {
            if !id.is_empty() {
                declared.insert(id, (number, before.chars().count() + 1, false));
            }
        }
    }
    let mut out = Scan::default();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.contains(ABSENT)) {
        for id in ids(line, catalog) {
            if let Some((_, _, used)) = declared.get_mut(id.text) {
                *used = true;
                continue;
            }
            out.ids += 1;
            if !id.exists {
                let column = line.get(..id.at).map_or(0, |before| before.chars().count()) + 1;
                let nearest = catalog.nearest(id.text);
                out.findings.push(Finding {
                    line: number,
                    column,
                    id: id.text.to_owned(),
                    fault: Fault::Unknown,
                    nearest,
                });
            }
        }
    }
    for (id, (line, column, used)) in declared {
        let exists =
            catalog.names.contains(id) || id.split_once(':').is_some_and(|(server, tool)| catalog.has_at(server, tool));
        let fault = if exists { Some(Fault::Present) } else { (!used).then_some(Fault::Unused) };
        out.findings.extend(fault.map(|fault| Finding { line, column, id: id.to_owned(), fault, nearest: None }));
    }
    out.findings.sort_by_key(|finding| (finding.line, finding.column));
    out
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// The ids of a line, each once, from left to right.
fn ids<'t>(line: &'t str, catalog: &Catalog) -> Vec<Id<'t>> {
    let mut found = routes(line, catalog);
    let taken = |found: &[Id<'_>], at: usize| found.iter().any(|id| (id.at..id.at + id.text.len()).contains(&at));
    for (at, word) in words(line, is_part).into_iter().filter(|(at, _)| !taken(&found, *at)).collect::<Vec<_>>() {
        let Some((alias, tool)) = word.split_once(SEPARATOR) else { continue };
        let has_grammar = alias.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && alias.chars().all(|c| is_part(c) && !c.is_ascii_uppercase())
            && tool.starts_with(|c: char| c.is_ascii_alphanumeric());
        if has_grammar && word.len() <= limits::NAME_CHARS {
            found.push(Id { at, text: word, exists: catalog.names.contains(word) });
        }
    }
    for (at, word) in words(line, |c| is_part(c) || ":./".contains(c)) {
        let Some((server, tool)) = word.split_once(':').filter(|_| !taken(&found, at)) else { continue };
        let is_tool = tool.len() >= 3 && tool.contains(|c: char| c.is_ascii_alphabetic()) && !tool.contains([':', '/']);
        if is_tool && catalog.servers.contains_key(server) {
            let text = word.trim_end_matches('.');
            found.push(Id { at, text, exists: catalog.has_at(server, tool.trim_end_matches('.')) });
        }
    }
    found.sort_by_key(|id| id.at);
    found
}

/// Maximal runs of such characters, with where they begin.
fn words(line: &str, holds: impl Fn(char) -> bool) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    let mut begins = None;
    for (at, c) in line.char_indices().chain(Some((line.len(), ' '))) {
        match (begins, holds(c)) {
            (None, true) => begins = Some(at),
            (Some(start), false) => {
                out.extend(line.get(start..at).map(|word| (start, word)));
                begins = None;
            }
            _ => {}
        }
    }
    out
}

/// Routes of the bridge with a literal name: `/tools/{name}`, `/tools/custom/{name}`, `/tools/mcp/{server}/{tool}`.
fn routes<'t>(line: &'t str, catalog: &Catalog) -> Vec<Id<'t>> {
    const ROUTE: &str = "/tools/";
    let mut out = Vec::new();
    for (start, _) in line.match_indices(ROUTE) {
        let before = line.get(..start).unwrap_or_default();
        let begins = before.rfind(|c: char| c.is_whitespace() || "\"'`()<>,=".contains(c)).map_or(0, |at| at + 1);
        let host = before.get(begins..).unwrap_or_default();
        // A path of a file is no route.
        let is_route =
            host.is_empty() || host.contains("://") || host.starts_with(['$', '{']) || host.starts_with("/t/");
        let at = start + ROUTE.len();
        let rest = line.get(at..).unwrap_or_default();
        let path = rest.split(|c: char| !is_part(c) && !"/.".contains(c)).next().unwrap_or_default();
        let ends_in_placeholder =
            rest.get(path.len()..).is_some_and(|after| after.starts_with(['{', '$', '<', '%', ':']));
        if !is_route || host.ends_with("/v1") || path.is_empty() || ends_in_placeholder {
            continue;
        }
        let path = path.trim_end_matches(['/', '.']);
        let id = match path.split('/').collect::<Vec<_>>().as_slice() {
            ["mcp", server, tool] => Some((path, catalog.has_at(server, tool))),
            ["custom", name] | [name] if !["mcp", "custom"].contains(name) => {
                Some((*name, catalog.names.contains(*name)))
            }
            _ => None,
        };
        if let Some((text, exists)) = id {
            out.push(Id { at: at + path.len() - text.len(), text, exists });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn catalog() -> Catalog {
        let value = json!({
            "names": ["neon__run_sql", "neon__list_tables", "query_db"],
            "mcp_servers": {"neon": {"tools": ["run_sql", "list.tables"]}},
        });
        Catalog::read(&value).unwrap_or_else(|e| panic!("{e}"))
    }

    fn found(text: &str) -> (usize, Vec<(usize, usize, String, Fault)>) {
        let Scan { ids, findings } = scan(text, &catalog());
        (ids, findings.into_iter().map(|f| (f.line, f.column, f.id, f.fault)).collect())
    }

    #[test]
    fn ids_of_every_shape_are_found_and_nothing_else() {
        let good = "Use neon__run_sql, or neon:run_sql; POST https://g/tools/neon__list_tables and $X/tools/mcp/neon/run_sql.\n\
                    curl /tools/custom/query_db `neon:list.tables`";
        assert_eq!(found(good), (6, vec![]));
        let none = "__init__ self.__x MY__MACRO a_b neon__ {alias}__{tool} neon__* src/tools/file.rs http://neon:5432/x \
                    https://g/tools/{name} https://g/v1/tools/search?q=x neon: run_sql std::neon::x /tools/mcp/{s}/{t}";
        assert_eq!(found(none), (0, vec![]));
        let bad = "é neon__run_sqll nion__run_sql\nneon:drop_it /tools/nothing https://g/tools/mcp/neon/x_y";
        let fault = |line, column, id: &str| (line, column, id.to_owned(), Fault::Unknown);
        let expected = vec![
            fault(1, 3, "neon__run_sqll"),
            fault(1, 18, "nion__run_sql"),
            fault(2, 1, "neon:drop_it"),
            fault(2, 21, "nothing"),
            fault(2, 45, "mcp/neon/x_y"),
        ];
        assert_eq!(found(bad), (5, expected));
        let nearest: Vec<_> = scan(bad, &catalog()).findings.into_iter().map(|f| f.nearest).collect();
        assert_eq!(nearest.first().cloned().flatten().as_deref(), Some("neon__run_sql"));
        assert_eq!(nearest.get(1).cloned().flatten().as_deref(), Some("neon__run_sql"));
    }

    #[test]
    fn what_is_declared_absent_must_be_absent_and_be_named() {
        let case = |text: &str, ids: usize, faults: &[Fault]| {
            let scan = scan(text, &catalog());
            let found: Vec<Fault> = scan.findings.iter().map(|f| f.fault).collect();
            assert_eq!((scan.ids, found.as_slice()), (ids, faults), "{text}");
        };
        case("<!-- rollcall-lint: absent gone__tool -->\ngone__tool and neon__run_sql", 1, &[]);
        case("// rollcall-lint: absent neon__run_sql\nneon__run_sql", 0, &[Fault::Present]);
        case("# rollcall-lint: absent gone__tool, other__tool\ngone__tool", 0, &[Fault::Unused]);
        case("gone__tool", 1, &[Fault::Unknown]);
    }

    #[test]
    fn catalogs_are_read_in_each_form() {
        for value in
            [json!(["a__b"]), json!({"tools": [{"name": "a__b"}]}), json!({"result": {"tools": [{"name": "a__b"}]}})]
        {
            assert!(Catalog::read(&value).is_ok_and(|catalog| catalog.has_at("a", "b")), "{value}");
        }
        for value in [json!({}), json!([]), json!([1]), json!({"tools": []})] {
            assert!(Catalog::read(&value).is_err(), "{value}");
        }
    }
}
