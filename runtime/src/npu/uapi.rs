//! The interface of Linux's driver amdxdna (6.14 and later): structs, constants and numbers of its ioctls.
//!
//! Facts of `drm/amdxdna_accel.h` and `drm/drm.h`; the test below asserts every size, offset and number against those headers.

/// Commands of a driver begin here among the ioctls of DRM (`DRM_COMMAND_BASE`).
const COMMAND_BASE: u32 = 0x40;
/// Group of DRM's ioctls.
const DRM: u32 = b'd' as u32;

/// The number of an ioctl that reads and writes a `T`, as the kernel's `_IOWR` forms it.
const fn read_write<T>(number: u32) -> u32 {
    3 << 30 | (size_of::<T>() as u32) << 16 | DRM << 8 | number
}

/// The number of an ioctl that takes a `T`, as the kernel's `_IOW` forms it.
const fn write<T>(number: u32) -> u32 {
    1 << 30 | (size_of::<T>() as u32) << 16 | DRM << 8 | number
}

pub const VERSION: u32 = read_write::<Version>(0x00);
pub const GEM_CLOSE: u32 = write::<GemClose>(0x09);
pub const PRIME_FD_TO_HANDLE: u32 = read_write::<PrimeHandle>(0x2e);
pub const SYNCOBJ_DESTROY: u32 = read_write::<SyncobjDestroy>(0xc0);
pub const SYNCOBJ_TIMELINE_WAIT: u32 = read_write::<TimelineWait>(0xca);
pub const CREATE_HWCTX: u32 = read_write::<CreateContext>(COMMAND_BASE);
pub const DESTROY_HWCTX: u32 = read_write::<DestroyContext>(COMMAND_BASE + 1);
pub const CONFIG_HWCTX: u32 = read_write::<ConfigContext>(COMMAND_BASE + 2);
pub const CREATE_BO: u32 = read_write::<CreateBuffer>(COMMAND_BASE + 3);
pub const GET_BO_INFO: u32 = read_write::<BufferInfo>(COMMAND_BASE + 4);
pub const SYNC_BO: u32 = read_write::<SyncBuffer>(COMMAND_BASE + 5);
pub const EXEC_CMD: u32 = read_write::<ExecCommand>(COMMAND_BASE + 6);
pub const GET_INFO: u32 = read_write::<GetInfo>(COMMAND_BASE + 7);

/// `AMDXDNA_INVALID_ADDR`.
pub const INVALID_ADDRESS: u64 = u64::MAX;
/// `AMDXDNA_QOS_NORMAL_PRIORITY`.
pub const NORMAL_PRIORITY: u32 = 0x200;
/// `DRM_AMDXDNA_HWCTX_CONFIG_CU`.
pub const CONFIG_CU: u32 = 0;
/// `AMDXDNA_CMD_SUBMIT_EXEC_BUF`.
pub const SUBMIT_EXEC_BUF: u32 = 0;
/// `DRM_AMDXDNA_QUERY_AIE_METADATA`.
pub const QUERY_AIE_METADATA: u32 = 1;
/// `DRM_AMDXDNA_QUERY_CLOCK_METADATA`.
pub const QUERY_CLOCK_METADATA: u32 = 3;
/// `DRM_AMDXDNA_QUERY_FIRMWARE_VERSION`.
pub const QUERY_FIRMWARE_VERSION: u32 = 8;
/// `AMDXDNA_BO_SHMEM`: memory of the host that the array reads and writes.
pub const BO_SHARED: u32 = 1;
/// `AMDXDNA_BO_DEV_HEAP`: the device's own address window.
pub const BO_HEAP: u32 = 2;
/// `AMDXDNA_BO_DEV`: a part of the heap.
pub const BO_DEVICE: u32 = 3;
/// `AMDXDNA_BO_CMD`: a command packet.
pub const BO_COMMAND: u32 = 4;
/// `SYNC_DIRECT_TO_DEVICE`.
pub const SYNC_TO_DEVICE: u32 = 0;
/// `SYNC_DIRECT_FROM_DEVICE`.
pub const SYNC_FROM_DEVICE: u32 = 1;
/// `DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT`.
pub const WAIT_FOR_SUBMIT: u32 = 2;

/// Structs with the names that C has for them and for their fields.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident = $c_name:literal { $($field:ident: $type:ty = $c_field:literal,)* })*) => {
        // Not all fields are used: the kernel reads and writes them.
        $($(#[$doc])* #[repr(C)] #[allow(dead_code)] #[derive(Clone, Copy, Debug, Default)] pub struct $name { $(pub $field: $type,)* })*

        /// C's name of each struct, its size, and C's name and the offset of each field.
        #[cfg(test)]
        fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$(($c_name, size_of::<$name>(), vec![$(($c_field, std::mem::offset_of!($name, $field)),)*]),)*]
        }
    };
}

structs! {
    /// Version and name of a driver.
    Version = "struct drm_version" {
        major: i32 = "version_major", minor: i32 = "version_minor", patch: i32 = "version_patchlevel",
        name_len: u64 = "name_len", name: u64 = "name", date_len: u64 = "date_len", date: u64 = "date",
        desc_len: u64 = "desc_len", desc: u64 = "desc",
    }
    /// Closes a buffer object's handle.
    GemClose = "struct drm_gem_close" { handle: u32 = "handle", pad: u32 = "pad", }
    /// Closes a timeline's handle.
    SyncobjDestroy = "struct drm_syncobj_destroy" { handle: u32 = "handle", pad: u32 = "pad", }
    /// Waits for points of timelines; the time is absolute, of the monotonic clock.
    TimelineWait = "struct drm_syncobj_timeline_wait" {
        handles: u64 = "handles", points: u64 = "points", timeout_ns: i64 = "timeout_nsec", count: u32 = "count_handles",
        flags: u32 = "flags", first_signaled: u32 = "first_signaled", pad: u32 = "pad", deadline_ns: u64 = "deadline_nsec",
    }
    /// Quality of service of a context.
    Qos = "struct amdxdna_qos_info" {
        gops: u32 = "gops", fps: u32 = "fps", dma_bandwidth: u32 = "dma_bandwidth", latency: u32 = "latency",
        frame_exec_time: u32 = "frame_exec_time", priority: u32 = "priority",
    }
    /// Creates a context: columns of the array for this process.
    CreateContext = "struct amdxdna_drm_create_hwctx" {
        ext: u64 = "ext", ext_flags: u64 = "ext_flags", qos: u64 = "qos_p", umq_bo: u32 = "umq_bo",
        log_buf_bo: u32 = "log_buf_bo", max_opc: u32 = "max_opc", num_tiles: u32 = "num_tiles", mem_size: u32 = "mem_size",
        umq_doorbell: u32 = "umq_doorbell", handle: u32 = "handle", syncobj: u32 = "syncobj_handle",
    }
    /// Ends a context.
    DestroyContext = "struct amdxdna_drm_destroy_hwctx" { handle: u32 = "handle", pad: u32 = "pad", }
    /// One compute unit of a configuration.
    CuConfig = "struct amdxdna_cu_config" { bo: u32 = "cu_bo", function: u8 = "cu_func", pad: [u8; 3] = "pad", }
    /// The head of a configuration; compute units follow.
    ConfigHead = "struct amdxdna_hwctx_param_config_cu" { count: u16 = "num_cus", pad: [u16; 3] = "pad", }
    /// Configures a context.
    ConfigContext = "struct amdxdna_drm_config_hwctx" {
        handle: u32 = "handle", kind: u32 = "param_type", value: u64 = "param_val", value_bytes: u32 = "param_val_size",
        pad: u32 = "pad",
    }
    /// Creates a buffer object.
    CreateBuffer = "struct amdxdna_drm_create_bo" {
        flags: u64 = "flags", vaddr: u64 = "vaddr", size: u64 = "size", kind: u32 = "type", handle: u32 = "handle",
    }
    /// The head of a table of memory that a buffer object is made of, instead of new pages; entries follow.
    MemoryTable = "struct amdxdna_drm_va_tbl" { dma_buf: i32 = "dmabuf_fd", count: u32 = "num_entries", }
    /// Memory of this process.
    MemoryEntry = "struct amdxdna_drm_va_entry" { address: u64 = "vaddr", bytes: u64 = "len", }
    /// Makes a handle of a dma-buf, or the other way.
    PrimeHandle = "struct drm_prime_handle" { handle: u32 = "handle", flags: u32 = "flags", fd: i32 = "fd", }
    /// Addresses of a buffer object.
    BufferInfo = "struct amdxdna_drm_get_bo_info" {
        ext: u64 = "ext", ext_flags: u64 = "ext_flags", handle: u32 = "handle", pad: u32 = "pad",
        map_offset: u64 = "map_offset", vaddr: u64 = "vaddr", xdna_addr: u64 = "xdna_addr",
    }
    /// Writes the caches of the host back, or drops them.
    SyncBuffer = "struct amdxdna_drm_sync_bo" {
        handle: u32 = "handle", direction: u32 = "direction", offset: u64 = "offset", size: u64 = "size",
    }
    /// Submits a command.
    ExecCommand = "struct amdxdna_drm_exec_cmd" {
        ext: u64 = "ext", ext_flags: u64 = "ext_flags", context: u32 = "hwctx", kind: u32 = "type",
        commands: u64 = "cmd_handles", args: u64 = "args", command_count: u32 = "cmd_count", arg_count: u32 = "arg_count",
        seq: u64 = "seq",
    }
    /// Requests facts.
    GetInfo = "struct amdxdna_drm_get_info" { param: u32 = "param", bytes: u32 = "buffer_size", buffer: u64 = "buffer", }
    /// One kind of tile.
    TileMetadata = "struct amdxdna_drm_query_aie_tile_metadata" {
        row_count: u16 = "row_count", row_start: u16 = "row_start", dma_channels: u16 = "dma_channel_count",
        locks: u16 = "lock_count", event_regs: u16 = "event_reg_count", pad: [u16; 3] = "pad",
    }
    /// The array.
    AieMetadata = "struct amdxdna_drm_query_aie_metadata" {
        col_size: u32 = "col_size", cols: u16 = "cols", rows: u16 = "rows", version_major: u32 = "version.major",
        version_minor: u32 = "version.minor", core: TileMetadata = "core", mem: TileMetadata = "mem", shim: TileMetadata = "shim",
    }
    /// One clock.
    Clock = "struct amdxdna_drm_query_clock" { name: [u8; 16] = "name", mhz: u32 = "freq_mhz", pad: u32 = "pad", }
    /// Both clocks.
    Clocks = "struct amdxdna_drm_query_clock_metadata" { npu: Clock = "mp_npu_clock", array: Clock = "h_clock", }
    /// Version of the firmware.
    Firmware = "struct amdxdna_drm_query_firmware_version" {
        major: u32 = "major", minor: u32 = "minor", patch: u32 = "patch", build: u32 = "build",
    }
}

#[cfg(test)]
mod tests {
    use test_support::skip;

    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn constants() -> Vec<(&'static str, u64)> {
        let all = [
            ("DRM_IOCTL_VERSION", VERSION),
            ("DRM_IOCTL_GEM_CLOSE", GEM_CLOSE),
            ("DRM_IOCTL_PRIME_FD_TO_HANDLE", PRIME_FD_TO_HANDLE),
            ("offsetof(struct amdxdna_drm_va_tbl, va_entries)", size_of::<MemoryTable>() as u32),
            ("DRM_IOCTL_SYNCOBJ_DESTROY", SYNCOBJ_DESTROY),
            ("DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT", SYNCOBJ_TIMELINE_WAIT),
            ("DRM_IOCTL_AMDXDNA_CREATE_HWCTX", CREATE_HWCTX),
            ("DRM_IOCTL_AMDXDNA_DESTROY_HWCTX", DESTROY_HWCTX),
            ("DRM_IOCTL_AMDXDNA_CONFIG_HWCTX", CONFIG_HWCTX),
            ("DRM_IOCTL_AMDXDNA_CREATE_BO", CREATE_BO),
            ("DRM_IOCTL_AMDXDNA_GET_BO_INFO", GET_BO_INFO),
            ("DRM_IOCTL_AMDXDNA_SYNC_BO", SYNC_BO),
            ("DRM_IOCTL_AMDXDNA_EXEC_CMD", EXEC_CMD),
            ("DRM_IOCTL_AMDXDNA_GET_INFO", GET_INFO),
            ("AMDXDNA_QOS_NORMAL_PRIORITY", NORMAL_PRIORITY),
            ("DRM_AMDXDNA_HWCTX_CONFIG_CU", CONFIG_CU),
            ("AMDXDNA_CMD_SUBMIT_EXEC_BUF", SUBMIT_EXEC_BUF),
            ("DRM_AMDXDNA_QUERY_AIE_METADATA", QUERY_AIE_METADATA),
            ("DRM_AMDXDNA_QUERY_CLOCK_METADATA", QUERY_CLOCK_METADATA),
            ("DRM_AMDXDNA_QUERY_FIRMWARE_VERSION", QUERY_FIRMWARE_VERSION),
            ("AMDXDNA_BO_SHMEM", BO_SHARED),
            ("AMDXDNA_BO_DEV_HEAP", BO_HEAP),
            ("AMDXDNA_BO_DEV", BO_DEVICE),
            ("AMDXDNA_BO_CMD", BO_COMMAND),
            ("SYNC_DIRECT_TO_DEVICE", SYNC_TO_DEVICE),
            ("SYNC_DIRECT_FROM_DEVICE", SYNC_FROM_DEVICE),
            ("DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT", WAIT_FOR_SUBMIT),
        ];
        let wide = all.into_iter().map(|(name, value)| (name, u64::from(value)));
        wide.chain([("AMDXDNA_INVALID_ADDR", INVALID_ADDRESS)]).collect()
    }

    /// A C file that compiles only if the kernel's headers agree.
    fn assertions(constants: &[(&str, u64)]) -> String {
        let mut text = "#include <stddef.h>\n#include <drm/amdxdna_accel.h>\n".to_owned();
        let mut claim = |left: String, right: u64| {
            text += &format!("_Static_assert({left} == {right}u, \"{left} is not {right}\");\n");
        };
        for (name, bytes, fields) in layouts() {
            claim(format!("sizeof({name})"), bytes as u64);
            fields.into_iter().for_each(|(field, at)| claim(format!("offsetof({name}, {field})"), at as u64));
        }
        constants.iter().for_each(|(name, value)| claim((*name).to_owned(), *value));
        text
    }

    fn compiles(headers: &Path, text: &str) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("layout.c");
        std::fs::write(&file, text).unwrap();
        let mut compiler = Command::new("cc");
        compiler
            .args(["-std=gnu11", "-fsyntax-only", "-I"])
            .arg(headers)
            .arg("-I")
            .arg(headers.join("x86_64-linux-gnu"));
        let output = compiler.arg(&file).output().expect("a C compiler, which also links Rust's programs");
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    #[test]
    fn structs_and_numbers_are_those_of_the_kernels_headers() {
        let variable = std::env::var_os("AMDXDNA_HEADERS");
        let headers = variable.as_deref().map_or(Path::new("/usr/include"), Path::new);
        if !headers.join("drm/amdxdna_accel.h").exists() {
            let what =
                "AMDXDNA_HEADERS names no folder with drm/amdxdna_accel.h, which linux-libc-dev has from 6.14 on";
            return skip("amdxdna headers", what);
        }
        compiles(headers, &assertions(&constants())).unwrap();
        // The check itself: a wrong number does not compile.
        let error = compiles(headers, &assertions(&[("AMDXDNA_BO_CMD", 5)])).unwrap_err();
        assert!(error.contains("AMDXDNA_BO_CMD is not 5"), "{error}");
    }

    /// The same where those headers are not installed: sizes of the header of Linux 7.3, by its fields.
    #[test]
    fn structs_have_the_sizes_of_linux_7_3() {
        let sizes: Vec<usize> = layouts().into_iter().map(|(_, bytes, _)| bytes).collect();
        assert_eq!(sizes, [64, 8, 8, 48, 24, 56, 8, 8, 8, 24, 32, 8, 16, 12, 48, 24, 56, 16, 16, 64, 24, 48, 16]);
        assert_eq!([CREATE_HWCTX, EXEC_CMD, GET_INFO], [0xc038_6440, 0xc038_6446, 0xc010_6447]);
    }
}
