//! The `neap` command line.
//!
//! Text that a model writes, tables and JSON go to standard output; progress, the ledger and the carve of a run
//! go to standard error. Whatever is wrong with the input is one sentence on standard error and exit code 2.

mod args;
mod bundled;
mod counters;
mod devices;
mod goldens;
mod plan;
mod progress;
mod recording;
mod report;
mod run;
mod selftest;
mod session;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return report::usage(&error),
    };
    let outcome = match cli.command {
        Command::Devices(args) => devices::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Counters(args) => counters::run(&args),
        Command::Selftest(args) => selftest::run(&args),
    };
    report::exit(outcome)
}
