//! `pull`, `verify`, `list`, `rm` and `gc`: the store of fetched artifacts.

use std::path::Path;

use serde::Serialize;
use unicorn_artifact::account::size;
use unicorn_registry::{Removed, Signed, Stored, Targets, Trust, copy_to, signature_of};

use crate::args::{GcArgs, ListArgs, LoadArgs, PullArgs, RmArgs, TrustArgs, VerifyArgs};
use crate::error::CliError;
use crate::files::output_file::check_kept;
use crate::models::{self, Input, hub, pulled};
use crate::report::table::{Column, table};
use crate::terminal::output::{note, print, print_json};

/// Value of `--target` that means every target.
const ALL: &str = "all";
/// Digits of an ID that people see.
const SHOWN_DIGITS: usize = 12;

pub fn pull(args: &PullArgs) -> Result<(), CliError> {
    if let Some(output) = &args.output {
        check_kept(output, "the artifact")?;
    }
    if hub::is_reference(&args.reference) {
        return pull_from_hub(args);
    }
    let load = LoadArgs { device: args.device.clone(), plain_http: args.plain_http, ..LoadArgs::default() };
    let targets = match &args.targets[..] {
        [] => pulled::targets(&load).unwrap_or_else(|error| {
            note(format_args!("kernels of all targets are fetched: {error}"));
            Targets::All
        }),
        names if names.iter().any(|name| name == ALL) => Targets::All,
        names => Targets::Named(names.to_vec()),
    };
    let trust = trusted(&args.trust)?;
    let pulled = pulled::pull(&args.reference, targets, trust.as_ref(), args.plain_http)?;
    if let Some(output) = &args.output {
        copy_to(&pulled.stored.path, output)?;
        if let Some(signature) = &pulled.stored.signature {
            copy_to(signature, &signature_of(output))?;
        }
    }
    if let Some(signed) = &pulled.signed {
        note(in_words(signed));
    }
    if args.json {
        #[derive(Serialize)]
        struct Report<'a> {
            #[serde(flatten)]
            stored: &'a Stored,
            pulled_bytes: u64,
            signed: &'a Option<Signed>,
        }
        return print_json(&Report {
            stored: &pulled.stored,
            pulled_bytes: pulled.moved_bytes,
            signed: &pulled.signed,
        });
    }
    Ok(())
}

/// Fetches a model of the hub, and compiles it for this machine's device unless it is an artifact.
fn pull_from_hub(args: &PullArgs) -> Result<(), CliError> {
    let target = match &args.targets[..] {
        [] => None,
        [target] if target != ALL => Some(target.clone()),
        _ => {
            return Err(CliError::new("a model of the hub is compiled for one target, expected one --target, or none"));
        }
    };
    if trusted(&args.trust)?.is_some() {
        return Err(CliError::new(
            "models of the hub have no signatures that are read: leave --key, --certificate and --policy out, or pull an artifact \
             from a registry",
        ));
    }
    let model = hub::fetched(&args.reference)?;
    let load = LoadArgs { device: args.device.clone(), target, ..LoadArgs::default() };
    let path = models::compiled(&model.path, &load, Input::Tokens)?;
    if let Some(output) = &args.output {
        copy_to(&path, output)?;
    }
    if args.json {
        #[derive(Serialize)]
        struct Report<'a> {
            reference: &'a str,
            commit: &'a str,
            model: &'a Path,
            path: &'a Path,
            pulled_bytes: u64,
        }
        return print_json(&Report {
            reference: &args.reference,
            commit: &model.commit,
            model: &model.path,
            path: &path,
            pulled_bytes: model.moved_bytes,
        });
    }
    Ok(())
}

/// Verifies a signature that came with an artifact, or is in the same folder.
pub fn verify(args: &VerifyArgs) -> Result<(), CliError> {
    let trust = trusted(&args.trust)?.ok_or_else(|| {
        CliError::new("whose signature is to be trusted? Expected --key KEY.pub, --certificate FILE or --policy FILE")
    })?;
    let name = args.artifact.to_str().filter(|text| pulled::is_reference(text));
    let artifact = match name {
        Some(name) => {
            let name = pulled::reference(name)?.to_string();
            let stored = pulled::store()?.find(&name);
            stored.ok_or_else(|| CliError::new(format!("{name} is not in the store: unicorn-run pull {name}")))?.path
        }
        None => args.artifact.clone(),
    };
    let signature = args.signature.clone().unwrap_or_else(|| signature_of(&artifact));
    if name.is_some() && !signature.is_file() {
        return Err(CliError::new(format!(
            "{} has no signature here: it was pushed without --sign, or fetched with the kernels of some targets, and a signature \
             covers all: unicorn-run pull --target all",
            args.artifact.display()
        )));
    }
    let signed = trust.verify(&artifact, &signature)?;
    if args.json { print_json(&signed) } else { print(&format!("{}\n", in_words(&signed))) }
}

/// `None` where no signer is named.
fn trusted(args: &TrustArgs) -> Result<Option<Trust>, CliError> {
    let mut trust = Trust::default();
    args.keys.iter().try_for_each(|key| trust.add_key(key))?;
    args.certificates.iter().try_for_each(|file| trust.add_certificates(file))?;
    args.policy.iter().try_for_each(|policy| trust.add_policy(policy))?;
    let is_anybody = args.policy.is_some() || !args.keys.is_empty() || !args.certificates.is_empty();
    Ok(is_anybody.then_some(trust))
}

fn in_words(signed: &Signed) -> String {
    format!("signature of {} verified, by {}", signed.by, signed.trusted.display())
}

pub fn list(args: &ListArgs) -> Result<(), CliError> {
    let stored = pulled::store()?.list();
    if args.json {
        return print_json(&stored);
    }
    if stored.is_empty() {
        note("no artifacts were fetched yet; unicorn-run pull oci://REGISTRY/NAME:TAG fetches one");
        return Ok(());
    }
    let columns = [Column::Left("name"), Column::Left("id"), Column::Right("size"), Column::Left("targets")];
    let row = |one: &Stored| {
        let id = one.id.chars().take(SHOWN_DIGITS).collect();
        vec![one.reference.clone(), id, size(one.bytes), one.targets.join(", ")]
    };
    print(&table(&columns, &stored.iter().map(row).collect::<Vec<_>>()))
}

pub fn rm(args: &RmArgs) -> Result<(), CliError> {
    let store = pulled::store()?;
    let mut all = Removed::default();
    for reference in &args.references {
        // As it was given, or as it is stored: oci://REGISTRY/NAME means the tag latest.
        let name = pulled::reference(reference).map_or(reference.clone(), |reference| reference.to_string());
        let removed = store.remove(&name)?;
        (all.artifacts, all.bytes) = (all.artifacts + removed.artifacts, all.bytes + removed.bytes);
    }
    report(args.json, all)
}

pub fn gc(args: &GcArgs) -> Result<(), CliError> {
    report(args.json, pulled::store()?.gc()?)
}

fn report(json: bool, removed: Removed) -> Result<(), CliError> {
    if json {
        return print_json(&removed);
    }
    note(format_args!("removed {} artifacts, {}", removed.artifacts, size(removed.bytes)));
    Ok(())
}
