//! Which rotary embedding each layer has, from config.json: transformers 4 writes `rope_theta` and `rope_scaling`,
//! transformers 5 `rope_parameters`, flat or one object per layer type.

use super::config::{QueryGrowth, RopeConfig};
use super::families::FamilyDefaults;
use super::full_heads::proportional_rope;
use super::json::Fields;
use super::limits;
use super::rope::RopeScaling;
use crate::error::{CompileError, Result};

/// One rotary embedding, and the longest context that its scaling was made for.
pub(super) struct LayerRope {
    pub rope: RopeConfig,
    pub max_positions: usize,
}

/// Reads the rotary embedding of layers of `layer_type` (as in `layer_types`).
pub(super) fn layer_rope(
    text: &Fields,
    defaults: &FamilyDefaults,
    layer_type: &str,
    head_dim: usize,
    max_positions: usize,
) -> Result<LayerRope> {
    let is_sliding = layer_type == SLIDING_ATTENTION;
    let own_local_rope = defaults.local_rope_theta.filter(|_| is_sliding);
    let is_apart = own_local_rope.is_some() || (defaults.rope_by_layer_type && is_sliding);
    if defaults.rope_by_layer_type {
        refuse_one_for_all_types(text, defaults)?;
    }
    let sections = Sections::of(text, layer_type, is_apart)?;
    let (theta_field, theta_default) = match own_local_rope {
        Some(theta) => (Some("rope_local_base_freq"), theta),
        None => (Some("rope_theta").filter(|_| !is_apart), defaults.rope_theta),
    };
    let written = theta_field.map_or(Ok(None), |field| text.number(field))?;
    let is_flat = defaults.rope_by_layer_type && !sections.are_nested;
    // transformers reads no other field from one object for all types.
    let theta = sections.number("rope_theta")?.filter(|_| !is_flat).or(written).unwrap_or(theta_default);

    if let Some(heads) = &defaults.full_heads {
        let share = match sections.text("rope_type")? {
            Some("proportional") => Some(sections.number(PARTIAL_FACTOR)?),
            None if sections.objects.is_empty() && !is_sliding => Some(Some(heads.rotated_share)),
            _ => None,
        };
        if let Some(share) = share {
            let section = sections.first("rope_type").unwrap_or(text);
            return Ok(LayerRope { rope: proportional_rope(section, share, theta, head_dim)?, max_positions });
        }
    }
    let rotary_dim = rotary_dim(text, &sections, defaults, head_dim)?;
    let original_positions = match text.size(ORIGINAL_POSITIONS, limits::POSITIONS)? {
        Some(positions) => positions,
        None => sections.size(ORIGINAL_POSITIONS)?.or(defaults.original_positions).unwrap_or(max_positions),
    };
    let scaling = sections.scaling(defaults, rotary_dim, original_positions, max_positions)?;
    // A config stretched by hand with YaRN often keeps the old max_position_embeddings.
    let stretched = match scaling {
        RopeScaling::Yarn { factor, original_positions, .. } => (factor * original_positions as f64) as usize,
        _ => 0,
    };
    Ok(LayerRope {
        rope: scaling.frequencies(theta, rotary_dim),
        max_positions: max_positions.max(stretched.min(limits::POSITIONS)),
    })
}

pub(super) const SLIDING_ATTENTION: &str = "sliding_attention";
pub(super) const FULL_ATTENTION: &str = "full_attention";
pub(super) const LINEAR_ATTENTION: &str = "linear_attention";
pub(super) const CONVOLUTION: &str = "conv";
const ORIGINAL_POSITIONS: &str = "original_max_position_embeddings";

fn rotary_dim(text: &Fields, sections: &Sections, defaults: &FamilyDefaults, head_dim: usize) -> Result<usize> {
    let factor = match sections.number(PARTIAL_FACTOR)? {
        Some(factor) => factor,
        None => text.number(PARTIAL_FACTOR)?.or(defaults.partial_rotary).unwrap_or(1.0),
    };
    if factor != 1.0 && defaults.partial_rotary.is_none() {
        return Err(CompileError::Unsupported {
            what: format!("{PARTIAL_FACTOR} {factor}"),
            detail: format!("{} rotates whole heads", defaults.architecture),
        });
    }
    let rotary_dim = (head_dim as f64 * factor) as usize;
    if !(2..=head_dim).contains(&rotary_dim) || !rotary_dim.is_multiple_of(2) {
        let what =
            format!("is {factor}, expected an even number of a head's {head_dim} dimensions, found {rotary_dim}");
        return Err(text.error(PARTIAL_FACTOR, &what));
    }
    Ok(rotary_dim)
}

const PARTIAL_FACTOR: &str = "partial_rotary_factor";

/// Refuses one `rope_parameters` for all layer types in a family that has one for each: transformers 5 does not read it.
fn refuse_one_for_all_types(text: &Fields, defaults: &FamilyDefaults) -> Result<()> {
    let Some(section) = text.object("rope_parameters")? else { return Ok(()) };
    let is_nested = section.is_written(SLIDING_ATTENTION) || section.is_written(FULL_ATTENTION);
    match section.text("rope_type")? {
        Some(scaling) if !is_nested && scaling != "default" => Err(CompileError::Unsupported {
            what: format!("rope_parameters of {} for all layer types, with rope_type {scaling}", defaults.architecture),
            detail: format!("expected an object for each of {FULL_ATTENTION} and {SLIDING_ATTENTION}"),
        }),
        _ => Ok(()),
    }
}

/// How queries grow with their position, in all layers.
pub(super) fn query_growth(text: &Fields) -> Result<Option<QueryGrowth>> {
    let sections = Sections::of(text, FULL_ATTENTION, false)?;
    if sections.objects.is_empty() {
        return Err(text.error("rope_parameters", "is missing, expected an object with a rope_type"));
    }
    let Some(beta) = sections.number("llama_4_scaling_beta")? else { return Ok(None) };
    let interval = sections.size(ORIGINAL_POSITIONS)?.ok_or_else(|| {
        text.error(&format!("rope_parameters.{ORIGINAL_POSITIONS}"), "is missing beside llama_4_scaling_beta")
    })?;
    Ok(Some(QueryGrowth { beta: beta as f32, interval }))
}

/// The objects that may hold a field of one rotary embedding; the first that has it is used.
struct Sections<'a> {
    objects: Vec<Fields<'a>>,
    /// The objects belong to one layer type.
    are_nested: bool,
}

impl<'a> Sections<'a> {
    /// Objects by layer type count for their type; a flat one counts for all layers, except those with a rotary
    /// embedding of their own (`nested_only`).
    fn of(text: &Fields<'a>, layer_type: &str, nested_only: bool) -> Result<Sections<'a>> {
        let (mut objects, mut are_nested) = (Vec::new(), false);
        for name in ["rope_scaling", "rope_parameters"] {
            let Some(section) = text.object(name)? else { continue };
            if section.is_written(SLIDING_ATTENTION) || section.is_written(FULL_ATTENTION) {
                objects.extend(section.object(layer_type)?);
                are_nested = true;
            } else if !nested_only {
                objects.push(section);
            }
        }
        Ok(Sections { objects, are_nested })
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.first(name).map_or(Ok(None), |section| section.number(name))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.first(name).map_or(Ok(None), |section| section.text(name))
    }

    fn size(&self, name: &str) -> Result<Option<usize>> {
        self.first(name).map_or(Ok(None), |section| section.size(name, limits::POSITIONS))
    }

    fn first(&self, name: &str) -> Option<&Fields<'a>> {
        self.objects.iter().find(|section| section.has(name))
    }

    fn scaling(
        &self,
        defaults: &FamilyDefaults,
        rotary_dim: usize,
        original_positions: usize,
        max_positions: usize,
    ) -> Result<RopeScaling> {
        let section = self.first("rope_type").map(|section| (section, "rope_type"));
        let Some((section, type_field)) = section.or(self.first("type").map(|section| (section, "type"))) else {
            return Ok(match defaults.yarn.filter(|_| self.objects.is_empty()) {
                Some(factor) => RopeScaling::Yarn {
                    factor,
                    original_positions: 4096,
                    attention_factor: None,
                    mscale: None,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                    truncate: false,
                },
                None => RopeScaling::Default,
            });
        };
        let implied_factor = max_positions as f64 / original_positions as f64;
        match section.text(type_field)?.unwrap_or_default() {
            "default" | "dynamic" => Ok(RopeScaling::Default),
            "linear" => Ok(RopeScaling::Linear { factor: section.required_number("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: section.required_number("factor")?,
                low_freq_factor: section.required_number("low_freq_factor")?,
                high_freq_factor: section.required_number("high_freq_factor")?,
                original_positions,
            }),
            // Early Phi-3 configs call LongRoPE by these names.
            "longrope" | "su" => long_rope(section, rotary_dim, original_positions, implied_factor),
            "yarn" if section.has("short_factor") => long_rope(section, rotary_dim, original_positions, implied_factor),
            "yarn" => yarn(section, original_positions, implied_factor),
            other => Err(CompileError::Unsupported {
                what: format!("rope_type {other} of {}", defaults.architecture),
                detail: "supported are default, linear, dynamic, yarn, llama3 and longrope".to_owned(),
            }),
        }
    }
}

fn yarn(section: &Fields, original_positions: usize, implied_factor: f64) -> Result<RopeScaling> {
    let not_zero = |name| Ok(section.number(name)?.filter(|value| *value != 0.0));
    let mscale = not_zero("mscale")?.zip(not_zero("mscale_all_dim")?);
    Ok(RopeScaling::Yarn {
        factor: section.number("factor")?.unwrap_or(implied_factor),
        original_positions,
        attention_factor: section.number("attention_factor")?,
        mscale,
        beta_fast: not_zero("beta_fast")?.unwrap_or(32.0),
        beta_slow: not_zero("beta_slow")?.unwrap_or(1.0),
        truncate: section.flag("truncate")?.unwrap_or(true),
    })
}

fn long_rope(
    section: &Fields,
    rotary_dim: usize,
    original_positions: usize,
    implied_factor: f64,
) -> Result<RopeScaling> {
    let divisors = |name: &str| {
        let divisors = section.numbers(name)?.unwrap_or_default();
        if divisors.len() != rotary_dim / 2 {
            let what = format!("has {} numbers, expected {}, one a rotated pair", divisors.len(), rotary_dim / 2);
            return Err(section.error(name, &what));
        }
        Ok(divisors)
    };
    Ok(RopeScaling::LongRope {
        short_factor: divisors("short_factor")?,
        long_factor: divisors("long_factor")?,
        factor: section.number("factor")?.unwrap_or(implied_factor),
        original_positions,
        attention_factor: section.number("attention_factor")?,
    })
}
