//! On which of the shipped machines an artifact fits, and how fast a token could be there.

use serde::Serialize;
use unicorn_artifact::{Account, ArtifactView, Budget, Machine, MachinePlan, Plan, TierPlan, fit};

/// One machine, and the artifact on it with its draft, planned again for its memory. Sums are those of the model.
#[derive(Serialize)]
pub struct MachineRow {
    pub name: String,
    /// The artifact's own machine, with the sizes that its plan was made for.
    pub planned: bool,
    pub about: String,
    /// Peak arithmetic of its GPU.
    pub flop_per_s: Option<u64>,
    pub tiers: Vec<TierPlan>,
    /// Bytes by which its memory is too small for the planned context; `None`: the artifact fits.
    pub missing_bytes: Option<u64>,
    /// Longest context that fits, in tokens; 0: none.
    pub longest_context_tokens: u32,
    /// Bytes of each tier, with the planned context.
    pub account: Option<Account>,
    /// Rate of decode steps at the end of the planned context: a bound from the machine's bandwidths, not a measurement.
    pub estimated_tokens_per_s: Option<f64>,
    /// The same with an empty cache.
    pub estimated_tokens_per_s_empty: Option<f64>,
}

/// The shipped machines in their order; before them the machine that the artifact was planned for, if it is none of these.
pub fn machines(view: &ArtifactView) -> Vec<MachineRow> {
    // A draft was planned for all of it.
    let planned_for = view.draft.as_ref().map_or(&view.plan.machine, |draft| &draft.plan.machine);
    let preset = |name| {
        let machine = Machine::named(name).expect("a preset");
        let planned = machine.plan(&Budget::default()).expect("no tier is budgeted");
        MachineRow {
            about: machine.about,
            flop_per_s: machine.flop_per_s,
            ..MachineRow::new(planned, view, planned_for)
        }
    };
    let mut rows: Vec<MachineRow> = Machine::presets().map(preset).collect();
    if rows.iter().all(|row| !row.planned) {
        rows.insert(0, MachineRow::new(planned_for.clone(), view, planned_for));
    }
    rows
}

impl MachineRow {
    fn new(machine: MachinePlan, view: &ArtifactView, planned_for: &MachinePlan) -> MachineRow {
        let plan = &view.plan;
        let draft = view.draft.as_ref().map(|draft| draft.as_draft());
        let on = |tokens| fit::on_both(plan, draft, &machine, tokens).map(|(plan, _)| plan);
        let placed = on(plan.planned_context_tokens);
        let account = placed.as_ref().ok().map(Account::of);
        let too_long = view.meta.model.max_positions.max(plan.planned_context_tokens).saturating_add(1);
        MachineRow {
            planned: machine == *planned_for,
            about: "as the artifact was planned".into(),
            flop_per_s: None,
            longest_context_tokens: fit::longest_context(too_long, |tokens| on(tokens).is_ok()),
            missing_bytes: placed.as_ref().err().copied(),
            estimated_tokens_per_s: account.as_ref().and_then(Account::estimated_tokens_per_s),
            estimated_tokens_per_s_empty: placed
                .ok()
                .and_then(|placed| Account::at(&placed, 0).estimated_tokens_per_s()),
            account,
            name: machine.name,
            tiers: machine.tiers,
        }
    }
}

/// A part that is placed as a whole; parts are listed in the order of placement.
#[derive(Serialize)]
pub struct PartRow {
    /// `activations`, `buffers`, `kv` or `weights`.
    pub kind: &'static str,
    /// Index of the KV group or slice; 0 for other parts.
    pub index: usize,
    /// Size of the part with the planned context.
    pub bytes: u64,
    /// `fastest`, `sparse rows` or `host visible`.
    pub preference: &'static str,
    /// Bytes that a decode step reads; 0 for KV groups, whose bytes depend on the context, and for parts that are also written.
    pub bytes_read_per_token: u64,
}

pub fn parts(plan: &Plan) -> Vec<PartRow> {
    let row = |(part, item): (fit::Part, fit::Item)| {
        let (kind, index) = match part {
            fit::Part::Activations => ("activations", 0),
            fit::Part::HostBuffers => ("buffers", 0),
            fit::Part::KvGroup(index) => ("kv", index),
            fit::Part::Slice(index) => ("weights", index),
        };
        let of_slice = plan.weights.iter().filter(|weight| kind == "weights" && weight.slice as usize == index);
        PartRow {
            kind,
            index,
            bytes: item.bytes,
            preference: match item.preference {
                fit::Preference::Fastest => "fastest",
                fit::Preference::SparseRows => "sparse rows",
                fit::Preference::HostVisible => "host visible",
            },
            bytes_read_per_token: of_slice.map(|weight| weight.bytes_read_per_token).sum(),
        }
    };
    fit::parts(plan).into_iter().map(row).collect()
}
