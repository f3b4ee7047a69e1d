//! What applications send to `unicorn-run serve`: each file of `requests/` has the requests of one, recorded from the application or as its
//! source code builds them, and what it reads of the answers.

use std::path::Path;

use serde_json::Value;
use tests::compiled::{Compiled, options};
use tests::http::{get, post};
use tests::models::models;
use tests::programs::program;
use tests::server::Server;

/// A model's name in a request.
const MODEL: &str = "\"MODEL\"";

#[test]
fn requests_of_applications_are_answered_in_the_form_that_they_read() {
    let targets = ["llvmpipe", "generic"].into_iter().filter_map(unicorn_spirv::target::by_name).collect();
    let model = Compiled::of_folder(&models().join("gemma3-2m-draft"), &options(targets, vec![]));
    let mut command = program("unicorn-run");
    command.env("UNICORN_DEVICE", std::env::var("UNICORN_DEVICE").unwrap_or("llvmpipe".into()));
    let server = Server::start(command, &model.artifact_path(), &["--parallel", "1", "--ctx", "2048", "-n", "16"]);
    let name = parsed(&get(&server.address, "/v1/models").1)["data"][0]["id"].to_string();

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("requests");
    let mut applications = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        let requests = parsed(&std::fs::read_to_string(&file).unwrap());
        for (index, step) in requests["steps"].as_array().unwrap().iter().enumerate() {
            let what = format!("{}, step {index}", file.display());
            let (head, body) = match step["get"].as_str() {
                Some(path) => get(&server.address, path),
                None => {
                    let path = step["post"].as_str().unwrap();
                    post(&server.address, path, &step["body"].to_string().replace(MODEL, &name))
                }
            };
            assert!(head.starts_with("HTTP/1.0 200 "), "{what}: {head}\n{body}");
            let parts = parts(step["answer"].as_str(), &body);
            for place in step["reads"].as_array().unwrap() {
                let place = place.as_str().unwrap();
                let is_there = |part: &Value| part.pointer(place).is_some_and(|value| !value.is_null());
                assert!(parts.iter().any(is_there), "{what}: no {place} in {body}");
            }
        }
        applications += 1;
    }
    assert_eq!(applications, 11, "applications");
}

/// The JSON values of an answer: one, or those of server-sent events, or one on each line.
fn parts(form: Option<&str>, body: &str) -> Vec<Value> {
    match form {
        None => vec![parsed(body)],
        Some("lines") => body.lines().map(parsed).collect(),
        Some("events") => {
            let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
            let (last, parts): (Vec<&str>, Vec<&str>) = data.partition(|data| *data == "[DONE]");
            assert!(last.len() <= 1 && body.trim_end().ends_with(last.first().unwrap_or(&"}")), "{body}");
            parts.into_iter().map(parsed).collect()
        }
        Some(other) => panic!("no form of answers is called {other}"),
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
