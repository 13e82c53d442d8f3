//! NRI's multiplexing: two connections in frames on one socket. Pure.
//!
//! A frame is a 4-byte connection number and a 4-byte length, both big-endian, followed by that many bytes. On one
//! connection the runtime calls the plugin, on the other the plugin calls the runtime.
//!
//! The runtime reads a connection through a buffer of 4096 bytes and fails on a frame that is longer than its read (NRI
//! 0.12, ttrpc 1.2). It reads one buffer at the beginning of a message and then exactly the rest. So a message is sent
//! as one frame of at most 4096 bytes and, if it is longer, a second one with the rest. More frames would be accepted
//! too, but the runtime closes the connection if 256 of them are unread.

use prost::bytes::{Buf, BufMut, Bytes, BytesMut};

use super::ttrpc;

const HEADER: usize = 8;

/// The largest payload of a frame: a whole message of ttrpc. This is NRI's own limit.
pub(super) const MAX_PAYLOAD: usize = ttrpc::HEADER + ttrpc::MAX_PAYLOAD;

/// How many bytes the runtime reads at the beginning of a message.
const FIRST_FRAME: usize = 4096;

/// A connection inside the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The runtime's calls, and the plugin's answers.
    Plugin,
    /// The plugin's calls, and the runtime's answers.
    Runtime,
}

impl Lane {
    fn number(self) -> u32 {
        match self {
            Self::Plugin => 1,
            Self::Runtime => 2,
        }
    }
}

/// A frame that is too long, so the rest of the stream cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "received a frame of {length} bytes on connection {connection}, but the limit is {MAX_PAYLOAD}: the process at the socket does not speak NRI"
)]
pub struct OversizedFrame {
    connection: u32,
    length: u32,
}

/// Takes the next frame off the front of what was read; `None` if it is not complete yet. Frames of connections that were
/// never opened are skipped, as NRI's own code does.
pub(super) fn take_frame(read: &mut BytesMut) -> Result<Option<(Lane, Bytes)>, OversizedFrame> {
    loop {
        let Some((header, _)) = read.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [c0, c1, c2, c3, l0, l1, l2, l3] = *header;
        let connection = u32::from_be_bytes([c0, c1, c2, c3]);
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let size = usize::try_from(length).unwrap_or(usize::MAX);
        if size > MAX_PAYLOAD {
            return Err(OversizedFrame { connection, length });
        }
        if read.len() < HEADER + size {
            return Ok(None);
        }
        read.advance(HEADER);
        let payload = read.split_to(size).freeze();
        match connection {
            1 => return Ok(Some((Lane::Plugin, payload))),
            2 => return Ok(Some((Lane::Runtime, payload))),
            _ => {}
        }
    }
}

/// Frames one whole message of at most [`MAX_PAYLOAD`] bytes.
pub(super) fn frame(lane: Lane, message: &[u8]) -> BytesMut {
    let (first, rest) = message.split_at(message.len().min(FIRST_FRAME));
    let mut framed = BytesMut::with_capacity(message.len() + 2 * HEADER);
    for part in [first, rest].into_iter().filter(|part| !part.is_empty()) {
        framed.put_u32(lane.number());
        framed.put_u32(u32::try_from(part.len()).unwrap_or(u32::MAX));
        framed.put_slice(part);
    }
    framed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_frames(bytes: &[u8]) -> Result<Vec<(Lane, Bytes)>, OversizedFrame> {
        let mut read = BytesMut::from(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = take_frame(&mut read)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn a_frame_is_two_numbers_and_the_payload() {
        assert_eq!(&frame(Lane::Runtime, b"abc")[..], b"\0\0\0\x02\0\0\0\x03abc");
        assert_eq!(all_frames(b"\0\0\0\x01\0\0\0\x02hi").unwrap(), [(Lane::Plugin, Bytes::from_static(b"hi"))]);
    }

    #[test]
    fn a_long_message_is_two_frames_the_first_as_long_as_the_runtimes_buffer() {
        let frames = all_frames(&frame(Lane::Plugin, &[7; 10_000])).unwrap();
        assert_eq!(frames.iter().map(|(_, payload)| payload.len()).collect::<Vec<_>>(), [4096, 5904]);
    }

    #[test]
    fn frames_of_other_connections_are_skipped() {
        let bytes = [b"\0\0\0\x09\0\0\0\x01x".as_slice(), &frame(Lane::Plugin, b"y")].concat();
        assert_eq!(all_frames(&bytes).unwrap(), [(Lane::Plugin, Bytes::from_static(b"y"))]);
    }

    #[test]
    fn a_length_beyond_the_limit_is_rejected_before_anything_is_read_for_it() {
        let announced = |length: usize| {
            let length = u32::try_from(length).unwrap().to_be_bytes();
            all_frames(&[&[0, 0, 0, 1], &length[..]].concat())
        };
        assert_eq!(announced(MAX_PAYLOAD), Ok(vec![]), "the rest of the frame may follow");
        assert!(announced(MAX_PAYLOAD + 1).is_err());
        let refused = announced(0x7f00_0000).unwrap_err();
        assert_eq!(refused, OversizedFrame { connection: 1, length: 0x7f00_0000 });
        assert!(refused.to_string().contains("does not speak NRI"), "{refused}");
    }

    proptest! {
        #[test]
        fn a_message_arrives_whole_however_it_is_split(
            message in proptest::collection::vec(any::<u8>(), 0..12_000),
            piece in 1usize..5000,
        ) {
            let mut read = BytesMut::new();
            let mut arrived = Vec::new();
            for part in frame(Lane::Runtime, &message).chunks(piece) {
                read.extend_from_slice(part);
                while let Some((lane, payload)) = take_frame(&mut read).unwrap() {
                    prop_assert_eq!(lane, Lane::Runtime);
                    arrived.extend_from_slice(&payload);
                }
            }
            prop_assert!(read.is_empty());
            prop_assert_eq!(arrived, message);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = all_frames(&bytes);
        }
    }
}
