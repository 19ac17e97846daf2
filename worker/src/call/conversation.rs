//! A conversation: what one call's caller is told and asked, and how its answers find their way back.
//!
//! A caller is asked only for what it said that it can be asked for. A legacy caller is asked on its stream; what it was
//! told is kept for a while, numbered, so that a broken stream loses nothing. For a modern caller questions are
//! gathered, and the call is parked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rollcall_shared::ids::TenantId;
use rollcall_shared::limits;
use rollcall_shared::mcp::era::Era;
use rollcall_shared::mcp::raw;
use rollcall_shared::telemetry::Metrics;
use rollcall_shared::wire::{Asked, CallId, Caller, Final, Head, Interim, News, Params, Told};
use serde_json::value::RawValue;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::asking::Asking;
use super::declared::{Declared, mode_of};
use crate::upstream::message::{self, Ear};
use crate::upstream::{Hear, Question, ReplyTo};

/// A result or an error, as the caller sent it.
pub(crate) type Outcome = Result<Bytes, Bytes>;

/// See the module.
pub(crate) struct Conversation {
    pub(crate) id: CallId,
    pub(crate) tenant: TenantId,
    pub(crate) session: String,
    /// The caller's id of its request, by which a legacy one cancels it.
    pub(crate) request: String,
    /// Bytes that the call keeps for as long as it lives.
    pub(super) params_bytes: usize,
    era: Era,
    /// Whether a legacy caller has a stream on which it can be asked.
    converses: bool,
    state: Mutex<State>,
    /// Questions that wait for their answers.
    open: watch::Sender<usize>,
    ended: watch::Sender<bool>,
    pub(crate) cancelled: CancellationToken,
    asking: Arc<Asking>,
    metrics: Arc<Metrics>,
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if self.is_waiting() {
            self.asking.ends(self);
        }
    }
}

struct State {
    can: Declared,
    interim: Interim,
    theirs: Option<Box<RawValue>>,
    /// The least severity of logs that the caller wants; none if it wants none.
    logs_from: Option<usize>,
    seq: u64,
    told: VecDeque<News>,
    told_bytes: usize,
    waiting: BTreeMap<u64, Waiting>,
    end: Option<Final>,
}

struct Waiting {
    asked: Asked,
    params: Bytes,
    whom: Asker,
}

/// Who waits for the answer.
enum Asker {
    /// A legacy server, under its own id.
    Upstream { id: Box<RawValue>, reply: ReplyTo },
    /// A round of ours with a modern server.
    Round(oneshot::Sender<Outcome>),
}

impl Conversation {
    pub(crate) fn open(
        head: &Head,
        params: &Params,
        interim: Interim,
        asking: Arc<Asking>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let caller = &head.caller;
        let state = State {
            can: Declared::read(caller.capabilities.as_deref()),
            interim,
            theirs: caller.progress_token.clone(),
            logs_from: logs_from(caller),
            seq: 0,
            told: VecDeque::new(),
            told_bytes: 0,
            waiting: BTreeMap::new(),
            end: None,
        };
        Arc::new(Self {
            id: head.call,
            tenant: head.tenant.clone(),
            session: head.session.clone(),
            request: caller.request.clone(),
            params_bytes: params.0.iter().map(|(_, value)| value.len()).sum(),
            era: caller.era.unwrap_or(Era::Legacy),
            converses: caller.converses,
            state: Mutex::new(state),
            open: watch::Sender::new(0),
            ended: watch::Sender::new(false),
            cancelled: CancellationToken::new(),
            asking,
            metrics,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn who(&self) -> [&str; 2] {
        [self.tenant.as_str(), &self.session]
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.era == Era::Legacy
    }

    /// Whether its end and news are worth keeping for a stream that broke.
    pub(crate) fn converses(&self) -> bool {
        self.converses
    }

    /// Whether the caller can be asked for this now.
    pub(super) fn allows(&self, asked: Asked, params: &str) -> bool {
        (self.era == Era::Modern || self.converses) && self.state().can.allows(asked, params)
    }

    /// The same call in its next leg: its caller is heard under another token, and listens elsewhere.
    pub(super) fn goes_on(&self, caller: &Caller, interim: Interim) {
        let mut state = self.state();
        state.can = Declared::read(caller.capabilities.as_deref());
        state.theirs.clone_from(&caller.progress_token);
        state.logs_from = logs_from(caller);
        state.interim = interim;
    }

    fn tell(&self, state: &mut State, told: Told) -> bool {
        if told.len() > limits::NEWS_BYTES {
            self.metrics.interim_dropped.add(1, &[]);
            return false;
        }
        state.seq += 1;
        let news = News { seq: state.seq, told };
        if self.converses {
            state.told_bytes += news.told.len();
            state.told.push_back(news.clone());
            while state.told.len() > limits::REPLAYED_MESSAGES || state.told_bytes > limits::REPLAYED_CALL_BYTES {
                let oldest = state.told.pop_front().map_or(0, |oldest| oldest.told.len());
                state.told_bytes -= oldest;
            }
        }
        let taken = state.interim.send(news);
        if !taken {
            self.metrics.interim_dropped.add(1, &[]);
        }
        // What is kept will be read by whoever comes back; who is there and does not keep up misses it.
        taken || self.converses && state.interim.is_gone()
    }

    /// Asks the caller. Gives false where it cannot be asked.
    fn ask(&self, asked: Asked, params: Bytes, whom: Asker) -> bool {
        let mut state = self.state();
        if state.waiting.len() >= limits::INPUT_REQUESTS || state.end.is_some() {
            return false;
        }
        if state.waiting.is_empty() && !self.asking.begins(self) {
            return false;
        }
        let seq = if self.is_legacy() {
            if !self.tell(&mut state, Told::Request { asked, params: params.clone() }) {
                if state.waiting.is_empty() {
                    self.asking.ends(self);
                }
                return false;
            }
            state.seq
        } else {
            state.seq += 1;
            state.seq
        };
        state.waiting.insert(seq, Waiting { asked, params, whom });
        self.open.send_replace(state.waiting.len());
        true
    }

    /// Asks the caller on behalf of a round with a modern server, and waits for its answer.
    pub(super) fn ask_for_round(&self, asked: Asked, params: Bytes) -> Option<oneshot::Receiver<Outcome>> {
        let (sender, receiver) = oneshot::channel();
        (self.allows(asked, &String::from_utf8_lossy(&params)) && self.ask(asked, params, Asker::Round(sender)))
            .then_some(receiver)
    }

    /// Takes the caller's answer to the question of this number. Gives false where there is none.
    pub(crate) async fn answer(&self, seq: u64, outcome: Outcome) -> bool {
        let waiting = {
            let mut state = self.state();
            let waiting = state.waiting.remove(&seq);
            if waiting.is_some() && state.waiting.is_empty() {
                self.asking.ends(self);
            }
            self.open.send_replace(state.waiting.len());
            waiting
        };
        match waiting.map(|waiting| waiting.whom) {
            Some(Asker::Upstream { id, reply }) => {
                let outcome = outcome.as_ref().map(|r| &r[..]).map_err(|e| &e[..]);
                reply.send(message::respond(&id, outcome)).await;
                true
            }
            Some(Asker::Round(sender)) => sender.send(outcome).is_ok(),
            None => false,
        }
    }

    /// Takes the answers of a modern caller's retry: an object of bare results by their keys. What is not there is asked
    /// for again; what nobody asked for is passed over.
    pub(super) async fn answers(&self, responses: Option<&Bytes>) {
        let text = responses.and_then(|r| std::str::from_utf8(r).ok()).unwrap_or("{}");
        for (key, value) in raw::members(text).unwrap_or_default() {
            let seq = key.strip_prefix(KEY).and_then(|n| n.parse().ok());
            if let Some(seq) = seq {
                self.answer(seq, Ok(Bytes::copy_from_slice(value.get().as_bytes()))).await;
            }
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    /// `inputRequests`, for a modern caller.
    pub(super) fn requests(&self) -> Bytes {
        let mut out = String::from("{");
        for (seq, waiting) in &self.state().waiting {
            if out.len() > 1 {
                out.push(',');
            }
            let params = for_modern(waiting.asked, &String::from_utf8_lossy(&waiting.params));
            out.push_str(&format!(r#""{KEY}{seq}":{{"method":"{}"{params}}}"#, waiting.asked.method()));
        }
        out.push('}');
        out.into()
    }

    /// Waits until a modern caller must be asked.
    pub(super) async fn until_asked(&self) {
        self.until(|open| open > 0).await;
        // A server that needs several things asks for them in one breath.
        tokio::time::sleep(limits::ONE_BREATH).await;
    }

    pub(super) async fn until(&self, wanted: impl Fn(usize) -> bool) {
        let mut open = self.open.subscribe();
        let waited = open.wait_for(|open| wanted(*open)).await.is_ok();
        if !waited {
            std::future::pending::<()>().await;
        }
    }

    /// Runs out when the call has taken `patience`, or its caller too long to answer: the time in which the caller is
    /// waited for is its own.
    pub(super) async fn clock(&self, patience: Duration) {
        let mut left = patience;
        loop {
            let began = tokio::time::Instant::now();
            tokio::select! {
                () = tokio::time::sleep(left) => return,
                () = self.until(|open| open > 0) => {}
            }
            left = left.saturating_sub(began.elapsed());
            tokio::select! {
                () = tokio::time::sleep(limits::PARKED_FOR) => return,
                () = self.until(|open| open == 0) => {}
            }
        }
    }

    pub(crate) fn ends(&self, end: &Final) {
        let mut state = self.state();
        state.end = Some(end.clone());
        if !state.waiting.is_empty() {
            state.waiting.clear();
            self.asking.ends(self);
        }
        self.open.send_replace(0);
        self.ended.send_replace(true);
    }

    /// Tells what was told after `after`, and all that follows; gives the end.
    pub(crate) async fn replay(&self, after: u64, interim: Interim) -> Final {
        {
            let mut state = self.state();
            for news in state.told.iter().filter(|news| news.seq > after) {
                interim.send(news.clone());
            }
            state.interim = interim;
        }
        let mut ended = self.ended.subscribe();
        let over = ended.wait_for(|over| *over).await.is_ok();
        let end = self.state().end.clone().filter(|_| over);
        end.unwrap_or_else(super::no_such_call)
    }

    /// Bytes that are kept.
    pub(super) fn weight(&self) -> u32 {
        let state = self.state();
        let end = match &state.end {
            Some(Final::Result(bytes) | Final::Error(bytes) | Final::Parked { requests: bytes, .. }) => bytes.len(),
            Some(Final::Failed(_)) | None => 0,
        };
        u32::try_from(state.told_bytes + end + 512).unwrap_or(u32::MAX)
    }
}

/// What the keys of input requests of ours begin with.
const KEY: &str = "r";

fn logs_from(caller: &Caller) -> Option<usize> {
    match &caller.log_level {
        Some(level) => message::severity(level.get()),
        // A modern caller must ask for logs; a legacy one gets what the server chooses to send.
        None => (caller.era != Some(Era::Modern)).then_some(0),
    }
}

/// `,"params":…` of a legacy server's question, for a modern caller.
fn for_modern(asked: Asked, params: &str) -> String {
    let members = raw::members(params).unwrap_or_default();
    // Their progress and their ids mean nothing beyond their own session.
    let kept = members.iter().filter(|(key, _)| !matches!(key.as_ref(), "_meta" | "elicitationId" | "task"));
    let inner: Vec<String> = kept.map(|(key, value)| format!("{}:{}", raw::quote(key), value.get())).collect();
    let lacks_mode = asked == Asked::Elicitation && mode_of(params).is_none();
    let mode = if lacks_mode { r#""mode":"form","# } else { "" };
    match asked {
        Asked::Roots => String::new(),
        Asked::Elicitation | Asked::Sampling => format!(r#","params":{{{mode}{}}}"#, inner.join(",")),
    }
}

/// Hears one attempt of a call, under the token that was made for it.
pub(crate) struct Hearing {
    pub(crate) conversation: Arc<Conversation>,
    pub(crate) ours: Option<String>,
    /// Whether messages without an address surely belong to this call, or at least to its session.
    pub(crate) tied: bool,
}

impl Hear for Hearing {
    fn hear(&self, method: &str, params: Option<&RawValue>) {
        let mut state = self.conversation.state();
        let logs_from = state.logs_from.filter(|_| self.tied);
        let ear = Ear { ours: self.ours.as_deref(), theirs: state.theirs.as_deref(), logs_from };
        if let Some(message) = message::news_for_caller(method, params, &ear) {
            self.conversation.tell(&mut state, Told::Notification(message));
        }
    }

    fn asked(&self, question: &Question<'_>, reply: &ReplyTo) -> Option<Bytes> {
        let Some(asked) = Asked::of_method(question.method) else {
            return Some(message::answer_upstream(question.id, question.method));
        };
        let params = question.params.map_or("{}", RawValue::get);
        let whom = Asker::Upstream { id: question.id.to_owned(), reply: reply.clone() };
        let can = self.tied && self.conversation.allows(asked, params);
        if can && self.conversation.ask(asked, Bytes::copy_from_slice(params.as_bytes()), whom) {
            return None;
        }
        Some(message::refuse_upstream(question.id, "the caller of this request cannot be asked for this"))
    }

    fn takes_all(&self) -> bool {
        self.tied
    }

    fn is_busy(&self) -> bool {
        self.conversation.is_waiting()
    }
}
