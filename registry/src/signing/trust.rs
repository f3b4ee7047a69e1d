//! The trusted signers, and the check whether one of them has signed an artifact.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use serde::{Deserialize, Serialize};
use unicorn_artifact::account::size;

use super::bundle::{Bundle, MAX_BUNDLE_BYTES, Material};
use super::{keys, statement};
use crate::error::RegistryError;
use crate::sha256;

/// OID of the extended key usage codeSigning, in DER.
const CODE_SIGNING: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x03];

/// Trusted public keys, and certificates of trusted issuers.
#[derive(Default)]
pub struct Trust {
    keys: Vec<(PathBuf, SubjectPublicKeyInfoDer<'static>)>,
    anchors: Vec<(PathBuf, CertificateDer<'static>)>,
}

/// A signature that was verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signed {
    /// File of the trusted key, or of the trusted certificate that leads to the signer's.
    pub trusted: PathBuf,
    /// The first digits of the key's hash or of the signer's certificate's.
    pub by: String,
}

/// A policy: files beside it or elsewhere.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    #[serde(default)]
    keys: Vec<PathBuf>,
    #[serde(default)]
    certificates: Vec<PathBuf>,
}

impl Trust {
    /// Adds a public key as PEM.
    ///
    /// # Errors
    /// When the file is not a public key.
    pub fn add_key(&mut self, path: &Path) -> Result<(), RegistryError> {
        self.keys.push((path.to_owned(), keys::read_public(path)?));
        Ok(())
    }

    /// Adds certificates of issuers as PEM.
    ///
    /// # Errors
    /// When the file holds no certificate.
    pub fn add_certificates(&mut self, path: &Path) -> Result<(), RegistryError> {
        self.anchors
            .extend(keys::read_certificates(path)?.into_iter().map(|certificate| (path.to_owned(), certificate)));
        Ok(())
    }

    /// Adds the signers of a policy: a JSON object with lists `keys` and `certificates` of PEM files, relative to its own folder.
    ///
    /// # Errors
    /// When it is not a policy, names no signer, or names a file that is neither a key nor certificates.
    pub fn add_policy(&mut self, path: &Path) -> Result<(), RegistryError> {
        let wrong = |what: String| RegistryError::Artifact { path: path.to_owned(), what };
        let text = std::fs::read_to_string(path).map_err(RegistryError::io(path))?;
        let expected = r#"expected a policy, as in {"keys": ["alice.pub"], "certificates": ["company.pem"]}"#;
        let policy: Policy = serde_json::from_str(&text).map_err(|error| wrong(format!("{error}; {expected}")))?;
        if policy.keys.is_empty() && policy.certificates.is_empty() {
            return Err(wrong(format!("policy trusts nobody, {expected}")));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        policy.keys.iter().try_for_each(|key| self.add_key(&folder.join(key)))?;
        policy.certificates.iter().try_for_each(|file| self.add_certificates(&folder.join(file)))
    }

    /// Verifies that the bundle in the file `signature` is a trusted signature of the file at `path`.
    ///
    /// # Errors
    /// Why the signature is refused, or whose it is.
    pub fn verify(&self, path: &Path, signature: &Path) -> Result<Signed, RegistryError> {
        let wrong = |what: String| RegistryError::Artifact { path: signature.to_owned(), what };
        let found = std::fs::metadata(signature).map_err(RegistryError::io(signature))?;
        if found.len() > MAX_BUNDLE_BYTES {
            return Err(wrong(format!(
                "file has {}, expected a signature of at most {}",
                size(found.len()),
                size(MAX_BUNDLE_BYTES)
            )));
        }
        let bytes = std::fs::read(signature).map_err(RegistryError::io(signature))?;
        let file = File::open(path).map_err(RegistryError::io(path))?;
        let len_bytes = file.metadata().map_err(RegistryError::io(path))?.len();
        let hash = sha256::hash_in(&file, 0, len_bytes).map_err(RegistryError::io(path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        self.verify_bytes(&bytes, &name, &hash).map_err(wrong)
    }

    pub(crate) fn verify_bytes(&self, bundle: &[u8], file_name: &str, hash: &[u8; 32]) -> Result<Signed, String> {
        let (signed, payload) = self.signer(bundle)?;
        // The signed content is read only after its signature was verified.
        statement::check(&payload, file_name, hash)?;
        Ok(signed)
    }

    /// The signer of a bundle, and the signed content.
    pub(crate) fn signer(&self, bundle: &[u8]) -> Result<(Signed, Vec<u8>), String> {
        let bundle = Bundle::decode(bundle)?;
        let message = Bundle::signed_bytes(&bundle.payload);
        let signed = match &bundle.material {
            Material::Key(hint) => self.by_key(hint, &message, &bundle.signature)?,
            Material::Certificates(chain) => self.by_certificate(chain, &message, &bundle.signature)?,
        };
        Ok((signed, bundle.payload))
    }

    fn by_key(&self, hint: &str, message: &[u8], signature: &[u8]) -> Result<Signed, String> {
        let (path, key) = self.keys.iter().find(|(_, key)| keys::hint(key) == hint).ok_or_else(|| {
            let shown: String = hint.chars().take(16).collect();
            format!("signature is by the key {shown}…, which is not trusted here")
        })?;
        match keys::verifies(key, message, signature) {
            true => Ok(Signed { trusted: path.clone(), by: keys::shown(key) }),
            false => Err(format!("signature is not by the key {}", path.display())),
        }
    }

    /// Checks that the chain leads to a trusted certificate today, and that the signer's certificate is not for another purpose.
    fn by_certificate(&self, chain: &[Vec<u8>], message: &[u8], signature: &[u8]) -> Result<Signed, String> {
        let chain: Vec<CertificateDer<'_>> = chain.iter().map(|der| CertificateDer::from(&der[..])).collect();
        let (own, others) = chain.split_first().ok_or("signature has no certificate")?;
        let end =
            webpki::EndEntityCert::try_from(own).map_err(|error| format!("certificate of the signer: {error}"))?;
        let algorithms = default_provider().signature_verification_algorithms.all;
        let usage = webpki::KeyUsage::required_if_present(CODE_SIGNING);
        let mut last = String::from("no certificate is trusted here");
        for (path, certificate) in &self.anchors {
            let anchor = webpki::anchor_from_trusted_cert(certificate)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            match end.verify_for_usage(algorithms, &[anchor], others, UnixTime::now(), usage, None, None) {
                Ok(_) if !keys::verifies(&end.subject_public_key_info(), message, signature) => {
                    return Err("signature is not by the key of its certificate".into());
                }
                Ok(_) => return Ok(Signed { trusted: path.clone(), by: keys::fingerprint(own) }),
                Err(error) => {
                    last =
                        format!("certificate {} does not lead to {}: {error}", keys::fingerprint(own), path.display())
                }
            }
        }
        Err(last)
    }
}
