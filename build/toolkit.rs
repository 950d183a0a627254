//! Finds and runs nvcc, ptxas and fatbinary.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What every `.cu` is compiled for; newer devices take the PTX or a cubin made from it.
const VIRTUAL_ARCHITECTURE: &str = "compute_80";

/// Cubins wanted in the fatbin: (ptxas name, what `nvcc --list-gpu-code` calls it).
const ARCHITECTURES: [(&str, &str); 4] = [
    ("sm_80", "sm_80"),
    ("sm_90a", "sm_90"),
    ("sm_100", "sm_100"),
    ("sm_120", "sm_120"),
];

/// PTX ISA versions to try, least first. 7.0 is the first with cp.async and bf16 mma.
const PTX_VERSIONS: [&str; 7] = ["7.0", "7.1", "7.4", "7.8", "8.0", "8.3", "9.0"];

/// The CUDA compiler and the tools beside it.
pub struct Toolkit {
    bin: PathBuf,
    named: bool,
    architectures: Vec<&'static str>,
}

impl Toolkit {
    /// Looks in `NEAP_NVCC` (which must then be right; empty or `none` means "use no nvcc"), `CUDA_HOME`,
    /// `CUDA_PATH`, `PATH`, and the site-packages of the active virtual environment and of the `python3` on `PATH`.
    /// Nothing is run to find it but the nvcc found. One that was not named and does not work is passed over with a warning.
    pub fn find() -> Result<Option<Toolkit>, String> {
        for variable in ["NEAP_NVCC", "CUDA_HOME", "CUDA_PATH"] {
            println!("cargo:rerun-if-env-changed={variable}");
        }
        let (nvcc, named) = match env::var_os("NEAP_NVCC") {
            Some(named) if named.is_empty() || named == "none" => return Ok(None),
            Some(named) if Path::new(&named).is_file() => (PathBuf::from(named), true),
            Some(named) => {
                return Err(format!(
                    "NEAP_NVCC is {named:?}, which is not a file: point it at nvcc, or set it to `none` to use csrc/prebuilt"
                ));
            }
            None => match search() {
                Some(found) => (found, false),
                None => return Ok(None),
            },
        };
        match Toolkit::at(&nvcc, named) {
            Ok(toolkit) => Ok(Some(toolkit)),
            Err(error) if named => Err(error),
            Err(error) => {
                println!("cargo:warning=not using {}: {error}", nvcc.display());
                Ok(None)
            }
        }
    }

    fn at(nvcc: &Path, named: bool) -> Result<Toolkit, String> {
        let bin = nvcc
            .parent()
            .expect("a file has a parent directory")
            .to_owned();
        for tool in ["ptxas", "fatbinary"] {
            if !bin.join(tool).is_file() {
                return Err(format!(
                    "there is no {tool} beside {}: name a whole CUDA toolkit in NEAP_NVCC, or set it to `none`",
                    nvcc.display()
                ));
            }
        }
        let known = run(Command::new(nvcc).arg("--list-gpu-code"))?;
        let architectures = ARCHITECTURES
            .iter()
            .filter(|(_, code)| known.split_whitespace().any(|word| word == *code))
            .map(|(name, _)| *name)
            .collect();
        Ok(Toolkit {
            bin,
            named,
            architectures,
        })
    }

    /// Compiles one CUDA source to PTX whose `.version` is the least ptxas takes it with, so that drivers
    /// older than this toolkit load it.
    pub fn compile(&self, source: &Path, scratch: &Path) -> Result<String, String> {
        let raw = scratch.with_extension("raw.ptx");
        run(Command::new(self.bin.join("nvcc"))
            .args(["-std=c++17", "-O3", "-ptx", "-arch", VIRTUAL_ARCHITECTURE])
            .arg(source)
            .arg("-o")
            .arg(&raw))?;
        let text =
            std::fs::read_to_string(&raw).map_err(|error| format!("{}: {error}", raw.display()))?;
        let attempt = scratch.with_extension("try.ptx");
        let mut refusal = String::new();
        for version in PTX_VERSIONS {
            let candidate = with_version(&text, version);
            std::fs::write(&attempt, &candidate)
                .map_err(|error| format!("{}: {error}", attempt.display()))?;
            match self.assemble(&attempt, "sm_80", Path::new("/dev/null")) {
                Ok(()) => return Ok(candidate),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// Packs `ptx` and a cubin for each architecture this toolkit knows into `fatbin`, uncompressed. False when a toolkit that was
    /// not named cannot: drivers then compile the PTX themselves.
    pub fn pack(&self, ptx: &Path, fatbin: &Path) -> Result<bool, String> {
        match self.try_pack(ptx, fatbin) {
            Ok(()) => Ok(true),
            Err(error) if self.named => Err(error),
            Err(error) => {
                println!("cargo:warning=no fatbin for {}: {error}", ptx.display());
                Ok(false)
            }
        }
    }

    fn try_pack(&self, ptx: &Path, fatbin: &Path) -> Result<(), String> {
        let mut images = Vec::new();
        for architecture in &self.architectures {
            let cubin = fatbin.with_extension(format!("{architecture}.cubin"));
            self.assemble(ptx, architecture, &cubin)?;
            images.push(format!(
                "--image3=kind=elf,sm={},file={}",
                architecture.trim_start_matches("sm_"),
                cubin.display()
            ));
        }
        images.push(format!("--image3=kind=ptx,sm=80,file={}", ptx.display()));
        run(Command::new(self.bin.join("fatbinary"))
            .args(["-64", "--compress-mode=none"])
            .arg(format!("--create={}", fatbin.display()))
            .args(images))
        .map(drop)
    }

    fn assemble(&self, ptx: &Path, architecture: &str, cubin: &Path) -> Result<(), String> {
        run(Command::new(self.bin.join("ptxas"))
            .args(["-O3", "--warn-on-spills", "-arch", architecture])
            .arg(ptx)
            .arg("-o")
            .arg(cubin))
        .map(drop)
    }
}

/// `text` with its `.version` line replaced, and without the one hint that alone needs a newer version.
fn with_version(text: &str, version: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if line.trim_start().starts_with(".pragma \"used_bytes_mask") {
            continue;
        }
        if line.starts_with(".version ") {
            out.push_str(".version ");
            out.push_str(version);
        } else {
            out.push_str(line);
        }
        out.push('\n');
    }
    out
}

fn search() -> Option<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"]
        .into_iter()
        .filter_map(env::var_os);
    let mut candidates: Vec<PathBuf> = homes
        .map(|home| Path::new(&home).join("bin/nvcc"))
        .collect();
    let path = env::var_os("PATH").unwrap_or_default();
    candidates.extend(env::split_paths(&path).map(|directory| directory.join("nvcc")));
    let environments = env::var_os("VIRTUAL_ENV").map(PathBuf::from).into_iter();
    let python = env::split_paths(&path)
        .find(|directory| directory.join("python3").is_file())
        .and_then(|directory| Some(directory.parent()?.to_owned()));
    for prefix in environments.chain(python) {
        candidates.extend(site_packages(&prefix).map(|site| site.join("nvidia/cu13/bin/nvcc")));
    }
    candidates.into_iter().find(|candidate| candidate.is_file())
}

/// `PREFIX/lib/python3*/{site,dist}-packages`.
fn site_packages(prefix: &Path) -> impl Iterator<Item = PathBuf> {
    let versions = std::fs::read_dir(prefix.join("lib"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .and_then(OsStr::to_str)
                .is_some_and(|name| name.starts_with("python3"))
        });
    versions.flat_map(|version| {
        ["site-packages", "dist-packages"].map(|packages| version.join(packages))
    })
}

/// Runs a tool and returns its standard output; what it prints to standard error goes into the error.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{command:?} failed:\n{}", errors.trim()));
    }
    for line in errors.lines().filter(|line| line.contains("warning")) {
        println!("cargo:warning={line}");
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
