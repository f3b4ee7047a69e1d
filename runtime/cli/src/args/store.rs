//! `pull`, `verify`, `list`, `rm` and `gc`: commands about fetched artifacts.

use std::path::PathBuf;

use super::{ACCESS, COMMON, DEVICE};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct PullArgs {
    /// Artifact in a registry: oci://REGISTRY/NAME:TAG; or a model of the Hugging Face Hub: hf:OWNER/NAME[@REVISION][:PART-OF-A-FILE]
    #[arg(value_name = "REF", help_heading = None::<&str>)]
    pub reference: String,
    /// Also write the artifact to this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Targets whose kernels are fetched, repeatable; all: those of every target [default: the one for this machine's device]
    #[arg(long = "target", value_name = "NAME")]
    pub targets: Vec<String>,
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Device number or part of its name, as `devices` lists them [default: the best GPU]
    #[arg(short, long, env = "UNICORN_DEVICE", help_heading = DEVICE)]
    pub device: Option<String>,
    /// The registry has no TLS
    #[arg(long)]
    pub plain_http: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Whose signatures are trusted.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = ACCESS)]
pub struct TrustArgs {
    /// Public key whose signature is trusted, as PEM; repeatable
    #[arg(long = "key", value_name = "FILE")]
    pub keys: Vec<PathBuf>,
    /// Certificate as PEM whose holder vouches for signers; repeatable
    #[arg(long = "certificate", value_name = "FILE")]
    pub certificates: Vec<PathBuf>,
    /// JSON file that lists trusted `keys` and `certificates`
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct VerifyArgs {
    /// Artifact, or the name of a fetched one
    #[arg(value_name = "ARTIFACT", help_heading = None::<&str>)]
    pub artifact: PathBuf,
    /// Signature, a sigstore bundle [default: ARTIFACT.sig]
    #[arg(long, value_name = "FILE")]
    pub signature: Option<PathBuf>,
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Print whose signature it is as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct RmArgs {
    /// Names as `list` shows them
    #[arg(value_name = "REF", required = true, help_heading = None::<&str>)]
    pub references: Vec<String>,
    /// Print what was removed as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = COMMON)]
pub struct GcArgs {
    /// Print what was removed as JSON
    #[arg(long)]
    pub json: bool,
}
