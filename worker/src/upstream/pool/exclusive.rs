//! Letting go of what only one worker may hold: at once where it is lost, in good order where the worker drains.

use std::collections::HashMap;
use std::sync::Arc;

use rollcall_shared::placement::Thing;
use rollcall_shared::telemetry::label;

use super::{Key, Pool, Slot, State, close, lock};
use crate::worker::Shared;

impl Pool {
    /// What only one may hold, and is not ours any more, is let go of at once, whatever is under way on it.
    pub(crate) fn fence(&self, shared: &Arc<Shared>, lost: impl Fn(&Thing) -> bool) {
        let exclusive: Vec<(Key, Arc<Slot>)> = self
            .slots
            .iter()
            .filter(|entry| entry.value().thing.exclusive && lost(&entry.value().thing))
            .map(|entry| (entry.key().clone(), entry.value().clone()))
            .collect();
        for (key, slot) in exclusive {
            self.slots.remove_if(&key, |_, old| Arc::ptr_eq(old, &slot));
            let state = std::mem::replace(&mut *lock(&slot.state), State::Closed);
            if let State::Open { connection, .. } = state {
                shared.metrics.upstreams.add(-1, &[label("transport", connection.transport())]);
                connection.kill();
            }
        }
    }

    /// Closes what only one may hold as soon as nobody uses it, so that it can move.
    pub(crate) async fn let_go(&self, shared: &Arc<Shared>) {
        // By thing, since a server may be met in both eras: it is given back once nothing of it is left. No new call begins
        // on it from here on, so what is closed below is all there is.
        let mut things: HashMap<Thing, (Option<u64>, Vec<Arc<Slot>>)> = HashMap::new();
        for thing in shared.ownership.all() {
            let epoch = shared.ownership.lets_go(&thing);
            things.insert(thing, (epoch, Vec::new()));
        }
        self.slots.retain(|_, slot| match things.get_mut(&slot.thing) {
            Some((_, slots)) => {
                slots.push(slot.clone());
                false
            }
            None => true,
        });
        let closing = things.into_iter().map(|(thing, (epoch, slots))| async move {
            let closing = slots.into_iter().map(|slot| close(slot, shared.metrics.clone()));
            futures_util::future::join_all(closing).await;
            shared.ownership.gives_back(&thing, epoch).await;
        });
        futures_util::future::join_all(closing).await;
    }
}
