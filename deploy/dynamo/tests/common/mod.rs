//! A tiny trained model, compiled by the programs of the workspace above; engines on it; and `unicorn-run serve` for the same answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use dynamo_backend_common::engine::GenerateContext;
use dynamo_backend_common::testing::mock_context;
use dynamo_backend_common::{
    AsyncEngineContext, DynamoError, FinishReason, LLMEngine, LLMEngineOutput, PreprocessedRequest,
};
use futures::StreamExt;
use serde_json::{Value, json};
use unicorn_dynamo::{EngineOptions, UnicornEngine};

/// Tokens of a sequence: enough for the tests, so that their memory is small.
pub const CONTEXT: u32 = 256;

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("deploy/dynamo of the repository").to_owned()
}

pub fn checkpoint() -> PathBuf {
    repository().join("tests/models/gemma3-2m-draft")
}

/// A program of the workspace above: in the folder `UNICORN_PROGRAMS`, or where `cargo build` puts it.
fn program(name: &str) -> PathBuf {
    let folder = std::env::var_os("UNICORN_PROGRAMS").map_or_else(|| repository().join("target/debug"), PathBuf::from);
    let path = folder.join(name);
    assert!(path.exists(), "{}: cargo build --bins in the repository, or set UNICORN_PROGRAMS", path.display());
    path
}

/// The model as an artifact. Its matrices are f16, so that they are those which transformers read.
pub fn artifact() -> &'static Path {
    static ARTIFACT: OnceLock<PathBuf> = OnceLock::new();
    ARTIFACT.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiny.unicorn");
        let mut command = Command::new(program("unicorn-compile"));
        command.arg(checkpoint()).args(["--weights", "f16", "--target", "generic", "-o"]).arg(&path);
        assert!(command.status().expect("unicorn-compile starts").success());
        path
    })
}

pub fn engine(parallel: u32) -> UnicornEngine {
    let (artifact, device) = (artifact().to_owned(), std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    let options = EngineOptions { artifact, ctx: Some(CONTEXT), parallel, kv_tokens: None, device };
    UnicornEngine::new(options, checkpoint().to_str().expect("a path of text").into())
}

pub async fn started(parallel: u32) -> Arc<UnicornEngine> {
    let engine = engine(parallel);
    engine.start(1).await.expect("the engine starts");
    Arc::new(engine)
}

/// A greedy request, as Dynamo's frontend sends it, with `fields` in the place of others.
pub fn request(prompt: &[u32], max_tokens: u32, fields: Value) -> PreprocessedRequest {
    let mut all = json!({
        "model": "tiny", "token_ids": prompt, "stop_conditions": {"max_tokens": max_tokens},
        "sampling_options": {"temperature": 0.0}, "output_options": {}, "mdc_sum": null, "router_config_override": null,
    });
    for (name, value) in fields.as_object().expect("an object of fields") {
        match (all.get_mut(name).and_then(Value::as_object_mut), value.as_object()) {
            (Some(present), Some(new)) => present.extend(new.clone()),
            _ => all[name] = value.clone(),
        }
    }
    serde_json::from_value(all).expect("a request")
}

/// The chunks of a request, or its error.
pub async fn chunks(
    engine: &UnicornEngine,
    request: PreprocessedRequest,
    context: Arc<dyn AsyncEngineContext>,
) -> Result<Vec<LLMEngineOutput>, DynamoError> {
    let stream = engine.generate(request, GenerateContext::new(context, None)).await?;
    stream.collect::<Vec<_>>().await.into_iter().collect()
}

/// The tokens of a request, and how it ended.
pub async fn tokens(engine: &UnicornEngine, request: PreprocessedRequest) -> (Vec<u32>, FinishReason) {
    let chunks = chunks(engine, request, mock_context()).await.expect("an answer");
    let reason = chunks.last().and_then(|last| last.finish_reason.clone()).expect("a reason at the end");
    (chunks.into_iter().flat_map(|chunk| chunk.token_ids).collect(), reason)
}

/// Prompts of different lengths, of ordinary tokens.
pub fn prompt(number: u32) -> Vec<u32> {
    (0..3 + 5 * (number % 4)).map(|place| 100 + (number * 977 + place * 131) % 7000).collect()
}

/// `unicorn-run serve` of the same artifact.
pub struct Server {
    process: Child,
    address: String,
}

impl Server {
    pub fn start() -> Server {
        let device = std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into());
        let context = CONTEXT.to_string();
        let mut command = Command::new(program("unicorn-run"));
        command.arg("serve").arg(artifact()).args([
            "--port",
            "0",
            "--parallel",
            "1",
            "--device",
            &device,
            "--ctx",
            &context,
        ]);
        let mut process = command.stderr(Stdio::piped()).spawn().expect("unicorn-run starts");
        let mut lines = BufReader::new(process.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
        let found = lines.find_map(|line| Some(line.split_once(" at http://")?.1.split_once("/v1")?.0.to_owned()));
        std::thread::spawn(move || lines.for_each(drop));
        Server { process, address: found.expect("the server names its address") }
    }

    /// Greedy tokens that follow.
    pub fn tokens(&self, prompt: &[u32], max_tokens: u32) -> Vec<u32> {
        let body =
            json!({"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "return_tokens": true}).to_string();
        let mut connection = TcpStream::connect(&self.address).expect("the server listens");
        let head = format!("POST /completion HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        let length = body.len();
        write!(connection, "{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
            .expect("it reads");
        let mut response = String::new();
        connection.read_to_string(&mut response).expect("it answers");
        let json = response.split_once("\r\n\r\n").expect("a head").1;
        let answer: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{response}: {error}"));
        serde_json::from_value(answer["tokens"].clone()).unwrap_or_else(|error| panic!("{response}: {error}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
