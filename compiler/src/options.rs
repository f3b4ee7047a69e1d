//! [`CompileOptions`]: the options of a compile, and their checks.

use std::path::PathBuf;

use unicorn_artifact::{Budget, MachinePlan};
use unicorn_kernels::KvFormat;
use unicorn_spirv::{Target, target};

use crate::emit::Form;
use crate::error::{CompileError, Result};
use crate::format_policy::{FormatPolicy, WeightsOption};
use crate::import::Adapter;
use crate::npu::NpuOptions;
use crate::select::SelectOptions;
use unicorn_artifact::Machine;

/// The options of a compile. Checked by [`compile`](crate::compile) and [`plan`](crate::plan) before they begin.
///
/// ```
/// use unicorn_compiler::{CompileOptions, KvFormat, WeightsOption};
///
/// let mut options = CompileOptions::default();
/// options.policy.weights = WeightsOption::Int8;
/// options.kv = KvFormat::Int8;
/// options.context_tokens = Some(4096);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompileOptions {
    /// Formats of the weight matrices: INT4 in groups of 32.
    pub policy: FormatPolicy,
    /// Kinds of devices to make kernels for, at least one, each once, in any order: the common ones.
    pub targets: Vec<Target>,
    /// Whether operations are merged into fewer kernels: yes. Otherwise one kernel for each plain operation, to check by.
    pub fuse: bool,
    /// Whether a vision tower that the model has is compiled, too, so that it takes images: yes.
    pub vision: bool,
    /// Whether a head that predicts the token behind the next one is compiled, too, so that sequences speculate with it: yes. It is left out
    /// beside a draft, whose tokens are verified then, and beside an NPU.
    pub predictor: bool,
    /// A GGUF file with the vision tower and projector of the model, instead of those that it may have: none.
    pub projector: Option<PathBuf>,
    /// Fewest tokens of an image, for a model that takes images of any size (Qwen3-VL): smaller pictures are scaled up. `None`: as few as the
    /// model has.
    pub image_min_tokens: Option<u32>,
    /// Most tokens of an image, for a model that takes images of any size (Qwen3-VL); `None`: as many as the model permits, 1024 at most.
    pub image_max_tokens: Option<u32>,
    /// Number format of the KV cache: f16.
    pub kv: KvFormat,
    /// Whether the artifact holds other kernels for the same work, for `unicorn-run tune` to choose from: no. They are more than
    /// half of all kernels; [`retarget`](crate::retarget()) adds them later.
    pub alternatives: bool,
    /// Text forms to write beside the artifact: none.
    pub emit: Vec<Form>,
    /// The machine whose memory the plan is for: an unknown one, for which nothing is refused.
    pub machine: MachinePlan,
    /// LoRA adapters that are merged into the weights, in order: none.
    pub adapters: Vec<Adapter>,
    /// Tokens of the sequence that must fit; `None`: 8192, or the model's own context if that is shorter.
    pub context_tokens: Option<u32>,
    /// Work of an XDNA1 NPU, whose programs the artifact then holds; `None`: it has none.
    pub npu: Option<NpuOptions>,
    /// A smaller model with the same tokenizer, a Hugging Face folder or a GGUF file, that is compiled likewise and packed into the artifact:
    /// its continuations are proposed to the model; `None`: there is none.
    pub draft: Option<PathBuf>,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions {
            policy: FormatPolicy { weights: WeightsOption::Int4, group: 32 },
            targets: target::defaults(),
            fuse: true,
            vision: true,
            predictor: true,
            projector: None,
            image_min_tokens: None,
            image_max_tokens: None,
            kv: KvFormat::F16,
            alternatives: false,
            emit: Vec::new(),
            machine: Machine::generic().plan(&Budget::default()).expect("a preset"),
            adapters: Vec::new(),
            context_tokens: None,
            npu: None,
            draft: None,
        }
    }
}

/// Weights that may share an INT4 scale and zero point.
const GROUPS: [u32; 3] = [32, 64, 128];

impl CompileOptions {
    /// Checks that a compile can be made with these options.
    ///
    /// # Errors
    /// [`CompileError::Option`], naming the field.
    pub fn check(&self) -> Result<()> {
        let refused = |option, what| Err(CompileError::Option { option, what });
        if !GROUPS.contains(&self.policy.group) {
            return refused("group", format!("group is {} weights, expected 32, 64 or 128", self.policy.group));
        }
        if self.targets.is_empty() {
            let known: Vec<&str> = target::presets().iter().map(|target| target.name).collect();
            return refused("targets", format!("targets are none, expected at least one of {}", known.join(", ")));
        }
        for (index, target) in self.targets.iter().enumerate() {
            if self.targets[..index].iter().any(|before| before.name == target.name) {
                return refused("targets", format!("target {} is there twice, expected each once", target.name));
            }
        }
        self.npu.as_ref().map_or(Ok(()), NpuOptions::check)
    }

    pub(crate) fn select(&self) -> SelectOptions {
        SelectOptions { fold: self.fuse, kv: self.kv, alternatives: self.alternatives }
    }

    /// The targets in the order of the presets, in which the artifact keeps them; others after them.
    pub(crate) fn targets_in_order(&self) -> Vec<Target> {
        let presets = target::presets();
        let rank = |target: &Target| presets.iter().position(|preset| preset.name == target.name);
        let mut targets = self.targets.clone();
        targets.sort_by_key(|target| rank(target).unwrap_or(usize::MAX));
        targets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_compile_can_be_made_with_is_refused() {
        let refusal = |change: &dyn Fn(&mut CompileOptions)| {
            let mut options = CompileOptions::default();
            change(&mut options);
            options.check().expect_err("refused").to_string()
        };
        assert_eq!(refusal(&|options| options.policy.group = 33), "group is 33 weights, expected 32, 64 or 128");
        assert!(refusal(&|options| options.targets.clear()).starts_with("targets are none, expected at least one of "));
        let twice = refusal(&|options| options.targets = vec![options.targets[0].clone(); 2]);
        assert!(twice.ends_with("is there twice, expected each once"), "{twice}");
        CompileOptions::default().check().expect("the defaults are sound");
    }
}
