use std::io::Cursor;

use super::SignatureError;

/// A key that bundles are checked against.
#[derive(Clone, Debug)]
pub struct PublicKey(minisign::PublicKey);

/// A key that bundles are signed with.
pub struct SecretKey(minisign::SecretKey);

/// What a reader demands of the signature.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Signed by one of these keys (several, so that keys can be rotated).
    Require(Vec<PublicKey>),
    /// If signed by anyone, then by one of these keys; unsigned passes.
    IfSigned(Vec<PublicKey>),
    /// Digests only.
    Unchecked,
}

/// What the check of the signature found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trusted {
    /// Signed by the trusted key of this id.
    By(String),
    /// There is a signature, and it was not looked at.
    NotChecked,
    /// There is no signature.
    Unsigned,
}

fn malformed(what: &str, problem: impl ToString) -> SignatureError {
    SignatureError::Malformed {
        what: what.to_owned(),
        problem: problem.to_string(),
    }
}

/// Minisign shows key ids as the little-endian number in hex.
fn key_id(bytes: &[u8]) -> String {
    bytes.iter().rev().map(|byte| format!("{byte:02X}")).collect()
}

impl PublicKey {
    /// Reads a key in minisign's format: the whole file, or its base64 line alone.
    ///
    /// # Errors
    /// When it is not such a key.
    pub fn parse(text: &str) -> Result<Self, SignatureError> {
        let line = text
            .lines()
            .map(str::trim)
            .rfind(|line| !line.is_empty())
            .unwrap_or_default();
        minisign::PublicKey::from_base64(line)
            .map(Self)
            .map_err(|error| malformed("public key", error))
    }

    /// The key's id, as minisign shows it.
    pub fn id(&self) -> String {
        key_id(self.0.keynum())
    }

    /// The key in minisign's file format.
    ///
    /// # Errors
    /// When the library cannot encode it.
    pub fn to_file(&self) -> Result<String, SignatureError> {
        self.0
            .to_box()
            .map(|boxed| boxed.to_string())
            .map_err(|error| malformed("public key", error))
    }
}

impl SecretKey {
    /// Reads a key in minisign's file format.
    ///
    /// # Errors
    /// When it is not such a key, or the password is wrong, missing, or not needed.
    pub fn parse(text: &str, password: Option<&str>) -> Result<Self, SignatureError> {
        let wrong = |error| malformed("secret key", error);
        let boxed = || minisign::SecretKeyBox::from_string(text).map_err(wrong);
        let plain = boxed()?.into_unencrypted_secret_key();
        match (plain, password) {
            (Ok(key), None) => Ok(Self(key)),
            (Ok(_), Some(_)) => Err(malformed(
                "secret key",
                "it is not encrypted, but a password was given; leave the password out",
            )),
            (Err(_), Some(password)) => boxed()?
                .into_secret_key(Some(password.to_owned()))
                .map(Self)
                .map_err(wrong),
            (Err(error), None) => Err(malformed(
                "secret key",
                format!("{error}; if it is encrypted, give its password"),
            )),
        }
    }

    /// The key in minisign's file format (encrypted if it was made with a password).
    ///
    /// # Errors
    /// When the library cannot encode it.
    pub fn to_file(&self) -> Result<String, SignatureError> {
        self.0
            .to_box(None)
            .map(|boxed| boxed.to_string())
            .map_err(|error| malformed("secret key", error))
    }

    /// Signs the bytes of a manifest (prehashed, minisign's default).
    pub(super) fn sign(&self, manifest: &[u8]) -> Result<String, SignatureError> {
        let comment = Some("edgeopt bundle manifest");
        minisign::sign(None, &self.0, Cursor::new(manifest), comment, comment)
            .map(|signature| signature.to_string())
            .map_err(|error| malformed("signature", error))
    }
}

/// Makes a key pair; the secret key is encrypted if a password is given.
///
/// # Errors
/// When the system gives no randomness.
pub fn generate_keys(password: Option<&str>) -> Result<(PublicKey, SecretKey), SignatureError> {
    let pair = match password {
        Some(password) => minisign::KeyPair::generate_encrypted_keypair(Some(password.to_owned())),
        None => minisign::KeyPair::generate_unencrypted_keypair(),
    };
    let minisign::KeyPair { pk, sk } = pair.map_err(|error| malformed("new key", error))?;
    Ok((PublicKey(pk), SecretKey(sk)))
}

/// Length of a 64-byte Ed25519 signature in padded base64.
const SIGNATURE_BASE64: usize = 88;

fn parse_signature(bytes: &[u8]) -> Result<minisign::SignatureBox, SignatureError> {
    let text = std::str::from_utf8(bytes).map_err(|error| malformed("signature", error))?;
    // The library accepts the second signature (over the trusted comment) at any length and panics on a short one,
    // which anybody could put behind a valid first signature.
    let last = text.lines().nth(3).map(str::trim).unwrap_or_default();
    if last.len() != SIGNATURE_BASE64 || !last.ends_with("==") {
        return Err(malformed(
            "signature",
            "its fourth line is not a signature of 64 bytes",
        ));
    }
    minisign::SignatureBox::from_string(text).map_err(|error| malformed("signature", error))
}

impl Trust {
    /// Checks `signature` (the content of the signature member, if there is one) over `manifest`.
    pub(super) fn check(&self, manifest: &[u8], signature: Option<&[u8]>) -> Result<Trusted, SignatureError> {
        let (keys, required) = match self {
            Self::Require(keys) => (keys, true),
            Self::IfSigned(keys) => (keys, false),
            Self::Unchecked if signature.is_some() => return Ok(Trusted::NotChecked),
            Self::Unchecked => return Ok(Trusted::Unsigned),
        };
        let Some(signature) = signature else {
            return if required {
                Err(SignatureError::Unsigned)
            } else {
                Ok(Trusted::Unsigned)
            };
        };
        let signature = parse_signature(signature)?;
        let id = key_id(signature.keynum());
        let Some(key) = keys.iter().find(|key| key.id() == id) else {
            return Err(SignatureError::UnknownKey {
                key: id,
                trusted: keys.iter().map(PublicKey::id).collect(),
            });
        };
        minisign::verify(&key.0, &signature, Cursor::new(manifest), true, false, false)
            .map(|()| Trusted::By(id.clone()))
            .map_err(|_| SignatureError::Mismatch { key: id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_comment_or_a_second_signature_of_another_length_is_refused() {
        let (public, secret) = generate_keys(None).unwrap();
        let trust = Trust::Require(vec![public]);
        let text = secret.sign(b"manifest").unwrap();
        assert!(trust.check(b"manifest", Some(text.as_bytes())).is_ok());
        let lines: Vec<&str> = text.lines().collect();
        let with_last = |last: &str| [lines[0], lines[1], lines[2], last].join("\n");
        for changed in [
            text.replace("trusted comment: edgeopt", "trusted comment: ed"),
            with_last("AAAA"),
            with_last(""),
            with_last(&format!("{}AAAA", lines[3])),
            with_last(&"A".repeat(88)),
            lines[..3].join("\n"),
            String::new(),
        ] {
            let result = trust.check(b"manifest", Some(changed.as_bytes()));
            assert!(result.is_err(), "{changed}");
        }
    }
}
