//! A roster: segments side by side, with one index of whole names. Knows no tenant, so tenants with the same segments share it.

use std::hash::BuildHasher as _;
use std::sync::{Arc, LazyLock};

use fixedbitset::FixedBitSet;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use rollcall_shared::digest::Digest;

use super::segment::{Definition, Segment};

/// Seeded per process: names come from upstream, and colliding ones must not be constructible.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// Where a definition is: segment, and local id within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    pub segment: u32,
    pub local: u32,
}

/// See the module.
pub struct Roster {
    pub digest: Digest,
    segments: Box<[Arc<Segment>]>,
    /// Global id of each segment's first definition; one more at the end.
    offsets: Box<[u32]>,
    /// Global ids of tools in the byte order of their visible names.
    order: Box<[u32]>,
    index: HashTable<u32>,
    /// Definitions hidden behind an earlier one of the same name.
    shadowed: FixedBitSet,
}

impl Roster {
    /// Earlier segments win: the first one is the platform's.
    pub fn new(segments: Vec<Arc<Segment>>) -> Self {
        let mut offsets = vec![0u32];
        for segment in &segments {
            let size = u32::try_from(segment.definitions().len()).unwrap_or(0);
            offsets.push(offsets.last().copied().unwrap_or(0).saturating_add(size));
        }
        let total = offsets.last().copied().unwrap_or(0);
        let mut roster = Self {
            digest: Digest::of_parts(segments.iter().map(|s| &s.digest.as_bytes()[..])),
            segments: segments.into(),
            offsets: offsets.into(),
            order: Box::default(),
            index: HashTable::with_capacity(total as usize),
            shadowed: FixedBitSet::with_capacity(total as usize),
        };
        let mut index = std::mem::take(&mut roster.index);
        let mut order = Vec::with_capacity(total as usize);
        for id in 0..total {
            let Some(name) = roster.by_id(id).map(|d| &*d.visible) else { continue };
            let hash = HASHER.hash_one(name);
            if index.find(hash, |other| roster.is_named(*other, name)).is_some() {
                roster.shadowed.insert(id as usize);
                continue;
            }
            index.insert_unique(hash, id, |other| {
                HASHER.hash_one(roster.by_id(*other).map(|d| &*d.visible).unwrap_or_default())
            });
            order.push(id);
        }
        order.sort_unstable_by(|a, b| {
            let name = |id: &u32| roster.by_id(*id).map(|d| &*d.visible).unwrap_or_default();
            name(a).cmp(name(b))
        });
        roster.index = index;
        roster.order = order.into();
        roster
    }

    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Looks a whole name up. Allocates nothing.
    pub fn find(&self, name: &str) -> Option<Place> {
        let id = *self.index.find(HASHER.hash_one(name), |id| self.is_named(*id, name))?;
        self.place(id)
    }

    pub fn get(&self, place: Place) -> Option<&Definition> {
        self.segments.get(place.segment as usize)?.get(place.local)
    }

    /// All tools that are not shadowed, in the byte order of their names.
    pub fn in_order(&self) -> impl Iterator<Item = Place> {
        self.order.iter().filter_map(|id| self.place(*id))
    }

    pub fn is_shadowed(&self, place: Place) -> bool {
        self.offsets
            .get(place.segment as usize)
            .is_some_and(|offset| self.shadowed.contains((offset + place.local) as usize))
    }

    fn place(&self, id: u32) -> Option<Place> {
        let segment = self.offsets.partition_point(|offset| *offset <= id).checked_sub(1)?;
        let offset = self.offsets.get(segment)?;
        Some(Place { segment: u32::try_from(segment).ok()?, local: id - offset })
    }

    fn by_id(&self, id: u32) -> Option<&Definition> {
        self.get(self.place(id)?)
    }

    fn is_named(&self, id: u32, name: &str) -> bool {
        self.by_id(id).is_some_and(|d| *d.visible == *name)
    }
}
