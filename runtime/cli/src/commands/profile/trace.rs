//! The timeline of a profile as Chrome's trace format, for chrome://tracing or Perfetto.

use std::time::Instant;

use serde_json::{Value, json};

use unicorn_runtime::profile::StepProfile;

/// Threads of the timeline: what the host waited for, and what the device did meanwhile.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// One event a step and one a dispatch. A step's dispatches are shown from the step's start on the host: the two clocks
/// have no common zero.
pub fn events(begin: Instant, phases: &[(&str, &[StepProfile])]) -> Value {
    let mut events =
        vec![thread_name(HOST, "steps, by the host's clock"), thread_name(DEVICE, "dispatches, by the device's")];
    for (phase, steps) in phases {
        for step in *steps {
            let mut at_us = 1e6 * step.begin.duration_since(begin).as_secs_f64();
            events.push(json!({
                "name": phase, "cat": "step", "ph": "X", "pid": 1, "tid": HOST, "ts": at_us,
                "dur": 1e6 * step.wall_seconds, "args": { "rows": step.rows },
            }));
            for (dispatch, seconds) in step.dispatches.iter().zip(&step.seconds) {
                let duration_us = 1e6 * seconds;
                events.push(json!({
                    "name": dispatch.label, "cat": dispatch.kernel, "ph": "X", "pid": 1, "tid": DEVICE, "ts": at_us,
                    "dur": duration_us, "args": { "kernel": dispatch.kernel, "weight_bytes": dispatch.weight_bytes },
                }));
                at_us += duration_us;
            }
        }
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

fn thread_name(thread: u32, name: &str) -> Value {
    json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": { "name": name } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::profile::kernels::tests::step;

    #[test]
    fn dispatches_follow_each_other_inside_their_step() {
        let steps = [step(3)];
        let trace = events(steps[0].begin, &[("decode", &steps)]);
        let complete: Vec<&Value> =
            trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(complete.len(), 1 + 4);
        assert_eq!((&complete[0]["name"], &complete[0]["args"]["rows"]), (&json!("decode"), &json!(3)));
        let begins: Vec<f64> = complete[1..].iter().map(|event| event["ts"].as_f64().unwrap()).collect();
        assert_eq!(begins, [0.0, 1000.0, 3000.0, 5000.0]);
    }
}
