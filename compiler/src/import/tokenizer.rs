//! The tokenizer's part of a Hugging Face folder, as text: `tokenizer.json` and what its neighbours declare of special
//! tokens and the chat template.

use std::path::PathBuf;

use serde_json::Value;
use tokenizers::Tokenizer;
use unicorn_artifact::TokenizerSection;

use super::config::ModelConfig;
use super::json::Fields;
use super::source_files::SourceFiles;
use super::tokenizer_trial::tried;
use crate::error::{CompileError, Result};

/// `config_stop_ids` are config.json's. A folder without tokenizer.json gives an empty text: such a model compiles and
/// runs on token ids.
pub(super) fn read(
    files: &mut SourceFiles,
    config: &ModelConfig,
    config_stop_ids: Option<Vec<u32>>,
) -> Result<TokenizerSection> {
    let tokenizer_json = read_text(files, "tokenizer.json")?;
    let tokenizer = tokenizer_json.as_ref().map(|text| parse_tokenizer(files, text)).transpose()?;
    let id_of = |token: &Option<String>| tokenizer.as_ref()?.token_to_id(token.as_deref()?);

    let settings = Settings::read(files)?;
    let bos_token = settings.special_token("bos_token");
    let eos_token = settings.special_token("eos_token");
    let bos_id = id_of(&bos_token);
    let add_bos = match (&tokenizer, bos_id) {
        (Some(tokenizer), Some(bos_id)) => {
            let is_gemma = config.norm_offset == 1.0;
            puts_first(tokenizer, bos_id) || settings.add_bos_token()?.unwrap_or(is_gemma)
        }
        _ => false,
    };
    let stop_ids = match generation_stop_ids(files)?.or(config_stop_ids) {
        Some(stop_ids) => stop_ids,
        None => id_of(&eos_token).into_iter().collect(),
    };
    let chat_template = chat_template(files, &settings)?;
    let tokenizer_json = tokenizer_json.unwrap_or_default();
    Ok(TokenizerSection { tokenizer_json, chat_template, bos_token, eos_token, add_bos, bos_id, stop_ids })
}

fn parse_tokenizer(files: &SourceFiles, tokenizer_json: &str) -> Result<Tokenizer> {
    tried(tokenizer_json).map_err(|what| CompileError::malformed(&files.path("tokenizer.json"), what))
}

/// Whether the tokenizer's own post-processor begins a text with this token.
fn puts_first(tokenizer: &Tokenizer, token_id: u32) -> bool {
    tokenizer.encode("a", true).is_ok_and(|encoding| encoding.get_ids().first() == Some(&token_id))
}

/// tokenizer_config.json and, for what it leaves out, special_tokens_map.json.
struct Settings {
    tokenizer_config: Value,
    special_tokens_map: Value,
    path: PathBuf,
}

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

impl Settings {
    fn read(files: &mut SourceFiles) -> Result<Settings> {
        let mut read = |name| Ok(files.optional_json(name)?.unwrap_or_else(|| Value::Object(Default::default())));
        Ok(Settings {
            tokenizer_config: read(TOKENIZER_CONFIG)?,
            special_tokens_map: read("special_tokens_map.json")?,
            path: files.path(TOKENIZER_CONFIG),
        })
    }

    /// A token written as a string or as an object with its `content`.
    fn special_token(&self, name: &str) -> Option<String> {
        let written = self.tokenizer_config.get(name).or_else(|| self.special_tokens_map.get(name))?;
        written.as_str().or_else(|| written.get("content")?.as_str()).map(str::to_owned)
    }

    fn add_bos_token(&self) -> Result<Option<bool>> {
        Fields::root(&self.path, &self.tokenizer_config)?.flag("add_bos_token")
    }
}

/// From chat_template.jinja, else chat_template.json (older processors), else tokenizer_config.json: one template, or
/// a list of named ones, of which "default" is taken.
fn chat_template(files: &mut SourceFiles, settings: &Settings) -> Result<Option<String>> {
    if let Some(template) = read_text(files, "chat_template.jinja")? {
        return Ok(Some(template));
    }
    let processor = files.optional_json("chat_template.json")?;
    let holders = processor.iter().chain([&settings.tokenizer_config]);
    let template = holders.filter_map(|holder| holder.get("chat_template")).find_map(|written| {
        let named_default = |list: &Vec<Value>| {
            list.iter()
                .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))?
                .get("template")
                .cloned()
        };
        written.as_str().map(str::to_owned).or_else(|| named_default(written.as_array()?)?.as_str().map(str::to_owned))
    });
    Ok(template)
}

fn generation_stop_ids(files: &mut SourceFiles) -> Result<Option<Vec<u32>>> {
    const GENERATION_CONFIG: &str = "generation_config.json";
    let Some(config) = files.optional_json(GENERATION_CONFIG)? else { return Ok(None) };
    Fields::root(&files.path(GENERATION_CONFIG), &config)?.token_ids("eos_token_id")
}

fn read_text(files: &mut SourceFiles, name: &str) -> Result<Option<String>> {
    let Some(bytes) = files.optional(name)? else { return Ok(None) };
    let not_text = |_| CompileError::malformed(&files.path(name), "file is not UTF-8 text");
    String::from_utf8(bytes).map(Some).map_err(not_text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;
    use tempfile::TempDir;

    use super::super::config_json::model_config;
    use super::*;

    /// A tokenizer of four words; with `begins_with_bos`, its post-processor puts `<s>` before a text.
    fn tokenizer_json(begins_with_bos: bool) -> Value {
        let post_processor = json!({
            "type": "TemplateProcessing", "pair": [],
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } },
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "decoder": null,
            "post_processor": if begins_with_bos { post_processor } else { Value::Null },
            "model": {
                "type": "WordLevel", "unk_token": "<unk>", "vocab": { "<unk>": 0, "<s>": 1, "</s>": 2, "a": 3 }
            },
        })
    }

    fn read_folder(architecture: &str, files: &[(&str, Value)], config_stop_ids: Option<Vec<u32>>) -> TokenizerSection {
        let folder = write_folder(files);
        let config = model_config(Path::new("config.json"), &json!({ "architectures": [architecture] })).unwrap();
        read(&mut SourceFiles::new(folder.path()), &config, config_stop_ids).unwrap()
    }

    fn write_folder(files: &[(&str, Value)]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn special_tokens() -> Value {
        json!({ "bos_token": { "content": "<s>", "special": true }, "eos_token": "</s>" })
    }

    #[test]
    fn bos_is_added_if_the_post_processor_or_the_config_adds_it() {
        let add_bos = |architecture: &str, begins_with_bos, add_bos_token: Value| {
            let mut config = special_tokens();
            config["add_bos_token"] = add_bos_token;
            let files = [("tokenizer.json", tokenizer_json(begins_with_bos)), (TOKENIZER_CONFIG, config)];
            let read = read_folder(architecture, &files, None);
            assert_eq!((read.bos_token.as_deref(), read.bos_id), (Some("<s>"), Some(1)));
            read.add_bos
        };
        assert!(add_bos("LlamaForCausalLM", true, Value::Null));
        assert!(add_bos("LlamaForCausalLM", false, json!(true)));
        assert!(!add_bos("LlamaForCausalLM", false, Value::Null));
        assert!(add_bos("Gemma3ForCausalLM", false, Value::Null));
        assert!(!add_bos("Gemma3ForCausalLM", false, json!(false)));
    }

    #[test]
    fn stop_ids_come_from_generation_config_then_config_then_the_eos_token() {
        let mut files = vec![("tokenizer.json", tokenizer_json(false)), (TOKENIZER_CONFIG, special_tokens())];
        assert_eq!(read_folder("LlamaForCausalLM", &files, None).stop_ids, [2]);
        assert_eq!(read_folder("LlamaForCausalLM", &files, Some(vec![7])).stop_ids, [7]);
        files.push(("generation_config.json", json!({ "eos_token_id": [2, 3] })));
        assert_eq!(read_folder("LlamaForCausalLM", &files, Some(vec![7])).stop_ids, [2, 3]);
    }

    #[test]
    fn the_template_is_a_file_or_a_string_or_the_default_of_a_list() {
        let template = |files: &[(&str, Value)]| read_folder("LlamaForCausalLM", files, None).chat_template;
        let named = |name: &str, template: &str| json!({ "name": name, "template": template });
        let list = json!({ "chat_template": [named("tool_use", "T"), named("default", "D")] });
        assert_eq!(template(&[(TOKENIZER_CONFIG, json!({ "chat_template": "S" }))]).as_deref(), Some("S"));
        assert_eq!(template(&[(TOKENIZER_CONFIG, list.clone())]).as_deref(), Some("D"));
        assert_eq!(template(&[(TOKENIZER_CONFIG, list), ("chat_template.jinja", json!("J"))]).as_deref(), Some("J"));
        assert_eq!(template(&[]), None);
    }

    #[test]
    fn a_folder_without_a_tokenizer_gives_an_empty_text() {
        let read = read_folder("Gemma3ForCausalLM", &[(TOKENIZER_CONFIG, special_tokens())], None);
        assert_eq!((read.tokenizer_json.as_str(), read.add_bos, read.bos_id), ("", false, None));
    }

    #[test]
    fn a_broken_tokenizer_is_refused() {
        let folder = write_folder(&[("tokenizer.json", json!({ "model": 1 }))]);
        let config = model_config(Path::new("config.json"), &json!({ "model_type": "llama" })).unwrap();
        let message = read(&mut SourceFiles::new(folder.path()), &config, None).err().unwrap().to_string();
        assert!(message.contains("tokenizer.json: tokenizer: "), "{message}");
    }
}
