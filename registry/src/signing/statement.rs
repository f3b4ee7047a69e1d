//! The signed content: an in-toto statement of the hashes of a model's files.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use unicorn_artifact::header::hex;

const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE: &str = "https://model_signing/signature/v1.0";
/// Name of the file in model-signing's statement of a model that is one file.
const ONLY_FILE: &str = ".";

/// The statement of a model that is one file.
pub fn of_file(file_name: &str, sha256: &[u8; 32]) -> Vec<u8> {
    let statement = json!({
        "_type": STATEMENT_TYPE,
        "subject": [{"name": file_name, "digest": {"sha256": hex(Sha256::digest(sha256).as_slice())}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": false},
            "resources": [{"name": ONLY_FILE, "algorithm": "sha256", "digest": hex(sha256)}],
        },
    });
    serde_json::to_vec(&statement).expect("a statement is plain data")
}

/// Checks that a statement covers this file, alone or in a folder with others.
///
/// # Errors
/// Why the statement is refused.
pub fn check(payload: &[u8], file_name: &str, sha256: &[u8; 32]) -> Result<(), String> {
    let statement: Value =
        serde_json::from_slice(payload).map_err(|error| format!("statement does not decode: {error}"))?;
    for (field, expected) in [("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)] {
        if statement[field] != expected {
            return Err(format!("{field} of the statement is {}, expected {expected:?}", statement[field]));
        }
    }
    let serialization = &statement["predicate"]["serialization"];
    for (field, expected) in [("method", "files"), ("hash_type", "sha256")] {
        if serialization[field] != expected {
            return Err(format!("{field} of the signature is {}, expected {expected:?}", serialization[field]));
        }
    }
    let resources = statement["predicate"]["resources"].as_array().ok_or("statement names no files")?;
    let mut root = Sha256::new();
    let mut signed = None;
    for resource in resources {
        let (name, digest) = (resource["name"].as_str().unwrap_or_default(), digits(&resource["digest"])?);
        root.update(digest);
        let is_it = name == file_name || (resources.len() == 1 && name == ONLY_FILE);
        if is_it && signed.replace(digest).is_some() {
            return Err(format!("statement names the file {name} twice"));
        }
    }
    let [subject] = statement["subject"].as_array().map(Vec::as_slice).unwrap_or_default() else {
        return Err("statement has more or fewer than one subject".into());
    };
    if digits(&subject["digest"]["sha256"])? != root.finalize().as_slice() {
        return Err("digest of the statement's subject is not that of its files".into());
    }
    let signed = signed.ok_or_else(|| format!("signature is of other files than {file_name}"))?;
    if signed != *sha256 {
        return Err(format!("file has SHA-256 {}, expected {}: it is not what was signed", hex(sha256), hex(&signed)));
    }
    Ok(())
}

/// 64 hexadecimal digits.
fn digits(value: &Value) -> Result<[u8; 32], String> {
    let text = value.as_str().filter(|text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let text = text.ok_or_else(|| format!("digest in the statement is {value}, expected 64 hexadecimal digits"))?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).expect("digits are ASCII");
        *byte = u8::from_str_radix(pair, 16).expect("it was checked");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_of_its_file_alone() {
        let (hash, other) = ([7; 32], [8; 32]);
        let statement = of_file("smol.unicorn", &hash);
        assert_eq!(check(&statement, "renamed.unicorn", &hash), Ok(()));
        assert!(check(&statement, "smol.unicorn", &other).unwrap_err().contains("not what was signed"));
        let text = String::from_utf8(statement).unwrap();
        for (from, to, expected) in [
            ("Statement/v1", "Statement/v2", "_type"),
            ("signature/v1.0", "signature/v2", "predicateType"),
            ("\"files\"", "\"shards\"", "method"),
            ("\"sha256\",\"allow", "\"blake3\",\"allow", "hash_type"),
            ("\"0707", "\"0808", "subject is not that of its files"),
            ("\"0707", "\"zz07", "hexadecimal digits"),
            ("\"name\":\".\"", "\"name\":\"other\"", "other files than smol.unicorn"),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text, "{from}");
            let refusal = check(changed.as_bytes(), "smol.unicorn", &hash).unwrap_err();
            assert!(refusal.contains(expected), "{refusal}");
        }
        assert!(check(b"[]", "smol.unicorn", &hash).is_err() && check(b"", "smol.unicorn", &hash).is_err());
    }
}
