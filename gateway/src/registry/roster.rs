//! A roster: segments side by side, with one index of whole names, each kind apart. Knows no tenant, so tenants with the same segments share it.

use std::hash::BuildHasher as _;
use std::sync::{Arc, LazyLock};

use fixedbitset::FixedBitSet;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use rollcall_shared::digest::Digest;
use rollcall_shared::model::EntryKind;

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
    /// For each kind, global ids in the byte order of the visible names.
    orders: [Box<[u32]>; EntryKind::ALL.len()],
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
            orders: Default::default(),
            index: HashTable::with_capacity(total as usize),
            shadowed: FixedBitSet::with_capacity(total as usize),
        };
        let mut index = std::mem::take(&mut roster.index);
        let mut orders: [Vec<u32>; EntryKind::ALL.len()] = Default::default();
        for id in 0..total {
            let Some((kind, name)) = roster.name_of(id) else { continue };
            let hash = hash(kind, name);
            if index.find(hash, |other| roster.name_of(*other) == Some((kind, name))).is_some() {
                roster.shadowed.insert(id as usize);
                continue;
            }
            index.insert_unique(hash, id, |other| {
                roster.name_of(*other).map_or(0, |(kind, name)| self::hash(kind, name))
            });
            if let Some(order) = orders.get_mut(kind as usize) {
                order.push(id);
            }
        }
        for order in &mut orders {
            order.sort_unstable_by(|a, b| {
                let name = |id: &u32| roster.by_id(*id).map(|d| &*d.visible).unwrap_or_default();
                name(a).cmp(name(b))
            });
        }
        roster.index = index;
        roster.orders = orders.map(Into::into);
        roster
    }

    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Looks a tool up by its whole name. Allocates nothing.
    pub fn find(&self, name: &str) -> Option<Place> {
        self.find_of(EntryKind::Tool, name)
    }

    /// Looks an entry of any kind up by its whole name. Allocates nothing.
    pub fn find_of(&self, kind: EntryKind, name: &str) -> Option<Place> {
        let id = *self.index.find(hash(kind, name), |id| self.name_of(*id) == Some((kind, name)))?;
        self.place(id)
    }

    pub fn get(&self, place: Place) -> Option<&Definition> {
        self.segments.get(place.segment as usize)?.get(place.local)
    }

    /// All entries of a kind that are not shadowed, in the byte order of their names.
    pub fn in_order(&self, kind: EntryKind) -> impl Iterator<Item = Place> {
        self.orders.get(kind as usize).into_iter().flatten().filter_map(|id| self.place(*id))
    }

    pub fn kind(&self, place: Place) -> Option<EntryKind> {
        self.segments.get(place.segment as usize).map(|segment| segment.kind)
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

    fn name_of(&self, id: u32) -> Option<(EntryKind, &str)> {
        let place = self.place(id)?;
        let segment = self.segments.get(place.segment as usize)?;
        Some((segment.kind, &*segment.get(place.local)?.visible))
    }
}

/// A prompt may have the name of a tool: the kind is part of what is looked up.
fn hash(kind: EntryKind, name: &str) -> u64 {
    HASHER.hash_one(name).wrapping_add(kind as u64)
}
