//! Which files of a repository are its model.

use std::collections::BTreeSet;

/// The files that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    pub kind: Kind,
    /// The file to run or compile; empty: the repository's folder.
    pub main: String,
    pub files: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Artifact,
    Safetensors,
    Gguf,
}

/// The model card, which names the license, and the names of its text.
const LICENSE_FILES: [&str; 5] = ["README.md", "LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE"];
/// Names the file of each weight.
pub const INDEX: &str = "model.safetensors.index.json";

/// Chooses among the files with these names: an artifact, or else safetensors at the top, or else a GGUF. `part` of a name chooses among
/// artifacts and GGUF files.
///
/// # Errors
/// When there is no model, or there are several; the message lists them.
pub fn select(names: &[String], part: Option<&str>) -> Result<Selection, String> {
    let one_of = |extension: &str| {
        let is_meant = |name: &&String| {
            let chosen = part.is_none_or(|part| name.to_lowercase().contains(&part.to_lowercase()));
            name.to_lowercase().ends_with(extension) && chosen
        };
        names.iter().filter(is_meant).cloned().collect::<Vec<String>>()
    };
    let artifacts = one_of(".unicorn");
    if !artifacts.is_empty() {
        let [main] = &artifacts[..] else { return Err(several("artifacts", artifacts.iter())) };
        return Ok(Selection { kind: Kind::Artifact, main: main.clone(), files: [main.clone()].into() });
    }
    if part.is_none()
        && let Some(files) = safetensors(names)
    {
        return Ok(Selection { kind: Kind::Safetensors, main: String::new(), files });
    }
    // A projector is not the model.
    let ggufs = one_of(".gguf").into_iter().filter(|name| !name.to_lowercase().contains("mmproj"));
    let mut models: Vec<Vec<String>> = Vec::new();
    for name in ggufs {
        match models.iter_mut().find(|model| split_name(&name).is_some_and(|own| split_name(&model[0]) == Some(own))) {
            Some(model) => model.push(name),
            None => models.push(vec![name]),
        }
    }
    models.iter_mut().for_each(|model| model.sort());
    match &models[..] {
        [] => Err(none(names, part)),
        [model] => Ok(Selection { kind: Kind::Gguf, main: model[0].clone(), files: model.iter().cloned().collect() }),
        _ => Err(several("GGUF files", models.iter().map(|model| &model[0]))),
    }
}

/// Parts of the split GGUF whose first file has such a name; 1 for any other.
pub fn parts_of(name: &str) -> usize {
    split_name(name).map_or(1, |(_, count)| count)
}

/// Name and number of parts of `NAME-00001-of-00003.gguf`.
fn split_name(name: &str) -> Option<(&str, usize)> {
    let stem = name.get(..name.len().checked_sub(".gguf".len())?)?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (begin, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(number) && is_number(count)).then_some((begin, count.parse().ok()?))
}

/// The weights at the top, and what describes them: configuration, tokenizer, and license, which the model card names. Some repositories have the same weights again in the form of another program.
fn safetensors(names: &[String]) -> Option<BTreeSet<String>> {
    let top = || names.iter().filter(|name| !name.contains('/'));
    let weights: Vec<&String> = top().filter(|name| name.ends_with(".safetensors")).collect();
    let own: Vec<&String> = weights.iter().copied().filter(|name| name.starts_with("model")).collect();
    let weights = if own.is_empty() { weights } else { own };
    if weights.is_empty() || !names.iter().any(|name| name == "config.json") {
        return None;
    }
    let describes = |name: &&String| {
        let is_index = name.ends_with(".index.json");
        LICENSE_FILES.contains(&&name[..])
            || name.ends_with(".jinja")
            || (name.ends_with(".json") && (!is_index || *name == INDEX))
    };
    Some(weights.into_iter().chain(top().filter(describes)).cloned().collect())
}

fn several<'n>(what: &str, names: impl Iterator<Item = &'n String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    format!(
        "repository has several {what}, expected one; name a part of its file after a colon, such as one of: {}",
        names.join(", ")
    )
}

fn none(names: &[String], part: Option<&str>) -> String {
    if let Some(part) = part {
        return format!("no artifact and no GGUF file has {part} in its name; repository has {}", shown(names));
    }
    let is_pytorch = |name: &String| [".bin", ".pt", ".pth", ".ckpt"].iter().any(|end| name.ends_with(end));
    let hint = match names.iter().any(|name| name.ends_with(".safetensors")) {
        true => "; its safetensors have no config.json beside them",
        false if names.iter().any(is_pytorch) => {
            "; its PyTorch checkpoint can be converted with transformers: model.save_pretrained(FOLDER, safe_serialization=True)"
        }
        false => "",
    };
    format!("repository has no artifact, no safetensors with config.json and no GGUF file, only {}{hint}", shown(names))
}

fn shown(names: &[String]) -> String {
    const MOST: usize = 12;
    let more = if names.len() > MOST { ", …" } else { "" };
    format!("{}{more}", names.iter().take(MOST).cloned().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], part: Option<&str>) -> Result<(Kind, String, Vec<String>), String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        select(&names, part).map(|one| (one.kind, one.main, one.files.into_iter().collect()))
    }

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn an_artifact_comes_before_weights_and_safetensors_before_gguf() {
        let folder = ["config.json", "model.safetensors", "tokenizer.json", "a.gguf", "README.md", "m.unicorn"];
        assert_eq!(chosen(&folder, None).unwrap(), (Kind::Artifact, "m.unicorn".into(), list(&["m.unicorn"])));
        let safetensors = list(&["README.md", "config.json", "model.safetensors", "tokenizer.json"]);
        assert_eq!(chosen(&folder[..5], None).unwrap(), (Kind::Safetensors, String::new(), safetensors));
        assert_eq!(chosen(&folder[3..5], None).unwrap().0, Kind::Gguf);
        assert_eq!(chosen(&folder[..5], Some("A.g")).unwrap().1, "a.gguf");
    }

    #[test]
    fn the_same_weights_in_another_form_are_left_out() {
        let names = [
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "consolidated.safetensors.index.json",
            "original/params.json",
            "pytorch_model.bin",
            "chat_template.jinja",
        ];
        let files = chosen(&names, None).unwrap().2;
        let expected = [
            "chat_template.jinja",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        assert_eq!(files, expected);
    }

    #[test]
    fn parts_of_a_split_gguf_are_one_model_and_others_are_named() {
        let split = ["Q8/m-Q8_0-00002-of-00002.gguf", "Q8/m-Q8_0-00001-of-00002.gguf", "m-Q4_0.gguf", "mmproj-m.gguf"];
        let error = chosen(&split, None).unwrap_err();
        assert!(
            error.contains("several GGUF files") && error.contains("Q8/m-Q8_0-00001-of-00002.gguf, m-Q4_0.gguf"),
            "{error}"
        );
        let (_, main, files) = chosen(&split, Some("q8_0")).unwrap();
        assert_eq!((&main[..], files.len(), parts_of(&main)), ("Q8/m-Q8_0-00001-of-00002.gguf", 2, 2));
        assert!(chosen(&split, Some("Q5")).unwrap_err().contains("has Q5 in its name"));
        assert_eq!(parts_of("m-Q4_0.gguf"), 1);
    }

    #[test]
    fn a_repository_without_a_model_is_refused_with_a_list_of_its_files() {
        let error = chosen(&["config.json", "pytorch_model.bin"], None).unwrap_err();
        assert!(error.contains("only config.json, pytorch_model.bin; its PyTorch checkpoint"), "{error}");
        assert!(chosen(&["model.safetensors"], None).unwrap_err().contains("no config.json beside"));
        assert!(chosen(&[], None).is_err());
    }
}
