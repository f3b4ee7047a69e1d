//! The manifest and configuration of an artifact in a registry, by the CNCF's ModelPack specification: an OCI image manifest whose
//! layers have the media types of models. `docs/registry.md` shows one.

use serde::{Deserialize, Serialize};
use unicorn_artifact::{LicenseSection, Meta};

use crate::parts::PartName;
use crate::sha256;
use crate::signing::BUNDLE_TYPE;

/// Media type of the manifest itself.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Type of the artifact that the manifest describes.
const MODEL_TYPE: &str = "application/vnd.cncf.model.manifest.v1+json";
/// Media type of the configuration.
const CONFIG_TYPE: &str = "application/vnd.cncf.model.config.v1+json";
/// Media type of a chunk of weights, not compressed.
const WEIGHT_TYPE: &str = "application/vnd.cncf.model.weight.v1.raw";
/// Media type of all other parts of the file: the head, a section or kernels.
const WEIGHT_CONFIG_TYPE: &str = "application/vnd.cncf.model.weight.config.v1.raw";
/// A layer's path; here the name of its part.
const FILE_PATH: &str = "org.cncf.model.filepath";
/// Longest manifest, in bytes, that registries accept and that is read here.
pub const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// The content of an artifact in a registry: its layers in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Layer>,
    /// Bundles of signatures, which follow the layers.
    pub(crate) signatures: Vec<Descriptor>,
}

/// One part of an artifact in a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    pub name: PartName,
    pub digest: String,
    pub size: u64,
}

/// OCI's reference to content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    #[serde(rename = "mediaType")]
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Annotations>,
}

/// Annotations of a layer; others are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Annotations {
    #[serde(rename = "org.cncf.model.filepath", default)]
    pub file_path: String,
}

#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(rename = "schemaVersion")]
    schema_version: u32,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    #[serde(rename = "artifactType", default)]
    artifact_type: String,
    config: Descriptor,
    layers: Vec<Descriptor>,
}

impl Manifest {
    /// A manifest with the configuration that `config` encodes.
    pub(crate) fn new(config: &[u8], layers: Vec<Layer>, signatures: Vec<Descriptor>) -> Manifest {
        let (digest, size) = (sha256::digest(config), config.len() as u64);
        Manifest {
            config: Descriptor { media_type: CONFIG_TYPE.into(), digest, size, annotations: None },
            layers,
            signatures,
        }
    }

    /// The manifest as JSON, a function of the artifact alone.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let descriptor = |layer: &Layer| {
            let is_weights = matches!(layer.name, PartName::Weights { .. });
            Descriptor {
                media_type: if is_weights { WEIGHT_TYPE } else { WEIGHT_CONFIG_TYPE }.into(),
                digest: layer.digest.clone(),
                size: layer.size,
                annotations: Some(Annotations { file_path: layer.name.to_string() }),
            }
        };
        let document = Document {
            schema_version: 2,
            media_type: MANIFEST_TYPE.into(),
            artifact_type: MODEL_TYPE.into(),
            config: self.config.clone(),
            layers: self.layers.iter().map(descriptor).chain(self.signatures.iter().cloned()).collect(),
        };
        serde_json::to_vec(&document).expect("a manifest is plain data")
    }

    /// Reads an untrusted manifest.
    ///
    /// # Errors
    /// A message for people, for bytes that are not a manifest of an artifact.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, String> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(format!("manifest has {} bytes, expected at most {MAX_MANIFEST_BYTES}", bytes.len()));
        }
        let document: Document =
            serde_json::from_slice(bytes).map_err(|error| format!("manifest does not decode: {error}"))?;
        if document.artifact_type != MODEL_TYPE {
            return Err(format!(
                "artifact type of the manifest is {:?}, expected {MODEL_TYPE}: it is no model",
                document.artifact_type
            ));
        }
        let layer = |descriptor: Descriptor| {
            let path = descriptor.annotations.map(|annotations| annotations.file_path).unwrap_or_default();
            let name = path.parse::<PartName>().map_err(|()| {
                format!("{FILE_PATH} of a layer is {path:?}, expected a part of a Unicorn artifact: it is another kind of model")
            })?;
            if sha256::digits(&descriptor.digest).is_none() {
                return Err(format!(
                    "digest of layer {name} is {:?}, expected sha256: and 64 digits",
                    descriptor.digest
                ));
            }
            Ok(Layer { name, digest: descriptor.digest, size: descriptor.size })
        };
        let (signatures, layers): (Vec<_>, Vec<_>) =
            document.layers.into_iter().partition(|descriptor| descriptor.media_type == BUNDLE_TYPE);
        if signatures.iter().any(|signature| sha256::digits(&signature.digest).is_none()) {
            return Err("digest of a signature is no SHA-256".into());
        }
        let layers = layers.into_iter().map(layer).collect::<Result<Vec<_>, String>>()?;
        Ok(Manifest { config: document.config, layers, signatures })
    }
}

/// The bundle of a signature as a layer.
pub fn signature_layer(bundle: &[u8]) -> Descriptor {
    Descriptor {
        media_type: BUNDLE_TYPE.into(),
        digest: sha256::digest(bundle),
        size: bundle.len() as u64,
        annotations: Some(Annotations { file_path: "signature".into() }),
    }
}

/// ModelPack's configuration of a model, which registries show.
#[derive(Serialize)]
struct Config<'a> {
    descriptor: ConfigDescriptor<'a>,
    config: ConfigModel<'a>,
    modelfs: ConfigLayers<'a>,
}

#[derive(Serialize)]
struct ConfigDescriptor<'a> {
    name: &'a str,
    family: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    licenses: Vec<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigModel<'a> {
    architecture: &'a str,
    format: &'a str,
    param_size: String,
    quantization: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigLayers<'a> {
    r#type: &'a str,
    diff_ids: Vec<&'a str>,
}

/// The configuration of an artifact as JSON.
pub fn config(meta: &Meta, license: Option<&LicenseSection>, layers: &[Layer], signatures: &[Descriptor]) -> Vec<u8> {
    let weights = meta.provenance.options.iter().find(|(name, _)| name == "weights");
    let config = Config {
        descriptor: ConfigDescriptor {
            name: &meta.model.name,
            family: &meta.model.architecture,
            licenses: license.and_then(|license| license.name.as_deref()).into_iter().collect(),
        },
        config: ConfigModel {
            architecture: "transformer",
            format: "unicorn",
            param_size: param_size(meta.model.parameters),
            quantization: weights.map_or("", |(_, value)| value),
        },
        modelfs: ConfigLayers {
            r#type: "layers",
            // Layers are not compressed, so their contents have the same digests.
            diff_ids: layers
                .iter()
                .map(|layer| &layer.digest[..])
                .chain(signatures.iter().map(|one| &one.digest[..]))
                .collect(),
        },
    };
    serde_json::to_vec(&config).expect("a configuration is plain data")
}

/// Number of parameters in the specification's form: `6.7B`.
fn param_size(parameters: u64) -> String {
    let units = [(1e12, "T"), (1e9, "B"), (1e6, "M")];
    let count = parameters as f64;
    let (unit, letter) = units.into_iter().find(|(unit, _)| count >= *unit).unwrap_or((1e3, "K"));
    format!("{:.1}{letter}", count / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(name: PartName) -> Layer {
        Layer { name, digest: sha256::digest(b"bytes"), size: 5 }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let layers = vec![layer(PartName::Head), layer(PartName::Kernels("rdna3".into()))];
        let manifest = Manifest::new(b"{}", layers, vec![signature_layer(b"bundle")]);
        assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
    }

    #[test]
    fn other_manifests_are_refused_by_name() {
        let refusal = |json: &str| Manifest::decode(json.as_bytes()).unwrap_err();
        let sound = String::from_utf8(Manifest::new(b"{}", vec![layer(PartName::Head)], vec![]).encode()).unwrap();
        assert!(refusal("{").starts_with("manifest does not decode"));
        assert!(refusal(&sound.replace("cncf.model.manifest", "oci.image")).contains("it is no model"));
        assert!(refusal(&sound.replace("\"head\"", "\"model.gguf\"")).contains("another kind of model"));
        assert!(refusal(&sound.replace(&sha256::digest(b"bytes"), "sha256:../../x")).contains("digest of layer head"));
    }

    #[test]
    fn sizes_are_written_with_one_digit() {
        for (parameters, shown) in [(134_515_008, "134.5M"), (8_030_261_248, "8.0B"), (512, "0.5K")] {
            assert_eq!(param_size(parameters), shown);
        }
    }
}
