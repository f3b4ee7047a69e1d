//! The Vulkan instance, and the validation layer if UNICORN_VALIDATE is set.

use std::ffi::{CStr, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ash::{ext, vk};

use crate::error::LoadError;
use crate::vk::{Failure, Named, faults};

/// A loaded Vulkan library and one instance of it.
pub struct Instance {
    pub(super) raw: ash::Instance,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    /// It is never destroyed.
    is_kept: AtomicBool,
    /// Unloads the library when dropped, so that it must be dropped last.
    pub(super) entry: ash::Entry,
}

/// Number of warnings and errors that the validation layer has printed in this process. Callable from any thread.
pub fn validation_messages() -> u64 {
    MESSAGES.load(Ordering::Relaxed)
}

/// Number of errors among [`validation_messages`]. Callable from any thread.
pub fn validation_errors() -> u64 {
    ERRORS.load(Ordering::Relaxed)
}

static MESSAGES: AtomicU64 = AtomicU64::new(0);
static ERRORS: AtomicU64 = AtomicU64::new(0);

const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

impl Instance {
    /// Loads Vulkan. The environment variable UNICORN_VALIDATE, set to anything but 0, enables the validation layer with
    /// synchronisation checks.
    ///
    /// # Errors
    /// [`LoadError::NoLoader`], [`LoadError::NoDriver`], [`LoadError::NoValidationLayer`], or a failed Vulkan call.
    pub fn create() -> Result<Instance, LoadError> {
        // SAFETY: loading a library runs its initialisers; the Vulkan loader's are sound.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| LoadError::NoLoader { detail: error.to_string() })?;
        let validate = std::env::var("UNICORN_VALIDATE").is_ok_and(|value| !value.is_empty() && value != "0");
        if validate && !has_validation_layer(&entry)? {
            return Err(LoadError::NoValidationLayer);
        }

        let application = vk::ApplicationInfo::default().application_name(c"unicorn").api_version(vk::API_VERSION_1_3);
        let layers = [VALIDATION_LAYER.as_ptr()];
        let extensions = [ext::debug_utils::NAME.as_ptr(), ext::validation_features::NAME.as_ptr()];
        let checks = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&checks);
        let mut request = vk::InstanceCreateInfo::default().application_info(&application);
        if validate {
            request =
                request.enabled_layer_names(&layers).enabled_extension_names(&extensions).push_next(&mut features);
        }
        faults::before("vkCreateInstance")?;
        // SAFETY: the request and what it points to outlive the call.
        let raw = match unsafe { entry.create_instance(&request, None) } {
            Err(vk::Result::ERROR_INCOMPATIBLE_DRIVER) => return Err(LoadError::NoDriver),
            created => created.named("vkCreateInstance")?,
        };
        let mut instance =
            Instance { raw: faults::of_instance(raw), messenger: None, is_kept: AtomicBool::new(false), entry };
        if validate {
            instance.messenger = Some(instance.create_messenger()?);
        }
        Ok(instance)
    }

    /// Keeps the instance and the library, because a device of it is never destroyed.
    pub(super) fn keep(&self) {
        self.is_kept.store(true, Ordering::Release);
    }

    pub(super) fn physical_devices(&self) -> Result<Vec<vk::PhysicalDevice>, Failure> {
        // SAFETY: the instance is alive.
        unsafe { self.raw.enumerate_physical_devices() }.named("vkEnumeratePhysicalDevices")
    }

    fn create_messenger(&self) -> Result<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT), Failure> {
        let functions = ext::debug_utils::Instance::new(&self.entry, &self.raw);
        let request = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(
                vk::DebugUtilsMessageSeverityFlagsEXT::WARNING | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
            )
            .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
            .pfn_user_callback(Some(count_and_print));
        // SAFETY: the extension was enabled with the layer; the callback is a static function without user data.
        let messenger = unsafe { functions.create_debug_utils_messenger(&request, None) }
            .named("vkCreateDebugUtilsMessengerEXT")?;
        Ok((functions, messenger))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.is_kept.load(Ordering::Acquire) {
            return std::mem::forget(self.entry.clone());
        }
        if let Some((functions, messenger)) = self.messenger.take() {
            // SAFETY: made in `create_messenger`, destroyed once, before its instance.
            unsafe { functions.destroy_debug_utils_messenger(messenger, None) };
        }
        // The first instance is never destroyed, which keeps the driver's libraries loaded. Some can be loaded only a few times
        // (they take thread-local storage that is never freed), and unloading while another thread loads is unsafe in several.
        static KEPT: AtomicBool = AtomicBool::new(false);
        if !KEPT.swap(true, Ordering::Relaxed) {
            return std::mem::forget(self.entry.clone());
        }
        // SAFETY: devices own the instance that they were opened on, so none is left.
        unsafe { self.raw.destroy_instance(None) };
    }
}

fn has_validation_layer(entry: &ash::Entry) -> Result<bool, Failure> {
    // SAFETY: the library is loaded.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }.named("vkEnumerateInstanceLayerProperties")?;
    Ok(layers.iter().any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER)))
}

/// Prints each message of the validation layer as one line on stderr, and counts it.
///
/// # Safety
/// Called by Vulkan with a valid `data`.
unsafe extern "system" fn count_and_print(
    severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    _user: *mut c_void,
) -> vk::Bool32 {
    MESSAGES.fetch_add(1, Ordering::Relaxed);
    if severity.contains(vk::DebugUtilsMessageSeverityFlagsEXT::ERROR) {
        ERRORS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: Vulkan passes a valid struct whose message is null or a terminated string.
    let message = unsafe { data.as_ref().and_then(|data| data.message_as_c_str()) };
    // A closed stderr is ignored: a panic must not cross into C.
    let _ = writeln!(std::io::stderr(), "validation: {}", message.unwrap_or_default().to_string_lossy());
    vk::FALSE
}
