//! `oci://registry/name:tag`: the reference to an artifact in a registry.

use std::fmt;
use std::str::FromStr;

use oci_client::Reference;

use crate::error::RegistryError;

/// Begin of every reference to a registry.
const SCHEME: &str = "oci://";

/// An artifact's name in a registry, by tag or by digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciReference(Reference);

impl OciReference {
    /// Whether a text begins as a reference, well-formed or not.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    pub(crate) fn inner(&self) -> &Reference {
        &self.0
    }
}

impl FromStr for OciReference {
    type Err = RegistryError;

    /// The registry must be named: there is no default registry.
    fn from_str(text: &str) -> Result<OciReference, RegistryError> {
        let wrong = |what: &str| RegistryError::Reference { text: text.into(), what: what.into() };
        let name = text.strip_prefix(SCHEME).ok_or_else(|| wrong("not a reference to a registry"))?;
        let reference: Reference = name.parse().map_err(|error| wrong(&format!("{error}")))?;
        if !name.starts_with(&format!("{}/", reference.registry())) {
            return Err(wrong("no registry is named"));
        }
        Ok(OciReference(reference))
    }
}

impl fmt::Display for OciReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_names_registry_name_and_tag() {
        for (text, shown) in [
            ("oci://localhost:5000/smol:1", "oci://localhost:5000/smol:1"),
            ("oci://registry.example/models/smol", "oci://registry.example/models/smol:latest"),
        ] {
            let reference: OciReference = text.parse().unwrap();
            assert_eq!(reference.to_string(), shown);
            assert_eq!(shown.parse::<OciReference>().unwrap(), reference);
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for text in [
            "smol",
            "oci://",
            "oci://smol:1",
            "oci://library/smol:1",
            "oci://registry.example/Smol:1",
            "oci://a.b/c@sha256:1",
        ] {
            assert!(text.parse::<OciReference>().is_err(), "{text}");
        }
    }
}
