//! Requests to `unicorn-run serve` with one thing wrong, or cut anywhere: each is refused, or means something.

use serde_json::{Value, json};
use tests::generators::fullest_request;
use tests::oracles;

#[test]
fn any_value_in_any_place_is_read_or_refused() {
    let deep = (0..300).fold(json!([]), |inner, _| json!([inner]));
    let values = [
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(-0.5),
        json!(1e308),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("text"),
        json!("\u{0}\u{ffff}"),
        json!([]),
        json!([[]]),
        json!([1, "text"]),
        json!([u64::MAX]),
        json!({}),
        json!({"include_usage": 1}),
        json!([{"role": 1, "content": "text"}]),
        json!([{"role": "user", "content": [{"type": "text"}]}]),
        json!([{"role": "assistant", "content": null, "tool_calls": {}}]),
        json!("x".repeat(1 << 20)),
    ];
    let sound = fullest_request();
    oracles::request(sound.to_string().as_bytes());
    for name in sound.as_object().expect("an object").keys() {
        for value in values.iter().chain([&deep]) {
            let mut request = sound.clone();
            request[name] = value.clone();
            oracles::request(request.to_string().as_bytes());
        }
        let mut request = sound.clone();
        request.as_object_mut().expect("an object").remove(name);
        oracles::request(request.to_string().as_bytes());
    }
}

#[test]
fn a_request_that_was_cut_is_refused() {
    let sound = fullest_request().to_string();
    for end in 0..sound.len() {
        oracles::request(&sound.as_bytes()[..end]);
    }
}
