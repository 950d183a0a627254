//! The kernel images that the build script embedded.

use crate::driver::Driver;

/// One compiled source file of `csrc/`.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// The source without its extension, such as `attention/decode`.
    pub name: &'static str,
    /// PTX text for compute capability 8.0 and newer, ending with a NUL.
    pub ptx: &'static [u8],
    /// The same kernels assembled for the architectures the build's CUDA toolkit knew, with the PTX beside
    /// them for newer ones; absent when the build had no toolkit.
    pub fatbin: Option<&'static [u8]>,
}

static IMAGES: &[Image] = include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// Every image, in a fixed order.
#[must_use]
pub fn images() -> &'static [Image] {
    IMAGES
}

impl Image {
    /// The bytes to give to [`Module::load`](crate::driver::Module::load) on `driver`: PTX for the emulator, which runs nothing
    /// else, the fatbin elsewhere, and PTX for the driver to compile where there is no fatbin.
    #[must_use]
    pub fn bytes_for(&self, driver: &Driver) -> &'static [u8] {
        match self.fatbin {
            Some(fatbin) if !driver.is_emulator() => fatbin,
            _ => self.ptx,
        }
    }

    /// Names of the kernels in it, as the PTX declares them.
    pub fn kernel_names(&self) -> impl Iterator<Item = &'static str> + use<> {
        kernel_names(self.ptx)
    }
}

/// Names of the kernels that a PTX text declares; a NUL may end the text.
pub(super) fn kernel_names(ptx: &[u8]) -> impl Iterator<Item = &str> {
    let text = ptx.strip_suffix(&[0]).unwrap_or(ptx);
    str::from_utf8(text)
        .unwrap_or_default()
        .lines()
        .filter_map(|line| {
            let after = line.trim_start().strip_prefix(".visible .entry ")?;
            Some(after.trim_end().trim_end_matches('(').trim_end())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_text_that_ends_with_a_nul() {
        assert!(!images().is_empty());
        for image in images() {
            let (last, text) = image.ptx.split_last().expect("not empty");
            assert_eq!(*last, 0, "{}", image.name);
            assert!(!text.contains(&0), "{}", image.name);
            let text = str::from_utf8(text).expect(image.name);
            assert!(text.contains(".target sm_80"), "{}", image.name);
        }
    }

    #[test]
    fn kernel_names_are_unique_and_cover_the_entries() {
        let names: Vec<_> = images().iter().flat_map(Image::kernel_names).collect();
        let entries: usize = images()
            .iter()
            .map(|image| String::from_utf8_lossy(image.ptx).matches(".entry").count())
            .sum();
        assert_eq!(names.len(), entries);
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
        for name in [
            "embed",
            "kv_append",
            "page_copy",
            "paged_decode_bf16_d64_g8",
            "paged_prefill_bf16_d256_softcap",
        ] {
            assert!(names.contains(&name), "{name}");
        }
    }

    /// Old drivers refuse newer PTX: nothing here needs more than the ISA that came with sm_80.
    #[test]
    fn ptx_loads_on_drivers_from_cuda_11_on() {
        for image in images() {
            let text = String::from_utf8_lossy(image.ptx);
            let version = text
                .lines()
                .find_map(|line| line.strip_prefix(".version "))
                .expect(image.name);
            assert_eq!(version, "7.0", "{}", image.name);
        }
    }
}
