//! Moments of several streams of the residual.

use unicorn_kernels::Activation;
use unicorn_kernels::streams::StreamsForm;

use super::{Moment, Moments, Walk, activated};
use crate::graph::{StreamsOp, ValueId, VectorRef};

impl Walk<'_> {
    /// What a router chooses is unknown: predictions are taken for the streams themselves, and corrections for the whole of what a layer adds
    /// to its stream.
    pub(super) fn streams(&mut self, op: &StreamsOp<Vec<VectorRef>>) {
        let made: Vec<Moments> = match op {
            StreamsOp::Combine { form: StreamsForm::Begin, input, others, .. } => {
                let width = self.moments[input].len();
                let power = power(&self.moments[input]);
                let alike = |stream: &[Moment]| scaled(stream, (power / power_or_one(stream)).sqrt());
                vec![self.moments[others].chunks(width).flat_map(alike).collect()]
            }
            StreamsOp::Combine { form: StreamsForm::Add, input, others, weights, .. } => {
                let weight = &weights.as_ref().expect("what is added is normed")[0];
                let added = self.norm(*input, weight);
                vec![self.moments[others].iter().zip(added.iter().cycle()).map(|(a, b)| sum(*a, *b)).collect()]
            }
            // Behind all layers.
            StreamsOp::Combine { form: StreamsForm::End, .. } => return,
            StreamsOp::Predict { streams, .. } => streams.map(|stream| self.moments[&stream].clone()).to_vec(),
            StreamsOp::Correct { activated, streams: [first, others], weights, .. } => {
                let (activated, before) = (&self.moments[activated], &self.moments[first]);
                let innovation: Moments = activated.iter().zip(before).map(|(a, b)| sum(*a, negated(*b))).collect();
                let others = self.moments[others].iter().zip(innovation.iter().cycle()).map(|(a, b)| sum(*a, *b));
                let factors = self.vector(&weights[weights.len() - 1]);
                let scaled = activated.iter().zip(factors).map(|(moment, factor)| times(*moment, factor));
                vec![activated.clone(), others.collect(), scaled.collect()]
            }
            StreamsOp::Laurel { stream, attended, laurel, weights, .. } => {
                let branches = [stream, attended, laurel].into_iter().zip(weights);
                let branches: Vec<Moments> = branches.map(|(value, weight)| self.norm(*value, weight)).collect();
                let channel = |(column, moment): (usize, &Moment)| {
                    let total = branches.iter().fold(*moment, |total, branch| sum(total, branch[column]));
                    times(total, std::f64::consts::FRAC_1_SQRT_2)
                };
                vec![self.moments[stream].iter().enumerate().map(channel).collect()]
            }
        };
        for (out, moments) in op.outs().into_iter().zip(made) {
            self.moments.insert(out, moments);
        }
    }

    /// Gates are taken to have one distribution, whose lower part the activation makes 0 as the cut does.
    pub(super) fn sparse_act_mul(
        &self,
        gate: ValueId,
        up: ValueId,
        activation: Activation,
        deviations: f32,
    ) -> Moments {
        let gates = &self.moments[&gate];
        let mean = gates.iter().map(|moment| moment.mean).sum::<f64>() / gates.len() as f64;
        let cutoff = mean + f64::from(deviations) * (power(gates) - mean * mean).max(0.0).sqrt();
        let pairs = gates.iter().zip(&self.moments[&up]);
        let cut = |gate: &Moment| Moment { mean: gate.mean - cutoff, ..*gate };
        pairs.map(|(gate, up)| activated(cut(gate), *up, 0.0, activation)).collect()
    }
}

fn power(row: &[Moment]) -> f64 {
    row.iter().map(|moment| moment.mean_square()).sum::<f64>() / row.len() as f64
}

fn power_or_one(row: &[Moment]) -> f64 {
    let power = power(row);
    if power > 0.0 { power } else { 1.0 }
}

fn scaled(row: &[Moment], factor: f64) -> Moments {
    row.iter().map(|moment| times(*moment, factor)).collect()
}

fn times(moment: Moment, factor: f64) -> Moment {
    Moment { mean: moment.mean * factor, variance: moment.variance * factor * factor }
}

fn sum(a: Moment, b: Moment) -> Moment {
    Moment { mean: a.mean + b.mean, variance: a.variance + b.variance }
}

fn negated(moment: Moment) -> Moment {
    Moment { mean: -moment.mean, ..moment }
}
