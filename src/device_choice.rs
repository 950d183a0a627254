//! A device named in words, as the command line and the C ABI take it.

use std::fmt;
use std::str::FromStr;

use crate::driver::{Device, Driver, DriverError};
use crate::emulator::{self, Profile};

/// The emulator profile that `emu` alone means.
pub const DEFAULT_PROFILE: &str = "h200";

/// Which device to use: `auto`, `cuda`, `cuda:N`, `emu` or `emu:PROFILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first CUDA device, or the emulator where there is none.
    Auto,
    /// A CUDA device by its ordinal.
    Cuda(u32),
    /// An emulated device by the name of its profile.
    Emulator(String),
}

/// Why a named device cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceChoiceError {
    /// The words name no device.
    #[error("'{0}' names no device; use auto, cuda, cuda:N, emu or emu:PROFILE, PROFILE being one of {profiles}", profiles = profile_names())]
    Unknown(String),
    /// There is no usable CUDA driver.
    #[error("cuda:{ordinal} cannot be used: {source}")]
    NoCuda {
        /// The ordinal asked for.
        ordinal: u32,
        /// What the driver, or its absence, says.
        source: DriverError,
    },
    /// The driver has fewer devices.
    #[error(
        "cuda:{ordinal} was asked for, but the driver lists {count} device(s); `neap devices` names them, and --device emu needs none"
    )]
    NoSuchDevice {
        /// The ordinal asked for.
        ordinal: u32,
        /// How many the driver shows.
        count: u32,
    },
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

fn profile_names() -> String {
    Profile::names().join(", ")
}

impl FromStr for DeviceChoice {
    type Err = DeviceChoiceError;

    fn from_str(text: &str) -> Result<DeviceChoice, DeviceChoiceError> {
        let unknown = || DeviceChoiceError::Unknown(text.to_owned());
        match text
            .split_once(':')
            .map_or((text, None), |(kind, which)| (kind, Some(which)))
        {
            ("auto", None) => Ok(DeviceChoice::Auto),
            ("cuda", None) => Ok(DeviceChoice::Cuda(0)),
            ("cuda", Some(ordinal)) => ordinal
                .parse()
                .map(DeviceChoice::Cuda)
                .map_err(|_| unknown()),
            ("emu", None) => Ok(DeviceChoice::Emulator(DEFAULT_PROFILE.to_owned())),
            ("emu", Some(profile)) if Profile::named(profile).is_some() => {
                Ok(DeviceChoice::Emulator(profile.to_owned()))
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            DeviceChoice::Emulator(profile) => write!(f, "emu:{profile}"),
        }
    }
}

impl DeviceChoice {
    /// Opens the device. An emulated one is added to the process for this call.
    ///
    /// # Errors
    /// [`DeviceChoiceError`] when there is no such device; `Auto` never fails for want of a GPU.
    pub fn open(&self) -> Result<Device, DeviceChoiceError> {
        match self {
            DeviceChoice::Auto => match Driver::cuda().and_then(|driver| driver.device(0)) {
                Ok(device) => Ok(device),
                Err(_) => DeviceChoice::Emulator(DEFAULT_PROFILE.to_owned()).open(),
            },
            &DeviceChoice::Cuda(ordinal) => {
                let driver = Driver::cuda()
                    .map_err(|source| DeviceChoiceError::NoCuda { ordinal, source })?;
                let count = driver.device_count()?;
                if ordinal >= count {
                    return Err(DeviceChoiceError::NoSuchDevice { ordinal, count });
                }
                Ok(driver.device(ordinal)?)
            }
            DeviceChoice::Emulator(profile) => {
                let profile = Profile::named(profile)
                    .ok_or_else(|| DeviceChoiceError::Unknown(self.to_string()))?;
                Ok(Driver::emulator().device(emulator::add_device(profile))?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceChoice;

    #[test]
    fn words_name_devices() {
        for (text, expected) in [
            ("auto", DeviceChoice::Auto),
            ("cuda", DeviceChoice::Cuda(0)),
            ("cuda:3", DeviceChoice::Cuda(3)),
            ("emu:tiny", DeviceChoice::Emulator("tiny".to_owned())),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().expect(text), expected);
            assert!(text == "cuda" || expected.to_string() == text);
        }
        for text in [
            "",
            "gpu",
            "cuda:",
            "cuda:-1",
            "cuda:x",
            "emu:",
            "emu:gameboy",
            "auto:1",
        ] {
            let error = text.parse::<DeviceChoice>().expect_err(text).to_string();
            assert!(error.contains("auto") && error.contains("tiny"), "{error}");
        }
    }
}
