//! Whether the frontend's tokenizer is the artifact's: ids of another vocabulary would be answered with nonsense instead of an error.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use unicorn_text::TokenizerSection;

/// Compares the ids of both tokenizers. Where `model_path` is no folder, or has no `tokenizer.json`, there is nothing to compare.
///
/// # Errors
/// Names the first token, in the order of their ids, that they have not in common.
pub(crate) fn check(section: &TokenizerSection, model_path: &str) -> Result<(), String> {
    let path = Path::new(model_path).join("tokenizer.json");
    if section.tokenizer_json.is_empty() || !path.exists() {
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let of_folder = tokens(&text).ok_or_else(|| format!("{}: expected a tokenizer's JSON", path.display()))?;
    let Some(of_artifact) = tokens(&section.tokenizer_json) else { return Ok(()) };
    let mut ids = of_artifact.keys().chain(of_folder.keys());
    match ids.find(|&id| of_artifact.get(id) != of_folder.get(id)) {
        None => Ok(()),
        Some(id) => {
            let shown = |tokens: &BTreeMap<u64, String>| tokens.get(id).map_or("none".into(), |one| format!("{one:?}"));
            let (expected, found) = (shown(&of_artifact), shown(&of_folder));
            let path = path.display();
            Err(format!(
                "{path}: token {id} of the artifact is {expected}, found {found}; pass the folder it was compiled from"
            ))
        }
    }
}

/// The tokens of a `tokenizer.json` by their ids, those that were added in the place of others.
fn tokens(text: &str) -> Option<BTreeMap<u64, String>> {
    let json: Value = serde_json::from_str(text).ok()?;
    let mut tokens = BTreeMap::new();
    match &json["model"]["vocab"] {
        Value::Object(ids) => tokens.extend(ids.iter().filter_map(|(token, id)| Some((id.as_u64()?, token.clone())))),
        // Unigram: pairs of a token and its score.
        Value::Array(pairs) => {
            tokens.extend((0..).zip(pairs).filter_map(|(id, pair)| Some((id, pair[0].as_str()?.to_owned()))));
        }
        _ => return None,
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        tokens.insert(added["id"].as_u64()?, added["content"].as_str()?.to_owned());
    }
    Some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(vocabulary: &str) -> TokenizerSection {
        TokenizerSection { tokenizer_json: tokenizer(vocabulary), ..TokenizerSection::default() }
    }

    fn tokenizer(vocabulary: &str) -> String {
        format!(r#"{{"model": {{"vocab": {vocabulary}}}, "added_tokens": [{{"id": 2, "content": "<end>"}}]}}"#)
    }

    #[test]
    fn another_vocabulary_is_named_by_its_first_token() {
        let folder = std::env::temp_dir().join(format!("unicorn-dynamo-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("tokenizer.json"), tokenizer(r#"{"a": 0, "b": 1}"#)).unwrap();
        let path = folder.to_str().unwrap();
        assert_eq!(check(&section(r#"{"b": 1, "a": 0}"#), path), Ok(()));
        // A list has the same ids.
        assert_eq!(check(&section(r#"[["a", 0.5], ["b", 0.25]]"#), path), Ok(()));
        assert_eq!(check(&TokenizerSection::default(), path), Ok(()));
        let refused = check(&section(r#"{"a": 0, "c": 1}"#), path).unwrap_err();
        assert!(refused.contains(r#"token 1 of the artifact is "c", found "b""#), "{refused}");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(check(&section(r#"{"a": 0}"#), path), Ok(()));
    }
}
