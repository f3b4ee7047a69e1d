//! Single mistakes put into a design, one at a time: the checker or the interpreter must notice each.
//!
//! A mistake is caught when the checker names a fault, or a run of the interpreter fails or gives another output. Survivors are listed with the
//! reason why nothing can notice them.

use unicorn_npu::design::{Body, CoreOp, Design, HostOp, Port};
use unicorn_npu::interpret::{RunError, commands};
use unicorn_npu::lower::{Lowered, lower};
use unicorn_npu::{gemm, legal};

use super::Case;

/// What became of all mistakes in one design.
pub struct Mutations {
    /// How many there are.
    pub tried: usize,
    /// Those that nothing noticed.
    pub survivors: Vec<String>,
}

impl Mutations {
    /// Puts every mistake into the design of `case`, which computes the product without them, and into the layout of its operands.
    pub fn of(case: &Case) -> Mutations {
        let run = |design: &Design, lowered: &Lowered| case.run(design, lowered, &commands(design, lowered));
        let design = gemm::design(&case.shape);
        let mut mutations = Mutations::of_design(&design, &run);
        let lowered = lower(&design);
        let commands = commands(&design, &lowered);
        for (what, mutant) in case.layout_mutants() {
            mutations.tried += 1;
            if mutant.run(&design, &lowered, &commands) == Ok(true) {
                mutations.survivors.push(what.to_owned());
            }
        }
        mutations
    }

    /// Puts every mistake into a design; `run`: whether one computes the right thing.
    pub fn of_design(design: &Design, run: &dyn Fn(&Design, &Lowered) -> Result<bool, RunError>) -> Mutations {
        let lowered = lower(design);
        assert_eq!(run(design, &lowered), Ok(true));
        let mut mutants = design_mutants(design);
        mutants.extend(lowered_mutants(design, &lowered));
        let tried = mutants.len();
        let survives = |mutant: &Mutant| {
            let lowered = mutant.lowered.clone().unwrap_or_else(|| lower(&mutant.design));
            legal::check(&mutant.design, &lowered).is_ok() && run(&mutant.design, &lowered) == Ok(true)
        };
        let survivors = mutants.into_iter().filter(survives).map(|mutant| mutant.what).collect();
        Mutations { tried, survivors }
    }

    /// Share of the mistakes that was noticed.
    pub fn caught(&self) -> f64 {
        (self.tried - self.survivors.len()) as f64 / self.tried as f64
    }

    /// Each reason why nothing notices a mistake, with the number of survivors that it explains; then those without one.
    pub fn explained(&self) -> (Vec<(&'static str, usize)>, Vec<&str>) {
        let (mut reasons, mut others): (Vec<(&str, usize)>, Vec<&str>) = (Vec::new(), Vec::new());
        for what in &self.survivors {
            match reason(what) {
                None => others.push(what),
                Some(reason) => match reasons.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, count)) => *count += 1,
                    None => reasons.push((reason, 1)),
                },
            }
        }
        (reasons, others)
    }
}

/// A design with one mistake.
struct Mutant {
    what: String,
    design: Design,
    /// With the mistake, if it is one of the lowering.
    lowered: Option<Lowered>,
}

fn of_design(what: String, design: Design) -> Mutant {
    Mutant { what, design, lowered: None }
}

/// Every mutation of FIFOs, links, buffers, programs and host steps.
fn design_mutants(original: &Design) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let mut add = |what: String, change: &dyn Fn(&mut Design)| {
        let mut design = original.clone();
        change(&mut design);
        mutants.push(of_design(what, design));
    };
    for (index, fifo) in original.fifos.iter().enumerate() {
        let name = &fifo.name;
        add(format!("depth of {name} + 1"), &|design| design.fifos[index].depth += 1);
        add(format!("depth of {name} - 1"), &|design| design.fifos[index].depth -= 1);
        add(format!("object of {name} + 4"), &|design| design.fifos[index].len += 4);
        add(format!("object of {name} - 4"), &|design| design.fifos[index].len -= 4);
        add(format!("last consumer of {name} removed"), &|design| _ = design.fifos[index].consumers.pop());
    }
    for index in 0..original.links.len() {
        add(format!("link {index} removed"), &|design| _ = design.links.remove(index));
        if original.links[index].inputs.len() > 1 {
            add(format!("link {index}: inputs swapped"), &|design| design.links[index].inputs.swap(0, 1));
        }
        if original.links[index].outputs.len() > 1 {
            add(format!("link {index}: outputs swapped"), &|design| design.links[index].outputs.swap(0, 1));
        }
    }
    for index in 0..original.buffers.len() {
        add(format!("buffer {index} - 1"), &|design| design.buffers[index].len -= 1);
    }
    for (index, core) in original.cores.iter().enumerate() {
        for step in 0..steps(&core.program) {
            add(format!("core {index}: step {step} removed"), &|design| {
                change_step(&mut design.cores[index].program, step, &mut |steps, at| _ = steps.remove(at));
            });
            let twice = body_at(&core.program, step).map_or(String::new(), |body| format!(", {body} twice"));
            add(format!("core {index}: step {step} changed{twice}"), &|design| {
                change_step(&mut design.cores[index].program, step, &mut |steps, at| change(&mut steps[at]));
            });
        }
    }
    for (index, op) in original.host.iter().enumerate() {
        add(format!("host step {index} removed"), &|design| _ = design.host.remove(index));
        let HostOp::Start(transfer) = op else { continue };
        for dimension in 0..4 {
            for (sign, step) in [("+", 1), ("-", usize::MAX)] {
                add(format!("host step {index}: size {dimension} {sign} 1"), &|design| {
                    let HostOp::Start(one) = &mut design.host[index] else { unreachable!("a transfer") };
                    one.sizes[dimension] = one.sizes[dimension].wrapping_add(step);
                });
            }
            if transfer.sizes[dimension] > 1 {
                add(format!("host step {index}: stride {dimension} + 4"), &|design| {
                    let HostOp::Start(one) = &mut design.host[index] else { unreachable!("a transfer") };
                    one.strides[dimension] += 4;
                });
            }
        }
        add(format!("host step {index}: offset + 4"), &|design| {
            let HostOp::Start(one) = &mut design.host[index] else { unreachable!("a transfer") };
            one.offset += 4;
        });
        add(format!("host step {index}: descriptor"), &|design| {
            let HostOp::Start(one) = &mut design.host[index] else { unreachable!("a transfer") };
            one.descriptor = (one.descriptor + 1) % 3;
        });
    }
    mutants
}

fn steps(program: &[CoreOp]) -> usize {
    let inner = |op: &CoreOp| match op {
        CoreOp::Forever(body) | CoreOp::Repeat { body, .. } => steps(body),
        _ => 0,
    };
    program.iter().map(|op| 1 + inner(op)).sum()
}

/// The name of the body that step `number`, in the order of the text, runs.
fn body_at(program: &[CoreOp], number: usize) -> Option<&'static str> {
    fn all(program: &[CoreOp]) -> Vec<Option<&'static str>> {
        let inner = |op: &CoreOp| match op {
            CoreOp::Forever(body) | CoreOp::Repeat { body, .. } => {
                std::iter::once(None).chain(all(body)).collect::<Vec<_>>()
            }
            CoreOp::Run(Body::Clear { .. }) => vec![Some("Clear")],
            CoreOp::Run(Body::Scores { .. }) => vec![Some("Scores")],
            CoreOp::Run(_) => vec![Some("a body")],
            _ => vec![None],
        };
        program.iter().flat_map(inner).collect()
    }
    all(program).get(number).copied().flatten()
}

/// Applies `mutate` to step `number` in the order of the text; gives the number that is left to count.
fn change_step(program: &mut Vec<CoreOp>, mut number: usize, mutate: &mut dyn FnMut(&mut Vec<CoreOp>, usize)) -> usize {
    let mut at = 0;
    while at < program.len() {
        if number == 0 {
            mutate(program, at);
            return usize::MAX;
        }
        number -= 1;
        if let CoreOp::Forever(body) | CoreOp::Repeat { body, .. } = &mut program[at] {
            number = change_step(body, number, mutate);
            if number == usize::MAX {
                return number;
            }
        }
        at += 1;
    }
    number
}

fn change(op: &mut CoreOp) {
    match op {
        CoreOp::Forever(body) => *op = CoreOp::Repeat { count: 1, body: body.clone() },
        CoreOp::Repeat { count, .. } => *count += 1,
        CoreOp::Acquire { port, .. } | CoreOp::Release { port, .. } => {
            *port = if *port == Port::Produce { Port::Consume } else { Port::Produce };
        }
        CoreOp::Run(body) => *op = CoreOp::Repeat { count: 2, body: vec![CoreOp::Run(*body)] },
    }
}

/// Mutations of locks and descriptors, which the lowering makes.
fn lowered_mutants(design: &Design, original: &Lowered) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let mut add = |what: String, change: &dyn Fn(&mut Lowered)| {
        let mut lowered = original.clone();
        change(&mut lowered);
        mutants.push(Mutant { what, design: design.clone(), lowered: Some(lowered) });
    };
    for index in 0..original.locks.len() {
        add(format!("lock {index} + 1"), &|lowered| lowered.locks[index].initial += 1);
        if original.locks[index].initial > 0 {
            add(format!("lock {index} = 0"), &|lowered| lowered.locks[index].initial = 0);
        }
    }
    for (index, channel) in original.channels.iter().enumerate() {
        for step in 0..channel.chain.len() {
            let name = format!("channel {index} of {}, descriptor {step}", channel.tile);
            add(format!("{name}: offset + 4"), &|lowered| lowered.channels[index].chain[step].offset += 4);
            add(format!("{name}: length - 4"), &|lowered| lowered.channels[index].chain[step].len -= 4);
            add(format!("{name}: locks swapped"), &|lowered| {
                let one = &mut lowered.channels[index].chain[step];
                std::mem::swap(&mut one.acquire, &mut one.release);
            });
            add(format!("{name} removed"), &|lowered| _ = lowered.channels[index].chain.remove(step));
        }
    }
    for index in 0..original.flows.len() {
        add(format!("flow {index}: last end removed"), &|lowered| _ = lowered.flows[index].to.pop());
    }
    mutants
}

/// Why nothing notices a mutation; none for those that must be caught.
fn reason(what: &str) -> Option<&'static str> {
    if what.starts_with("lock") && what.ends_with("+ 1") {
        return Some("a writer overtakes its reader only in an order of steps that one run need not have");
    }
    match what.rsplit_once(", ") {
        Some((_, "Clear twice")) => Some("sums that are set to 0 twice are 0"),
        Some((_, "Scores twice")) => Some("scores that are made twice of the same objects are the same"),
        _ => None,
    }
}
