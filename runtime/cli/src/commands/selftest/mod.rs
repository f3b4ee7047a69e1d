//! `selftest`: on the user's own device, every kind of step with the kernels that would run, against the conservative kernels of the same
//! artifact on the same weights.
//!
//! ```text
//! observe   a step by either target, on a cache that the conservative one filled ─► logits, sampled tokens
//! compare   both ─► a difference, right or wrong
//! samplers  tokens that the device samples, with and without a mask, against sampling on the host
//! locate    of a wrong step: the dispatch after which values differ, and an alternative that is right
//! report    a page to paste, and the file by which later starts leave out what is wrong
//! ```
//!
//! The draft that an artifact may have is tested behind its model, in the same way.
//!
//! Both targets' programs are recorded over one set of buffers, so that weights are loaded once, and a kind of step can be exchanged by
//! itself: what differs then is due to its kernels.

mod compare;
mod locate;
mod observe;
mod report;
mod row;
mod samplers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unicorn_artifact::header::hex;
use unicorn_artifact::{ImageSection, LogitsRows};

use self::compare::{Difference, Limit};
use self::locate::Located;
use self::observe::{Observation, ProgramSource, Sides};
use self::report::{Check, Outcome, Report, Verdict};
use crate::args::SelftestArgs;
use crate::error::CliError;
use crate::files::corrections_file::{self, CorrectedImages, CorrectedStep, CorrectionsFile, Replacement};
use crate::files::known_drivers::{self, Tested};
use crate::load::{load_tested, max_positions};
use crate::report::steps::step_name;
use crate::terminal::output::{note, print, print_json};
use unicorn_runtime::{DraftUse, Model, StepShape};

/// Context in tokens: enough for the largest step and for a program for long contexts.
const CONTEXT_TOKENS: u32 = 2560;
/// Cached tokens before a step that is checked.
const CACHED_TOKENS: u32 = 20;
/// Tokens of a generated text.
const TEXT_TOKENS: u32 = 32;

pub fn run(args: &SelftestArgs) -> Result<(), CliError> {
    let begun = Instant::now();
    let model = load(args, DraftUse::Unused, max_positions(&args.artifact)?)?;
    if let Some(why) = why_not(&model, args) {
        return Err(CliError::at(&args.artifact, why));
    }
    let mut report = Report::new(&model, &args.against);
    // Loading and compiling may take long at a first start.
    let checks_begun = Instant::now();
    let found = test(args, &model, &args.artifact, checks_begun)?;
    (report.checks, report.decode_tokens_per_s) = (found.checks, found.decode_tokens_per_s);
    let (facts, draft_tokens) = (model.device().clone(), model.packed_draft_tokens());
    drop(model);
    report.switched_off = found.file.lines();
    let mut written = found.file.write(&args.artifact)?;
    if let Some(max_tokens) = draft_tokens {
        let path = test_draft(args, max_tokens, checks_begun, &mut report)?;
        written = written.or(path);
    }
    report.finish(begun.elapsed());
    let tested = match report.outcome() {
        Outcome::Right => Some(Tested::Right),
        Outcome::Wrong => Some(Tested::Wrong),
        Outcome::NothingChecked => None,
    };
    if let Err(error) = known_drivers::remember(&facts, tested) {
        note(format_args!("the result is not recorded: {error}"));
    }
    match args.json {
        true => print_json(&report)?,
        false => print(&report.page())?,
    }
    if let Some(path) = written {
        note(format_args!("later starts leave out what is wrong here: {}", path.display()));
    }
    match report.outcome() {
        Outcome::Right => Ok(()),
        Outcome::Wrong => Err(CliError::new("kernels are wrong on this device; please report it with the page above")),
        Outcome::NothingChecked => Err(CliError::new("nothing was checked, for the reasons above")),
    }
}

/// Why a model's kernels cannot be compared with those of the other target; `None`: they can.
fn why_not(model: &Model, args: &SelftestArgs) -> Option<String> {
    let (own, against, artifact) = (&model.report().target, &args.against, args.artifact.display());
    if !model.targets().iter().any(|target| target.name == *against) {
        return Some(format!(
            "artifact has no kernels of target {against} to compare with; this adds them: unicorn-compile retarget {artifact} \
             --target {against}"
        ));
    }
    (own == against).then(|| {
        format!(
            "kernels of target {own} would be compared with themselves; --target NAME tests another target of the artifact, \
             --against NAME compares with another"
        )
    })
}

/// What a test of one model found.
struct Found {
    checks: Vec<Check>,
    decode_tokens_per_s: Option<f64>,
    /// What later starts leave out.
    file: CorrectionsFile,
}

/// Tests the kernels of one model. `files`: the path beside which its corrections lie.
fn test(args: &SelftestArgs, model: &Model, files: &Path, begun: Instant) -> Result<Found, CliError> {
    let own = model.report().target;
    let sides = Sides::new(model, &own, &args.against, files)?;
    let mut test = SelfTest {
        args,
        sides,
        begun,
        limit: Limit::of(model, &own),
        steps: Vec::new(),
        checked: BTreeSet::new(),
        images: None,
        has_checked_images: false,
    };
    let (checks, decode_tokens_per_s) = test.run()?;

    let key = hex(&model.report().tuning.key);
    let earlier = corrections_file::earlier(files, &key);
    let (earlier_steps, earlier_images) = earlier.map_or((Vec::new(), None), |file| (file.steps, file.images));
    let file = CorrectionsFile {
        steps: with_unchecked(test.steps, &test.checked, earlier_steps),
        images: if test.has_checked_images { test.images } else { earlier_images },
        key,
        device: model.device().name.clone(),
        driver: model.device().driver.clone(),
        target: own,
    };
    Ok(Found { checks, decode_tokens_per_s, file })
}

/// Tests the draft that is packed into the artifact, for sequences of at most `max_tokens`, as a model of its own, and adds what it finds to the
/// report. Returns the file that later starts read; `None`: all is right.
fn test_draft(
    args: &SelftestArgs,
    max_tokens: u32,
    begun: Instant,
    report: &mut Report,
) -> Result<Option<PathBuf>, CliError> {
    let model = load(args, DraftUse::Alone, max_tokens)?;
    if let Some(why) = why_not(&model, args) {
        report.checks.push(Check::without_numbers("draft", Verdict::NotChecked(why)));
        return Ok(None);
    }
    let files = corrections_file::of_draft(&args.artifact);
    let Found { checks, file, .. } = test(args, &model, &files, begun)?;
    let of_draft = |text: &String| format!("draft: {text}");
    report.checks.extend(checks.into_iter().map(|check| Check { name: of_draft(&check.name), ..check }));
    report.switched_off.extend(file.lines().iter().map(of_draft));
    file.write(&files)
}

/// The steps that are wrong now, and of an earlier test those that were not checked this time.
fn with_unchecked(
    mut steps: Vec<CorrectedStep>,
    checked: &BTreeSet<StepShape>,
    earlier: Vec<CorrectedStep>,
) -> Vec<CorrectedStep> {
    steps.extend(earlier.into_iter().filter(|step| !checked.contains(&step.shape())));
    steps
}

/// Loads the model, or its draft, for as many sequences as fit the memory, of at most `max_tokens`.
fn load(args: &SelftestArgs, draft: DraftUse, max_tokens: u32) -> Result<Model, CliError> {
    let context_tokens = CONTEXT_TOKENS.min(max_tokens);
    let mut sequences = args.sequences;
    loop {
        if let Some(model) = load_tested(&args.artifact, &args.load, draft, context_tokens, sequences)? {
            return Ok(model);
        }
        sequences /= 2;
    }
}

struct SelfTest<'m> {
    args: &'m SelftestArgs,
    sides: Sides<'m>,
    /// When the checks began.
    begun: Instant,
    limit: Limit,
    /// What is wrong, and what runs in its place.
    steps: Vec<CorrectedStep>,
    /// Shapes of the steps that were checked.
    checked: BTreeSet<StepShape>,
    /// The same of images.
    images: Option<CorrectedImages>,
    has_checked_images: bool,
}

impl SelfTest<'_> {
    /// All checks, and the tokens per second of decode.
    fn run(&mut self) -> Result<(Vec<Check>, Option<f64>), CliError> {
        let mut checks = vec![self.repeat()?];
        for shape in self.sides.own_shapes() {
            let cached = CACHED_TOKENS.max(shape.from_tokens);
            checks.push(self.step(step_name(shape), shape, cached)?);
        }
        checks.extend(self.long_context()?);
        for shape in self.sides.shapes_of_samplers() {
            checks.push(self.sampler(shape, false)?);
            checks.push(self.sampler(shape, true)?);
        }
        if let Some(image) = self.sides.image() {
            checks.push(self.image(image)?);
        }
        let (check, tokens_per_s) = self.text()?;
        checks.push(check);
        Ok((checks, tokens_per_s))
    }

    fn is_late(&self) -> bool {
        self.begun.elapsed() >= Duration::from_secs(self.args.seconds)
    }

    /// The same step twice gives the same bits: a race between invocations would not.
    fn repeat(&mut self) -> Result<Check, CliError> {
        let shape = StepShape { rows: 1, batch: false, from_tokens: 0 };
        let name = "decode twice, the same bits";
        if let Some(why) = self.sides.why_not(shape, CACHED_TOKENS) {
            return Ok(Check::without_numbers(name, Verdict::NotChecked(why)));
        }
        let both = [(); 2].map(|()| self.sides.observe(shape, ProgramSource::Own, CACHED_TOKENS));
        let [first, second] = both;
        let (first, second) = (first?, second?);
        let verdict = if first.is_same(&second) { Verdict::Right } else { Verdict::Wrong("results differ".into()) };
        Ok(Check::without_numbers(name, verdict))
    }

    /// Checks a kind of step after `cached` tokens; if it is wrong, finds which kernel is, and what runs in its place.
    fn step(&mut self, name: String, shape: StepShape, cached: u32) -> Result<Check, CliError> {
        if let Some(why) = self.sides.why_not(shape, cached) {
            return Ok(Check::without_numbers(name, Verdict::NotChecked(why)));
        }
        if self.is_late() {
            return Ok(Check::without_numbers(name, Verdict::NotChecked("no time left".into())));
        }
        let (expected, found) = self.both(shape, cached)?;
        let difference = Difference::between(&expected, &found, self.limit);
        self.checked.insert(shape);
        if difference.is_within(self.limit) {
            return Ok(Check::new(name, Verdict::Right, &difference));
        }
        if let Some(kernels) = self.corrected(shape, cached, &expected)? {
            return Ok(Check::new(name, Verdict::Wrong(kernels), &difference));
        }
        let agree =
            |one: Observation, other: Observation| Difference::between(&one, &other, self.limit).is_within(self.limit);
        let located = if !agree(expected.of_logits(), found.of_logits()) {
            locate::locate(&mut self.sides, shape, cached, &expected, self.limit)?
        } else if !agree(expected.of_hidden_rows(), found.of_hidden_rows()) {
            Located::beside_logits(self.sides.kernels_of(shape, LogitsRows::Hidden), "hidden rows")
        } else {
            Located::beside_logits(self.sides.kernels_of(shape, LogitsRows::Predicted), "the head for drafts")
        };
        let what = located.in_words();
        let instead = match located.instead {
            Some(choice) => Replacement::Alternatives(choice.into()),
            None => Replacement::Target(self.args.against.clone()),
        };
        self.steps.retain(|step| step.shape() != shape);
        let StepShape { rows, batch, from_tokens } = shape;
        self.steps.push(CorrectedStep { rows, batch, from_tokens, kernels: located.kernels, instead });
        Ok(Check::new(name, Verdict::Wrong(what), &difference))
    }

    /// Results of a step by both targets: with the first text on which they agree, else with the last that was tried.
    fn both(&mut self, shape: StepShape, cached: u32) -> Result<(Observation, Observation), CliError> {
        let mut text = 0;
        loop {
            self.sides.begin_at_text(text);
            let expected = self.sides.observe(shape, ProgramSource::Base, cached)?;
            let found = self.sides.observe(shape, ProgramSource::Own, cached)?;
            text += 1;
            let agree = Difference::between(&expected, &found, self.limit).is_within(self.limit);
            if agree || text == self.limit.n_texts() {
                return Ok((expected, found));
            }
        }
    }

    /// The kernels that an earlier check of the shape found wrong, if what runs in their place is right here, too.
    fn corrected(&mut self, shape: StepShape, cached: u32, expected: &Observation) -> Result<Option<String>, CliError> {
        let Some(step) = self.steps.iter().find(|step| step.shape() == shape) else { return Ok(None) };
        let kernels = step.kernels.join(" or ");
        // The other target's results are those expected.
        let Replacement::Alternatives(alternatives) = &step.instead else { return Ok(Some(kernels)) };
        let mut programs = self.sides.record(shape, &alternatives.choice())?;
        let found = self.sides.observe(shape, ProgramSource::Trial(&mut programs), cached)?;
        Ok(Difference::between(expected, &found, self.limit).is_within(self.limit).then_some(kernels))
    }

    /// Checks decode after a context as long as time and memory allow.
    fn long_context(&mut self) -> Result<Vec<Check>, CliError> {
        let tokens = self.sides.affordable_context();
        let decode = self.sides.own_shapes().into_iter().filter(|shape| shape.rows == 1 && shape.from_tokens <= tokens);
        match decode.max_by_key(|shape| shape.from_tokens) {
            Some(shape) if tokens > 2 * CACHED_TOKENS => {
                Ok(vec![self.step(format!("decode after {tokens} tokens"), shape, tokens)?])
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Checks the sampler of a kind of step, also where little time is left: a few short steps decide about all kinds of steps that have it.
    /// If it is wrong, the other target runs these.
    fn sampler(&mut self, shape: StepShape, masked: bool) -> Result<Check, CliError> {
        let with = if masked { " with a mask" } else { "" };
        let name = format!("sampler of {}{with}", step_name(shape));
        let cached = CACHED_TOKENS.max(shape.from_tokens);
        let why_not = self.sides.why_not(shape, cached);
        let takes_none = masked && !self.sides.model().takes_masks();
        let why_not = why_not.or_else(|| takes_none.then(|| "the artifact's samplers take no masks".into()));
        if let Some(why) = why_not {
            return Ok(Check::without_numbers(name, Verdict::NotChecked(why)));
        }
        let Some(what) = samplers::difference(&mut self.sides, shape, cached, masked)? else {
            return Ok(Check::without_numbers(name, Verdict::Right));
        };
        let (kernel, steps) = self.sides.steps_with_sampler_of(shape);
        for StepShape { rows, batch, from_tokens } in steps {
            let instead = Replacement::Target(self.args.against.clone());
            self.steps.retain(|step| step.shape() != StepShape { rows, batch, from_tokens });
            self.steps.push(CorrectedStep { rows, batch, from_tokens, kernels: vec![kernel.into()], instead });
            self.checked.insert(StepShape { rows, batch, from_tokens });
        }
        Ok(Check::without_numbers(name, Verdict::Wrong(format!("{kernel} by {what}"))))
    }

    /// Checks the rows of an image by a text that attends to them. If they are wrong, the other target makes them from then on.
    fn image(&mut self, image: &ImageSection) -> Result<Check, CliError> {
        let name = format!("image of {} rows", image.rows);
        if let Some(why) = self.sides.why_no_image(image) {
            return Ok(Check::without_numbers(name, Verdict::NotChecked(why)));
        }
        if self.is_late() {
            return Ok(Check::without_numbers(name, Verdict::NotChecked("no time left".into())));
        }
        self.sides.begin_at_text(0);
        let [expected, found] = [false, true].map(|is_own| self.sides.observe_image(image, is_own));
        let difference = Difference::between(&expected?, &found?, self.limit);
        self.has_checked_images = true;
        let verdict = match difference.is_within(self.limit) {
            true => Verdict::Right,
            false if !self.steps.is_empty() => Verdict::Wrong("as steps above are".into()),
            false => {
                let kernels: Vec<String> = self.sides.kernels_of_images().into_iter().map(str::to_owned).collect();
                let what = format!("one of {}", kernels.join(", "));
                self.images = Some(CorrectedImages { kernels, target: self.args.against.clone() });
                Verdict::Wrong(what)
            }
        };
        Ok(Check::new(name, verdict, &difference))
    }

    /// Checks a text that the artifact generates: each token must also be (nearly) the most likely one by the other target.
    fn text(&mut self) -> Result<(Check, Option<f64>), CliError> {
        let name = format!("greedy text of {TEXT_TOKENS} tokens");
        if let Some(why) = self.sides.why_no_text(TEXT_TOKENS) {
            return Ok((Check::without_numbers(name, Verdict::NotChecked(why)), None));
        }
        self.sides.begin_at_text(0);
        let text = self.sides.text(TEXT_TOKENS)?;
        let largest_gap = self.limit.largest(text.gaps);
        let verdict = match largest_gap <= 2.0 * self.limit.relative {
            true => Verdict::Right,
            false if !self.steps.is_empty() => Verdict::Wrong("as steps above are".into()),
            false => Verdict::Wrong(format!("a token is unlikely by target {}", self.args.against)),
        };
        let mut check = Check::without_numbers(name, verdict);
        check.relative_error = Some(largest_gap);
        check.note = Some(format!("{} of {TEXT_TOKENS} tokens are the most likely of both", text.same));
        Ok((check, Some(text.tokens_per_second)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_keeps_what_an_earlier_one_found_of_steps_that_it_did_not_check() {
        let step = |rows, kernel: &str| CorrectedStep {
            rows,
            batch: true,
            from_tokens: 0,
            kernels: vec![kernel.into()],
            instead: Replacement::Target("generic".into()),
        };
        let shape = |rows| StepShape { rows, batch: true, from_tokens: 0 };
        let earlier = vec![step(2, "healed"), step(4, "wrong again"), step(64, "unchecked")];
        let kept = with_unchecked(vec![step(4, "wrong now")], &[shape(2), shape(4)].into(), earlier);
        assert_eq!(kept, [step(4, "wrong now"), step(64, "unchecked")]);
    }
}
