//! Rights that a process drops for `serve --sandbox`, once its socket is bound and its model is loaded; several models are loaded
//! later.
//!
//! ```text
//! seccomp    all threads              no programs, no new sockets, no other process's memory, no io_uring
//! Landlock   this and later threads   no files but artifacts, the driver's, its devices and the folders of status files and KV caches
//! ```
//!
//! The threads that answer requests and the one that runs the steps are all started afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    Scope, path_beneath_rules,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// How much of the sandbox this kernel has, beyond seccomp, without which there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Only files of the lists below can be opened.
    Restricted,
    /// The kernel has no Landlock.
    Unrestricted,
}

/// System calls that serving does not need: starting programs, opening further sockets, access to other processes, and calls that
/// extend a process's rights. They fail with EPERM.
const DENIED: [i64; 46] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    // Its queue takes opens and connects past this filter.
    libc::SYS_io_uring_setup,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_clock_settime,
    libc::SYS_settimeofday,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_personality,
];

/// `__X32_SYSCALL_BIT` of Linux's `asm/unistd.h`.
const X32_BIT: i64 = 0x4000_0000;
/// Calls that only x32 has, among them its execve and ptrace (`arch/x86/entry/syscalls/syscall_64.tbl`).
const X32_CALLS: std::ops::RangeInclusive<i64> = 512..=547;

/// A driver that recovers a lost device loads its libraries and settings again.
const READABLE: [&str; 9] =
    ["/usr", "/lib", "/lib64", "/opt", "/etc/vulkan", "/etc/ld.so.cache", "/etc/localtime", "/proc", "/sys"];
/// GPUs, by the names that Linux's and NVIDIA's drivers give them.
const DEVICES: [&str; 3] = ["/dev/dri", "/dev/kfd", "/dev/null"];
const NVIDIA: &str = "nvidia";

/// Enters the sandbox. The process can still read `artifacts`, to load them now or for a recovery, and write to the folders `written`.
///
/// # Errors
/// Where the kernel has no seccomp, or refuses.
pub fn enter(artifacts: &[&Path], written: &[&Path]) -> Result<Files, String> {
    let files = restrict_files(artifacts, written).map_err(|error| format!("Landlock: {error}"))?;
    deny_system_calls().map_err(|error| format!("seccomp: {error}"))?;
    Ok(files)
}

fn restrict_files(artifacts: &[&Path], written: &[&Path]) -> Result<Files, landlock::RulesetError> {
    // Rights that an older kernel does not have are left out.
    let abi = ABI::V6;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = read | AccessFs::from_write(abi);
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .add_rules(path_beneath_rules(READABLE.map(Path::new).into_iter().chain(artifacts.iter().copied()), read))?
        .add_rules(path_beneath_rules(devices(), read | AccessFs::WriteFile | AccessFs::IoctlDev))?
        .add_rules(path_beneath_rules(written, write))?;
    match ruleset.restrict_self()?.ruleset {
        RulesetStatus::NotEnforced => Ok(Files::Unrestricted),
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(Files::Restricted),
    }
}

fn devices() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let nvidia = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(NVIDIA));
    DEVICES.map(PathBuf::from).into_iter().chain(nvidia.map(|entry| entry.path())).collect()
}

/// Numbers of the system calls that are refused. Kernels for x86-64 can have a second number for each call, the one of x32.
fn denied() -> impl Iterator<Item = i64> {
    let is_x86 = cfg!(target_arch = "x86_64");
    let same_with_bit = DENIED.into_iter().filter(move |_| is_x86).map(|call| call | X32_BIT);
    let own = X32_CALLS.filter(move |_| is_x86).flat_map(|call| [call, call | X32_BIT]);
    DENIED.into_iter().chain(same_with_bit).chain(own)
}

fn deny_system_calls() -> Result<(), Box<dyn std::error::Error>> {
    let rules: BTreeMap<i64, Vec<_>> = denied().map(|call| (call, Vec::new())).collect();
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, std::env::consts::ARCH.try_into()?)?;
    let program: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter_all_threads(&program)?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::ErrorKind::PermissionDenied;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::thread;

    use test_support::skip;

    use super::*;

    const CHILD: &str = "UNICORN_TEST_SANDBOX";

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn calls_are_also_denied_by_their_numbers_of_x32() {
        let denied: Vec<i64> = denied().collect();
        let execve_of_x32 = 520;
        for call in DENIED.into_iter().chain([execve_of_x32]) {
            assert!(denied.contains(&call) && denied.contains(&(call | 1 << 30)), "{call}");
        }
    }

    /// A process cannot leave its sandbox, so that this test runs in a process of its own.
    #[test]
    fn forbidden_calls_fail_and_needed_ones_do_not() {
        let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) else {
            let folder = tempfile::tempdir().unwrap();
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "sandbox::tests::forbidden_calls_fail_and_needed_ones_do_not", "--nocapture"]);
            let output = child.env(CHILD, folder.path()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            return;
        };
        let (artifact, status, secret) = (folder.join("artifact"), folder.join("status"), folder.join("secret"));
        fs::create_dir(&status).unwrap();
        [&artifact, &secret].into_iter().for_each(|file| fs::write(file, "a file").unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Connects while the listener's process can: the kernel queues it.
        let _client = TcpStream::connect(address).unwrap();
        // A thread that was there before: seccomp includes it.
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let earlier = thread::spawn(move || {
            begun.recv().unwrap();
            (TcpStream::connect(address).map(drop), Command::new("true").status().map(drop))
        });

        let files = enter(&[&artifact], &[&status]).unwrap();

        begin.send(()).unwrap();
        let (connected, executed) = earlier.join().unwrap();
        let denied = [
            ("connect", TcpStream::connect(address).map(drop)),
            ("udp", UdpSocket::bind("127.0.0.1:0").map(drop)),
            ("unix", UnixStream::connect("/run/any").map(drop)),
            ("bind", TcpListener::bind("127.0.0.1:0").map(drop)),
            ("exec", Command::new("true").status().map(drop)),
            ("connect of an earlier thread", connected),
            ("exec of an earlier thread", executed),
        ];
        for (call, result) in denied {
            assert_eq!(result.map_err(|error| error.kind()), Err(PermissionDenied), "{call}");
        }
        listener.accept().unwrap();
        fs::read(&artifact).unwrap();
        fs::write(status.join("1.partial"), "a status").unwrap();
        fs::rename(status.join("1.partial"), status.join("1.json")).unwrap();
        fs::remove_file(status.join("1.json")).unwrap();
        thread::spawn(|| ()).join().unwrap();
        if files == Files::Unrestricted {
            skip("files in the sandbox", "this kernel has no Landlock");
            return;
        }
        let denied = [
            ("read", fs::read(&secret).map(drop)),
            ("create", File::create(folder.join("new")).map(drop)),
            ("write", fs::write(&artifact, "other").map(drop)),
            ("remove", fs::remove_file(&secret)),
            ("folder", fs::create_dir(folder.join("new"))),
        ];
        for (call, result) in denied {
            assert_eq!(result.map_err(|error| error.kind()), Err(PermissionDenied), "{call}");
        }
    }
}
