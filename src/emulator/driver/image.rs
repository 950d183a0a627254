//! Module images: which PTX, if any, a device can take from them.
//!
//! `cuModuleLoadData` is given no length. PTX text ends with a NUL; a fatbin says in its header how
//! long it is. A fatbin is a header (magic, version, header bytes, payload bytes) and entries, each
//! with a header (kind, version, header bytes, payload bytes, ..., architecture) before its payload.

use std::io::Read;

use super::failure::Failure;
use crate::driver::CuResult;

const FATBIN_MAGIC: u32 = 0xBA55_ED50;
const FATBIN_WRAPPER_MAGIC: u32 = 0x4662_43B1;
const ELF_MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");
const KIND_PTX: u16 = 1;
/// Offset of the architecture in an entry's header.
const ENTRY_ARCH: usize = 28;
/// Bytes of an entry's header that are read here.
const ENTRY_BYTES: usize = 32;
/// Bytes of an entry's header that tells of compression.
const LONG_ENTRY_BYTES: usize = 64;
/// Offsets in it: bytes of the compressed payload, flags, bytes of the text.
const ENTRY_COMPRESSED_BYTES: usize = 16;
const ENTRY_FLAGS: usize = 40;
const ENTRY_TEXT_BYTES: usize = 56;
/// The payload is one LZ4 block (`nvcc --compress-mode=speed`, and all before CUDA 12.8).
const FLAG_LZ4: u64 = 0x2000;
/// The payload is a zstd frame (`nvcc --compress-mode=balance` and `size`).
const FLAG_ZSTD: u64 = 0x8000;
/// PTX text beyond this is taken for garbage rather than unpacked.
const TEXT_LIMIT_BYTES: u64 = 1 << 30;
/// A fatbin beyond this is taken for garbage rather than read.
const FATBIN_LIMIT_BYTES: u64 = 4 << 30;

/// PTX text that a device can take, and the size of the whole image.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) ptx: String,
    pub(super) bytes: usize,
}

/// Bytes of an image, the NUL of text included: images come without their length.
///
/// # Safety
/// As for [`read`].
unsafe fn length(image: *const u8) -> Result<usize, Failure> {
    // SAFETY: forwarded from the caller.
    match unsafe { magic_of(image) } {
        FATBIN_MAGIC => {
            // SAFETY: a fatbin begins with a header of 16 bytes.
            let header = unsafe { std::slice::from_raw_parts(image, 16) };
            Ok(fatbin_bytes(header)?)
        }
        ELF_MAGIC => Err(cubin()),
        // SAFETY: any other image is NUL-terminated text.
        _ => Ok(unsafe { std::ffi::CStr::from_ptr(image.cast()) }.count_bytes() + 1),
    }
}

/// Copies an image, so that it outlives the call.
///
/// # Safety
/// As for [`read`].
pub(super) unsafe fn copy(image: *const u8) -> Result<Vec<u8>, Failure> {
    if image.is_null() {
        return Err(Failure::null("the image"));
    }
    // SAFETY: forwarded from the caller.
    if unsafe { magic_of(image) } == FATBIN_WRAPPER_MAGIC {
        // SAFETY: a wrapper is magic, version (4 bytes each) and the fatbin's address.
        let inner = unsafe { image.add(8).cast::<*const u8>().read_unaligned() };
        // SAFETY: a wrapper's address leads to a whole fatbin.
        return unsafe { copy(inner) };
    }
    // SAFETY: forwarded from the caller.
    let bytes = unsafe { length(image) }?;
    // SAFETY: the image is this long.
    Ok(unsafe { std::slice::from_raw_parts(image, bytes) }.to_vec())
}

/// Refuses bytes that are shorter than the image they begin: what comes from a file, or with a length. Bytes
/// that are text end with a NUL.
pub(super) fn check_length(bytes: &[u8]) -> Result<(), Failure> {
    let damaged = |what| Failure::new(CuResult::INVALID_IMAGE, what);
    match bytes.first_chunk().map(|magic| u32::from_le_bytes(*magic)) {
        Some(FATBIN_WRAPPER_MAGIC) => Err(damaged("a fatbin's wrapper cannot stand in a file")),
        Some(FATBIN_MAGIC) => {
            let header = bytes
                .get(..16)
                .ok_or_else(|| damaged("the fatbin ends in its header"))?;
            if fatbin_bytes(header)? > bytes.len() {
                return Err(damaged("the fatbin is cut short"));
            }
            Ok(())
        }
        Some(ELF_MAGIC) => Err(cubin()),
        _ if bytes.contains(&0) => Ok(()),
        _ => Err(damaged("the text does not end")),
    }
}

/// True where bytes begin as a fatbin does.
pub(super) fn is_fatbin(bytes: &[u8]) -> bool {
    bytes.starts_with(&FATBIN_MAGIC.to_le_bytes())
}

/// True for NVIDIA's device run time library, an archive of machine code.
pub(super) fn is_device_runtime(bytes: &[u8]) -> bool {
    // An archive's first members are a symbol table and the names.
    let begin = &bytes[..bytes.len().min(4096)];
    bytes.starts_with(b"!<arch>")
        && begin
            .windows(b"cuda_device_runtime".len())
            .any(|name| name == b"cuda_device_runtime")
}

/// Bytes of a fatbin by its header, which is 16 bytes.
fn fatbin_bytes(header: &[u8]) -> Result<usize, Failure> {
    let header_bytes = usize::from(u16_at(header, 6));
    let payload_bytes = u64_at(header, 8);
    if u32_at(header, 0) != FATBIN_MAGIC || payload_bytes > FATBIN_LIMIT_BYTES || header_bytes < 16
    {
        return Err(Failure::new(
            CuResult::INVALID_IMAGE,
            "the fatbin's header is damaged",
        ));
    }
    Ok(header_bytes + payload_bytes as usize)
}

fn cubin() -> Failure {
    Failure::new(
        CuResult::NO_BINARY_FOR_GPU,
        "the image is a cubin: the emulator runs PTX only",
    )
}

/// Finds the PTX for a compute capability in an image.
///
/// # Safety
/// `image` must lead to NUL-terminated text, or to a whole fatbin, fatbin wrapper or cubin.
pub(super) unsafe fn read(image: *const u8, capability: (u32, u32)) -> Result<Image, Failure> {
    if image.is_null() {
        return Err(Failure::null("the image"));
    }
    // SAFETY: forwarded from the caller.
    let magic = unsafe { magic_of(image) };
    match magic {
        // SAFETY: forwarded from the caller; the magic says that it is a fatbin.
        FATBIN_MAGIC => unsafe { read_fatbin(image, capability) },
        FATBIN_WRAPPER_MAGIC => {
            // SAFETY: a wrapper is magic, version (4 bytes each) and the fatbin's address.
            let inner = unsafe { image.add(8).cast::<*const u8>().read_unaligned() };
            // SAFETY: a wrapper's address leads to a whole fatbin.
            unsafe { read_fatbin(inner, capability) }
        }
        ELF_MAGIC => Err(cubin()),
        _ => {
            // SAFETY: any other image is NUL-terminated text.
            let text = unsafe { std::ffi::CStr::from_ptr(image.cast()) };
            let ptx = std::str::from_utf8(text.to_bytes())
                .map_err(|_| {
                    Failure::new(
                        CuResult::INVALID_IMAGE,
                        "the image is neither PTX text nor a fatbin",
                    )
                })?
                .to_owned();
            accept(&ptx, capability)?;
            let bytes = ptx.len();
            Ok(Image { ptx, bytes })
        }
    }
}

/// The image's first four bytes; text shorter than that has no magic.
///
/// # Safety
/// As for [`read`].
unsafe fn magic_of(image: *const u8) -> u32 {
    let mut magic = [0u8; 4];
    for (index, byte) in magic.iter_mut().enumerate() {
        // SAFETY: no byte after a NUL is read, so text is not left; binary images are longer.
        *byte = unsafe { image.add(index).read() };
        if *byte == 0 {
            break;
        }
    }
    u32::from_le_bytes(magic)
}

/// # Safety
/// `image` must lead to a whole fatbin.
unsafe fn read_fatbin(image: *const u8, capability: (u32, u32)) -> Result<Image, Failure> {
    if image.is_null() {
        return Err(Failure::null("the fatbin"));
    }
    // SAFETY: a fatbin begins with a header of 16 bytes.
    let header = unsafe { std::slice::from_raw_parts(image, 16) };
    let bytes = fatbin_bytes(header)?;
    let header_bytes = usize::from(u16_at(header, 6));
    // SAFETY: the header says that the fatbin is this long.
    let fatbin = unsafe { std::slice::from_raw_parts(image, bytes) };
    let ptx = choose(&fatbin[header_bytes..], capability)?;
    Ok(Image { ptx, bytes })
}

/// The PTX entry of the highest architecture that the device can take.
fn choose(mut entries: &[u8], capability: (u32, u32)) -> Result<String, Failure> {
    let mut best: Option<(u32, String)> = None;
    let mut refusal = None;
    while entries.len() >= ENTRY_BYTES {
        let header_bytes = u32_at(entries, 4) as usize;
        let payload_bytes = u64_at(entries, 8) as usize;
        let end = header_bytes.saturating_add(payload_bytes);
        if header_bytes < ENTRY_BYTES || end > entries.len() {
            return Err(Failure::new(
                CuResult::INVALID_IMAGE,
                "an entry of the fatbin runs past its end",
            ));
        }
        let arch = u32_at(entries, ENTRY_ARCH);
        if u16_at(entries, 0) == KIND_PTX {
            match text_of(&entries[..header_bytes], &entries[header_bytes..end]) {
                Ok(text) => match accept(&text, capability) {
                    Ok(()) if best.as_ref().is_none_or(|(other, _)| arch > *other) => {
                        best = Some((arch, text));
                    }
                    Ok(()) => {}
                    Err(failure) => refusal = Some(failure),
                },
                Err(reason) => {
                    refusal = Some(Failure::new(
                        CuResult::INVALID_IMAGE,
                        format!("PTX of the fatbin cannot be read: {reason}"),
                    ));
                }
            }
        }
        entries = &entries[end..];
    }
    match best {
        Some((_, text)) => Ok(text),
        None => Err(refusal.unwrap_or_else(|| {
            Failure::new(
                CuResult::NO_BINARY_FOR_GPU,
                "the fatbin holds no PTX: the emulator cannot run machine code",
            )
        })),
    }
}

/// An entry's payload as PTX text: plain, or compressed as its flags say.
fn text_of(header: &[u8], payload: &[u8]) -> Result<String, String> {
    let (flags, compressed_bytes, text_bytes) = if header.len() >= LONG_ENTRY_BYTES {
        let compressed = u32_at(header, ENTRY_COMPRESSED_BYTES) as usize;
        (
            u64_at(header, ENTRY_FLAGS),
            compressed,
            u64_at(header, ENTRY_TEXT_BYTES),
        )
    } else {
        (0, 0, 0)
    };
    let packed = flags & (FLAG_LZ4 | FLAG_ZSTD);
    let text = if packed == 0 {
        payload.to_vec()
    } else {
        let compressed = payload
            .get(..compressed_bytes)
            .ok_or("it is shorter than its header says")?;
        if text_bytes > TEXT_LIMIT_BYTES {
            return Err(format!("its text would have {text_bytes} bytes"));
        }
        unpack(packed, compressed, text_bytes as usize)?
    };
    let end = text
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1);
    let text = String::from_utf8(text[..end].to_vec()).map_err(|_| "it is no text".to_owned())?;
    if text.contains(".version") {
        Ok(text)
    } else {
        Err("it does not look like PTX".to_owned())
    }
}

/// Decompresses `bytes` of text: a bare LZ4 block, or a zstd frame.
fn unpack(packed: u64, compressed: &[u8], bytes: usize) -> Result<Vec<u8>, String> {
    if packed & FLAG_LZ4 != 0 {
        return lz4_flex::block::decompress(compressed, bytes).map_err(|error| error.to_string());
    }
    let frame =
        ruzstd::decoding::StreamingDecoder::new(compressed).map_err(|error| error.to_string())?;
    let mut text = Vec::with_capacity(bytes);
    // One byte more than there should be, so that a frame that goes on is noticed.
    frame
        .take(bytes as u64 + 1)
        .read_to_end(&mut text)
        .map_err(|error| error.to_string())?;
    if text.len() == bytes {
        Ok(text)
    } else {
        Err("it has another size than its header says".to_owned())
    }
}

/// Refuses PTX whose `.target` the device does not have.
fn accept(ptx: &str, capability: (u32, u32)) -> Result<(), Failure> {
    let Some(target) = ptx.lines().find_map(|line| {
        let rest = line.trim().strip_prefix(".target")?;
        rest.split([',', ' ', '\t'])
            .find_map(|word| word.trim().strip_prefix("sm_"))
    }) else {
        // Not for this function to say: the parser names the line.
        return Ok(());
    };
    let digits = target.trim_end_matches(|c: char| !c.is_ascii_digit());
    let Ok(wanted) = digits.parse::<u32>() else {
        return Ok(());
    };
    let (major, minor) = capability;
    let have = major * 10 + minor;
    let suffix = &target[digits.len()..];
    let runs = match suffix {
        "" => wanted <= have,
        // Architecture-specific code runs on that architecture alone, family code within its family.
        "f" => wanted <= have && wanted / 10 == have / 10,
        _ => wanted == have,
    };
    if runs {
        return Ok(());
    }
    Err(Failure::new(
        CuResult::INVALID_PTX,
        format!("the PTX is for sm_{target}, the device is sm_{have}"),
    ))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SM_90: (u32, u32) = (9, 0);

    /// A fatbin in nvcc's layout with these entries: kind, architecture, payload.
    fn fatbin(entries: &[(u16, u32, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, arch, payload) in entries {
            let mut header = vec![0u8; 64];
            header[0..2].copy_from_slice(&kind.to_le_bytes());
            header[4..8].copy_from_slice(&64u32.to_le_bytes());
            let padded = payload.len().next_multiple_of(8);
            header[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
            header[28..32].copy_from_slice(&arch.to_le_bytes());
            body.extend_from_slice(&header);
            body.extend_from_slice(payload);
            body.resize(body.len() + padded - payload.len(), 0);
        }
        let mut image = Vec::new();
        image.extend_from_slice(&FATBIN_MAGIC.to_le_bytes());
        image.extend_from_slice(&1u16.to_le_bytes());
        image.extend_from_slice(&16u16.to_le_bytes());
        image.extend_from_slice(&(body.len() as u64).to_le_bytes());
        image.extend_from_slice(&body);
        image
    }

    fn load(image: &[u8]) -> Result<Image, Failure> {
        // SAFETY: every image of these tests is a whole fatbin or NUL-terminated text.
        unsafe { read(image.as_ptr(), SM_90) }
    }

    #[test]
    fn the_highest_ptx_a_device_can_take_is_chosen() {
        let image = fatbin(&[
            (1, 80, b".version 8.0\n.target sm_80\n// eighty"),
            (2, 90, b"\x7fELF machine code"),
            (1, 90, b".version 8.0\n.target sm_90\n// ninety"),
            (1, 100, b".version 8.6\n.target sm_100\n// hundred"),
        ]);
        let chosen = load(&image).unwrap();
        assert!(chosen.ptx.ends_with("// ninety"), "{}", chosen.ptx);
        assert_eq!(chosen.bytes, image.len());
    }

    #[test]
    fn machine_code_alone_and_damaged_ptx_are_refused_with_the_reason() {
        let cases: [(Vec<u8>, &str, CuResult); 3] = [
            (
                fatbin(&[(2, 90, b"\x7fELF code")]),
                "holds no PTX",
                CuResult::NO_BINARY_FOR_GPU,
            ),
            (
                fatbin(&[(1, 80, b"\x28\xb5\x2f\xfd\x60\x79")]),
                "no text",
                CuResult::INVALID_IMAGE,
            ),
            (
                b"\x7fELF\x02\x01\x01\0".to_vec(),
                "is a cubin",
                CuResult::NO_BINARY_FOR_GPU,
            ),
        ];
        for (image, reason, code) in cases {
            let failure = load(&image).unwrap_err();
            assert_eq!(failure.code, code);
            let detail = failure.detail.unwrap();
            assert!(detail.contains(reason), "{detail}");
        }
    }

    /// Fatbins of one kernel, as nvcc 13.0 writes them with `--compress-mode=`.
    #[test]
    fn ptx_that_nvcc_compressed_is_read() {
        for image in [
            &include_bytes!("../../../tests/data/fatbin/speed.fatbin")[..],
            &include_bytes!("../../../tests/data/fatbin/balance.fatbin")[..],
            &include_bytes!("../../../tests/data/fatbin/size.fatbin")[..],
            &include_bytes!("../../../tests/data/fatbin/none.fatbin")[..],
        ] {
            let text = load(image).unwrap().ptx;
            assert!(text.contains(".visible .entry scale("), "{text}");
            // Every byte of what follows the header may be wrong without harm.
            for at in 16..image.len() {
                let mut damaged = image.to_vec();
                damaged[at] ^= 0x55;
                if check_length(&damaged).is_ok() {
                    let _ = load(&damaged);
                }
            }
        }
    }

    #[test]
    fn targets_follow_nvidias_rules() {
        let cases = [
            ("sm_80", true),
            ("sm_90", true),
            ("sm_90a", true),
            ("sm_80a", false),
            ("sm_100", false),
            ("sm_100f", false),
        ];
        for (target, runs) in cases {
            let ptx = format!(".version 8.0\n.target {target}\n");
            assert_eq!(accept(&ptx, SM_90).is_ok(), runs, "{target}");
        }
    }
}
