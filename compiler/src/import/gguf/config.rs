//! A GGUF file's metadata as a transformers config.json.
//!
//! The JSON serves twice: the importer reads its `ModelConfig` from it by the code that reads Hugging Face folders, and
//! `--export-dequantized` writes it beside the weights, where transformers loads it.

use serde_json::{Map, Value as Json, json};
use unicorn_artifact::TokenizerSection;

use super::keys::{Architecture, Keys, object};
use super::reader::Gguf;
use super::rope::{self, RopeShape};
use super::value::Value;
use super::{gemma3n, gemma4};
use crate::error::{CompileError, Result};
use crate::import::predictor::Head;

/// Makes the config.json; `tokenizer` gives its token ids.
///
/// # Errors
/// When a key is missing or has the wrong type, or when the metadata requires something that is not supported.
pub fn config_json(gguf: &Gguf, architecture: Architecture, tokenizer: &TokenizerSection) -> Result<Json> {
    let keys = Keys { gguf, architecture };
    keys.refuse_unknown_graphs()?;
    let embedding = gguf
        .tensors
        .get("token_embd.weight")
        .ok_or_else(|| CompileError::MissingTensor { name: "token_embd.weight".to_string(), hint: String::new() })?;
    let sizes = Sizes::read(&keys)?;
    let (class, model_type) = architecture.transformers_names();
    let mut config = object(json!({
        "architectures": [class],
        "model_type": model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": sizes.hidden,
        "intermediate_size": feed_forward(&keys, sizes.layers)?,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "max_position_embeddings": sizes.positions,
        "rms_norm_eps": keys.required_decimal("attention.layer_norm_rms_epsilon")?,
        "tie_word_embeddings": !gguf.tensors.contains_key("output.weight"),
        "attention_dropout": 0.0,
        "use_cache": true,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": (!tokenizer.stop_ids.is_empty()).then_some(&tokenizer.stop_ids),
        "pad_token_id": gguf.unsigned("tokenizer.ggml.padding_token_id")?,
    }));
    let shape = RopeShape {
        base: keys.decimal("rope.freq_base")?.unwrap_or(architecture.default_rope_base()),
        head_dim: sizes.head_dim,
        positions: sizes.positions,
    };
    if architecture != Architecture::Gemma4 {
        config.extend(rope::config_fields(&keys, shape)?);
    }
    let own = match architecture {
        Architecture::Llama => llama_fields(gguf),
        Architecture::Mixtral => experts_fields(&keys, json!({ "hidden_act": "silu", "sliding_window": null }))?,
        Architecture::Qwen2Moe => {
            let fields = json!({ "hidden_act": "silu", "use_sliding_window": false, "norm_topk_prob": false });
            experts_fields(&keys, fields)?
        }
        Architecture::Qwen3Moe | Architecture::Qwen3VlMoe => {
            // llama.cpp divides by the sum for this architecture, whatever the metadata has.
            let mut fields = qwen3_fields(gguf);
            fields.insert("norm_topk_prob".into(), json!(true));
            experts_fields(&keys, Json::Object(fields))?
        }
        Architecture::Olmoe => {
            experts_fields(&keys, json!({ "hidden_act": "silu", "attention_bias": false, "norm_topk_prob": false }))?
        }
        Architecture::Qwen2 => object(json!({ "hidden_act": "silu", "use_sliding_window": false })),
        Architecture::Qwen3 | Architecture::Qwen3Vl => qwen3_fields(gguf),
        Architecture::Qwen3Next | Architecture::Qwen35 | Architecture::Qwen35Moe => delta_fields(&keys, &sizes)?,
        Architecture::Olmo2 => olmo_fields(&keys, &sizes)?,
        Architecture::Gemma2 | Architecture::Gemma3 => gemma_fields(&keys, &sizes)?,
        Architecture::Gemma3n => gemma3n::fields(&keys, &keys.sliding_layers(sizes.layers, gemma3n::PERIOD)?)?,
        Architecture::Gemma4 => gemma4::fields(&keys, &keys.sliding_layers(sizes.layers, GEMMA_PERIOD)?)?,
        Architecture::ChatGlm | Architecture::Glm4 => object(json!({
            "hidden_act": "silu",
            "attention_bias": has_attention_bias(gguf),
        })),
        Architecture::GptOss => gpt_oss_fields(&keys, &sizes)?,
        Architecture::Granite => granite_fields(&keys)?,
        Architecture::Lfm2 => lfm2_fields(&keys, &sizes)?,
        Architecture::Lfm2Moe => lfm2_moe_fields(&keys, &sizes)?,
        Architecture::DeepSeek2 => deepseek_fields(&keys, &sizes)?,
        Architecture::Glm4Moe => glm4_moe_fields(&keys)?,
        Architecture::Mistral3 => mistral3_fields(&keys, &mut config)?,
        // llama.cpp attends to all tokens here, transformers does not.
        Architecture::Phi3 => {
            object(json!({ "hidden_act": "silu", "sliding_window": keys.size("attention.sliding_window")? }))
        }
        // llama.cpp has no key for the layers whose heads are not rotated: the last of four.
        Architecture::SmolLm3 => {
            let mut fields = llama_fields(gguf);
            fields.extend(object(json!({ "use_sliding_window": false, "no_rope_layer_interval": 4 })));
            fields
        }
    };
    config.extend(own);
    if architecture.has_image_positions()
        && config.get("rope_scaling").is_none_or(Json::is_null)
        && let Some(Value::Array(sections)) = gguf.value(&keys.name("rope.dimension_sections"))
    {
        // Of frames, and of an image's rows and columns; no model has a fourth.
        let sections: Vec<Option<u64>> = sections.values().take(3).map(|value| value.as_unsigned()).collect();
        let rope = json!({ "rope_type": "default", "mrope_interleaved": true, "mrope_section": sections });
        config.insert("rope_scaling".into(), rope);
    }
    Ok(Json::Object(config))
}

/// Width of the MLP; of one expert, where every layer has experts and the file states no width of the MLP.
fn feed_forward(keys: &Keys, layers: usize) -> Result<usize> {
    match keys.architecture {
        // Of its layers, each has its own.
        Architecture::Gemma3n => return Ok(keys.of_layers("feed_forward_length", layers)?[0]),
        Architecture::Gemma4 => return gemma4::feed_forward(keys, layers),
        _ => {}
    }
    let expert = if keys.architecture.has_experts() { keys.size("expert_feed_forward_length")? } else { None };
    let whole = keys.size("feed_forward_length")?;
    let size = match keys.architecture {
        // Where experts replace the MLP, the width is theirs.
        Architecture::GptOss => expert.or(whole),
        // A Granite 4 without experts has the one that is shared in other models of its family.
        Architecture::Granite => keys.size("expert_shared_feed_forward_length")?.or(whole),
        _ => whole.or(expert),
    };
    match size {
        Some(size) => Ok(size),
        None => keys.required_size("feed_forward_length"),
    }
}

/// `fields` and those of a mixture of experts in every layer.
fn experts_fields(keys: &Keys, fields: Json) -> Result<Map<String, Json>> {
    let mut fields = object(fields);
    let count = keys.required_size("expert_count")?;
    let is_local = matches!(keys.architecture, Architecture::Mixtral | Architecture::GptOss);
    let name = if is_local { "num_local_experts" } else { "num_experts" };
    fields.insert(name.into(), json!(count));
    fields.insert("num_experts_per_tok".into(), json!(keys.required_size("expert_used_count")?));
    if matches!(keys.architecture, Architecture::Qwen2Moe | Architecture::Qwen3Moe | Architecture::Qwen3VlMoe)
        || keys.architecture.has_delta_nets()
    {
        let stack = keys.gguf.tensors.get("blk.0.ffn_gate_exps.weight");
        let rows = stack.and_then(|stack| stack.shape.get(1).copied());
        let size = keys.size("expert_feed_forward_length")?.or(rows);
        let size = keys.gguf.require(&keys.name("expert_feed_forward_length"), size)?;
        fields.insert("moe_intermediate_size".into(), json!(size));
        fields.extend(object(json!({ "decoder_sparse_step": 1, "mlp_only_layers": [] })));
    }
    if keys.architecture == Architecture::Qwen2Moe || keys.architecture.has_delta_nets() {
        let rows = keys.gguf.tensors.get("blk.0.ffn_gate_shexp.weight").map(|shared| shared.shape[0]);
        let size = keys.size("expert_shared_feed_forward_length")?.or(rows);
        let size = keys.gguf.require(&keys.name("expert_shared_feed_forward_length"), size)?;
        fields.insert("shared_expert_intermediate_size".into(), json!(size));
    }
    Ok(fields)
}

fn llama_fields(gguf: &Gguf) -> Map<String, Json> {
    object(json!({
        "hidden_act": "silu",
        "attention_bias": has_attention_bias(gguf),
        "mlp_bias": gguf.tensors.contains_key("blk.0.ffn_gate.bias"),
    }))
}

/// Whether queries have a bias, in a vector of their own or in that of queries, keys and values.
fn has_attention_bias(gguf: &Gguf) -> bool {
    ["attn_q", "attn_qkv"].iter().any(|part| gguf.tensors.contains_key(format!("blk.0.{part}.bias").as_str()))
}

fn qwen3_fields(gguf: &Gguf) -> Map<String, Json> {
    object(json!({
        "hidden_act": "silu",
        "use_sliding_window": false,
        "attention_bias": has_attention_bias(gguf),
    }))
}

/// Fields of OLMo 2, or of OLMo 3 if the model has windows.
fn olmo_fields(keys: &Keys, sizes: &Sizes) -> Result<Map<String, Json>> {
    let bias = has_attention_bias(keys.gguf);
    let mut fields = object(json!({ "hidden_act": "silu", "attention_bias": bias }));
    if let Some(window) = keys.size("attention.sliding_window")? {
        fields.extend(object(json!({
            "architectures": ["Olmo3ForCausalLM"],
            "model_type": "olmo3",
            "sliding_window": window,
            "layer_types": layer_types(keys, sizes.layers, Some(window), 4)?,
        })));
    }
    Ok(fields)
}

/// A gated delta net's sizes; a layer with a tensor of its decay has one.
fn delta_fields(keys: &Keys, sizes: &Sizes) -> Result<Map<String, Json>> {
    let mut fields = object(json!({ "hidden_act": "silu", "attention_bias": false, "norm_topk_prob": true }));
    for (name, key) in [
        ("linear_conv_kernel_dim", "ssm.conv_kernel"),
        ("linear_key_head_dim", "ssm.state_size"),
        ("linear_num_key_heads", "ssm.group_count"),
        ("linear_num_value_heads", "ssm.time_step_rank"),
    ] {
        fields.insert(name.into(), json!(keys.required_size(key)?));
    }
    let (width, heads) = (keys.required_size("ssm.inner_size")?, keys.required_size("ssm.time_step_rank")?);
    if !width.is_multiple_of(heads) {
        let (key, heads_key) = (keys.name("ssm.inner_size"), keys.name("ssm.time_step_rank"));
        return Err(keys.gguf.malformed(format!("{key} is {width}, expected a multiple of {heads_key}, {heads}")));
    }
    fields.insert("linear_value_head_dim".into(), json!(width / heads));
    let kind = |layer: usize| {
        let is_recurrent = keys.gguf.tensors.contains_key(format!("blk.{layer}.ssm_a").as_str());
        if is_recurrent { "linear_attention" } else { "full_attention" }
    };
    fields.insert("layer_types".into(), (0..sizes.layers).map(kind).collect());
    if keys.architecture.has_experts() { experts_fields(keys, Json::Object(fields)) } else { Ok(fields) }
}

/// llama.cpp has no keys for the kinds of its layers, which alternate, or for the constants of its activation.
fn gpt_oss_fields(keys: &Keys, sizes: &Sizes) -> Result<Map<String, Json>> {
    let window = keys.size("attention.sliding_window")?;
    let window = keys.gguf.require(&keys.name("attention.sliding_window"), window)?;
    experts_fields(
        keys,
        json!({
            "hidden_act": "silu",
            "attention_bias": true,
            "sliding_window": window,
            "layer_types": layer_types(keys, sizes.layers, Some(window), 2)?,
        }),
    )
}

fn granite_fields(keys: &Keys) -> Result<Map<String, Json>> {
    let mut fields = llama_fields(keys.gguf);
    for (name, key) in [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        let factor = keys.decimal(key)?.filter(|factor| *factor != 0.0);
        if let Some(factor) = factor {
            fields.insert(name.into(), json!(factor));
        }
    }
    if !fields.contains_key("attention_multiplier") {
        return Err(keys.gguf.malformed(format!("{} is missing, expected Granite's", keys.name("attention.scale"))));
    }
    Ok(fields)
}

/// A layer without KV heads has a convolution. The width of the feed-forward is already multiplied by the folder's factors.
fn lfm2_fields(keys: &Keys, sizes: &Sizes) -> Result<Map<String, Json>> {
    if keys.size("attention.sliding_window")?.is_some() {
        return Err(CompileError::Unsupported {
            what: keys.name("attention.sliding_window"),
            detail: "layers of an LFM2 of text attend to all tokens".to_string(),
        });
    }
    let kv_heads = keys.of_layers("attention.head_count_kv", sizes.layers)?;
    let kind = |kv_heads: &usize| if *kv_heads == 0 { "conv" } else { "full_attention" };
    Ok(object(json!({
        "norm_eps": keys.required_decimal("attention.layer_norm_rms_epsilon")?,
        "conv_L_cache": keys.required_size("shortconv.l_cache")?,
        "conv_bias": false,
        "block_auto_adjust_ff_dim": false,
        "layer_types": kv_heads.iter().map(kind).collect::<Vec<_>>(),
    })))
}

fn lfm2_moe_fields(keys: &Keys, sizes: &Sizes) -> Result<Map<String, Json>> {
    let mut fields = lfm2_fields(keys, sizes)?;
    refuse_gating_unlike(keys, SIGMOID_GATING, "sigmoid")?;
    fields.extend(object(json!({
        "num_experts": keys.required_size("expert_count")?,
        "num_experts_per_tok": keys.required_size("expert_used_count")?,
        "moe_intermediate_size": keys.required_size("expert_feed_forward_length")?,
        "num_dense_layers": keys.size("leading_dense_block_count")?.unwrap_or(0),
        "norm_topk_prob": keys.gguf.bool(&keys.name("expert_weights_norm"))?.unwrap_or(true),
        "use_expert_bias": has_bias_of_choice(keys, sizes),
        "routed_scaling_factor": keys.decimal("expert_weights_scale")?.filter(|scale| *scale != 0.0).unwrap_or(1.0),
    })));
    Ok(fields)
}

/// Whether experts of the last layer are chosen by their score plus a bias.
fn has_bias_of_choice(keys: &Keys, sizes: &Sizes) -> bool {
    let last = sizes.layers - 1;
    keys.gguf.tensors.contains_key(format!("blk.{last}.exp_probs_b.bias").as_str())
}

/// llama.cpp's number of a mixture of experts whose scores are sigmoids.
const SIGMOID_GATING: usize = 2;

fn refuse_gating_unlike(keys: &Keys, expected: usize, name: &str) -> Result<()> {
    let key = keys.name("expert_gating_func");
    match keys.gguf.unsigned(&key)?.filter(|found| *found != expected && *found != 0) {
        None => Ok(()),
        Some(found) => Err(CompileError::Unsupported {
            what: format!("{key} {found}"),
            detail: format!("expected {expected}, {name}"),
        }),
    }
}

/// Fields of a mixture of experts beside shared ones, in the layers behind a few dense ones.
fn shared_expert_fields(keys: &Keys) -> Result<Map<String, Json>> {
    let groups = keys.size("expert_group_count")?.unwrap_or(1);
    Ok(object(json!({
        "hidden_act": "silu",
        "first_k_dense_replace": keys.size("leading_dense_block_count")?.unwrap_or(0),
        "n_routed_experts": keys.required_size("expert_count")?,
        "num_experts_per_tok": keys.required_size("expert_used_count")?,
        "n_shared_experts": keys.required_size("expert_shared_count")?,
        "moe_intermediate_size": keys.required_size("expert_feed_forward_length")?,
        "routed_scaling_factor": keys.decimal("expert_weights_scale")?.filter(|scale| *scale != 0.0).unwrap_or(1.0),
        "norm_topk_prob": keys.gguf.bool(&keys.name("expert_weights_norm"))?.unwrap_or(false),
        "n_group": groups,
        "topk_group": keys.size("expert_group_used_count")?.unwrap_or(groups),
    })))
}

/// GLM-4.5 to 4.7: the experts of DeepSeek V3.
fn glm4_moe_fields(keys: &Keys) -> Result<Map<String, Json>> {
    refuse_gating_unlike(keys, SIGMOID_GATING, "sigmoid")?;
    let mut fields = shared_expert_fields(keys)?;
    fields.extend(object(json!({
        "attention_bias": has_attention_bias(keys.gguf),
        "use_qk_norm": keys.gguf.tensors.contains_key("blk.0.attn_q_norm.weight"),
    })));
    Ok(fields)
}

/// One architecture has DeepSeek V2, whose scores are a softmax, and V3, whose scores are sigmoids; GLM-4.7-Flash has V3's layers.
fn deepseek_fields(keys: &Keys, sizes: &Sizes) -> Result<Map<String, Json>> {
    let key_dim = match keys.size("attention.key_length_mla")? {
        Some(length) => length,
        None => keys.required_size("attention.key_length")?,
    };
    let value_dim = match keys.size("attention.value_length_mla")? {
        Some(length) => length,
        None => keys.required_size("attention.value_length")?,
    };
    let Some(nope_dim) = key_dim.checked_sub(sizes.head_dim).filter(|nope_dim| *nope_dim > 0) else {
        let (key, rotated) = (keys.name("attention.key_length_mla"), keys.name("rope.dimension_count"));
        return Err(keys
            .gguf
            .malformed(format!("{key} is {key_dim}, expected more than {rotated}, {}", sizes.head_dim)));
    };
    // GLM-4.7-Flash is written without the key, and only sigmoids have biases of what is chosen.
    let is_sigmoid = match keys.gguf.unsigned(&keys.name("expert_gating_func"))?.filter(|found| *found != 0) {
        Some(found) => found == SIGMOID_GATING,
        None => has_bias_of_choice(keys, sizes),
    };
    let is_normalized = keys.gguf.bool(&keys.name("expert_weights_norm"))?.unwrap_or(false);
    let mut fields = shared_expert_fields(keys)?;
    fields.extend(object(json!({
        "attention_bias": false,
        "q_lora_rank": keys.size("attention.q_lora_rank")?,
        "kv_lora_rank": keys.required_size("attention.kv_lora_rank")?,
        "qk_nope_head_dim": nope_dim,
        "qk_rope_head_dim": sizes.head_dim,
        "v_head_dim": value_dim,
    })));
    if is_sigmoid {
        fields.extend(object(json!({ "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3" })));
    } else {
        refuse_gating_unlike(keys, 1, "softmax")?;
        if is_normalized {
            return Err(CompileError::Unsupported {
                what: format!("{} true", keys.name("expert_weights_norm")),
                detail: "weights that are shares of a softmax are not divided by their sum".to_string(),
            });
        }
        let has_groups = keys.size("expert_group_count")?.is_some_and(|groups| groups > 1);
        fields.insert("topk_method".into(), json!(if has_groups { "group_limited_greedy" } else { "greedy" }));
    }
    Ok(fields)
}

/// Its rotary embedding is written as transformers 5 has it, whose class takes no other form.
fn mistral3_fields(keys: &Keys, config: &mut Map<String, Json>) -> Result<Map<String, Json>> {
    let mut rope = match config.remove("rope_scaling") {
        Some(Json::Object(scaling)) => scaling,
        _ => object(json!({ "rope_type": "default" })),
    };
    rope.extend(config.remove("rope_theta").map(|theta| ("rope_theta".to_string(), theta)));
    let beta = keys.decimal("attention.temperature_scale")?.unwrap_or(0.0);
    rope.insert("llama_4_scaling_beta".into(), json!(beta));
    if !rope.contains_key("original_max_position_embeddings") {
        let original = keys.size("rope.scaling.original_context_length")?.or(keys.size("context_length")?);
        rope.insert("original_max_position_embeddings".into(), json!(original));
    }
    Ok(object(json!({ "hidden_act": "silu", "sliding_window": null, "rope_parameters": rope })))
}

/// Of so many layers of Gemma 3 and 4, the last attends to all tokens.
const GEMMA_PERIOD: usize = 6;

fn gemma_fields(keys: &Keys, sizes: &Sizes) -> Result<Map<String, Json>> {
    let is_gemma2 = keys.architecture == Architecture::Gemma2;
    // GGUF has no key for the scale of q·k. Only the 27B models use another one than the head's size gives, and llama.cpp
    // recognises them by their number of layers.
    let is_27b = sizes.layers == if is_gemma2 { 46 } else { 62 };
    let query_pre_attn_scalar = if is_27b { sizes.hidden / sizes.heads } else { sizes.head_dim };
    let (default_window, default_period) = if is_gemma2 { (Some(4096), 2) } else { (None, GEMMA_PERIOD) };
    let window = keys.size("attention.sliding_window")?.or(default_window);
    // Gemma 2 exports from before the keys existed have the published caps.
    let (default_attention_cap, default_final_cap) = if is_gemma2 { (Some(50.0), Some(30.0)) } else { (None, None) };
    let mut fields = object(json!({
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": false,
        "query_pre_attn_scalar": query_pre_attn_scalar,
        "attn_logit_softcapping": keys.decimal("attn_logit_softcapping")?.or(default_attention_cap),
        "final_logit_softcapping": keys.decimal("final_logit_softcapping")?.or(default_final_cap),
        "sliding_window": window,
        "layer_types": layer_types(keys, sizes.layers, window, default_period)?,
    }));
    if !is_gemma2 {
        let local_base = keys.decimal("rope.freq_base_swa")?.unwrap_or(10_000.0);
        fields.insert("rope_local_base_freq".to_string(), json!(local_base));
    }
    Ok(fields)
}

/// The kind of each layer.
fn layer_types(keys: &Keys, layers: usize, window: Option<usize>, default_period: usize) -> Result<Vec<&'static str>> {
    let name = |slides: bool| if slides && window.is_some() { "sliding_attention" } else { "full_attention" };
    Ok(keys.sliding_layers(layers, default_period)?.into_iter().map(name).collect())
}

/// The head that predicts the token behind the next one, if the file has its tensors and models of the architecture have one that is compiled.
///
/// # Errors
/// When a key has the wrong type.
pub fn head(gguf: &Gguf, architecture: Architecture, n_layers: usize) -> Result<Option<Head>> {
    let keys = Keys { gguf, architecture };
    let first = format!("blk.{n_layers}.nextn.");
    let has = |name: &str| gguf.tensors.contains_key(format!("{first}{name}.weight").as_str());
    if !(architecture.has_delta_nets() && has("eh_proj")) {
        return Ok(None);
    }
    let n_layers = keys.size("nextn_predict_layers")?.unwrap_or(0);
    let has_own_embedding = has("embed_tokens") || has("shared_head_head");
    Ok(Some(Head { n_layers, has_own_embedding }))
}

/// The numbers that several fields are made from.
struct Sizes {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    positions: usize,
}

impl Sizes {
    fn read(keys: &Keys) -> Result<Sizes> {
        let hidden = keys.required_size("embedding_length")?;
        let layers = keys.required_size("block_count")?;
        // A layer has tensors of its own: this bounds what a wrong count makes the reader allocate.
        if layers > keys.gguf.tensors.len() {
            let (key, tensors) = (keys.name("block_count"), keys.gguf.tensors.len());
            return Err(keys.gguf.malformed(format!("{key} is {layers}, more than the file's {tensors} tensors")));
        }
        // Layers that predict further tokens are counted as well.
        let further =
            if keys.architecture.predicts_further() { keys.size("nextn_predict_layers")?.unwrap_or(0) } else { 0 };
        let Some(layers) = layers.checked_sub(further).filter(|layers| *layers > 0) else {
            let (key, of_them) = (keys.name("block_count"), keys.name("nextn_predict_layers"));
            return Err(keys.gguf.malformed(format!("{key} is {layers}, expected more than {of_them}, {further}")));
        };
        let heads = keys.required_size("attention.head_count")?;
        let positions = keys.required_size("context_length")?;
        if keys.architecture == Architecture::Gemma4 {
            let [sliding, _] = gemma4::heads(keys, &keys.sliding_layers(layers, GEMMA_PERIOD)?)?;
            return Ok(Sizes { hidden, layers, heads, kv_heads: sliding.count, head_dim: sliding.dim, positions });
        }
        let kv_heads = match keys.architecture {
            _ if keys.architecture.is_lfm2() => keys.kv_heads_of_attention(layers)?.unwrap_or(heads),
            // Their keys are made of one latent vector.
            Architecture::DeepSeek2 => heads,
            _ => keys.size("attention.head_count_kv")?.unwrap_or(heads),
        };
        if keys.architecture == Architecture::DeepSeek2 {
            let head_dim = keys.required_size("rope.dimension_count")?;
            return Ok(Sizes { hidden, layers, heads, kv_heads, head_dim, positions });
        }
        let head_dim = keys.size("attention.key_length")?.unwrap_or(hidden / heads);
        let value_dim = keys.size("attention.value_length")?.unwrap_or(head_dim);
        if value_dim != head_dim {
            return Err(CompileError::Unsupported {
                what: format!("{} {value_dim}", keys.name("attention.value_length")),
                detail: format!("expected the length of a key, {head_dim}"),
            });
        }
        Ok(Sizes { hidden, layers, heads, kv_heads, head_dim, positions })
    }
}
