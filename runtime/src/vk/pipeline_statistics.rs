//! What the driver reports about a pipeline that it compiled (VK_KHR_pipeline_executable_properties): registers, spills, cost, and
//! its own forms of the kernel.

use ash::{khr, vk};

use crate::vk::pipeline::{Capture, Pipeline};
use crate::vk::{Failure, Named};

/// One executable that the driver made of a pipeline; most drivers make one.
#[derive(Clone, Debug, PartialEq)]
pub struct Executable {
    /// The driver's name for it: its shader stage.
    pub name: String,
    /// Invocations a subgroup.
    pub subgroup_size: u32,
    /// Names and values as the driver reports them, in its order.
    pub statistics: Vec<(String, f64)>,
    /// The kernel in the driver's own forms, machine code last; empty unless requested.
    pub representations: Vec<Representation>,
}

/// A kernel in one of the driver's own forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Representation {
    /// The driver's name for the form.
    pub name: String,
    /// Its text.
    pub text: String,
}

impl Executable {
    /// The statistic of this name, if the driver reports it.
    pub fn statistic(&self, name: &str) -> Option<f64> {
        self.statistics.iter().find(|(found, _)| found == name).map(|(_, value)| *value)
    }
}

impl Pipeline {
    /// The pipeline's executables. The pipeline must have been created to capture statistics, on a device that has them;
    /// representations are present if it was created to capture those.
    pub fn executables(&self) -> Result<Vec<Executable>, Failure> {
        let device = self.device();
        assert!(device.facts().features.pipeline_statistics, "device has pipeline statistics");
        assert_ne!(self.capture, Capture::Nothing, "pipeline was made to keep statistics");
        let functions = khr::pipeline_executable_properties::Device::new(&device.instance.raw, &device.raw);
        let request = vk::PipelineInfoKHR::default().pipeline(self.raw);
        // SAFETY: the device has the extension, and the pipeline is alive.
        let properties = unsafe { functions.get_pipeline_executable_properties(&request) }
            .named("vkGetPipelineExecutablePropertiesKHR")?;
        let one = |(index, properties): (usize, &vk::PipelineExecutablePropertiesKHR<'_>)| {
            let request = vk::PipelineExecutableInfoKHR::default().pipeline(self.raw).executable_index(index as u32);
            // SAFETY: the index is below the number of executables, and the pipeline keeps statistics.
            let statistics = unsafe { functions.get_pipeline_executable_statistics(&request) }
                .named("vkGetPipelineExecutableStatisticsKHR")?;
            Ok(Executable {
                name: text(&properties.name),
                subgroup_size: properties.subgroup_size,
                statistics: statistics.iter().map(|statistic| (text(&statistic.name), value(statistic))).collect(),
                representations: match self.capture {
                    Capture::Representations => representations(&functions, &request)?,
                    _ => Vec::new(),
                },
            })
        };
        properties.iter().enumerate().map(one).collect()
    }
}

/// Every representation that is text. `request` names an executable of a live pipeline that keeps representations.
fn representations(
    functions: &khr::pipeline_executable_properties::Device,
    request: &vk::PipelineExecutableInfoKHR<'_>,
) -> Result<Vec<Representation>, Failure> {
    const CALL: &str = "vkGetPipelineExecutableInternalRepresentationsKHR";
    // SAFETY: see above; without pointers to data, only sizes are written.
    let mut found = unsafe { functions.get_pipeline_executable_internal_representations(request) }.named(CALL)?;
    let mut contents: Vec<Vec<u8>> = found.iter().map(|one| vec![0; one.data_size]).collect();
    for (one, bytes) in found.iter_mut().zip(&mut contents) {
        one.p_data = bytes.as_mut_ptr().cast();
    }
    let mut count = found.len() as u32;
    // SAFETY: `found` has room for `count`, and each of its pointers for the size beside it.
    unsafe {
        (functions.fp().get_pipeline_executable_internal_representations_khr)(
            functions.device(),
            request,
            &mut count,
            found.as_mut_ptr(),
        )
    }
    .result()
    .named(CALL)?;
    let representation = |(one, bytes): (&vk::PipelineExecutableInternalRepresentationKHR<'_>, Vec<u8>)| {
        let text_bytes = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        let content = String::from_utf8_lossy(text_bytes).into_owned();
        (one.is_text == vk::TRUE).then(|| Representation { name: text(&one.name), text: content })
    };
    Ok(found.iter().zip(contents).filter_map(representation).collect())
}

/// Every format as a float: counters of a kernel stay far below 2⁵³. (A hash does not, and loses its low bits.)
fn value(statistic: &vk::PipelineExecutableStatisticKHR<'_>) -> f64 {
    // SAFETY: the format tag selects the member that the driver wrote.
    unsafe {
        match statistic.format {
            vk::PipelineExecutableStatisticFormatKHR::BOOL32 => f64::from(u8::from(statistic.value.b32 == vk::TRUE)),
            vk::PipelineExecutableStatisticFormatKHR::INT64 => statistic.value.i64 as f64,
            vk::PipelineExecutableStatisticFormatKHR::FLOAT64 => statistic.value.f64,
            _ => statistic.value.u64 as f64,
        }
    }
}

/// The text before the first zero, or all of it.
fn text(characters: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&character| character as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
