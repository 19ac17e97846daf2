//! Bytes of the link: `u32` length-prefixed parts of a request, `{u8 type, u32 length, bytes}` frames of an answer.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Envelope, Failure, Final, Head};
use crate::limits;

/// One frame of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    Interim(Bytes),
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

const INTERIM: u8 = 1;
const RESULT: u8 = 2;
const ERROR: u8 = 3;
const FAILED: u8 = 4;
/// A result may be as large as an upstream message.
const FRAME_BYTES: usize = limits::UPSTREAM_MESSAGE_BYTES + 1024;

impl Frame {
    pub fn encode(&self) -> Bytes {
        let failure;
        let (kind, content): (u8, &[u8]) = match self {
            Frame::Interim(bytes) => (INTERIM, bytes),
            Frame::Final(Final::Result(bytes)) => (RESULT, bytes),
            Frame::Final(Final::Error(bytes)) => (ERROR, bytes),
            Frame::Final(Final::Failed(f)) => {
                failure = serde_json::to_vec(f).unwrap_or_default();
                (FAILED, &failure)
            }
        };
        let mut out = BytesMut::with_capacity(5 + content.len());
        out.put_u8(kind);
        out.put_u32(u32::try_from(content.len()).unwrap_or(u32::MAX));
        out.put_slice(content);
        out.freeze()
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
        if !(INTERIM..=FAILED).contains(&kind) {
            return Err(FrameError::Type(kind));
        }
        if length > FRAME_BYTES {
            return Err(FrameError::TooLarge(length));
        }
        if self.buffer.len() < 5 + length {
            return Ok(None);
        }
        self.buffer.advance(5);
        let content = self.buffer.split_to(length).freeze();
        Ok(Some(match kind {
            INTERIM => Frame::Interim(content),
            RESULT => Frame::Final(Final::Result(content)),
            ERROR => Frame::Final(Final::Error(content)),
            _ => {
                let failure: Failure =
                    serde_json::from_slice(&content).map_err(|e| FrameError::Content(e.to_string()))?;
                Frame::Final(Final::Failed(failure))
            }
        }))
    }
}

/// `u32` length of the head, the head as JSON, then the arguments as they are; a flag tells absent from empty.
pub(super) fn encode_envelope(envelope: &Envelope) -> Bytes {
    let head = serde_json::to_vec(&envelope.head).unwrap_or_default();
    let arguments = envelope.arguments.as_deref().unwrap_or_default();
    let mut out = BytesMut::with_capacity(5 + head.len() + arguments.len());
    out.put_u8(u8::from(envelope.arguments.is_some()));
    out.put_u32(u32::try_from(head.len()).unwrap_or(u32::MAX));
    out.put_slice(&head);
    out.put_slice(arguments);
    out.freeze()
}

pub(super) fn decode_envelope(bytes: &Bytes) -> Result<Envelope, FrameError> {
    let Some(([flag, length @ ..], rest)) = bytes.split_first_chunk::<5>() else { return Err(FrameError::Truncated) };
    let length = u32::from_be_bytes(*length) as usize;
    let Some((head, arguments)) = rest.split_at_checked(length) else { return Err(FrameError::Truncated) };
    let head: Head = serde_json::from_slice(head).map_err(|e| FrameError::Content(e.to_string()))?;
    Ok(Envelope { head, arguments: (*flag == 1).then(|| bytes.slice_ref(arguments)) })
}
