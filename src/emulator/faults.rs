//! Plans of what goes wrong: calls that fail, memory that runs out, other processes, launches that fault or hang.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::driver::CuResult;

/// What becomes of a launch that a [`FaultPlan`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchFault {
    /// The launch ends with this code, which ends the context's life as on hardware: `ILLEGAL_ADDRESS`,
    /// `MISALIGNED_ADDRESS`, `ASSERT`, `LAUNCH_TIMEOUT`, `LAUNCH_FAILED`, ...
    Ends(CuResult),
    /// The launch never ends: its stream is not ready whoever asks, and a wait for it does not return.
    Hangs,
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Call {
        call: String,
        nth: u64,
        code: CuResult,
    },
    MemoryLimit {
        bytes: u64,
    },
    Foreign {
        call: String,
        nth: u64,
        bytes: i64,
    },
    Launch {
        /// The kernel's name; every kernel's launches count where there is none.
        kernel: Option<String>,
        nth: u64,
        fault: LaunchFault,
    },
}

/// What is to go wrong on a device, or in the whole process. Counts begin where the plan is installed, at 1.
///
/// As text, for the environment, rules stand between semicolons:
///
/// | rule | meaning |
/// |---|---|
/// | `cuMemCreate#3=2` | the third `cuMemCreate` fails with code 2, without effect |
/// | `memory=1000000000` | no more than so many bytes of device memory can be had, whatever `cuMemGetInfo` says |
/// | `foreign@cuMemCreate#2=500000000` | before the second `cuMemCreate`, another process takes so many bytes (gives back, where negative) |
/// | `launch#5=700` | the fifth launch ends with code 700, at the next wait |
/// | `launch:axpy#1=hang` | the first launch of kernel `axpy` never ends |
///
/// ```
/// use neap::driver::CuResult;
/// use neap::emulator::FaultPlan;
///
/// let plan: FaultPlan = "cuMemCreate#3=2; memory=1000000000".parse()?;
/// let same = FaultPlan::new()
///     .fail_call("cuMemCreate", 3, CuResult::OUT_OF_MEMORY)
///     .limit_memory(1_000_000_000);
/// assert_eq!(plan, same);
/// # Ok::<(), neap::emulator::FaultPlanError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    rules: Vec<Rule>,
}

/// A rule of a fault plan's text that cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("fault rule {rule:?} cannot be read: {reason}")]
pub struct FaultPlanError {
    rule: String,
    reason: &'static str,
}

impl FaultPlan {
    /// A plan in which nothing goes wrong.
    #[must_use]
    pub fn new() -> FaultPlan {
        FaultPlan::default()
    }

    /// The `nth` call of the C function `call` (its name without `_v2`) fails with `code`, without effect.
    #[must_use]
    pub fn fail_call(self, call: &str, nth: u64, code: CuResult) -> FaultPlan {
        self.with(Rule::Call {
            call: call.to_owned(),
            nth: nth.max(1),
            code,
        })
    }

    /// No more than `bytes` of device memory can be had, contexts and modules included, whatever
    /// `cuMemGetInfo` says.
    #[must_use]
    pub fn limit_memory(self, bytes: u64) -> FaultPlan {
        self.with(Rule::MemoryLimit { bytes })
    }

    /// Right before the `nth` call of `call`, another process takes `bytes` of device memory, or gives
    /// them back where negative.
    #[must_use]
    pub fn foreign_before(self, call: &str, nth: u64, bytes: i64) -> FaultPlan {
        self.with(Rule::Foreign {
            call: call.to_owned(),
            nth: nth.max(1),
            bytes,
        })
    }

    /// The `nth` launch of `kernel`, or of any kernel where `None`, goes wrong when it runs, inside
    /// graphs too.
    #[must_use]
    pub fn fail_launch(self, kernel: Option<&str>, nth: u64, fault: LaunchFault) -> FaultPlan {
        self.with(Rule::Launch {
            kernel: kernel.map(str::to_owned),
            nth: nth.max(1),
            fault,
        })
    }

    fn with(mut self, rule: Rule) -> FaultPlan {
        self.rules.push(rule);
        self
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<FaultPlan, FaultPlanError> {
        let rules = text
            .split(';')
            .map(str::trim)
            .filter(|rule| !rule.is_empty());
        Ok(FaultPlan {
            rules: rules.map(rule_of).collect::<Result<_, _>>()?,
        })
    }
}

/// Reads one rule of a plan's text.
fn rule_of(text: &str) -> Result<Rule, FaultPlanError> {
    let wrong = |reason| FaultPlanError {
        rule: text.to_owned(),
        reason,
    };
    let (left, right) = text.split_once('=').ok_or_else(|| wrong("there is no ="))?;
    let (left, right) = (left.trim(), right.trim());
    if left == "memory" {
        let bytes = right
            .parse()
            .map_err(|_| wrong("the bytes are no number"))?;
        return Ok(Rule::MemoryLimit { bytes });
    }
    let (what, nth) = left
        .split_once('#')
        .ok_or_else(|| wrong("there is no # with a count before the ="))?;
    let nth = nth
        .parse()
        .ok()
        .filter(|&nth| nth > 0)
        .ok_or_else(|| wrong("the count after # is no positive number"))?;
    let code = || {
        right
            .parse()
            .map(CuResult)
            .map_err(|_| wrong("the code after = is no number"))
    };
    if let Some(call) = what.strip_prefix("foreign@") {
        return Ok(Rule::Foreign {
            call: call.to_owned(),
            nth,
            bytes: right
                .parse()
                .map_err(|_| wrong("the bytes are no number"))?,
        });
    }
    if what == "launch" || what.starts_with("launch:") {
        let fault = match right {
            "hang" => LaunchFault::Hangs,
            _ => LaunchFault::Ends(code()?),
        };
        return Ok(Rule::Launch {
            kernel: what.strip_prefix("launch:").map(str::to_owned),
            nth,
            fault,
        });
    }
    if !what.starts_with("cu") {
        return Err(wrong(
            "it begins with neither memory, foreign@, launch nor the name of a call",
        ));
    }
    Ok(Rule::Call {
        call: what.to_owned(),
        nth,
        code: code()?,
    })
}

/// A plan as the environment has it.
impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.rules.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            match rule {
                Rule::Call { call, nth, code } => write!(f, "{call}#{nth}={}", code.0)?,
                Rule::MemoryLimit { bytes } => write!(f, "memory={bytes}")?,
                Rule::Foreign { call, nth, bytes } => write!(f, "foreign@{call}#{nth}={bytes}")?,
                Rule::Launch { kernel, nth, fault } => {
                    f.write_str("launch")?;
                    if let Some(kernel) = kernel {
                        write!(f, ":{kernel}")?;
                    }
                    match fault {
                        LaunchFault::Ends(code) => write!(f, "#{nth}={}", code.0)?,
                        LaunchFault::Hangs => write!(f, "#{nth}=hang")?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// A plan in force: what is left of it. Its counts run down.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
}

/// What a plan has for one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CallFault {
    /// Bytes that another process takes first.
    pub(crate) foreign_bytes: i64,
    pub(crate) code: Option<CuResult>,
}

impl Faults {
    /// Puts a plan in force beside what is in force already.
    pub(crate) fn add(&mut self, plan: FaultPlan) {
        self.rules.extend(plan.rules);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Most bytes of memory that can be had.
    pub(crate) fn memory_limit_bytes(&self) -> Option<u64> {
        let limits = self.rules.iter().filter_map(|rule| match rule {
            Rule::MemoryLimit { bytes } => Some(*bytes),
            _ => None,
        });
        limits.min()
    }

    /// Counts a call.
    pub(crate) fn call(&mut self, name: &str) -> CallFault {
        let mut fault = CallFault::default();
        self.rules.retain_mut(|rule| match rule {
            Rule::Foreign { call, nth, bytes } if call == name => {
                *nth -= 1;
                if *nth == 0 {
                    fault.foreign_bytes += *bytes;
                }
                *nth > 0
            }
            Rule::Call { call, nth, code } if call == name => {
                *nth -= 1;
                if *nth == 0 {
                    fault.code.get_or_insert(*code);
                }
                *nth > 0
            }
            _ => true,
        });
        fault
    }

    /// Counts a launch that runs.
    pub(crate) fn launch(&mut self, name: &str) -> Option<LaunchFault> {
        let mut found = None;
        self.rules.retain_mut(|rule| match rule {
            Rule::Launch { kernel, nth, fault }
                if kernel.as_deref().is_none_or(|kernel| kernel == name) =>
            {
                *nth -= 1;
                if *nth == 0 {
                    found.get_or_insert(*fault);
                }
                *nth > 0
            }
            _ => true,
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_plan_say_the_same() {
        let text = "cuMemCreate#3=2; memory=1000; foreign@cuMemMap#2=-500; launch#5=700; launch:axpy#1=hang";
        let plan: FaultPlan = text.parse().unwrap();
        assert_eq!(plan.to_string(), text);
        for wrong in [
            "cuMemAlloc=2",
            "cuMemAlloc#0=2",
            "memory=many",
            "launch#1=soon",
            "axpy#1=2",
            "x",
        ] {
            let error = wrong.parse::<FaultPlan>().unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }

    #[test]
    fn counts_run_down_once() {
        let mut faults = Faults::default();
        faults.add(
            FaultPlan::new()
                .fail_call("cuA", 2, CuResult::OUT_OF_MEMORY)
                .foreign_before("cuA", 1, 64)
                .fail_launch(Some("k"), 2, LaunchFault::Hangs),
        );
        assert_eq!(faults.call("cuB"), CallFault::default());
        assert_eq!(faults.call("cuA").foreign_bytes, 64);
        assert_eq!(faults.call("cuA").code, Some(CuResult::OUT_OF_MEMORY));
        assert_eq!(faults.call("cuA"), CallFault::default());
        assert_eq!((faults.launch("k"), faults.launch("j")), (None, None));
        assert_eq!(faults.launch("k"), Some(LaunchFault::Hangs));
        assert!(faults.is_empty());
    }
}
