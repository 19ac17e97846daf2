//! Search in a view: exact and partial names first, then BM25F over name parts, titles, descriptions and parameter names.
//!
//! Lexical, so that it needs no model, is the same on every node, and costs microseconds: the weight of each word in each
//! tool is computed once a view, and a query adds a few of them up (Robertson and Zaragoza, The Probabilistic Relevance
//! Framework, 2009, section 3). Frequencies are those of the view itself: what a session may not use tells it nothing.

mod english;
pub mod found;
mod words;

use std::cmp::Ordering;
use std::collections::HashMap;

use rollcall_shared::limits;
use rollcall_shared::mcp::raw;

use super::{signature, text};
use crate::registry::{Definition, Place};
use crate::view::View;

/// How much a word says where it stands, and how much a long field thins it out.
struct Field {
    weight: f32,
    thinning: f32,
}

const ALIAS: Field = Field { weight: 2.5, thinning: 0.0 };
const NAME: Field = Field { weight: 3.0, thinning: 0.5 };
const TITLE: Field = Field { weight: 2.0, thinning: 0.5 };
const OPENING: Field = Field { weight: 1.5, thinning: 0.6 };
const REST: Field = Field { weight: 0.5, thinning: 0.7 };
const PARAMETERS: Field = Field { weight: 0.4, thinning: 0.6 };
const FIELDS: [Field; 6] = [ALIAS, NAME, TITLE, OPENING, REST, PARAMETERS];

/// How soon a word that is repeated says nothing more.
const SATURATION: f32 = 1.2;
/// What a word counts that stands for the one that was asked for: one that people use instead, one that begins so, one that
/// is spelt nearly so.
const INSTEAD: f32 = 0.6;
const BEGINS: f32 = 0.6;
const NEARLY: f32 = 0.6;

/// Tools, by their number in the index, and a word's weight in each.
type Postings = Box<[(u32, f32)]>;
/// Tools, and how often a word stands in each of their fields.
type Counts = Vec<(u32, [u16; FIELDS.len()])>;

/// See the module.
pub struct Index {
    places: Box<[Place]>,
    /// Visible names, lower-case, letters and digits alone.
    squeezed: Box<[Box<str>]>,
    terms: HashMap<Box<str>, u32>,
    /// By term, the tools that hold it and its weight there.
    weights: Box<[Postings]>,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    pub place: Place,
    pub score: f32,
}

fn squeeze(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// The stems of one tool, field by field.
fn fields(definition: &Definition, alias: Option<&str>) -> [Vec<String>; FIELDS.len()] {
    let json = std::str::from_utf8(definition.raw()).unwrap_or_default();
    let members = raw::members(json).unwrap_or_default();
    let get = |name: &str| members.iter().find(|(key, _)| key == name).map(|(_, value)| value.get());
    let described = get("description").and_then(raw::string_of).unwrap_or_default();
    let opening = text::first_sentence(&described, limits::SEARCH_OPENING_BYTES);
    let bounded: String = described.chars().take(limits::SEARCH_TEXT_CHARS).collect();
    let parameters = get("inputSchema").map(signature::parameters).unwrap_or_default();
    [
        alias.map(words::stems_of_name).unwrap_or_default(),
        words::stems_of_name(&definition.real),
        words::stems(&get("title").and_then(raw::string_of).unwrap_or_default()),
        words::stems(&opening),
        words::stems(bounded.get(opening.trim_end_matches('…').len()..).unwrap_or_default()),
        parameters.iter().flat_map(|parameter| words::stems_of_name(&parameter.name)).collect(),
    ]
}

impl Index {
    pub fn new(view: &View) -> Self {
        let places: Vec<Place> = view.tools().collect();
        let mut terms: HashMap<Box<str>, u32> = HashMap::new();
        // By term: the tool, and how often the term stands in each field of it.
        let mut counts: Vec<Counts> = Vec::new();
        let mut lengths: Vec<[usize; FIELDS.len()]> = Vec::new();
        let mut squeezed = Vec::with_capacity(places.len());
        for (tool, place) in (0u32..).zip(&places) {
            let Some(definition) = view.roster.get(*place) else { continue };
            let segment = view.roster.segments().get(place.segment as usize);
            let alias = segment.and_then(|segment| segment.alias.as_ref()).map(|alias| alias.as_str());
            squeezed.push(squeeze(&definition.visible).into());
            let fields = fields(definition, alias);
            lengths.push(std::array::from_fn(|at| fields.get(at).map_or(0, Vec::len)));
            for (at, stems) in fields.iter().enumerate() {
                for stem in stems {
                    let next = u32::try_from(counts.len()).unwrap_or(u32::MAX);
                    let term = *terms.entry(stem.as_str().into()).or_insert(next);
                    if term == next {
                        counts.push(Vec::new());
                    }
                    let Some(tools) = counts.get_mut(term as usize) else { continue };
                    if tools.last().is_none_or(|(last, _)| *last != tool) {
                        tools.push((tool, [0; FIELDS.len()]));
                    }
                    if let Some(count) = tools.last_mut().and_then(|(_, counts)| counts.get_mut(at)) {
                        *count = count.saturating_add(1);
                    }
                }
            }
        }
        let weights = counts.iter().map(|tools| weigh(tools, &lengths)).collect();
        Self { places: places.into(), squeezed: squeezed.into(), terms, weights }
    }

    /// Bytes that the index holds, about.
    pub fn weight(&self) -> usize {
        let postings: usize = self.weights.iter().map(|tools| tools.len() * 8 + 16).sum();
        let terms: usize = self.terms.keys().map(|term| term.len() + 40).sum();
        postings + terms + self.places.len() * 64
    }

    /// The tools that fit best, best first; where two fit equally, in the order of their names.
    pub fn search(&self, query: &str, most: usize) -> Vec<Hit> {
        let query: String = query.chars().take(limits::SEARCH_QUERY_CHARS).collect();
        let mut scores = vec![0f32; self.places.len()];
        let mut asked = words::stems(&query);
        asked.truncate(limits::SEARCH_QUERY_WORDS);
        let mut seen: Vec<&str> = Vec::new();
        for stem in &asked {
            if !seen.contains(&stem.as_str()) {
                seen.push(stem);
                self.add(stem, &mut scores);
            }
        }
        self.add_names(&query, &mut scores);
        let mut found: Vec<(usize, f32)> = scores.into_iter().enumerate().filter(|(_, score)| *score > 0.0).collect();
        let better =
            |a: &(usize, f32), b: &(usize, f32)| b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0));
        if found.len() > most && most > 0 {
            found.select_nth_unstable_by(most - 1, better);
        }
        found.truncate(most);
        found.sort_unstable_by(better);
        found.into_iter().filter_map(|(at, score)| Some(Hit { place: *self.places.get(at)?, score })).collect()
    }

    /// Adds what a word of the query says, itself and what may stand for it: of each tool the best of them.
    fn add(&self, stem: &str, scores: &mut [f32]) {
        let mut forms: Vec<(u32, f32)> = Vec::new();
        let mut form = |term: u32, share: f32| {
            if !forms.iter().any(|(known, _)| *known == term) {
                forms.push((term, share));
            }
        };
        if let Some(term) = self.terms.get(stem) {
            form(*term, 1.0);
        } else {
            let mut near: Vec<(&str, u32, f32)> =
                self.terms.iter().filter_map(|(term, id)| Some((&**term, *id, alike(stem, term)?))).collect();
            near.sort_unstable_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(b.0)));
            for (_, id, share) in near.into_iter().take(limits::SEARCH_NEAR_WORDS) {
                form(id, share);
            }
        }
        for other in words::others(stem) {
            if let Some(term) = self.terms.get(other.as_str()) {
                form(*term, INSTEAD);
            }
        }
        let weights = |term: &u32| self.weights.get(*term as usize).map(|tools| &**tools).unwrap_or_default();
        if let [(term, share)] = forms.as_slice() {
            for (tool, weight) in weights(term) {
                if let Some(score) = scores.get_mut(*tool as usize) {
                    *score += weight * share;
                }
            }
            return;
        }
        let mut best: HashMap<u32, f32> = HashMap::new();
        for (term, share) in &forms {
            for (tool, weight) in weights(term) {
                let known = best.entry(*tool).or_default();
                *known = known.max(weight * share);
            }
        }
        for (tool, weight) in best {
            if let Some(score) = scores.get_mut(tool as usize) {
                *score += weight;
            }
        }
    }

    /// Whoever writes a name, or a part of one, means it.
    fn add_names(&self, query: &str, scores: &mut [f32]) {
        const WHOLE: f32 = 1000.0;
        const PART: f32 = 100.0;
        let whole = squeeze(query);
        // Of a sentence, what looks like a name: joined words.
        let joined = query.split(|c: char| !(c.is_alphanumeric() || "_-.".contains(c))).filter(|word| {
            let inner = word.trim_matches(['_', '-', '.']);
            inner.len() >= 4 && inner.contains(['_', '-'])
        });
        let written: Vec<String> = joined.map(squeeze).chain(Some(whole).filter(|whole| whole.len() >= 3)).collect();
        for (name, score) in self.squeezed.iter().zip(scores) {
            for written in &written {
                if **name == **written {
                    *score += WHOLE;
                } else if name.ends_with(written.as_str()) {
                    *score += PART * 2.0;
                } else if name.contains(written.as_str()) {
                    *score += PART;
                }
            }
        }
    }
}

/// BM25F: the word's rarity in the view, times how much it says in each tool.
fn weigh(tools: &[(u32, [u16; FIELDS.len()])], lengths: &[[usize; FIELDS.len()]]) -> Postings {
    let total = lengths.len() as f32;
    let holding = tools.len() as f32;
    let rarity = (1.0 + (total - holding + 0.5) / (holding + 0.5)).ln();
    let weigh = |(tool, counts): &(u32, [u16; FIELDS.len()])| {
        let mut said = 0.0;
        for (at, (count, field)) in counts.iter().zip(&FIELDS).enumerate() {
            if *count > 0 {
                let length = lengths.get(*tool as usize).and_then(|lengths| lengths.get(at)).copied().unwrap_or(1);
                let usual = TYPICAL.get(at).copied().unwrap_or(1.0);
                let thinned = 1.0 - field.thinning + field.thinning * length as f32 / usual;
                said += field.weight * f32::from(*count) / thinned;
            }
        }
        (*tool, rarity * said / (SATURATION + said))
    };
    tools.iter().map(weigh).collect()
}

/// Usual lengths of the fields, in words. Fixed: a tool's weight is not to depend on how its neighbours are described.
const TYPICAL: [f32; FIELDS.len()] = [1.0, 3.0, 3.0, 10.0, 40.0, 6.0];

/// What a word of the index counts for one that the index does not hold.
fn alike(asked: &str, term: &str) -> Option<f32> {
    if asked.len() >= 4 && term.starts_with(asked) || term.len() >= 4 && asked.starts_with(term) {
        return Some(BEGINS * asked.len().min(term.len()) as f32 / asked.len().max(term.len()) as f32);
    }
    let enough = asked.len() >= 4 && term.len() >= 4 && asked.as_bytes().first() == term.as_bytes().first();
    let nearly = || is_swapped(asked, term) || super::recovery::within(asked, term, 1 + asked.len() / 8).is_some();
    (enough && nearly()).then_some(NEARLY)
}

/// Whether two words differ by two neighbouring letters that changed places.
fn is_swapped(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let at = a.iter().zip(b).position(|(x, y)| x != y);
    at.is_some_and(|at| match (a.get(at..), b.get(at..)) {
        (Some([x, y, a @ ..]), Some([v, w, b @ ..])) => x == w && y == v && a == b,
        _ => false,
    })
}

#[cfg(test)]
mod tests;
