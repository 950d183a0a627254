//! Turns `csrc/` into the images that the library embeds.
//!
//! Every `.cu` and every hand-written `.ptx` becomes one image: PTX text, which the emulator runs, and, where a CUDA
//! toolkit is at hand, a fatbin assembled from that very text. The PTX of the `.cu` files is checked in under
//! `csrc/prebuilt` with a manifest of hashes, so that a build needs no CUDA; it is compiled afresh only when a
//! source no longer has the hash in the manifest.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::toolkit::Toolkit;

const SOURCES: &str = "csrc";
const PREBUILT: &str = "csrc/prebuilt";
const MANIFEST: &str = "csrc/prebuilt/manifest.txt";

/// Set to 1, compiles everything and writes `csrc/prebuilt`.
const UPDATE: &str = "NEAP_UPDATE_PREBUILT";

pub fn embed(out: &Path) -> Result<(), String> {
    println!("cargo:rerun-if-env-changed={UPDATE}");
    let sources = Sources::scan()?;
    let toolkit = Toolkit::find()?;
    let update = std::env::var_os(UPDATE).is_some_and(|value| value == "1");
    let stale = sources.stale()?;
    let directory = out.join("kernels");
    fs::create_dir_all(&directory).map_err(|error| describe(&directory, error))?;

    let compile = match (&toolkit, update, stale.first()) {
        (None, true, _) => {
            return Err(format!(
                "{UPDATE}=1 needs nvcc: name one in NEAP_NVCC (`pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt \
                 nvidia-cuda-runtime nvidia-cuda-cccl` has one)"
            ));
        }
        (None, false, Some(first)) => {
            return Err(format!(
                "{PREBUILT} is stale: {first}, and there is no nvcc to compile it with. Name one in NEAP_NVCC (`pip install \
                 nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl` has one) and run \
                 scripts/rebuild-ptx.sh, or restore csrc"
            ));
        }
        (Some(toolkit), true, _) => Some(toolkit),
        (Some(toolkit), false, Some(first)) => {
            println!(
                "cargo:warning={PREBUILT} is stale ({first}): run scripts/rebuild-ptx.sh before committing"
            );
            Some(toolkit)
        }
        (_, false, None) => None,
    };

    let mut table = String::from("&[\n");
    let mut made = Vec::new();
    for source in sources.kernels() {
        let name = source
            .with_extension("")
            .strip_prefix(SOURCES)
            .expect("scanned below csrc")
            .to_str()
            .expect("kernel file names are ASCII")
            .to_owned();
        let stem = directory.join(name.replace('/', "_"));
        let text = match (source.extension().is_some_and(|ext| ext == "ptx"), compile) {
            (true, _) => read(source)?,
            (false, Some(toolkit)) => {
                let text = toolkit.compile(source, &stem)?;
                made.push((prebuilt_path(&name), text.clone()));
                text
            }
            (false, None) => read(&prebuilt_path(&name))?,
        };
        let ptx = stem.with_extension("ptx");
        let changed = write_if_changed(&ptx, text.as_bytes())?;
        let terminated = stem.with_extension("ptx.nul");
        write_if_changed(&terminated, &[text.as_bytes(), b"\0"].concat())?;
        let fatbin = stem.with_extension("fatbin");
        let mut packed = "None".to_owned();
        if let Some(toolkit) = &toolkit {
            let fresh = !changed && fatbin.is_file();
            if fresh || toolkit.pack(&ptx, &fatbin)? {
                packed = format!("Some(include_bytes!({fatbin:?}))");
            }
        }
        writeln!(
            table,
            "    Image {{ name: {name:?}, ptx: include_bytes!({terminated:?}), fatbin: {packed} }},"
        )
        .expect("writing to a String");
    }
    table.push_str("]\n");
    write_if_changed(&out.join("images.rs"), table.as_bytes())?;
    if update {
        sources.write_prebuilt(&made)?;
    }
    Ok(())
}

/// Every file below `csrc` that decides what the kernels are, with its hash.
struct Sources {
    hashes: BTreeMap<PathBuf, String>,
}

impl Sources {
    fn scan() -> Result<Sources, String> {
        // A directory stands for all below it: new files are noticed too.
        println!("cargo:rerun-if-changed={SOURCES}");
        let mut hashes = BTreeMap::new();
        let mut pending = vec![PathBuf::from(SOURCES)];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory).map_err(|error| describe(&directory, error))? {
                let path = entry.map_err(|error| describe(&directory, error))?.path();
                if path.is_dir() {
                    if path != Path::new(PREBUILT) {
                        pending.push(path);
                    }
                } else if matches!(
                    path.extension().and_then(|ext| ext.to_str()),
                    Some("cu" | "cuh" | "ptx")
                ) {
                    let hash = sha256(&path)?;
                    hashes.insert(path, hash);
                }
            }
        }
        Ok(Sources { hashes })
    }

    /// The files that become images, in a fixed order.
    fn kernels(&self) -> impl Iterator<Item = &Path> {
        self.hashes
            .keys()
            .filter(|path| path.extension().is_some_and(|ext| ext != "cuh"))
            .map(PathBuf::as_path)
    }

    /// What the manifest says differently, one sentence each; empty when `csrc/prebuilt` may be used as it is.
    fn stale(&self) -> Result<Vec<String>, String> {
        let Ok(manifest) = fs::read_to_string(MANIFEST) else {
            return Ok(vec![format!("{MANIFEST} is missing")]);
        };
        let mut listed = BTreeMap::new();
        for line in manifest.lines().filter(|line| !line.starts_with('#')) {
            let (hash, path) = line.split_once("  ").ok_or_else(|| {
                format!("{MANIFEST}: {line:?} is not `sha256  path`: restore the file")
            })?;
            listed.insert(PathBuf::from(path), hash.to_owned());
        }
        let mut found = self.hashes.clone();
        for path in listed
            .keys()
            .filter(|path| path.starts_with(PREBUILT) && path.is_file())
        {
            found.insert(path.clone(), sha256(path)?);
        }
        let mut stale = Vec::new();
        for (path, hash) in &listed {
            match found.get(path) {
                None => stale.push(format!("{} is gone", path.display())),
                Some(other) if other != hash => {
                    stale.push(format!("{} has changed", path.display()))
                }
                Some(_) => {}
            }
        }
        stale.extend(
            self.hashes
                .keys()
                .filter(|path| !listed.contains_key(*path))
                .map(|path| format!("{} is new", path.display())),
        );
        Ok(stale)
    }

    /// Replaces `csrc/prebuilt` by `made` and the manifest that goes with it.
    fn write_prebuilt(&self, made: &[(PathBuf, String)]) -> Result<(), String> {
        let prebuilt = Path::new(PREBUILT);
        if prebuilt.is_dir() {
            fs::remove_dir_all(prebuilt).map_err(|error| describe(prebuilt, error))?;
        }
        let mut listed = self.hashes.clone();
        for (path, text) in made {
            let parent = path.parent().expect("prebuilt files lie in a directory");
            fs::create_dir_all(parent).map_err(|error| describe(parent, error))?;
            fs::write(path, text).map_err(|error| describe(path, error))?;
            listed.insert(path.clone(), sha256(path)?);
        }
        let mut manifest = String::from(
            "# sha256 of every kernel source and of the PTX made from it. Written by scripts/rebuild-ptx.sh.\n",
        );
        for (path, hash) in listed {
            writeln!(manifest, "{hash}  {}", path.display()).expect("writing to a String");
        }
        fs::write(MANIFEST, manifest).map_err(|error| describe(Path::new(MANIFEST), error))
    }
}

fn prebuilt_path(name: &str) -> PathBuf {
    Path::new(PREBUILT).join(name).with_extension("ptx")
}

fn sha256(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| describe(path, error))?;
    Ok(Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| describe(path, error))
}

/// Leaves an equal file alone, so that nothing downstream is rebuilt for it; says whether it wrote.
fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<bool, String> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    fs::write(path, bytes).map_err(|error| describe(path, error))?;
    Ok(true)
}

fn describe(path: &Path, error: std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
