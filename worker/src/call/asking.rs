//! How many legacy calls may wait for their callers at once.

use dashmap::DashMap;
use rollcall_shared::limits;

use super::conversation::Conversation;

/// Legacy calls that wait for their callers, by tenant and by session: each holds a place on its server's connection, of
/// which others must find some free. What modern callers are waited for is parked, and counted there.
#[derive(Default)]
pub(crate) struct Asking(DashMap<String, usize>);

impl Asking {
    pub(super) fn begins(&self, conversation: &Conversation) -> bool {
        if !conversation.is_legacy() {
            return true;
        }
        let [tenant, session] = conversation.who();
        let taken = self.take(tenant, limits::PARKED_PER_TENANT);
        if taken && !self.take(session, limits::PARKED_PER_SESSION) {
            self.give_back(tenant);
            return false;
        }
        taken
    }

    pub(super) fn ends(&self, conversation: &Conversation) {
        if conversation.is_legacy() {
            conversation.who().into_iter().for_each(|who| self.give_back(who));
        }
    }

    fn take(&self, who: &str, most: usize) -> bool {
        let mut count = self.0.entry(who.to_owned()).or_default();
        let free = *count < most;
        *count += usize::from(free);
        free
    }

    fn give_back(&self, who: &str) {
        if let Some(mut count) = self.0.get_mut(who) {
            *count = count.saturating_sub(1);
        }
        self.0.remove_if(who, |_, count| *count == 0);
    }
}
