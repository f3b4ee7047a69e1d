//! The sigstore bundle: a signature and its verification material, as JSON.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Media type of a bundle, also as a layer of a manifest.
pub const BUNDLE_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// Media type of the signed payload.
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// Larger than any real bundle.
pub const MAX_BUNDLE_BYTES: u64 = 1 << 20;

/// A signature of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    pub material: Material,
    pub payload: Vec<u8>,
    /// ECDSA, as ASN.1.
    pub signature: Vec<u8>,
}

/// The signer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Material {
    /// SHA-256 of the public key as PEM, in digits.
    Key(String),
    /// DER, the signer's first.
    Certificates(Vec<Vec<u8>>),
}

impl Bundle {
    pub fn encode(&self) -> Vec<u8> {
        let mut material = match &self.material {
            Material::Key(hint) => json!({"publicKey": {"hint": hint}}),
            Material::Certificates(chain) => {
                let chain: Vec<Value> = chain.iter().map(|der| json!({"rawBytes": STANDARD.encode(der)})).collect();
                json!({"x509CertificateChain": {"certificates": chain}})
            }
        };
        material["tlogEntries"] = json!([]);
        let bundle = json!({
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": material,
            "dsseEnvelope": {
                "payload": STANDARD.encode(&self.payload),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": STANDARD.encode(&self.signature), "keyid": ""}],
            },
        });
        serde_json::to_vec(&bundle).expect("a bundle is plain data")
    }

    /// Reads an untrusted bundle.
    ///
    /// # Errors
    /// A message for people, for bytes that are not a bundle with one signature.
    pub fn decode(bytes: &[u8]) -> Result<Bundle, String> {
        if bytes.len() as u64 > MAX_BUNDLE_BYTES {
            return Err(format!("signature has {} bytes, expected at most {MAX_BUNDLE_BYTES}", bytes.len()));
        }
        let bundle: Value =
            serde_json::from_slice(bytes).map_err(|error| format!("signature does not decode: {error}"))?;
        if bundle["mediaType"] != BUNDLE_TYPE {
            return Err(format!("media type of the signature is {}, expected {BUNDLE_TYPE}", bundle["mediaType"]));
        }
        let envelope = &bundle["dsseEnvelope"];
        if envelope["payloadType"] != PAYLOAD_TYPE {
            return Err(format!("what is signed has type {}, expected {PAYLOAD_TYPE}", envelope["payloadType"]));
        }
        let [signature] = envelope["signatures"].as_array().map(Vec::as_slice).unwrap_or_default() else {
            return Err("bundle has more or fewer than one signature".into());
        };
        let material = &bundle["verificationMaterial"];
        let certificates = material["x509CertificateChain"]["certificates"].as_array();
        let material = match (certificates, material["publicKey"]["hint"].as_str()) {
            (Some(chain), None) => {
                let chain = chain.iter().map(|certificate| decoded("certificate", &certificate["rawBytes"]));
                Material::Certificates(chain.collect::<Result<_, _>>()?)
            }
            (None, Some(hint)) => Material::Key(hint.into()),
            _ => return Err("signature names neither a key nor certificates, or both".into()),
        };
        Ok(Bundle {
            material,
            payload: decoded("payload", &envelope["payload"])?,
            signature: decoded("signature", &signature["sig"])?,
        })
    }

    /// The signed bytes: DSSE's encoding of a payload and its type.
    pub fn signed_bytes(payload: &[u8]) -> Vec<u8> {
        let mut bytes = format!("DSSEv1 {} {PAYLOAD_TYPE} {} ", PAYLOAD_TYPE.len(), payload.len()).into_bytes();
        bytes.extend(payload);
        bytes
    }
}

fn decoded(what: &str, value: &Value) -> Result<Vec<u8>, String> {
    let text = value.as_str().ok_or_else(|| format!("{what} of the bundle is missing"))?;
    STANDARD.decode(text).map_err(|error| format!("{what} of the bundle is no base64: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_read_as_it_was_written() {
        for material in [Material::Key("01ab".into()), Material::Certificates(vec![vec![1, 2], vec![3]])] {
            let bundle = Bundle { material, payload: b"{}".to_vec(), signature: vec![4, 5] };
            let bytes = bundle.encode();
            assert_eq!(Bundle::decode(&bytes), Ok(bundle));
            for cut in 0..bytes.len() {
                assert!(Bundle::decode(&bytes[..cut]).is_err(), "{cut} bytes");
            }
        }
    }

    #[test]
    fn what_is_signed_begins_with_its_type_and_length() {
        let expected = b"DSSEv1 28 application/vnd.in-toto+json 2 {}";
        assert_eq!(Bundle::signed_bytes(b"{}"), expected);
    }
}
