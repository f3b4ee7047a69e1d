//! Models whose matrices a folder holds as INT4, in the formats of three tools, and the same weights in f32 by the tools' published
//! formulas: what an importer that keeps codes and scales must produce.
//!
//! Shares no code with the compiler. What each number means: AutoAWQ `awq/utils/packing_utils.py`, AutoGPTQ `qlinear_cuda.py`,
//! compressed-tensors `pack_quantized.py`.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::tiny_model::TinyModel;
use crate::tiny_model::random::Random;

/// How a folder is packed.
#[derive(Clone, Debug)]
pub struct Packing {
    pub tool: PackingTool,
    /// Columns that share a scale; `None`: all of a row.
    pub group: Option<usize>,
    /// Whether zero points differ from 8.
    pub zero_points: bool,
    /// Whether scales are bf16; otherwise they are f16.
    pub bf16_scales: bool,
    /// Whether the columns of a group are scattered.
    pub scattered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackingTool {
    Awq,
    /// Zero points less 1, and each column's group.
    Gptq,
    /// Zero points as they are.
    GptqV2,
    CompressedTensors,
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct Stored {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A packed folder, before it is written.
#[derive(Clone, Debug)]
pub struct PackedModel {
    pub config: Value,
    pub tensors: BTreeMap<String, Stored>,
    /// The same model in f32.
    pub plain_config: Value,
    pub plain: BTreeMap<String, Stored>,
}

/// One matrix as numbers.
struct Numbers {
    rows: usize,
    cols: usize,
    groups: usize,
    /// (rows, cols), 0..=15
    codes: Vec<u8>,
    /// (rows, groups), 1..=15: the first version of GPTQ stores 0 and 16 alike.
    zeros: Vec<u8>,
    /// (rows, groups)
    scales: Vec<f32>,
}

impl PackedModel {
    /// `model` with random codes in the place of its layers' matrices.
    pub fn of(model: &TinyModel, packing: &Packing) -> PackedModel {
        let mut random = Random::new(model.seed + 1000);
        let plain_config = model.config();
        let mut packed = PackedModel {
            config: plain_config.clone(),
            tensors: BTreeMap::new(),
            plain_config,
            plain: BTreeMap::new(),
        };
        packed.config["quantization_config"] = packing.config();
        for tensor in model.tensors() {
            let values: Vec<f32> = tensor.values.iter().map(|value| value.to_f32()).collect();
            let module = tensor.name.strip_suffix(".weight").filter(|name| name.ends_with("_proj"));
            match (module, &tensor.shape[..]) {
                (Some(module), [rows, cols]) => {
                    let numbers = Numbers::random(&mut random, packing, *rows, *cols);
                    packed.plain.insert(tensor.name.clone(), Stored::f32(&tensor.shape, &numbers.weights(packing)));
                    numbers.pack(packing, module, &mut packed.tensors);
                }
                _ => {
                    packed.plain.insert(tensor.name.clone(), Stored::f32(&tensor.shape, &values));
                    packed.tensors.insert(tensor.name.clone(), Stored::f32(&tensor.shape, &values));
                }
            }
        }
        packed
    }

    /// Writes the packed folder and the plain one.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn write(&self, packed: &Path, plain: &Path) {
        for (folder, config, tensors) in
            [(packed, &self.config, &self.tensors), (plain, &self.plain_config, &self.plain)]
        {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
            write_tensors(tensors, folder);
        }
    }
}

/// Writes `tensors` as the folder's one file.
///
/// # Panics
/// If it cannot be written.
pub fn write_tensors(tensors: &BTreeMap<String, Stored>, folder: &Path) {
    let views = tensors.iter().map(|(name, stored)| {
        (name.as_str(), TensorView::new(stored.dtype, stored.shape.clone(), &stored.bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}

impl Packing {
    /// Group of column `col`, of `groups`.
    fn group_of(&self, col: usize, groups: usize) -> usize {
        match self.group {
            Some(_) if self.scattered => col * 5 % groups,
            Some(group) => col / group,
            None => 0,
        }
    }

    fn config(&self) -> Value {
        let group = self.group.map_or(-1, |group| group as i64);
        match self.tool {
            PackingTool::Awq => json!({ "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true,
                "version": "gemm", "modules_to_not_convert": null }),
            PackingTool::Gptq => json!({ "quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": false,
                "sym": !self.zero_points, "checkpoint_format": "gptq" }),
            PackingTool::GptqV2 => json!({ "quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": true,
                "sym": !self.zero_points, "checkpoint_format": "gptq_v2" }),
            PackingTool::CompressedTensors => json!({
                "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
                "quantization_status": "compressed", "kv_cache_scheme": null, "config_groups": { "group_0": {
                    "targets": ["Linear"], "input_activations": null, "output_activations": null,
                    "weights": { "num_bits": 4, "type": "int", "symmetric": !self.zero_points, "dynamic": false,
                        "strategy": if self.group.is_some() { "group" } else { "channel" }, "group_size": self.group,
                        "actorder": null } } } }),
        }
    }
}

impl Numbers {
    fn random(random: &mut Random, packing: &Packing, rows: usize, cols: usize) -> Numbers {
        let groups = packing.group.map_or(1, |group| cols.div_ceil(group));
        let codes = (0..rows * cols).map(|_| (random.word() % 16) as u8).collect();
        let zero = |random: &mut Random| if packing.zero_points { 1 + (random.word() % 15) as u8 } else { 8 };
        let zeros = (0..rows * groups).map(|_| zero(random)).collect();
        // Weights that keep the size of their input.
        let scale = |random: &mut Random| {
            let scale = 0.25 / (cols as f32).sqrt() * (0.5 + (random.word() % 1000) as f32 / 1000.0);
            if packing.bf16_scales { bf16::from_f32(scale).to_f32() } else { f16::from_f32(scale).to_f32() }
        };
        let scales = (0..rows * groups).map(|_| scale(random)).collect();
        Numbers { rows, cols, groups, codes, zeros, scales }
    }

    fn weights(&self, packing: &Packing) -> Vec<f32> {
        let weight = |index: usize| {
            let (row, col) = (index / self.cols, index % self.cols);
            let at = row * self.groups + packing.group_of(col, self.groups);
            (f32::from(self.codes[index]) - f32::from(self.zeros[at])) * self.scales[at]
        };
        (0..self.codes.len()).map(weight).collect()
    }

    fn pack(&self, packing: &Packing, module: &str, tensors: &mut BTreeMap<String, Stored>) {
        let Numbers { rows, cols, groups, .. } = *self;
        let code = |row: usize, col: usize| u32::from(self.codes[row * cols + col]);
        let zero = |row: usize, group: usize| u32::from(self.zeros[row * groups + group]);
        let in_order = |nibble: usize| nibble;
        // Index of the code that AutoAWQ stores in a word's nibble.
        let awq = |nibble: usize| [0, 2, 4, 6, 1, 3, 5, 7][nibble];
        let mut put = |name: &str, stored: Stored| _ = tensors.insert(format!("{module}.{name}"), stored);
        match packing.tool {
            PackingTool::Awq => {
                put("qweight", Stored::words(cols, rows / 8, |col, word, n| code(8 * word + awq(n), col)));
                put("qzeros", Stored::words(groups, rows / 8, |group, word, n| zero(8 * word + awq(n), group)));
            }
            PackingTool::Gptq | PackingTool::GptqV2 => {
                let less = u32::from(packing.tool == PackingTool::Gptq);
                put("qweight", Stored::words(cols / 8, rows, |word, row, n| code(row, 8 * word + in_order(n))));
                put("qzeros", Stored::words(groups, rows / 8, |group, word, n| zero(8 * word + n, group) - less));
                let indices: Vec<u8> =
                    (0..cols).flat_map(|col| (packing.group_of(col, groups) as i32).to_le_bytes()).collect();
                put("g_idx", Stored { dtype: Dtype::I32, shape: vec![cols], bytes: indices });
                // AutoGPTQ gives every matrix a bias.
                put("bias", Stored { dtype: Dtype::F16, shape: vec![rows], bytes: vec![0; 2 * rows] });
            }
            PackingTool::CompressedTensors => {
                let padded = |row: usize, col: usize| if col < cols { code(row, col) } else { 0 };
                put("weight_packed", Stored::words(rows, cols.div_ceil(8), |row, word, n| padded(row, 8 * word + n)));
                if packing.zero_points {
                    let padded = |row: usize, group: usize| if row < rows { zero(row, group) } else { 0 };
                    let zeros = Stored::words(rows.div_ceil(8), groups, |word, group, n| padded(8 * word + n, group));
                    put("weight_zero_point", zeros);
                }
                let shape: Vec<u8> = [rows, cols].iter().flat_map(|size| (*size as i64).to_le_bytes()).collect();
                put("weight_shape", Stored { dtype: Dtype::I64, shape: vec![2], bytes: shape });
            }
        }
        let by_row = packing.tool == PackingTool::CompressedTensors;
        let shape = if by_row { [rows, groups] } else { [groups, rows] };
        let scale = |index: usize| {
            let (row, group) = if by_row { (index / groups, index % groups) } else { (index % rows, index / rows) };
            let scale = self.scales[row * groups + group];
            if packing.bf16_scales { bf16::from_f32(scale).to_le_bytes() } else { f16::from_f32(scale).to_le_bytes() }
        };
        let dtype = if packing.bf16_scales { Dtype::BF16 } else { Dtype::F16 };
        let bytes = (0..rows * groups).flat_map(scale).collect();
        put(if by_row { "weight_scale" } else { "scales" }, Stored { dtype, shape: shape.to_vec(), bytes });
    }
}

impl Stored {
    fn f32(shape: &[usize], values: &[f32]) -> Stored {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Stored { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }

    /// (rows, cols) words, of which `nibble` gives each of eight, lowest bits first.
    fn words(rows: usize, cols: usize, nibble: impl Fn(usize, usize, usize) -> u32) -> Stored {
        let word = |index: usize| (0..8).map(|n| nibble(index / cols, index % cols, n) << (4 * n)).sum::<u32>();
        let bytes = (0..rows * cols).flat_map(|index| word(index).to_le_bytes()).collect();
        Stored { dtype: Dtype::I32, shape: vec![rows, cols], bytes }
    }
}
