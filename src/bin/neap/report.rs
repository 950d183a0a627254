//! How the program ends and how it writes: one sentence for what went wrong, and a reader that hangs up is no error.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum CommandError {
    /// The input or the machine does not allow it: exit code 2. The sentence names the value and the remedy.
    Refused(String),
    /// A check did not hold (`neap selftest`, the leak check): exit code 1.
    CheckFailed(String),
    /// Whoever read the output has gone; there is nobody to tell.
    ReaderGone,
}

impl CommandError {
    /// Any room's error: its Display is the sentence.
    pub fn refused(error: impl std::fmt::Display) -> CommandError {
        CommandError::Refused(error.to_string())
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> CommandError {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CommandError::ReaderGone,
            _ => CommandError::Refused(format!(
                "standard output cannot be written: {error}; redirect it elsewhere"
            )),
        }
    }
}

/// The exit code of an outcome, after its sentence has been written.
pub fn exit(outcome: Result<(), CommandError>) -> ExitCode {
    match outcome {
        Ok(()) | Err(CommandError::ReaderGone) => ExitCode::SUCCESS,
        Err(CommandError::Refused(sentence)) => {
            complain(&sentence);
            ExitCode::from(2)
        }
        Err(CommandError::CheckFailed(sentence)) => {
            complain(&sentence);
            ExitCode::from(1)
        }
    }
}

/// clap's word on a wrong command line as one sentence; help and version as they are.
pub fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = write!(io::stdout(), "{}", error.render());
        return ExitCode::SUCCESS;
    }
    let rendered = error.render().to_string();
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = write!(io::stderr(), "{rendered}");
        return ExitCode::from(2);
    }
    let said: Vec<&str> = rendered
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    let sentence = said.join(" ");
    complain(&format!(
        "{}; see 'neap --help'",
        sentence.strip_prefix("error: ").unwrap_or(&sentence)
    ));
    ExitCode::from(2)
}

/// One line on standard error.
fn complain(sentence: &str) {
    let line = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(io::stderr(), "neap: {line}");
}

/// Writes to standard output and flushes, so that text is seen as it comes.
pub fn print(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a value as indented JSON to standard output.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), CommandError> {
    let text = serde_json::to_string_pretty(value).map_err(CommandError::refused)?;
    print(&(text + "\n"))
}

/// Writes a file that the command line names.
pub fn write_file(path: &Path, text: &str) -> Result<(), CommandError> {
    fs::write(path, text).map_err(|error| {
        CommandError::Refused(format!(
            "{} cannot be written ({error}); name a file in a folder that exists",
            path.display()
        ))
    })
}

/// Writes to standard error; nothing depends on it arriving.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
