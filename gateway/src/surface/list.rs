//! Lists of a view, of each kind: gathered from the slices of the definitions, rendered once a view, paged only where it is very large.

use std::sync::Arc;

use bytes::Bytes;
use rollcall_shared::digest::Digest;
use rollcall_shared::limits;
use rollcall_shared::model::EntryKind;

use super::own;
use crate::registry::Place;
use crate::view::View;

/// A rendered list: pages of comma-separated definitions, without the brackets.
#[derive(Debug, Default)]
pub struct Rendered {
    pub pages: Vec<Bytes>,
}

/// Lists that were rendered, by view, bounded by weight.
pub struct Lists {
    rendered: moka::sync::Cache<(Digest, EntryKind), Arc<Rendered>>,
    page_bytes: usize,
}

impl Default for Lists {
    fn default() -> Self {
        Self::with_page(limits::LIST_PAGE_BYTES)
    }
}

impl Lists {
    /// Pages hold at most `page_bytes`, or one definition that is larger.
    pub fn with_page(page_bytes: usize) -> Self {
        let rendered = moka::sync::Cache::builder()
            .max_capacity(limits::RENDERED_BYTES)
            .weigher(|_, list: &Arc<Rendered>| {
                let bytes: usize = list.pages.iter().map(Bytes::len).sum();
                u32::try_from(bytes + 256).unwrap_or(u32::MAX)
            })
            .build();
        Self { rendered, page_bytes }
    }

    /// The entries of a view under their visible names; bridge tools are among the tools.
    pub fn of(&self, view: &View, kind: EntryKind) -> Arc<Rendered> {
        self.rendered.get_with((view.digest, kind), || Arc::new(render(view, kind, self.page_bytes)))
    }
}

fn render(view: &View, kind: EntryKind, page_bytes: usize) -> Rendered {
    let mut pages = Pages::new(page_bytes);
    let mut bridge = view.bridge_tools().filter(|_| kind == EntryKind::Tool).peekable();
    let shown = |place: &Place| kind != EntryKind::Tool || view.lists(*place);
    for place in view.all(kind).filter(shown) {
        let Some(definition) = view.roster.get(place) else { continue };
        while let Some(name) = bridge.next_if(|name| **name < *definition.visible) {
            pages.add(|out| out.extend_from_slice(own::definition(view, name).as_bytes()));
        }
        pages.add(|out| definition.write_visible(out));
    }
    for name in bridge {
        pages.add(|out| out.extend_from_slice(own::definition(view, name).as_bytes()));
    }
    pages.finish()
}

/// The entries of one server's segment that a view allows, untouched and in the server's own order.
pub fn of_server(view: &View, segment: u32) -> Rendered {
    let mut pages = Pages::new(usize::MAX);
    if let Some(own) = view.roster.segments().get(segment as usize) {
        for local in own.sent_order() {
            let place = Place { segment, local: *local };
            if let Some(definition) = own.get(*local).filter(|_| view.allows(place)) {
                pages.add(|out| out.extend_from_slice(definition.raw()));
            }
        }
    }
    pages.finish()
}

struct Pages {
    done: Vec<Bytes>,
    current: Vec<u8>,
    limit: usize,
}

impl Pages {
    fn new(limit: usize) -> Self {
        Self { done: Vec::new(), current: Vec::new(), limit }
    }

    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.current.len();
        if before > 0 {
            self.current.push(b',');
        }
        write(&mut self.current);
        if before > 0 && self.current.len() > self.limit {
            let next = self.current.split_off(before + 1);
            self.current.truncate(before);
            self.done.push(std::mem::replace(&mut self.current, next).into());
        }
    }

    fn finish(mut self) -> Rendered {
        if !self.current.is_empty() || self.done.is_empty() {
            self.done.push(self.current.into());
        }
        Rendered { pages: self.done }
    }
}
