//! Keys on elliptic curves: private keys sign, public keys verify.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::SignatureScheme;
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use unicorn_artifact::header::hex;

use super::bundle::{Bundle, Material};
use super::statement;
use crate::error::RegistryError;
use crate::sha256;

/// The algorithms that model-signing uses on each curve.
const SCHEMES: [SignatureScheme; 2] = [SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ECDSA_NISTP384_SHA384];

/// A private key, and the public key or certificates that verify its signatures.
pub struct SigningKey {
    key: std::sync::Arc<dyn rustls::sign::SigningKey>,
    material: Material,
}

impl SigningKey {
    /// Reads a private key as PEM, by `openssl genpkey` or `openssl ecparam -genkey`. With certificates, the signer's first, the
    /// signature is valid for everybody who trusts the last one's issuer.
    ///
    /// # Errors
    /// When a file is not PEM of such content, or the first certificate belongs to another key.
    pub fn read(path: &Path, certificates: &[std::path::PathBuf]) -> Result<SigningKey, RegistryError> {
        let wrong = |what: String| RegistryError::Artifact { path: path.to_owned(), what };
        let bytes = std::fs::read(path).map_err(RegistryError::io(path))?;
        let expected = "expected a private key on the curve P-256 or P-384 as PEM: openssl genpkey -algorithm EC -pkeyopt \
                        ec_paramgen_curve:P-256 -out key.pem";
        let der = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| wrong(format!("{error}; {expected}")))?;
        let key = any_ecdsa_type(&der).map_err(|error| wrong(format!("{error}; {expected}")))?;
        let public = key.public_key().expect("keys on these curves have one");
        let mut chain = Vec::new();
        for path in certificates {
            chain.extend(read_certificates(path)?.into_iter().map(|certificate| certificate.to_vec()));
        }
        let material = match chain.first() {
            None => Material::Key(hint(&public)),
            Some(own) => {
                let own = CertificateDer::from(own.as_slice());
                let parsed =
                    webpki::EndEntityCert::try_from(&own).map_err(|error| wrong(format!("certificate: {error}")))?;
                if parsed.subject_public_key_info() != public {
                    return Err(wrong("first certificate is of another key".into()));
                }
                Material::Certificates(chain)
            }
        };
        Ok(SigningKey { key, material })
    }

    /// The signature of a file with this SHA-256, as a bundle.
    pub(crate) fn sign(&self, file_name: &str, hash: &[u8; 32]) -> Vec<u8> {
        let payload = statement::of_file(file_name, hash);
        let signer = self.key.choose_scheme(&SCHEMES).expect("the key is on one of the curves");
        let signature = signer.sign(&Bundle::signed_bytes(&payload)).expect("the system gives random numbers");
        Bundle { material: self.material.clone(), payload, signature }.encode()
    }
}

/// Reads a public key as PEM.
pub fn read_public(path: &Path) -> Result<SubjectPublicKeyInfoDer<'static>, RegistryError> {
    let wrong = |what: String| RegistryError::Artifact { path: path.to_owned(), what };
    let bytes = std::fs::read(path).map_err(RegistryError::io(path))?;
    let expected = "expected a public key on the curve P-256 or P-384 as PEM: openssl pkey -in key.pem -pubout";
    let key = SubjectPublicKeyInfoDer::from_pem_slice(&bytes).map_err(|error| wrong(format!("{error}; {expected}")))?;
    match algorithm(&key) {
        Some(_) => Ok(key),
        None => Err(wrong(format!("key is on another curve; {expected}"))),
    }
}

/// Reads all certificates of a file as PEM.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, RegistryError> {
    let wrong = |what: String| RegistryError::Artifact { path: path.to_owned(), what };
    let bytes = std::fs::read(path).map_err(RegistryError::io(path))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = certificates.map_err(|error| wrong(format!("{error}; expected certificates as PEM")))?;
    if certificates.is_empty() { Err(wrong("no certificate, expected some as PEM".into())) } else { Ok(certificates) }
}

/// Whether a signature is by a public key.
pub fn verifies(key: &SubjectPublicKeyInfoDer<'_>, message: &[u8], signature: &[u8]) -> bool {
    let Some((algorithm, point)) = algorithm(key) else { return false };
    algorithm.verify_signature(point, message, signature).is_ok()
}

/// The algorithm of a key's curve, and its point.
fn algorithm<'k>(
    key: &'k SubjectPublicKeyInfoDer<'_>,
) -> Option<(&'static dyn SignatureVerificationAlgorithm, &'k [u8])> {
    // SEQUENCE { SEQUENCE { algorithm and curve }, BIT STRING without unused bits }
    let (sequence, rest) = element(key, 0x30)?;
    let (id, bits) = element(sequence, 0x30)?;
    let (bits, after) = element(bits, 0x03)?;
    let point = bits.strip_prefix(&[0])?;
    if !rest.is_empty() || !after.is_empty() {
        return None;
    }
    let known = default_provider().signature_verification_algorithms.mapping;
    let of_scheme = |scheme| known.iter().find(|(known, _)| *known == scheme).map(|(_, algorithms)| *algorithms);
    SCHEMES.into_iter().filter_map(of_scheme).find_map(|algorithms| {
        // The first algorithm is that of the scheme's own curve.
        let first = *algorithms.first()?;
        (first.public_key_alg_id().as_ref() == id).then_some((first, point))
    })
}

/// The content of a DER element with this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], rest) = bytes.split_first_chunk()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Keys on these curves have fewer than 256 bytes.
        0x81 => rest.split_first().map(|(&len, rest)| (usize::from(len), rest))?,
        _ => return None,
    };
    (found == tag && len <= rest.len()).then(|| rest.split_at(len))
}

/// model-signing's name of a public key: the SHA-256 of its PEM.
pub fn hint(key: &SubjectPublicKeyInfoDer<'_>) -> String {
    let text = STANDARD.encode(key);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("ASCII")).collect();
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", lines.join("\n"));
    let digest = sha256::digest(pem.as_bytes());
    sha256::digits(&digest).expect("it was just made").to_owned()
}

/// The first digits of a key's hint, for people.
pub fn shown(key: &SubjectPublicKeyInfoDer<'_>) -> String {
    let hint = hint(key);
    hint.chars().take(16).collect()
}

/// SHA-256 of a certificate, for people.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    use sha2::Digest;
    hex(&sha2::Sha256::digest(certificate).as_slice()[..8])
}
