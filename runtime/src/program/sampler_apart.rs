//! Steps whose sampler is submitted later than what comes before it, because the host computes masks meanwhile.
//!
//! ```text
//! a slot's lists    [embed … layer 9] [layer 10 … head, sampler]
//! before, sampler   [embed … layer 9] [layer 10 … head]  [sampler]
//! ```

use std::sync::Arc;

use crate::vk::Failure;
use crate::vk::command_list::{Command, CommandList};
use crate::vk::device::Device;

/// The command lists of one step in two parts.
pub struct SamplerApart {
    /// What comes before the sampler, one a submission.
    pub before: Vec<CommandList>,
    /// The sampler, and what follows it.
    pub sampler: Vec<CommandList>,
}

impl SamplerApart {
    /// Records a step again whose last dispatch is the sampler.
    ///
    /// # Errors
    /// When the device fails.
    pub fn record(device: &Arc<Device>, step: &[CommandList]) -> Result<SamplerApart, Failure> {
        let begins =
            |command: &Command| matches!(command, Command::Dispatch { workgroups, .. } if !workgroups.continues);
        let (before, sampler) = split(step.iter().map(|list| list.commands().to_vec()).collect(), begins);
        let record = |lists: Vec<Vec<Command>>| {
            lists.into_iter().map(|commands| CommandList::record(device, commands)).collect::<Result<_, _>>()
        };
        Ok(SamplerApart { before: record(before)?, sampler: record(sampler)? })
    }
}

/// The lists before and from the last command that `begins` a dispatch on, which may have ranges in several lists.
fn split<C>(mut lists: Vec<Vec<C>>, begins: impl Fn(&C) -> bool) -> (Vec<Vec<C>>, Vec<Vec<C>>) {
    let last_of = |(list, commands): (usize, &Vec<C>)| Some((list, commands.iter().rposition(&begins)?));
    let (list, command) = lists.iter().enumerate().rev().find_map(last_of).expect("a program has dispatches");
    let mut sampler = lists.split_off(list);
    let before: Vec<C> = sampler[0].drain(..command).collect();
    if !before.is_empty() {
        lists.push(before);
    }
    (lists, sampler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sampler_has_submissions_of_its_own() {
        // Capitals begin dispatches.
        let split_text = |lists: &[&str]| {
            let lists = lists.iter().map(|list| list.chars().collect()).collect();
            let (before, sampler) = split(lists, |command: &char| command.is_uppercase());
            [before, sampler].map(|lists| lists.iter().map(String::from_iter).collect::<Vec<String>>())
        };
        assert_eq!(split_text(&["|A|B", "|C|St"]), [vec!["|A|B", "|C|"], vec!["St"]]);
        assert_eq!(split_text(&["A|B", "St"]), [["A|B"], ["St"]]);
        assert_eq!(split_text(&["A|BS", "s", "st"]), [vec!["A|B"], vec!["S", "s", "st"]], "ranges of the sampler");
    }
}
