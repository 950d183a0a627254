//! `neap plan`: the sizing arithmetic for a config, with no weights and no device.

use std::fs;

use neap::emulator::Profile;
use neap::kv::{self, PageSize, PlanOptions};

use crate::args::PlanArgs;
use crate::report::{CommandError, print, print_json};

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<(), CommandError> {
    let path = if args.model.is_dir() {
        args.model.join("config.json")
    } else {
        args.model.clone()
    };
    let shown = path.display();
    let bytes = fs::read(&path).map_err(|error| {
        CommandError::Refused(format!(
            "{shown} cannot be read ({error}); name a config.json or a folder that holds one"
        ))
    })?;
    let config = serde_json::from_slice(&bytes).map_err(|error| {
        CommandError::Refused(format!(
            "{shown} is not valid JSON ({error}); fetch the file again"
        ))
    })?;
    let options = PlanOptions {
        kv_bytes: kv_bytes(args)?,
        page_size: PageSize::new(u64::from(args.page_size)).map_err(CommandError::refused)?,
        dtype: args.kv_dtype,
        lengths: args.lengths.clone(),
    };
    let plan = kv::plan(&config, &options)
        .map_err(|error| CommandError::Refused(format!("{shown}: {error}")))?;
    if args.json {
        print_json(&plan.report)
    } else {
        print(&plan.to_string())
    }
}

fn kv_bytes(args: &PlanArgs) -> Result<u64, CommandError> {
    if let Some(bytes) = args.kv_bytes {
        return Ok(bytes);
    }
    Profile::named(&args.device_profile)
        .map(|profile| profile.total_bytes)
        .ok_or_else(|| {
            CommandError::Refused(format!(
                "there is no device profile '{}'; choose one of {}, or give --kv-bytes",
                args.device_profile,
                Profile::names().join(", ")
            ))
        })
}
