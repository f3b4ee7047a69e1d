//! The machine on a simulated device. Requests come at random, steps take the times that an H200 took, and pages are counted by the KV cache's own
//! tables and pools. A thousand requests take milliseconds: no device could serve as many in a test. `runtime/tests/scheduler.rs` runs the
//! same machine with a device, and checks the texts.

use std::collections::BTreeMap;
use std::time::Duration;

use unicorn_artifact::{KvGroupPlan, Tier};

use super::{Machine, Next, Place, Placed, Running};
use crate::memory::kv_pages::{BlockTable, PagePool, PagesInUse};

/// Microseconds of steps of so many rows; others take as long as those of the next larger number.
type Times = &'static [(usize, u64)];

/// A shape's steps on an H200 (lab book, 2026-11-29): those that only decode, and those that feed, too.
#[derive(Clone, Copy)]
struct Shape {
    plain: Times,
    feeding: Times,
}

const LLAMA_8B: Shape = Shape {
    plain: &[(1, 1650), (2, 2300), (4, 3000), (8, 3300), (16, 3500), (32, 4400), (64, 6100)],
    feeding: &[(32, 5300), (64, 6900), (128, 9600), (256, 15_000), (512, 26_000)],
};
const SMOLLM2: Shape = Shape {
    plain: &[(1, 500), (8, 1100), (16, 1200), (32, 1400), (64, 1900)],
    feeding: &[(32, 2400), (64, 2800), (128, 3200), (256, 3900), (512, 5000)],
};

/// What is served, and on what.
#[derive(Clone, Copy)]
struct Setting {
    shape: Shape,
    sessions: usize,
    pages: u32,
    /// Steps feed parts of so many prompts beside the sequences that decode; 0: prompts and sequences take turns.
    prompts_beside: usize,
    priorities: u32,
}

/// When requests come.
#[derive(Clone, Copy)]
enum Arrivals {
    /// Each of these clients sends the next one when it has the answer.
    Clients(usize),
    /// At random, so many a second.
    Rate(f64),
}

/// A request, and what has come of it.
struct Job {
    place: Place,
    priority: i32,
    n_prompt: u32,
    n_wanted: u32,
    /// Time since the beginning, as are those of its tokens.
    arrived: Duration,
    received: Vec<Duration>,
    preemptions: u32,
}

/// A request with a session.
struct Live {
    job: Job,
    table: BlockTable,
    has_begun: bool,
    n_cached: u32,
    n_left: usize,
}

struct Outcome {
    duration: Duration,
    /// By number, in the order of arrival.
    jobs: BTreeMap<u64, Job>,
}

struct Simulation {
    setting: Setting,
    machine: Machine<Job, Live>,
    pool: PagePool,
    group: KvGroupPlan,
    now: Duration,
    done: BTreeMap<u64, Job>,
}

const PAGE_TOKENS: u32 = 32;
const CONTEXT: u32 = 4096;

impl Placed for Job {
    fn place(&self) -> Place {
        self.place
    }
}

impl Placed for Live {
    fn place(&self) -> Place {
        self.job.place
    }
}

impl Running for Live {
    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn n_cached(&self) -> u32 {
        self.n_cached
    }

    fn n_left(&self) -> usize {
        self.n_left
    }

    fn reads_rows(&self) -> bool {
        false
    }

    fn shares_rest_of(&self, _first: &Live) -> bool {
        false
    }

    fn n_text(&self, n_tokens: usize) -> usize {
        n_tokens
    }

    fn to_checkpoint(&self) -> Option<usize> {
        None
    }
}

impl Simulation {
    fn new(setting: Setting) -> Simulation {
        let rows = setting.shape.feeding.iter().map(|(rows, _)| *rows as u32).collect();
        let sizes = if setting.prompts_beside > 0 { rows } else { Vec::new() };
        Simulation {
            setting,
            machine: Machine::new(sizes, setting.prompts_beside),
            pool: PagePool::new(setting.pages, &PagesInUse::default()),
            group: KvGroupPlan {
                window_tokens: None,
                n_layers: 1,
                page_tokens: PAGE_TOKENS,
                page_bytes: 0,
                tier: Tier::Vram,
                reason: String::new(),
            },
            now: Duration::ZERO,
            done: BTreeMap::new(),
        }
    }

    /// Runs `n_requests` to their ends.
    fn run(mut self, n_requests: usize, arrivals: Arrivals, seed: u32) -> Outcome {
        let mut random = Random(seed);
        let (mut sent, mut next_arrival) = (0, Duration::ZERO);
        while sent < n_requests || !self.machine.is_empty() {
            while sent < n_requests {
                let (comes, at) = match arrivals {
                    Arrivals::Clients(n_clients) => (sent < self.done.len() + n_clients, self.now),
                    Arrivals::Rate(_) => (next_arrival <= self.now || self.machine.is_empty(), next_arrival),
                };
                if !comes {
                    break;
                }
                self.now = self.now.max(at);
                if let Arrivals::Rate(rate) = arrivals {
                    next_arrival = at + Duration::from_secs_f64(-random.unit().ln() / rate);
                }
                self.submit(at, &mut random);
                sent += 1;
            }
            self.tick();
            assert!(self.done.len() <= sent);
        }
        assert_eq!(self.pool.n_free(), self.setting.pages, "no page is lost");
        let preemptions: u64 = self.done.values().map(|job| u64::from(job.preemptions)).sum();
        assert_eq!(preemptions, self.machine.preemptions());
        Outcome { duration: self.now, jobs: self.done }
    }

    fn submit(&mut self, arrived: Duration, random: &mut Random) {
        let priority = random.below(self.setting.priorities) as i32;
        let place = self.machine.next_place(priority);
        let (n_prompt, n_wanted) = (20 + random.below(500), 1 + random.below(255));
        self.machine.enqueue(Job {
            place,
            priority,
            n_prompt,
            n_wanted,
            arrived,
            received: Vec::new(),
            preemptions: 0,
        });
    }

    /// As the scheduler's.
    fn tick(&mut self) {
        while self.machine.n_running() < self.setting.sessions
            && self.machine.waiting.front().is_some_and(|job| self.has_pages_for(job))
        {
            let job = self.machine.waiting.pop_front().unwrap();
            let n_left = job.n_prompt as usize + job.received.len();
            let table = BlockTable::new(&self.group, CONTEXT.div_ceil(PAGE_TOKENS));
            self.machine.admit(Live { job, table, has_begun: false, n_cached: 0, n_left });
        }
        match self.machine.next() {
            Next::Begin(place) => self.machine.prefill[place].has_begun = true,
            Next::Decode => self.decode(&[]),
            Next::DecodeBeside(parts) => self.decode(&parts),
            Next::TakeTurns => {
                self.feed();
                self.decode(&[]);
            }
        }
    }

    fn has_pages_for(&self, job: &Job) -> bool {
        let n_tokens = job.n_prompt + job.received.len() as u32 + 1;
        let to_grow = self.machine.pages_to_grow();
        to_grow == 0 || n_tokens.div_ceil(PAGE_TOKENS) + to_grow <= self.pool.n_free()
    }

    /// A step that feeds the first prompt.
    fn feed(&mut self) {
        let n_tokens = self.machine.prefill_tokens().min(self.machine.prefill[0].n_left);
        if !self.append(0, &[n_tokens]) {
            return;
        }
        let time = time(self.setting.shape.feeding, n_tokens);
        self.now += time;
        self.machine.pace.add_prompt(n_tokens, time);
        self.fed(&[n_tokens]);
    }

    /// A step of all that decode, which feeds `parts` of the first prompts.
    fn decode(&mut self, parts: &[usize]) {
        let n_decoding = self.machine.decoding.len();
        if n_decoding == 0 || !self.append(n_decoding, parts) {
            return;
        }
        let n_rows = n_decoding + parts.iter().sum::<usize>();
        let times = if parts.is_empty() { self.setting.shape.plain } else { self.setting.shape.feeding };
        let time = time(times, n_rows);
        self.now += time;
        match parts.is_empty() {
            true => self.machine.pace.add_plain(time),
            false => self.machine.pace.add_mixed(n_rows, time),
        }
        for mut live in std::mem::take(&mut self.machine.decoding) {
            live.n_cached += 1;
            self.receive(live);
        }
        self.fed(parts);
    }

    /// Finds pages for a token of each of the `n_decoding` sequences and for parts of the first prompts. `false`: there are too few, and a request
    /// goes back to the queue.
    fn append(&mut self, n_decoding: usize, parts: &[usize]) -> bool {
        let decoding = self.machine.decoding[..n_decoding].iter_mut().map(|live| (live, 1));
        let prompts = self.machine.prefill.iter_mut().zip(parts.iter().copied());
        for (live, n_tokens) in decoding.chain(prompts) {
            let rows = live.n_cached..live.n_cached + n_tokens as u32;
            if !live.table.can_advance(&self.pool, rows.clone()) {
                let mut live = self.machine.preempt().expect("one request alone has all pages");
                assert!(self.machine.running().all(|other| other.place() < live.place()), "the last one waits");
                live.table.truncate(&mut self.pool, 0);
                live.job.preemptions += 1;
                self.machine.enqueue(live.job);
                return false;
            }
            live.table.advance(&mut self.pool, rows, |_, _| {});
        }
        true
    }

    /// So many tokens of the first prompts are in the cache.
    fn fed(&mut self, parts: &[usize]) {
        for n_tokens in parts {
            let mut live = self.machine.prefill.pop_front().unwrap();
            live.n_cached += *n_tokens as u32;
            live.n_left -= n_tokens;
            match live.n_left {
                0 => self.receive(live),
                _ => self.machine.prefill.push_front(live),
            }
        }
    }

    /// A request gets its next token.
    fn receive(&mut self, mut live: Live) {
        live.job.received.push(self.now);
        if live.job.received.len() < live.job.n_wanted as usize {
            return self.machine.decoding.push(live);
        }
        live.table.truncate(&mut self.pool, 0);
        self.done.insert(live.job.place.number, live.job);
    }
}

impl Outcome {
    fn tokens_per_s(&self) -> f64 {
        self.jobs.values().map(|job| job.received.len()).sum::<usize>() as f64 / self.duration.as_secs_f64()
    }

    /// Median and 99 % of the times between two tokens of a request.
    fn between_tokens(&self) -> [Duration; 2] {
        let of_job = |job: &Job| job.received.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
        let mut all: Vec<Duration> = self.jobs.values().flat_map(of_job).collect();
        all.sort_unstable();
        [0.5, 0.99].map(|part| all[(part * all.len() as f64) as usize])
    }
}

fn time(times: Times, n_rows: usize) -> Duration {
    let larger = times.iter().find(|(rows, _)| *rows >= n_rows);
    let (_, micros) = larger.unwrap_or_else(|| panic!("no step of {n_rows} rows was measured"));
    Duration::from_micros(*micros)
}

/// A linear congruential generator.
struct Random(u32);

impl Random {
    fn below(&mut self, below: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 16) % below
    }

    /// In ]0, 1].
    fn unit(&mut self) -> f64 {
        f64::from(1 + self.below(1 << 16)) / f64::from(1_u32 << 16)
    }
}

/// Pages for all that may run.
const PLENTY: u32 = 64 * 25;

fn setting(shape: Shape, sessions: usize) -> Setting {
    Setting { shape, sessions, pages: PLENTY, prompts_beside: 2, priorities: 1 }
}

/// Runs `n_requests`: each gets all its tokens, and begins behind those of its priority that came before it.
fn run(setting: Setting, n_requests: usize, arrivals: Arrivals, seed: u32) -> Outcome {
    let outcome = Simulation::new(setting).run(n_requests, arrivals, seed);
    assert_eq!(outcome.jobs.len(), n_requests);
    let mut last_begun = BTreeMap::new();
    for job in outcome.jobs.values() {
        assert_eq!(job.received.len(), job.n_wanted as usize);
        assert!(job.received.is_sorted() && job.received[0] > job.arrived);
        if job.preemptions == 0 {
            let last = last_begun.insert(job.priority, job.received[0]);
            assert!(last.is_none_or(|last| last <= job.received[0]), "a request overtook another of its priority");
        }
    }
    outcome
}

/// With prompts in the streams' steps, 99 % of all times between tokens stay below a limit: about twice the median, 5 ms, or the shortest step that feeds, whichever
/// is longest. Tokens/s are at least nine tenths of those with prompts and streams in turn, and with 64 clients 1.1 times as many.
#[test]
fn streams_are_steady_with_any_number_of_clients() {
    for shape in [LLAMA_8B, SMOLLM2] {
        for n_clients in [1, 2, 8, 16, 32, 64] {
            let of = |prompts_beside| {
                let setting = Setting { prompts_beside, ..setting(shape, n_clients) };
                run(setting, 40 * n_clients, Arrivals::Clients(n_clients), 1)
            };
            let (beside, in_turn) = (of(2), of(0));
            let [median, most] = beside.between_tokens();
            let limit = median.mul_f64(2.2).max(Duration::from_millis(5)).max(time(shape.feeding, 1));
            assert!(most <= limit, "{n_clients} clients: {most:?}, at most {limit:?}");
            let (rate, in_turn_rate) = (beside.tokens_per_s(), in_turn.tokens_per_s());
            let least = if n_clients == 64 { 1.1 } else { 0.9 };
            assert!(rate >= least * in_turn_rate, "{n_clients} clients: {rate} and {in_turn_rate} tokens/s");
            let in_turn_most = in_turn.between_tokens()[1];
            assert!(
                n_clients < 8 || most.mul_f64(1.5) < in_turn_most,
                "{n_clients} clients: {most:?} and {in_turn_most:?}"
            );
        }
    }
}

#[test]
fn however_fast_requests_come_all_end_and_those_of_a_lower_number_begin_first() {
    for (seed, rate) in [(1, 4.0), (2, 16.0), (3, 60.0), (4, 1e6)] {
        let setting = Setting { priorities: 3, ..setting(LLAMA_8B, 32) };
        let outcome = run(setting, 3000, Arrivals::Rate(rate), seed);
        let waited = |priority| {
            let jobs = || outcome.jobs.values().filter(|job| job.priority == priority);
            jobs().map(|job| job.received[0] - job.arrived).sum::<Duration>().as_secs_f64() / jobs().count() as f64
        };
        let waited = [0, 1, 2].map(waited);
        // 8B has some 16 requests/s.
        match rate > 16.0 {
            true => assert!(2.0 * waited[0] < waited[1] && waited[1] < waited[2], "{rate}/s: {waited:?} s"),
            false => assert!(waited[2] < 0.2, "{rate}/s: {waited:?} s"),
        }
    }
}

#[test]
fn where_pages_run_out_the_last_requests_are_preempted_and_all_end() {
    for shape in [LLAMA_8B, SMOLLM2] {
        let setting = Setting { pages: 130, priorities: 3, ..setting(shape, 16) };
        let outcome = run(setting, 3000, Arrivals::Clients(24), 7);
        let preemptions = |priority| {
            let jobs = outcome.jobs.values().filter(|job| job.priority == priority);
            jobs.map(|job| job.preemptions).sum::<u32>()
        };
        let [first, _, last] = [0, 1, 2].map(preemptions);
        assert!(20 * first < last && last > 500, "{first} and {last} preemptions");
    }
}
