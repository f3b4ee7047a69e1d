//! The estimates against a model that is run over random tokens, and what they leave out.

use crate::import;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::*;
use crate::graph;
use crate::import::ModelConfig;

/// Uniform in -1 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    }
}

/// A two-layer model with what a family can have: post norms and offsets of norms, or biases.
fn config(architecture: &str) -> Value {
    json!({
        "architectures": [architecture], "hidden_size": 48, "intermediate_size": 64, "vocab_size": 400,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "num_hidden_layers": 2,
        "query_pre_attn_scalar": 12, "sliding_window": 16, "layer_types": ["full_attention", "full_attention"],
        "tie_word_embeddings": true, "rope_theta": 10000.0, "rope_local_base_freq": 10000.0,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
        "hidden_act": if architecture.starts_with("Gemma") { "gelu_pytorch_tanh" } else { "silu" },
        "hidden_activation": "gelu_pytorch_tanh",
    })
}

/// Opens a model whose tensors hold `value(name, element)`.
fn checkpoint(architecture: &str, mut value: impl FnMut(&str, usize) -> f32) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config(architecture).to_string()).unwrap();
    let shapes = import::open(crate::Source::Synthetic(&path)).unwrap().config.tensor_shapes();
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let elements = 0..shape.iter().product::<usize>();
            let bytes = elements.flat_map(|element| value(&name, element).to_le_bytes()).collect();
            (format!("model.{name}"), shape, bytes)
        })
        .collect();
    let views = data
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    std::fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    import::open_model(folder.path()).unwrap()
}

fn random_checkpoint(architecture: &str) -> Checkpoint {
    let mut random = Random(3);
    checkpoint(architecture, |name, element| {
        // Channels of the embedding, and so of all that follows, differ in power.
        let scale = if name == "embed_tokens.weight" { 0.1 * (1 + element % 48 % 7) as f64 } else { 0.3 };
        // A norm weight is around 1, whether that is stored or added.
        let centre = if name.contains("norm") && !architecture.starts_with("Gemma") { 1.0 } else { 0.0 };
        (centre + scale * random.next()) as f32
    })
}

fn estimate(checkpoint: &Checkpoint) -> Importance {
    Importance::estimate(&graph::build(&checkpoint.config), checkpoint, || Ok(())).unwrap()
}

/// Runs tokens through the graph, each attending to all of them equally, and adds up squares of the matrices' inputs.
fn run(checkpoint: &Checkpoint, tokens: [usize; 4], squares: &mut BTreeMap<String, Vec<f64>>) {
    let config: &ModelConfig = &checkpoint.config;
    let read = |name: &str| {
        let tensor = &checkpoint.tensors[name];
        let mut values = vec![0.0; tensor.rows * tensor.cols];
        tensor.read_rows(0..tensor.rows, &mut values);
        values.into_iter().map(f64::from).collect::<Vec<f64>>()
    };
    let vector = |vector: &VectorRef| {
        read(&vector.tensor).into_iter().map(|value| value + f64::from(vector.offset)).collect::<Vec<f64>>()
    };
    let mut rows: BTreeMap<ValueId, [Vec<f64>; 4]> = BTreeMap::new();
    let mut values = ValueId(0);
    let pairs = |a: &[f64], b: &[f64], of: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(a, b)| of(*a, *b)).collect();
    for node in graph::build(config).nodes.iter().filter(|node| node.layer.is_some() || node.op.inputs().is_empty()) {
        let out = match &node.op {
            Op::Embed { table, scale, .. } => {
                let table_rows = read(&table.tensor);
                tokens.map(|token| {
                    table_rows[token * table.cols..][..table.cols].iter().map(|v| v * f64::from(*scale)).collect()
                })
            }
            Op::Norm { input, weight, .. } => rows[input].each_ref().map(|row| {
                let power = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
                pairs(row, &vector(weight), &|v, weight| v * weight / power.sqrt())
            }),
            Op::MatMul { input, matrix, .. } => {
                let weights = read(&matrix.tensor);
                rows[input].each_ref().map(|row| {
                    let sums = squares.entry(matrix.tensor.clone()).or_insert(vec![0.0; row.len()]);
                    sums.iter_mut().zip(row).for_each(|(sum, v)| *sum += v * v);
                    weights.chunks(row.len()).map(|w| w.iter().zip(row).map(|(w, v)| w * v).sum()).collect()
                })
            }
            Op::Bias { input, bias, .. } => {
                rows[input].each_ref().map(|row| pairs(row, &vector(bias), &|v, bias| v + bias))
            }
            Op::CacheWrite { input, part } => {
                if *part == CachePart::Values {
                    values = *input;
                }
                continue;
            }
            Op::Attention { .. } => {
                let per_head = config.n_heads / config.n_kv_heads;
                let mean = |at: usize| rows[&values].iter().map(|row| row[at]).sum::<f64>() / 4.0;
                let row: Vec<f64> = (0..config.n_heads * config.head_dim)
                    .map(|at| mean(at / config.head_dim / per_head * config.head_dim + at % config.head_dim))
                    .collect();
                std::array::from_fn(|_| row.clone())
            }
            Op::Add { left, right, .. } => {
                std::array::from_fn(|at| pairs(&rows[left][at], &rows[right][at], &|a, b| a + b))
            }
            Op::ActMul { gate, up, activation, .. } => std::array::from_fn(|at| {
                pairs(&rows[gate][at], &rows[up][at], &|g, u| f64::from(activation.apply(g as f32)) * u)
            }),
            Op::HeadNorm { .. } | Op::Rope { .. } | Op::SoftCap { .. } => continue,
            Op::Patches { .. }
            | Op::LayerNorm { .. }
            | Op::RowBias { .. }
            | Op::Activate { .. }
            | Op::ImagePositions { .. }
            | Op::ImageRope { .. }
            | Op::ImageFeatures { .. }
            | Op::ImageAttention { .. }
            | Op::ImagePool { .. } => unreachable!("the families of this test have no images"),
            Op::Scale { .. } => unreachable!("the families of this test have layers without a factor"),
            Op::Route { .. } | Op::ExpertMatMul { .. } | Op::ExpertSum { .. } | Op::Gate { .. } => {
                unreachable!("the families of this test have no experts")
            }
            Op::SparseActMul { .. } | Op::Streams(_) => {
                unreachable!("the families of this test have one stream and keep all gates")
            }
            Op::ShortConv { .. }
            | Op::DeltaRule { .. }
            | Op::PreviousRow { .. }
            | Op::KeepRow { .. }
            | Op::GatedNorm { .. }
            | Op::EveryMatrix { .. }
            | Op::HeadColumns { .. } => {
                unreachable!("the families of this test have attention over keys and values in every layer")
            }
        };
        rows.insert(node.op.outs()[0], out);
    }
}

#[test]
fn estimates_are_typically_within_half_of_a_run_of_random_tokens() {
    for architecture in ["Gemma3ForCausalLM", "Qwen2ForCausalLM"] {
        let checkpoint = random_checkpoint(architecture);
        let found = estimate(&checkpoint);
        let (mut squares, mut random) = (BTreeMap::new(), Random(5));
        let zipf: Vec<f64> = (0..400)
            .scan(0.0, |sum, token| {
                *sum += 1.0 / (f64::from(token) + ZIPF_OFFSET);
                Some(*sum)
            })
            .collect();
        for _ in 0..400 {
            let draw = |_| zipf.partition_point(|sum| *sum < (random.next() + 1.0) / 2.0 * zipf[399]);
            run(&checkpoint, [0; 4].map(draw), &mut squares);
        }
        assert_eq!(squares.len(), 14, "seven matrices a layer");
        // Squared logarithms: of estimated over measured, and of measured over the matrix's mean.
        let (mut error, mut spread, mut columns) = (0.0, 0.0, 0.0);
        for (tensor, sums) in squares {
            let mean = sums.iter().sum::<f64>() / sums.len() as f64;
            for (share, sum) in found.of(&tensor).unwrap().iter().zip(sums) {
                error += (f64::from(*share).powf(1.0 / IMPORTANCE_EXPONENT) / (sum / mean)).ln().powi(2);
                spread += (sum / mean).ln().powi(2);
                columns += 1.0;
            }
        }
        let typical = |squares: f64| (squares / columns).sqrt().exp();
        let (error, spread) = (typical(error), typical(spread));
        assert!(error < 1.5 && spread > 1.8, "{architecture}: off by {error}; were all columns alike, by {spread}");
    }
}

#[test]
fn no_product_is_greater_than_its_bound() {
    let mut random = Random(7);
    for architecture in ["Gemma3ForCausalLM", "Qwen2ForCausalLM"] {
        let checkpoint = random_checkpoint(architecture);
        let read = |name: &str| {
            let tensor = &checkpoint.tensors[name];
            let mut values = vec![0.0; tensor.rows * tensor.cols];
            tensor.read_rows(0..tensor.rows, &mut values);
            values.chunks(tensor.cols).map(|row| row.iter().map(|v| f64::from(*v)).collect()).collect::<Vec<Vec<f64>>>()
        };
        let [gate, up] = ["gate", "up"].map(|name| read(&format!("layers.1.mlp.{name}_proj.weight")));
        let (name, offset, activation) = match architecture {
            "Gemma3ForCausalLM" => ("pre_feedforward_layernorm", 1.0, Activation::GeluTanh),
            _ => ("post_attention_layernorm", 0.0, Activation::Silu),
        };
        let norm: Vec<f64> = read(&format!("layers.1.{name}.weight"))[0].iter().map(|weight| weight + offset).collect();
        let bound = estimate(&checkpoint).product_bound("layers.1.mlp.gate_proj.weight").unwrap();
        // Products are largest for rows parallel to one of gate's or up's.
        let followed = gate.iter().chain(&up).map(|row| row.iter().zip(&norm).map(|(v, norm)| v * norm).collect());
        let any = (0..100).map(|_| (0..norm.len()).map(|_| random.next()).collect());
        let mut largest = 0.0f64;
        for stream in followed.chain(any).collect::<Vec<Vec<f64>>>() {
            let rms = (stream.iter().map(|v| v * v).sum::<f64>() / stream.len() as f64).sqrt();
            let dot = |row: &[f64]| stream.iter().zip(&norm).zip(row).map(|((v, norm), w)| v / rms * norm * w).sum();
            let products = gate.iter().zip(&up).map(|(gate, up)| {
                let (gate, up): (f64, f64) = (dot(gate), dot(up));
                f64::from(activation.apply(gate as f32)) * up
            });
            largest = products.map(f64::abs).fold(largest, f64::max);
        }
        assert!(largest <= bound && largest > 0.01 * bound, "{architecture}: {largest} of {bound}");
    }
}

#[test]
fn the_number_of_threads_does_not_show() {
    let checkpoint = random_checkpoint("Gemma3ForCausalLM");
    let with_threads = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| estimate(&checkpoint))
    };
    assert_eq!(with_threads(1), with_threads(3));
}

#[test]
fn degenerate_weights_have_finite_importance_or_none() {
    let hostile: [fn(&str, usize) -> f32; 6] = [
        |_, _| 0.0,
        |_, _| 1.0,
        |_, _| f32::MAX,
        |_, _| f32::NAN,
        |name, element| if name.contains("mlp") { 0.0 } else { element as f32 },
        |name, element| if name.contains("norm") { f32::INFINITY } else { element as f32 % 5.0 - 2.0 },
    ];
    for value in hostile {
        let checkpoint = checkpoint("Qwen2ForCausalLM", value);
        for columns in estimate(&checkpoint).columns.values() {
            assert!(columns.iter().all(|share| share.is_finite() && *share > 0.0), "{columns:?}");
        }
    }
}
