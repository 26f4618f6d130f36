//! Signatures with a key that the operator gives, by OpenSSL, which also verifies them.
//!
//! The checksums are signed, and with them everything else; the provenance also by itself, in the envelope (DSSE) in which tools
//! for attestations want it.

use anyhow::{Context, Result, bail};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;
use xtask::sh;

pub(crate) const SIGNATURE: &str = "SHA256SUMS.sig";
pub(crate) const PUBLIC_KEY: &str = "release.pub";
pub(crate) const ENVELOPE: &str = "provenance.dsse.json";
/// What signing adds to a release: these are not the same bytes each time, and depend on the key.
pub(crate) const FILES: [&str; 3] = [SIGNATURE, PUBLIC_KEY, ENVELOPE];

const PAYLOAD: &str = "application/vnd.in-toto+json";

/// The kinds of keys that sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ed25519,
    P256,
}

impl Kind {
    /// Of a public key.
    fn of(public: &Path) -> Result<Kind> {
        let text =
            sh::output(Command::new("openssl").args(["pkey", "-pubin", "-noout", "-text", "-in"]).arg(public))?;
        match () {
            () if text.contains("ED25519") => Ok(Kind::Ed25519),
            () if text.contains("prime256v1") => Ok(Kind::P256),
            () => bail!("the key is neither Ed25519 nor ECDSA with P-256"),
        }
    }
}

/// Signs what is in a release.
pub(crate) fn release(dir: &Path, key: &Path) -> Result<()> {
    let public = dir.join(PUBLIC_KEY);
    let mut openssl = Command::new("openssl");
    sh::output(openssl.args(["pkey", "-pubout", "-in"]).arg(key).arg("-out").arg(&public))
        .with_context(|| format!("cannot read the private key {}", key.display()))?;
    let kind = Kind::of(&public)?;
    sign(kind, key, &dir.join(crate::sums::NAME), &dir.join(SIGNATURE))?;
    let statement = fs::read(dir.join(crate::provenance::NAME)).context("cannot read the provenance")?;
    // What is signed is the type and the text, each with its length.
    let (message, signature) = (dir.join("message"), dir.join("signature"));
    fs::write(&message, envelope_bytes(&statement))?;
    sign(kind, key, &message, &signature)?;
    let envelope = json!({
        "payloadType": PAYLOAD, "payload": base64(&statement),
        "signatures": [{ "keyid": xtask::archive::sha256(&fs::read(&public)?), "sig": base64(&fs::read(&signature)?) }],
    });
    fs::write(dir.join(ENVELOPE), format!("{envelope}\n"))?;
    for file in [message, signature] {
        fs::remove_file(file)?;
    }
    Ok(())
}

fn envelope_bytes(payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {PAYLOAD} {} ", PAYLOAD.len(), payload.len()).into_bytes();
    bytes.extend(payload);
    bytes
}

fn sign(kind: Kind, key: &Path, file: &Path, signature: &Path) -> Result<()> {
    let mut openssl = Command::new("openssl");
    match kind {
        Kind::Ed25519 => openssl
            .args(["pkeyutl", "-sign", "-rawin", "-inkey"])
            .arg(key)
            .arg("-in")
            .arg(file)
            .arg("-out")
            .arg(signature),
        Kind::P256 => openssl.args(["dgst", "-sha256", "-sign"]).arg(key).arg("-out").arg(signature).arg(file),
    };
    sh::output(&mut openssl).map(drop).with_context(|| format!("cannot sign {}", file.display()))
}

/// Fails unless the public key's owner signed this file.
pub(crate) fn verify(public: &Path, file: &Path, signature: &Path) -> Result<()> {
    let mut openssl = Command::new("openssl");
    match Kind::of(public)? {
        Kind::Ed25519 => {
            openssl.args(["pkeyutl", "-verify", "-rawin", "-pubin", "-inkey"]).arg(public);
            openssl.arg("-in").arg(file).arg("-sigfile").arg(signature)
        }
        Kind::P256 => {
            openssl.args(["dgst", "-sha256", "-verify"]).arg(public).arg("-signature").arg(signature).arg(file)
        }
    };
    sh::output(&mut openssl).map(drop).with_context(|| format!("the signature of {} is not good", file.display()))
}

/// Fails unless the envelope holds this provenance, signed by the public key's owner.
pub(crate) fn verify_envelope(public: &Path, dir: &Path) -> Result<()> {
    let text = fs::read_to_string(dir.join(ENVELOPE)).context("cannot read the envelope")?;
    let envelope: serde_json::Value = serde_json::from_str(&text)?;
    let statement = fs::read(dir.join(crate::provenance::NAME))?;
    if envelope["payload"] != base64(&statement) || envelope["payloadType"] != PAYLOAD {
        bail!("{ENVELOPE} does not hold {}", crate::provenance::NAME);
    }
    let scratch = std::env::temp_dir().join(format!("release-envelope-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let (message, encoded, signature) = (scratch.join("message"), scratch.join("encoded"), scratch.join("signature"));
    fs::write(&message, envelope_bytes(&statement))?;
    fs::write(&encoded, envelope["signatures"][0]["sig"].as_str().context("the envelope has no signature")?)?;
    sh::output(
        Command::new("openssl").args(["base64", "-d", "-A", "-in"]).arg(&encoded).arg("-out").arg(&signature),
    )?;
    let verified = verify(public, &message, &signature);
    fs::remove_dir_all(scratch)?;
    verified
}

/// RFC 4648's, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = (word >> (18 - 6 * digit)) & 63;
            text.push(if digit > chunk.len() { '=' } else { char::from(DIGITS[index as usize]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_the_rfc_has_it() {
        let all = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(all, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    fn key(dir: &Path, words: &[&str]) -> std::path::PathBuf {
        let key = dir.join("key.pem");
        sh::output(Command::new("openssl").arg("genpkey").args(words).arg("-out").arg(&key)).unwrap();
        key
    }

    #[test]
    fn both_kinds_of_keys_sign_and_a_changed_file_is_found() {
        let p256: &[&str] = &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"];
        for words in [&["-algorithm", "ed25519"][..], p256] {
            let dir = std::env::temp_dir().join(format!("release-sign-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            let key = key(&dir, words);
            fs::write(dir.join(crate::sums::NAME), "sums\n").unwrap();
            fs::write(dir.join(crate::provenance::NAME), "{}").unwrap();
            release(&dir, &key).unwrap();
            let (public, sums) = (dir.join(PUBLIC_KEY), dir.join(crate::sums::NAME));
            verify(&public, &sums, &dir.join(SIGNATURE)).unwrap();
            verify_envelope(&public, &dir).unwrap();
            fs::write(&sums, "sumz\n").unwrap();
            let error = verify(&public, &sums, &dir.join(SIGNATURE)).unwrap_err().to_string();
            assert!(error.contains("SHA256SUMS is not good"), "{error}");
            fs::write(dir.join(crate::provenance::NAME), "{ }").unwrap();
            assert!(verify_envelope(&public, &dir).is_err());
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn other_keys_are_refused_by_name() {
        let dir = std::env::temp_dir().join(format!("release-key-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let key = key(&dir, &["-algorithm", "RSA"]);
        let error = release(&dir, &key).unwrap_err().to_string();
        assert_eq!(error, "the key is neither Ed25519 nor ECDSA with P-256");
        fs::remove_dir_all(dir).unwrap();
    }
}
