//! What the driver reports about kernels: registers, spills, code size, by the driver's own names.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::CliError;
use crate::report::table::{Column, table};
use unicorn_artifact::ArtifactView;
use unicorn_runtime::{Executable, Model, kernel_statistics};

/// Statistics of one kernel of the artifact, as the driver compiled it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelStatistics {
    pub kernel: String,
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
    /// Values by the names that the driver has for them.
    pub statistics: Map<String, Value>,
}

/// Statistics of every kernel of the model's target, by its name. Each kernel is compiled once more for them.
///
/// # Errors
/// When the driver reports no statistics.
pub fn of_kernels(model: &Model, view: &ArtifactView<'_>) -> Result<Vec<KernelStatistics>, CliError> {
    let target = view.kernels.targets.iter().find(|target| target.name == model.report().target);
    let target = target.expect("the model runs a target of its artifact");
    let executables = kernel_statistics(model.device(), target, false)?;
    let mut of_kernels = BTreeMap::new();
    for (pipeline, executables) in target.pipelines.iter().zip(executables) {
        // A compute pipeline is one executable.
        if let Some(executable) = executables.into_iter().next() {
            of_kernels.entry(pipeline.name.as_str()).or_insert(executable);
        }
    }
    Ok(of_kernels.into_iter().map(|(kernel, executable)| described(kernel, executable)).collect())
}

fn described(kernel: &str, executable: Executable) -> KernelStatistics {
    let statistics = executable.statistics.into_iter().map(|(name, value)| (name, value.into())).collect();
    KernelStatistics { kernel: kernel.to_owned(), subgroup_size: executable.subgroup_size, statistics }
}

/// The table for people.
pub fn page(all: &[KernelStatistics]) -> String {
    let columns = [Column::Left("kernel"), Column::Right("subgroup"), Column::Left("as the driver reports")];
    let row = |one: &KernelStatistics| {
        let values =
            one.statistics.iter().map(|(name, value)| format!("{name} {}", value.as_f64().unwrap_or_default()));
        vec![one.kernel.clone(), one.subgroup_size.to_string(), values.collect::<Vec<_>>().join(", ")]
    };
    table(&columns, &all.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_names_of_the_driver() {
        let executable = Executable {
            name: "compute".into(),
            subgroup_size: 32,
            statistics: vec![("Register Count".into(), 167.0), ("Spilled".into(), 0.0)],
            representations: Vec::new(),
        };
        let page = page(&[described("float gemm", executable)]);
        assert!(page.contains("float gemm        32  Register Count 167, Spilled 0"), "{page}");
    }
}
