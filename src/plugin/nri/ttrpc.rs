//! Unary calls of ttrpc in both directions: message headers, requests and responses. Pure.
//!
//! A message is a 4-byte length and a 4-byte stream number, both big-endian, a type byte and a flags byte, then the
//! encoded request or response. The caller numbers its streams with ascending odd numbers; an answer has the number of
//! its call.

use prost::{
    Message as _,
    bytes::{Buf, BufMut, Bytes, BytesMut},
};

use super::messages::ttrpc::{Request, Response, Status};

/// The length of a message's header.
pub(super) const HEADER: usize = 10;

/// The largest payload of a message, by ttrpc's specification.
pub(super) const MAX_PAYLOAD: usize = 4 << 20;

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// The gRPC status codes that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    InvalidArgument = 3,
    FailedPrecondition = 9,
    Unimplemented = 12,
}

/// The answer to a call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// A gRPC status code.
    pub code: i32,
    /// Why, for users.
    pub message: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code as i32, message: message.into() }
    }
}

/// A message that arrived.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Incoming {
    /// The other side calls.
    Call { stream: u32, service: String, method: String, payload: Bytes },
    /// The other side answers.
    Answer { stream: u32, result: Result<Bytes, Failure> },
}

/// Bytes that are not ttrpc, or a message that is too long to send.
#[derive(Debug, thiserror::Error)]
pub enum TtrpcError {
    /// The header announces more than ttrpc allows.
    #[error(
        "received a message of {0} bytes, but the limit is {MAX_PAYLOAD}: the process at the socket does not speak ttrpc"
    )]
    TooLongToRead(u32),
    /// A message of this plugin is too long.
    #[error("cannot send a message of {0} bytes: the limit of ttrpc is {MAX_PAYLOAD}")]
    TooLongToSend(usize),
    /// The envelope cannot be decoded.
    #[error("cannot decode the {envelope} on stream {stream}: {source}")]
    Envelope {
        /// Whether it is a request or a response.
        envelope: &'static str,
        /// Which call.
        stream: u32,
        /// What is wrong.
        source: prost::DecodeError,
    },
}

/// Takes the next message off the front of what was read on a connection; `None` if it is not complete yet. Messages of
/// other types belong to streaming calls, which NRI does not make. They are skipped.
pub(super) fn take_message(read: &mut BytesMut) -> Result<Option<Incoming>, TtrpcError> {
    loop {
        let Some((header, _)) = read.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [l0, l1, l2, l3, s0, s1, s2, s3, kind, _flags] = *header;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let stream = u32::from_be_bytes([s0, s1, s2, s3]);
        let size = usize::try_from(length).unwrap_or(usize::MAX);
        if size > MAX_PAYLOAD {
            return Err(TtrpcError::TooLongToRead(length));
        }
        if read.len() < HEADER + size {
            return Ok(None);
        }
        read.advance(HEADER);
        let payload = read.split_to(size).freeze();
        match kind {
            REQUEST => {
                let Request { service, method, payload, .. } = Request::decode(payload)
                    .map_err(|source| TtrpcError::Envelope { envelope: "request", stream, source })?;
                return Ok(Some(Incoming::Call { stream, service, method, payload: payload.into() }));
            }
            RESPONSE => {
                let Response { status, payload } = Response::decode(payload)
                    .map_err(|source| TtrpcError::Envelope { envelope: "response", stream, source })?;
                let result = match status {
                    Some(Status { code, message }) if code != 0 => Err(Failure { code, message }),
                    _ => Ok(payload.into()),
                };
                return Ok(Some(Incoming::Answer { stream, result }));
            }
            _ => {}
        }
    }
}

/// A call, as bytes.
pub(super) fn call(stream: u32, service: &str, method: &str, payload: Vec<u8>) -> Result<BytesMut, TtrpcError> {
    let request = Request { service: service.to_owned(), method: method.to_owned(), payload, timeout_nano: 0 };
    message(REQUEST, stream, &request)
}

/// An answer, as bytes.
pub(super) fn answer(stream: u32, result: Result<Vec<u8>, Failure>) -> Result<BytesMut, TtrpcError> {
    let response = match result {
        Ok(payload) => Response { status: None, payload },
        Err(Failure { code, message }) => Response { status: Some(Status { code, message }), payload: Vec::new() },
    };
    message(RESPONSE, stream, &response)
}

fn message(kind: u8, stream: u32, envelope: &impl prost::Message) -> Result<BytesMut, TtrpcError> {
    let size = envelope.encoded_len();
    let length = match u32::try_from(size) {
        Ok(length) if size <= MAX_PAYLOAD => length,
        _ => return Err(TtrpcError::TooLongToSend(size)),
    };
    let mut bytes = BytesMut::with_capacity(HEADER + size);
    bytes.put_u32(length);
    bytes.put_u32(stream);
    bytes.put_u8(kind);
    bytes.put_u8(0);
    bytes.put_slice(&envelope.encode_to_vec());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all_messages(mut read: BytesMut) -> Result<Vec<Incoming>, TtrpcError> {
        let mut messages = Vec::new();
        while let Some(message) = take_message(&mut read)? {
            messages.push(message);
        }
        Ok(messages)
    }

    #[test]
    fn a_call_has_its_header_as_the_specification_says() {
        let bytes = call(5, "s", "m", b"p".to_vec()).unwrap();
        assert_eq!(&bytes[..], b"\0\0\0\x09\0\0\0\x05\x01\0\x0a\x01s\x12\x01m\x1a\x01p");
    }

    #[test]
    fn calls_and_answers_are_read_back() {
        let refused = Failure::new(Code::FailedPrecondition, "no such claim");
        let bytes = [
            call(1, "service", "Method", vec![1, 2]).unwrap(),
            answer(1, Ok(vec![3])).unwrap(),
            answer(3, Err(refused.clone())).unwrap(),
        ]
        .concat();
        assert_eq!(
            all_messages(BytesMut::from(&bytes[..])).unwrap(),
            [
                Incoming::Call {
                    stream: 1,
                    service: "service".into(),
                    method: "Method".into(),
                    payload: Bytes::from_static(&[1, 2])
                },
                Incoming::Answer { stream: 1, result: Ok(Bytes::from_static(&[3])) },
                Incoming::Answer { stream: 3, result: Err(refused) },
            ]
        );
    }

    #[test]
    fn a_status_with_code_0_is_success() {
        let response = Response { status: Some(Status { code: 0, message: "OK".into() }), payload: vec![3] };
        let answer = message(RESPONSE, 1, &response).unwrap();
        assert_eq!(
            all_messages(answer).unwrap(),
            [Incoming::Answer { stream: 1, result: Ok(Bytes::from_static(&[3])) }]
        );
    }

    #[test]
    fn an_announced_length_beyond_the_limit_is_rejected_at_once() {
        let announced = |length: usize| {
            let length = u32::try_from(length).unwrap().to_be_bytes();
            all_messages(BytesMut::from(&[&length[..], b"\0\0\0\x01\x01\0"].concat()[..]))
        };
        assert_eq!(announced(MAX_PAYLOAD).unwrap(), [], "the rest of the message may follow");
        assert!(announced(MAX_PAYLOAD + 1).is_err());
        let refused = announced(0xffff_ffff).unwrap_err();
        assert!(refused.to_string().contains("does not speak ttrpc"), "{refused}");
    }

    #[test]
    fn a_message_beyond_the_limit_is_not_sent() {
        assert!(matches!(
            call(1, "service", "Method", vec![0; MAX_PAYLOAD]).unwrap_err(),
            TtrpcError::TooLongToSend(size) if size > MAX_PAYLOAD
        ));
    }

    #[test]
    fn messages_of_streaming_calls_are_skipped() {
        let bytes = [&b"\0\0\0\x01\0\0\0\x01\x03\0x"[..], &answer(1, Ok(vec![])).unwrap()].concat();
        assert_eq!(
            all_messages(BytesMut::from(&bytes[..])).unwrap(),
            [Incoming::Answer { stream: 1, result: Ok(Bytes::new()) }]
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = all_messages(BytesMut::from(&bytes[..]));
        }

        #[test]
        fn no_envelope_makes_it_panic(kind in 1u8..3, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut read = BytesMut::new();
            read.put_u32(u32::try_from(body.len()).unwrap());
            read.put_u32(1);
            read.put_slice(&[kind, 0]);
            read.put_slice(&body);
            let _ = all_messages(read);
        }
    }
}
