//! What the command line accepts.

use clap::{Args, Parser, Subcommand};

/// Runs language models that mix full and sliding-window attention: graphs are captured first, KV pools are
/// carved from the memory that is then left.
#[derive(Debug, Parser)]
#[command(name = "neap", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the devices that are there, and why one cannot be used
    Devices(DevicesArgs),
}

/// `neap devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        super::Cli::command().debug_assert();
    }
}
