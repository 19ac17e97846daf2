//! Bytes of the link: `u32` length-prefixed parts of a request, `{u8 type, u32 length, bytes}` frames of an answer.
//!
//! News begin with their number, `u64`; a request to the caller goes on with which one it is, `u8`.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Asked, Envelope, Failure, Final, Head, Member, News, Params, Told};
use crate::limits;

/// One frame of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    News(News),
    Final(Final),
}

/// What arrives is no frame.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("unknown frame type {0}")]
    Type(u8),
    #[error("a frame of {0} bytes")]
    TooLarge(usize),
    #[error("broken content: {0}")]
    Content(String),
    #[error("the stream ended inside a frame")]
    Truncated,
}

const NOTIFICATION: u8 = 1;
const RESULT: u8 = 2;
const ERROR: u8 = 3;
const FAILED: u8 = 4;
const REQUEST: u8 = 5;
const PARKED: u8 = 6;
/// A result may be as large as an upstream message.
const FRAME_BYTES: usize = limits::UPSTREAM_MESSAGE_BYTES + 1024;

impl Frame {
    pub fn encode(&self) -> Bytes {
        let mut small = Vec::new();
        let (kind, content): (u8, &[u8]) = match self {
            Frame::News(News { seq, told }) => {
                small.put_u64(*seq);
                match told {
                    Told::Notification(bytes) => (NOTIFICATION, bytes),
                    Told::Request { asked, params } => {
                        small.put_u8(asked.code());
                        (REQUEST, params)
                    }
                }
            }
            Frame::Final(Final::Result(bytes)) => (RESULT, bytes),
            Frame::Final(Final::Error(bytes)) => (ERROR, bytes),
            Frame::Final(Final::Parked { round, requests }) => {
                small.put_u32(*round);
                (PARKED, requests)
            }
            Frame::Final(Final::Failed(f)) => {
                small = serde_json::to_vec(f).unwrap_or_default();
                (FAILED, &[])
            }
        };
        let length = small.len() + content.len();
        let mut out = BytesMut::with_capacity(5 + length);
        out.put_u8(kind);
        out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        out.put_slice(&small);
        out.put_slice(content);
        out.freeze()
    }

    fn decode(kind: u8, mut content: Bytes) -> Result<Self, FrameError> {
        let short = |_| FrameError::Truncated;
        Ok(match kind {
            NOTIFICATION => {
                let seq = content.try_get_u64().map_err(short)?;
                Frame::News(News { seq, told: Told::Notification(content) })
            }
            REQUEST => {
                let seq = content.try_get_u64().map_err(short)?;
                let asked = Asked::from_code(content.try_get_u8().map_err(short)?)
                    .ok_or_else(|| FrameError::Content("an unknown request".to_owned()))?;
                Frame::News(News { seq, told: Told::Request { asked, params: content } })
            }
            RESULT => Frame::Final(Final::Result(content)),
            ERROR => Frame::Final(Final::Error(content)),
            PARKED => {
                let round = content.try_get_u32().map_err(short)?;
                Frame::Final(Final::Parked { round, requests: content })
            }
            FAILED => {
                let failure: Failure =
                    serde_json::from_slice(&content).map_err(|e| FrameError::Content(e.to_string()))?;
                Frame::Final(Final::Failed(failure))
            }
            other => return Err(FrameError::Type(other)),
        })
    }
}

/// Takes frames out of chunks of any cut.
#[derive(Default)]
pub struct FrameReader {
    buffer: BytesMut,
}

impl FrameReader {
    pub fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// The next whole frame, if there is one.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(([kind, length @ ..], _)) = self.buffer.split_first_chunk::<5>() else { return Ok(None) };
        let (kind, length) = (*kind, u32::from_be_bytes(*length) as usize);
        if !(NOTIFICATION..=PARKED).contains(&kind) {
            return Err(FrameError::Type(kind));
        }
        if length > FRAME_BYTES {
            return Err(FrameError::TooLarge(length));
        }
        if self.buffer.len() < 5 + length {
            return Ok(None);
        }
        self.buffer.advance(5);
        Frame::decode(kind, self.buffer.split_to(length).freeze()).map(Some)
    }
}

/// The head as JSON behind its length, then each member of the params: `{u8 which, u32 length, bytes}`.
pub(super) fn encode_envelope(envelope: &Envelope) -> Bytes {
    let head = serde_json::to_vec(&envelope.head).unwrap_or_default();
    let size: usize = envelope.params.0.iter().map(|(_, value)| 5 + value.len()).sum();
    let mut out = BytesMut::with_capacity(4 + head.len() + size);
    out.put_u32(u32::try_from(head.len()).unwrap_or(u32::MAX));
    out.put_slice(&head);
    for (member, value) in &envelope.params.0 {
        let which = Member::ALL.iter().position(|m| m == member).and_then(|n| u8::try_from(n).ok());
        out.put_u8(which.unwrap_or(u8::MAX));
        out.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        out.put_slice(value);
    }
    out.freeze()
}

pub(super) fn decode_envelope(bytes: &Bytes) -> Result<Envelope, FrameError> {
    let mut rest = bytes.clone();
    let take = |rest: &mut Bytes| {
        let length = rest.try_get_u32().map_err(|_| FrameError::Truncated)? as usize;
        if length > rest.len() { Err(FrameError::Truncated) } else { Ok(rest.split_to(length)) }
    };
    let head = take(&mut rest)?;
    let head: Head = serde_json::from_slice(&head).map_err(|e| FrameError::Content(e.to_string()))?;
    let mut params = Params::default();
    while !rest.is_empty() {
        let which = usize::from(rest.get_u8());
        let member = *Member::ALL.get(which).ok_or_else(|| FrameError::Content(format!("member {which}")))?;
        params.push(member, take(&mut rest)?);
    }
    Ok(Envelope { head, params })
}
