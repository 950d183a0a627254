//! `neap plan`: the sizing arithmetic for a config, with no weights and no device.

use std::fs;
use std::path::{Path, PathBuf};

use neap::emulator::Profile;
use neap::kv::{self, Caps, PageSize, PlanOptions, Shard};
use serde_json::Value;

use crate::args::PlanArgs;
use crate::report::{CommandError, print, print_json, write_file};

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<(), CommandError> {
    let config = read_config(&args.model)?;
    let device_bytes = device_bytes(args)?;
    let options = PlanOptions {
        // One of the two is there.
        kv_bytes: args.kv_bytes.or(device_bytes).unwrap_or(0),
        page_size: PageSize::new(u64::from(args.page_size)).map_err(CommandError::refused)?,
        dtype: args.kv_dtype,
        group_dtypes: args.group_dtypes.clone(),
        lengths: args.lengths.clone(),
        shard: Shard {
            tensor_parallel: args.tp,
            layers: args.layers.clone(),
        },
        draft: args.draft.as_deref().map(read_config).transpose()?,
        policies: args.policies.clone(),
        caps: Caps {
            tokens: args.max_tokens.map(u64::from),
            requests: args.max_requests,
            bytes: None,
        },
    };
    let plan = kv::plan(&config, &options).map_err(|error| {
        CommandError::Refused(format!("{}: {error}", config_path(&args.model).display()))
    })?;
    if let Some(path) = &args.svg {
        let title = format!("KV memory of {}", args.model.display());
        let svg = plan
            .map(title, device_bytes.unwrap_or(options.kv_bytes))
            .to_svg();
        write_file(path, &svg)?;
    }
    if args.json {
        print_json(&plan)
    } else {
        print(&plan.to_string())
    }
}

/// The config.json that `model` names or holds.
fn config_path(model: &Path) -> PathBuf {
    if model.is_dir() {
        model.join("config.json")
    } else {
        model.to_owned()
    }
}

fn read_config(model: &Path) -> Result<Value, CommandError> {
    let path = config_path(model);
    let shown = path.display();
    let bytes = fs::read(&path).map_err(|error| {
        CommandError::Refused(format!(
            "{shown} cannot be read ({error}); name a config.json or a folder that holds one"
        ))
    })?;
    serde_json::from_slice(&bytes).map_err(|error| {
        CommandError::Refused(format!(
            "{shown} is not valid JSON ({error}); fetch the file again"
        ))
    })
}

/// Memory of the device, if one is named or nothing else says how much there is.
fn device_bytes(args: &PlanArgs) -> Result<Option<u64>, CommandError> {
    let name = match (&args.device_profile, args.kv_bytes) {
        (Some(name), _) => name.as_str(),
        (None, None) => "h200",
        (None, Some(_)) => return Ok(None),
    };
    let profile = Profile::named(name).ok_or_else(|| {
        CommandError::Refused(format!(
            "there is no device profile '{name}'; choose one of {}, or give --kv-bytes",
            Profile::names().join(", ")
        ))
    })?;
    if let Some(kv_bytes) = args.kv_bytes
        && kv_bytes > profile.total_bytes
    {
        return Err(CommandError::Refused(format!(
            "{kv_bytes} bytes of KV exceed the {} bytes of a {name}; give fewer, or another --device-profile",
            profile.total_bytes
        )));
    }
    Ok(Some(profile.total_bytes))
}
