//! Bodies of answers: a few shared slices, or a stream of events. Nothing is copied together.

use std::any::Any;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Frame, SizeHint};
use smallvec::SmallVec;

type Events = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// See the module.
#[derive(Default)]
pub(crate) struct Body {
    /// In reverse, so that the next one is popped.
    parts: SmallVec<[Bytes; 4]>,
    events: Option<Events>,
    /// What must live until the body is sent: permits and reservations.
    held: Option<Box<dyn Any + Send>>,
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::default()
    }

    /// Slices that are sent one after another. Empty ones are left out: HTTP/2 peers punish empty frames.
    pub(crate) fn parts(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let mut parts: SmallVec<[Bytes; 4]> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.reverse();
        Self { parts, ..Self::default() }
    }

    pub(crate) fn events(events: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self { events: Some(Box::pin(events)), ..Self::default() }
    }

    /// Keeps `held` until the body is sent or dropped.
    #[must_use]
    pub(crate) fn holding(mut self, held: impl Any + Send) -> Self {
        self.held = Some(Box::new((self.held.take(), held)));
        self
    }

    /// Bytes that are known to come.
    pub(crate) fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.events.is_none()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::parts([Bytes::from(text)])
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(part) = self.parts.pop() {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        let Some(events) = &mut self.events else { return Poll::Ready(None) };
        match events.as_mut().poll_next(cx) {
            Poll::Ready(Some(event)) => Poll::Ready(Some(Ok(Frame::data(event)))),
            Poll::Ready(None) => {
                self.events = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match self.events {
            Some(_) => SizeHint::default(),
            None => SizeHint::with_exact(self.len()),
        }
    }
}
