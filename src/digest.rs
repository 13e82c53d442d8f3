//! SHA-256 as hexadecimal text. Pure.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The full digest, for checksums.
pub fn sha256(data: impl AsRef<[u8]>) -> String {
    Sha256::digest(data).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The first `digits` of the digest, for names that must be unique but short.
pub fn short_sha256(data: impl AsRef<[u8]>, digits: usize) -> String {
    let mut hex = sha256(data);
    hex.truncate(digits);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digests_are_those_of_the_standard() {
        // FIPS 180-4, example of one block.
        assert_eq!(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(short_sha256("abc", 8), "ba7816bf");
    }
}
