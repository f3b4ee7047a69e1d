//! Memory sizes that a user gives, such as `vram=8GiB,gtt=20GiB`. The compiler plans with them, the runtime does not exceed
//! them.

use std::str::FromStr;

use crate::amount;
use crate::plan::Tier;

/// Bytes by tier, each tier at most once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget(Vec<(Tier, u64)>);

impl Budget {
    /// Bytes of this tier; `None`: it was not given.
    pub fn of(&self, tier: Tier) -> Option<u64> {
        self.0.iter().find(|(one, _)| *one == tier).map(|(_, bytes)| *bytes)
    }

    /// Tiers and bytes in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = (Tier, u64)> {
        self.0.iter().copied()
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Budget, String> {
        let mut budget = Budget::default();
        for part in text.split(',') {
            let (name, size) =
                part.split_once('=').ok_or_else(|| format!("budget {part:?} is not TIER=SIZE, such as vram=8GiB"))?;
            let tier = tier_named(name.trim())
                .ok_or_else(|| format!("tier {name} is unknown, expected npu, vram, gtt or host"))?;
            if budget.of(tier).is_some() {
                return Err(format!("tier {name} is there twice"));
            }
            let bytes =
                amount::bytes(size.trim()).map_err(|expected| format!("{name} is {size:?}, expected {expected}"))?;
            budget.0.push((tier, bytes));
        }
        Ok(budget)
    }
}

fn tier_named(name: &str) -> Option<Tier> {
    [Tier::Npu, Tier::Vram, Tier::Gtt, Tier::Host].into_iter().find(|tier| tier.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_given_once_and_with_a_unit() {
        let budget: Budget = "vram=8GiB, gtt=20GB".parse().unwrap();
        assert_eq!(budget.0, [(Tier::Vram, 8 << 30), (Tier::Gtt, 20_000_000_000)]);
        let refused = |text: &str| text.parse::<Budget>().unwrap_err();
        assert_eq!(refused("vram"), "budget \"vram\" is not TIER=SIZE, such as vram=8GiB");
        assert_eq!(refused("ram=1GiB"), "tier ram is unknown, expected npu, vram, gtt or host");
        assert_eq!(refused("gtt=1GiB,gtt=1GiB"), "tier gtt is there twice");
        assert!(refused("gtt=20").starts_with("gtt is \"20\", expected a positive number with a unit"));
    }
}
