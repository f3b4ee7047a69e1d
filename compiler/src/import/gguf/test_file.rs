//! [`TestFile`]: a GGUF file written byte by byte, for tests that then break it.

/// Everything is public: a test changes the part that is to be wrong and calls [`TestFile::bytes`].
#[derive(Clone)]
pub struct TestFile {
    pub version: u32,
    /// Announced counts; `None`: the true ones.
    pub tensor_count: Option<u64>,
    pub metadata_count: Option<u64>,
    /// Key and value with its type, see [`TestFile::set`].
    pub metadata: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<TestTensor>,
    pub alignment: usize,
}

#[derive(Clone)]
pub struct TestTensor {
    pub name: String,
    /// Dimensions in the file's order: columns first.
    pub dimensions: Vec<u64>,
    pub type_id: u32,
    pub data: Vec<u8>,
    /// Announced place; `None`: the true one.
    pub offset: Option<u64>,
}

/// Values that tests write.
pub enum TestValue<'a> {
    U32(u32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Strings(&'a [&'a str]),
    Floats(&'a [f32]),
    Integers(&'a [i32]),
    Bools(&'a [bool]),
}

impl TestFile {
    /// A model of one layer with Llama's tensors: hidden size 8, two heads of 4, one of keys and values, intermediate
    /// size 16, 6 tokens, untied F32 weights that count up from 0 in each tensor, no tokenizer.
    pub fn model(architecture: &str) -> TestFile {
        let mut file = TestFile {
            version: 3,
            tensor_count: None,
            metadata_count: None,
            metadata: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
        };
        file.set("general.architecture", TestValue::String(architecture));
        file.set(&format!("{architecture}.attention.layer_norm_rms_epsilon"), TestValue::F32(1e-5));
        for (key, value) in [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", 8),
            ("feed_forward_length", 16),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
        ] {
            file.set(&format!("{architecture}.{key}"), TestValue::U32(value));
        }
        for (name, dimensions) in [
            ("token_embd.weight", vec![8, 6]),
            ("output_norm.weight", vec![8]),
            ("output.weight", vec![8, 6]),
            ("blk.0.attn_norm.weight", vec![8]),
            ("blk.0.attn_q.weight", vec![8, 8]),
            ("blk.0.attn_k.weight", vec![8, 4]),
            ("blk.0.attn_v.weight", vec![8, 4]),
            ("blk.0.attn_output.weight", vec![8, 8]),
            ("blk.0.ffn_norm.weight", vec![8]),
            ("blk.0.ffn_gate.weight", vec![8, 16]),
            ("blk.0.ffn_up.weight", vec![8, 16]),
            ("blk.0.ffn_down.weight", vec![16, 8]),
        ] {
            file.add_f32_tensor(name, dimensions);
        }
        file
    }

    /// A model with a tokenizer of kind `model`, whose tokens come with their kinds.
    pub fn with_tokenizer(model: &str, tokens: &[(&str, i32)]) -> TestFile {
        let mut file = TestFile::model("llama");
        for name in ["token_embd.weight", "output.weight"] {
            file.remove_tensor(name);
            file.add_f32_tensor(name, vec![8, tokens.len() as u64]);
        }
        let (texts, kinds): (Vec<&str>, Vec<i32>) = tokens.iter().copied().unzip();
        file.set("tokenizer.ggml.model", TestValue::String(model));
        file.set("tokenizer.ggml.tokens", TestValue::Strings(&texts));
        file.set("tokenizer.ggml.token_type", TestValue::Integers(&kinds));
        file
    }

    /// Writes or replaces a value.
    pub fn set(&mut self, key: &str, value: TestValue) {
        self.metadata.retain(|(existing, _)| existing != key);
        self.metadata.push((key.to_string(), value.encode()));
    }

    pub fn add_f32_tensor(&mut self, name: &str, dimensions: Vec<u64>) {
        let elements: u64 = dimensions.iter().product();
        let data = (0..elements).flat_map(|element| (element as f32).to_le_bytes()).collect();
        self.tensors.push(TestTensor { name: name.to_string(), dimensions, type_id: 0, data, offset: None });
    }

    pub fn remove_tensor(&mut self, name: &str) {
        self.tensors.retain(|tensor| tensor.name != name);
    }

    pub fn tensor(&mut self, name: &str) -> &mut TestTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.metadata_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut bytes, key);
            bytes.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            put_string(&mut bytes, &tensor.name);
            bytes.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().for_each(|dimension| bytes.extend(dimension.to_le_bytes()));
            bytes.extend(tensor.type_id.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(self.alignment), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(data);
        bytes
    }
}

impl TestValue<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |type_id: u32, value: &[u8]| {
            bytes.extend(type_id.to_le_bytes());
            bytes.extend(value);
        };
        match self {
            TestValue::U32(value) => put(4, &value.to_le_bytes()),
            TestValue::F32(value) => put(6, &value.to_le_bytes()),
            TestValue::Bool(value) => put(7, &[u8::from(*value)]),
            TestValue::String(text) => {
                put(8, &[]);
                put_string(&mut bytes, text);
            }
            TestValue::Strings(texts) => {
                put_array_start(&mut bytes, 8, texts.len());
                texts.iter().for_each(|text| put_string(&mut bytes, text));
            }
            TestValue::Floats(values) => {
                put_array_start(&mut bytes, 6, values.len());
                values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            }
            TestValue::Integers(values) => {
                put_array_start(&mut bytes, 5, values.len());
                values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            }
            TestValue::Bools(values) => {
                put_array_start(&mut bytes, 7, values.len());
                bytes.extend(values.iter().map(|value| u8::from(*value)));
            }
        }
        bytes
    }
}

fn put_array_start(bytes: &mut Vec<u8>, element_type: u32, count: usize) {
    bytes.extend(9u32.to_le_bytes());
    bytes.extend(element_type.to_le_bytes());
    bytes.extend((count as u64).to_le_bytes());
}

fn put_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}
