//! Each rule of the checker, with a design that breaks it alone: the checker refuses it by that rule's name.

mod support;

use std::collections::BTreeSet;

use support::small;
use unicorn_kernels::npu::tile::Epilogue;
use unicorn_npu::design::{
    Body, Buffer, BufferId, Core, CoreOp, Design, Element, Fifo, FifoId, HostOp, Link, Port, Transfer,
};
use unicorn_npu::device::{ARGUMENT_BYTES_MAX, LOCK_MAX, Tile, TileKind, descriptors_of_parity, limits};
use unicorn_npu::gemm::{self, OUTPUTS, WEIGHTS};
use unicorn_npu::legal;
use unicorn_npu::lower::{Channel, ChannelId, Direction, Flow, Lock, LockId, Lowered, lower};
use unicorn_npu::rule::Rule;

/// A sound design of two columns, and the parts that are put into it.
struct Program {
    design: Design,
    lowered: Lowered,
}

/// Two cores with something to do.
const A: Tile = Tile { col: 0, row: 2 };
const B: Tile = Tile { col: 1, row: 3 };
/// A descriptor of a shim tile that the design does not use.
const UNUSED_DESCRIPTOR: u32 = 15;

fn sound() -> Program {
    let design = gemm::design(&small(2, 32, Epilogue::Scale));
    let lowered = lower(&design);
    Program { design, lowered }
}

#[test]
fn each_rule_is_broken_by_a_design_that_breaks_no_other() {
    let Program { design, lowered } = sound();
    legal::check(&design, &lowered).unwrap();
    for rule in Rule::ALL {
        let mut program = sound();
        program.break_rule(*rule);
        let faults = legal::check(&program.design, &program.lowered).expect_err(rule.name());
        let broken: BTreeSet<Rule> = faults.iter().map(|fault| fault.rule).collect();
        assert_eq!(broken, BTreeSet::from([*rule]), "{faults:#?}");
        assert!(faults[0].to_string().ends_with(&format!(" (rule: {rule})")), "{}", faults[0]);
    }
}

#[test]
fn every_rule_has_its_own_name() {
    let names: BTreeSet<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    assert_eq!(names.len(), Rule::ALL.len());
}

impl Program {
    fn break_rule(&mut self, rule: Rule) {
        let Program { design, lowered } = self;
        match rule {
            Rule::Names => design.buffers[1].name = design.buffers[0].name.clone(),
            Rule::Columns => design.columns = 5,
            Rule::Placement => {
                let fifo = design.fifos.iter_mut().find(|fifo| fifo.consumers.contains(&A)).expect("A reads");
                fifo.consumers.push(Tile { col: 2, row: 2 });
            }
            Rule::Consumers => {
                let fifo = design.fifos.iter_mut().find(|fifo| fifo.consumers.contains(&A)).expect("A reads");
                fifo.consumers.push(A);
            }
            Rule::FifoDepth => _ = self.spare([A, B], 0, 4),
            Rule::ObjectWords => _ = self.spare([A, B], 1, 3),
            Rule::LinkSides => self.link(&[(4, 1), (4, 1)], &[(4, 1), (4, 1)], [0; 2]),
            Rule::LinkBytes => self.link(&[(4, 1)], &[(8, 1)], [0; 2]),
            Rule::LinkTile => self.link(&[(4, 1)], &[(4, 1)], [0, 1]),
            Rule::LinkOnce => design.links.push(design.links[0].clone()),
            Rule::LinkDepths => self.link(&[(4, 1)], &[(4, 2)], [0; 2]),
            Rule::LockStart => lowered.locks[0].initial = LOCK_MAX + 1,
            Rule::DescriptorBounds => descriptor(lowered).offset += 4,
            Rule::DescriptorWords => descriptor(lowered).len -= 1,
            Rule::DescriptorLocks => {
                let elsewhere = lowered.locks.iter().position(|lock| lock.tile == B).expect("B has locks");
                let of_a = lowered.channels.iter_mut().find(|channel| channel.tile == A).expect("A has channels");
                of_a.chain[0].acquire = LockId(elsewhere);
            }
            Rule::Memory => {
                let len = limits(TileKind::Core).memory_bytes;
                design.buffers.push(Buffer { name: "more".into(), tile: A, element: Element::I8, len });
            }
            Rule::ChannelsIn => self.fill_channels(Direction::In),
            Rule::ChannelsOut => self.fill_channels(Direction::Out),
            // More than the tile has, and of each parity fewer than that.
            Rule::Descriptors => self.fill_descriptors(A, limits(TileKind::Core).descriptors + 1, [0, 1]),
            Rule::DescriptorParity => {
                self.fill_descriptors(Tile::memory(0), descriptors_of_parity(TileKind::Memory) + 1, [0]);
            }
            Rule::Locks => {
                let locks = (0..=limits(TileKind::Core).locks).map(|_| Lock { tile: A, initial: 0 });
                lowered.locks.extend(locks);
            }
            Rule::CoreTile => design.cores.push(Core { tile: Tile::memory(0), program: Vec::new() }),
            Rule::CoreOnce => design.cores.push(Core { tile: A, program: Vec::new() }),
            Rule::Released => _ = self.exchange(1, |acquire, _| vec![acquire]),
            Rule::Iteration => {
                self.exchange(1, |acquire, release| vec![CoreOp::Repeat { count: 1, body: vec![acquire] }, release]);
            }
            Rule::Port => {
                let fifo = self.spare([A, B], 1, 4);
                let both = [Port::Produce, Port::Consume]
                    .map(|port| [CoreOp::Acquire { fifo, port }, CoreOp::Release { fifo, port }]);
                self.append(A, both.into_iter().flatten().collect());
            }
            Rule::OneHeld => {
                let fifo = self.exchange(2, |acquire, release| vec![acquire.clone(), acquire, release]);
                self.append(B, take(fifo));
            }
            Rule::Held => {
                let fifo = self.spare([A, B], 1, 4);
                self.append(A, vec![CoreOp::Release { fifo, port: Port::Produce }]);
            }
            Rule::BodyKind => {
                let (state, scores) = (BufferId(0), FifoId(0));
                self.append(A, vec![CoreOp::Run(Body::Softmax { scores, state, probabilities: scores })]);
            }
            Rule::BufferTile => {
                let sums = self.buffer_of(B, Element::I32);
                self.append(A, vec![CoreOp::Run(Body::Clear { sums })]);
            }
            Rule::BufferBytes => {
                let sums = self.buffer_of(A, Element::I32);
                self.design.buffers[sums.0].len -= 1;
            }
            Rule::Acquired => {
                let body = self.body_of_a(|body| matches!(body, Body::AddProducts { .. }));
                self.append(A, vec![CoreOp::Run(body)]);
            }
            Rule::ObjectBytes => {
                let Body::Finish { sums, scales, .. } = self.body_of_a(|body| matches!(body, Body::Finish { .. }))
                else {
                    unreachable!("it is one");
                };
                self.exchange_of(1, |fifo, acquire, release| {
                    vec![acquire, CoreOp::Run(Body::Finish { sums, scales, output: fifo }), release]
                });
            }
            Rule::Arguments => {
                let one = design.arguments[0].clone();
                design.arguments.extend(std::iter::repeat_n(one, 5));
            }
            Rule::ArgumentBytes => design.arguments[WEIGHTS].len = ARGUMENT_BYTES_MAX + 1,
            Rule::Wait => design.host.extend(last_wait(design)),
            Rule::ShimEnd => {
                let fifo = self.spare([A, B], 1, 4);
                self.start(fifo, [1, 1, 1, 2], [0, 0, 0, 1], 0, OUTPUTS);
            }
            Rule::Argument => {
                let fifo = self.spare([A, Tile::shim(0)], 1, 4);
                self.start(fifo, [1, 1, 1, 2], [0, 0, 0, 1], 0, 9);
            }
            Rule::DescriptorFree => {
                let of_column = |host: &[HostOp]| {
                    let starts = host.iter().enumerate().filter_map(|(index, op)| match op {
                        HostOp::Start(transfer) => Some((index, transfer.descriptor)),
                        HostOp::Wait(_) => None,
                    });
                    starts.take(2).collect::<Vec<_>>()
                };
                // The first two transfers are of one column.
                let [(_, first), (second, _)] = of_column(&design.host)[..] else { panic!("two transfers") };
                let HostOp::Start(transfer) = &mut design.host[second] else { unreachable!("a transfer") };
                transfer.descriptor = first;
            }
            Rule::TransferSizes => self.transfer([1, 0, 1, 2], [0, 2, 0, 1], 0),
            Rule::InnermostStride => self.transfer([1, 1, 1, 2], [0, 0, 0, 2], 0),
            Rule::TransferWords => self.transfer([1, 1, 1, 2], [0, 0, 0, 1], 1),
            Rule::StrideMax => self.transfer([2, 1, 1, 2], [1 << 22, 0, 0, 1], 0),
            Rule::ZeroStride => self.transfer([1, 2, 1, 2], [0, 0, 0, 1], 0),
            Rule::Wraps => self.transfer([1, 1, 1024, 2], [0, 0, 2, 1], 0),
            Rule::Iterations => self.transfer([65, 1, 2, 2], [0, 0, 2, 1], 0),
            Rule::TransferBounds => self.transfer([1, 1, 1, 2], [0, 0, 0, 1], OUTPUT_LEN),
            Rule::WholeObjects => {
                self.transfer([1, 1, 1, 2], [0, 0, 0, 1], 0);
                self.design.fifos.last_mut().expect("the spare one").len = 8;
            }
            Rule::Complete => {
                self.transfer([1, 1, 1, 2], [0, 0, 0, 1], 0);
                self.design.host.pop();
            }
            Rule::MadeAndTaken => {
                let fifo = self.spare([A, B], 1, 4);
                self.append(B, take(fifo));
            }
            Rule::WholeIterations => self.more_weights(1),
            Rule::TwoObjects => self.exchange_several(1, 2),
            Rule::MultipleOfDepth => self.exchange_several(2, 3),
            // The objects of one iteration more.
            Rule::SameIterations => self.more_weights(OBJECTS),
            Rule::Switches => {
                // Two streams into one channel.
                let flow =
                    lowered.flows.iter().find(|flow| flow.to.len() > 1).expect("activations go to several").clone();
                let other = lowered.flows.iter().find(|other| other.from != flow.from).expect("there are others").from;
                lowered.flows.push(Flow { from: other, ..flow });
            }
            Rule::Gaps => {
                let used = legal::check(design, lowered).expect("it is sound").of(TileKind::Core).memory_bytes;
                let left = limits(TileKind::Core).memory_bytes - used;
                for (name, len) in [("first", 4), ("second", left - 4)] {
                    design.buffers.push(Buffer { name: name.into(), tile: A, element: Element::I8, len });
                }
            }
        }
    }

    /// A FIFO that no link, core or transfer uses; with a channel if it ends in a shim tile.
    fn spare(&mut self, [producer, consumer]: [Tile; 2], depth: usize, len: usize) -> FifoId {
        let id = FifoId(self.design.fifos.len());
        let name = format!("spare_{}", id.0);
        let consumers = vec![consumer];
        self.design.fifos.push(Fifo { name, producer, consumers, depth, element: Element::I8, len });
        if consumer.kind() == TileKind::Shim {
            let channels = &mut self.lowered.channels;
            let index = |channels: &[Channel], tile, direction| {
                channels.iter().filter(|one| one.tile == tile && one.direction == direction).count() as u32
            };
            for (tile, direction) in [(producer, Direction::Out), (consumer, Direction::In)] {
                let index = index(channels, tile, direction);
                channels.push(Channel { tile, direction, index, chain: Vec::new() });
            }
            let [from, to] = [channels.len() - 2, channels.len() - 1].map(ChannelId);
            self.lowered.flows.push(Flow { fifo: id, from, to: vec![to] });
        }
        id
    }

    /// A link of FIFOs of these bytes and depths, whose inputs end and outputs begin in the memory tiles of `columns`.
    fn link(&mut self, inputs: &[(usize, usize)], outputs: &[(usize, usize)], columns: [u32; 2]) {
        let [end, start] = columns.map(Tile::memory);
        let inputs = inputs.iter().map(|(len, depth)| self.spare([A, end], *depth, *len)).collect();
        let outputs = outputs.iter().map(|(len, depth)| self.spare([start, A], *depth, *len)).collect();
        self.design.links.push(Link { inputs, outputs });
    }

    fn append(&mut self, tile: Tile, steps: Vec<CoreOp>) {
        self.design.cores.iter_mut().find(|core| core.tile == tile).expect("it has a program").program.extend(steps);
    }

    /// One object from A to B, which A makes with these steps.
    fn exchange(&mut self, depth: usize, steps: impl FnOnce(CoreOp, CoreOp) -> Vec<CoreOp>) -> FifoId {
        self.exchange_of(depth, |_, acquire, release| steps(acquire, release))
    }

    fn exchange_of(&mut self, depth: usize, steps: impl FnOnce(FifoId, CoreOp, CoreOp) -> Vec<CoreOp>) -> FifoId {
        let fifo = self.spare([A, B], depth, 4);
        let port = Port::Produce;
        self.append(A, steps(fifo, CoreOp::Acquire { fifo, port }, CoreOp::Release { fifo, port }));
        self.append(B, take(fifo));
        fifo
    }

    /// Objects from A to B, several in an iteration.
    fn exchange_several(&mut self, depth: usize, objects: usize) {
        let fifo = self.spare([A, B], depth, 4);
        let port = Port::Produce;
        for _ in 0..objects {
            self.append(A, vec![CoreOp::Acquire { fifo, port }, CoreOp::Release { fifo, port }]);
            self.append(B, take(fifo));
        }
    }

    fn fill_channels(&mut self, direction: Direction) {
        let most = limits(TileKind::Core).channels;
        let channels = (0..=most).map(|index| Channel { tile: A, direction, index, chain: Vec::new() });
        self.lowered.channels.extend(channels);
    }

    /// Descriptors of a tile up to a number, in the channels of some parities.
    fn fill_descriptors<const N: usize>(&mut self, tile: Tile, number: u32, parities: [u32; N]) {
        let channels = &mut self.lowered.channels;
        let of = |channels: &[Channel], parity: &[u32]| {
            let all = channels.iter().filter(|one| one.tile == tile && parity.contains(&(one.index % 2)));
            all.map(|one| one.chain.len()).sum::<usize>()
        };
        for turn in 0.. {
            if of(channels, &parities) == number as usize {
                return;
            }
            let parity = parities[turn % N];
            let is_one = |one: &&mut Channel| one.tile == tile && one.index % 2 == parity && !one.chain.is_empty();
            let channel = channels.iter_mut().find(is_one).expect("the tile has such a channel");
            channel.chain.push(channel.chain[0].clone());
        }
    }

    fn buffer_of(&self, tile: Tile, element: Element) -> BufferId {
        let buffers = &self.design.buffers;
        let is_it = |buffer: &Buffer| buffer.tile == tile && buffer.element == element;
        BufferId(buffers.iter().position(is_it).expect("the core has one"))
    }

    fn body_of_a(&self, is_it: impl Fn(&Body) -> bool) -> Body {
        fn bodies(steps: &[CoreOp]) -> Vec<Body> {
            let of_step = |step: &CoreOp| match step {
                CoreOp::Forever(body) | CoreOp::Repeat { body, .. } => bodies(body),
                CoreOp::Run(body) => vec![*body],
                _ => Vec::new(),
            };
            steps.iter().flat_map(of_step).collect()
        }
        let core = self.design.cores.iter().find(|core| core.tile == A).expect("A has a program");
        bodies(&core.program).into_iter().find(|body| is_it(body)).expect("A has such a body")
    }

    fn start(&mut self, fifo: FifoId, sizes: [usize; 4], strides: [usize; 4], offset: usize, argument: usize) {
        let transfer = Transfer { fifo, argument, offset, sizes, strides, descriptor: UNUSED_DESCRIPTOR };
        self.design.host.push(HostOp::Start(transfer));
    }

    /// A transfer of its own out of A, and a wait for it; the buffer is long enough for all strides.
    fn transfer(&mut self, sizes: [usize; 4], strides: [usize; 4], offset: usize) {
        self.design.arguments[OUTPUTS].len = OUTPUT_LEN;
        let fifo = self.spare([A, Tile::shim(0)], 1, 4);
        self.start(fifo, sizes, strides, offset, OUTPUTS);
        self.design.host.push(HostOp::Wait(fifo));
    }

    /// The first column's weights, again, before the last wait.
    fn more_weights(&mut self, objects: usize) {
        let is_weights = |op: &&HostOp| matches!(op, HostOp::Start(one) if one.argument == WEIGHTS);
        let Some(HostOp::Start(first)) = self.design.host.iter().find(is_weights) else { panic!("weights are sent") };
        let bytes = objects * self.design.fifo(first.fifo).bytes();
        let sizes = [1, 1, 1, bytes];
        let transfer = Transfer { sizes, descriptor: UNUSED_DESCRIPTOR, ..first.clone() };
        let last = self.design.host.len() - self.design.columns as usize;
        self.design.host.insert(last, HostOp::Start(transfer));
    }
}

/// Objects of k of a tile of the design.
const OBJECTS: usize = 4;
/// Elements of the outputs' buffer where a transfer of its own is tried.
const OUTPUT_LEN: usize = 1 << 23;

fn take(fifo: FifoId) -> Vec<CoreOp> {
    let port = Port::Consume;
    vec![CoreOp::Acquire { fifo, port }, CoreOp::Release { fifo, port }]
}

fn descriptor(lowered: &mut Lowered) -> &mut unicorn_npu::lower::Descriptor {
    let channel = lowered.channels.iter_mut().find(|channel| channel.tile == A).expect("A has channels");
    &mut channel.chain[0]
}

fn last_wait(design: &Design) -> Option<HostOp> {
    design.host.iter().rev().find(|op| matches!(op, HostOp::Wait(_))).cloned()
}
