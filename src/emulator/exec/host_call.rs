//! Functions of the device run time that end on the host: `vprintf` and `__assertfail`.

use std::iter::Peekable;

use super::access::host_address;
use super::call::CallSite;
use super::fault::Fault;
use super::warp::{Ins, LANES, Warp};
use std::fmt::Write as _;

/// Bytes of one string that are read at most.
const TEXT_LIMIT: usize = 1 << 16;

/// An argument of a call in a lane's frame, as 64 bits.
pub(super) fn argument(warp: &Warp, lane: usize, site: &CallSite, number: usize) -> u64 {
    let Some(&(offset, bytes)) = site.arguments.get(number) else {
        return 0;
    };
    let start = u64::from(warp.frame + offset);
    let bytes = bytes.min(8);
    if start + u64::from(bytes) > u64::from(warp.local_bytes) {
        return 0;
    }
    let stack = warp
        .local
        .wrapping_add(lane * warp.local_bytes as usize + start as usize);
    let mut value = [0u8; 8];
    // SAFETY: the range was checked to lie inside of the lane's stack.
    unsafe { std::ptr::copy_nonoverlapping(stack, value.as_mut_ptr(), bytes as usize) };
    u64::from_le_bytes(value)
}

/// Writes a call's result into a lane's frame, if the call takes one of this size.
pub(super) fn put_result(warp: &mut Warp, lane: usize, site: &CallSite, value: &[u8]) {
    let Some(&(offset, size)) = site.returns.first() else {
        return;
    };
    let start = (warp.frame + offset) as usize;
    if (size as usize) < value.len() || start + value.len() > warp.local_bytes as usize {
        return;
    }
    let target = warp
        .local
        .wrapping_add(lane * warp.local_bytes as usize + start);
    // SAFETY: the range was checked to lie inside of the lane's stack.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), target, value.len()) };
}

/// Reads memory at a generic address, or stops the warp.
fn bytes<const N: usize>(
    warp: &mut Warp,
    ip: *const Ins,
    lane: usize,
    address: u64,
) -> Option<[u8; N]> {
    let mut value = [0; N];
    for (index, byte) in value.iter_mut().enumerate() {
        let at = host_address(warp, ip, lane, address.wrapping_add(index as u64), 1, false)?;
        // SAFETY: the address was checked to be readable.
        *byte = unsafe { at.read() };
    }
    Some(value)
}

/// A string that ends with a NUL, or stops the warp.
fn text(warp: &mut Warp, ip: *const Ins, lane: usize, address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < TEXT_LIMIT {
        let [byte] = bytes::<1>(warp, ip, lane, address.wrapping_add(text.len() as u64))?;
        if byte == 0 {
            break;
        }
        text.push(byte);
    }
    Some(text)
}

/// `vprintf(format, arguments)`: arguments lie one behind the other, each aligned to its size. Returns how many there were.
pub(super) fn printf(warp: &mut Warp, ip: *const Ins, site: &CallSite) -> *const Ins {
    let mask = warp.mask;
    for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
        let format = argument(warp, lane, site, 0);
        let list = argument(warp, lane, site, 1);
        let Some(format) = text(warp, ip, lane, format) else {
            return std::ptr::null();
        };
        let Some((line, count)) = print(warp, ip, lane, &format, list) else {
            return std::ptr::null();
        };
        warp.output.extend_from_slice(&line);
        put_result(warp, lane, site, &count.to_le_bytes());
    }
    ip.wrapping_add(1)
}

/// A conversion of a format string.
#[derive(Default)]
struct Conversion {
    minus: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// Bytes of an integer argument.
    bytes: usize,
}

/// A width or precision: its digits, or for `*` the `next` argument.
fn number(
    warp: &mut Warp,
    rest: &mut Peekable<impl Iterator<Item = u8>>,
    next: &mut impl FnMut(&mut Warp, u64) -> Option<u64>,
) -> Option<i64> {
    if rest.next_if_eq(&b'*').is_some() {
        return Some(next(warp, 4)? as i32 as i64);
    }
    let mut value = 0i64;
    while let Some(digit) = rest.next_if(u8::is_ascii_digit) {
        value = (10 * value + i64::from(digit - b'0')).min(4096);
    }
    Some(value)
}

/// Formats as C does; gives the text and the number of arguments.
fn print(
    warp: &mut Warp,
    ip: *const Ins,
    lane: usize,
    format: &[u8],
    list: u64,
) -> Option<(Vec<u8>, i32)> {
    let (mut out, mut count, mut offset) = (Vec::new(), 0, 0u64);
    let mut rest = format.iter().copied().peekable();
    let mut next = |warp: &mut Warp, size: u64| -> Option<u64> {
        offset = offset.next_multiple_of(size);
        let at = list.wrapping_add(offset);
        offset += size;
        count += 1;
        if size == 8 {
            bytes::<8>(warp, ip, lane, at).map(u64::from_le_bytes)
        } else {
            bytes::<4>(warp, ip, lane, at).map(|b| u32::from_le_bytes(b).into())
        }
    };
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut c = Conversion {
            bytes: 4,
            ..Conversion::default()
        };
        while let Some(&flag) = rest.peek() {
            match flag {
                b'-' => c.minus = true,
                b'+' => c.plus = true,
                b' ' => c.space = true,
                b'#' => c.alternate = true,
                b'0' => c.zero = true,
                _ => break,
            }
            rest.next();
        }
        let width = number(warp, &mut rest, &mut next)?;
        c.minus |= width < 0;
        c.width = width.unsigned_abs().min(4096) as usize;
        let mut precision = None;
        if rest.next_if_eq(&b'.').is_some() {
            precision = Some(number(warp, &mut rest, &mut next)?);
        }
        c.precision = precision.filter(|p| *p >= 0).map(|p| p.min(4096) as usize);
        while let Some(length) = rest.next_if(|b| b"hlLqjzt".contains(b)) {
            match length {
                b'h' => c.bytes = (c.bytes / 2).max(1),
                _ => c.bytes = 8,
            }
        }
        let Some(kind) = rest.next() else { break };
        let piece = match kind {
            b'%' => {
                out.push(b'%');
                continue;
            }
            b'd' | b'i' | b'u' | b'o' | b'x' | b'X' | b'p' => {
                if kind == b'p' {
                    c.bytes = 8;
                }
                let value = next(warp, if c.bytes == 8 { 8 } else { 4 })?;
                integer(&c, kind, value)
            }
            b'c' => vec![next(warp, 4)? as u8],
            b's' => {
                let address = next(warp, 8)?;
                let mut value = text(warp, ip, lane, address)?;
                value.truncate(c.precision.unwrap_or(usize::MAX));
                value
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                float(&c, kind, f64::from_bits(next(warp, 8)?))
            }
            // What C leaves undefined is printed as it stands.
            other => {
                out.extend([b'%', other]);
                continue;
            }
        };
        pad(&mut out, &c, piece, kind);
    }
    Some((out, count))
}

fn pad(out: &mut Vec<u8>, c: &Conversion, piece: Vec<u8>, kind: u8) {
    let missing = c.width.saturating_sub(piece.len());
    let integer = b"diuoxXp".contains(&kind);
    let finite = integer || piece.iter().any(u8::is_ascii_digit);
    let zeros = c.zero && !c.minus && !b"cs".contains(&kind) && finite;
    if c.minus {
        out.extend(&piece);
        out.extend(std::iter::repeat_n(b' ', missing));
    } else if zeros && !(integer && c.precision.is_some()) {
        // Zeros go between the sign or prefix and the digits.
        let mut head = usize::from(piece.first().is_some_and(|b| b"+- ".contains(b)));
        if piece[head..].starts_with(b"0x") || piece[head..].starts_with(b"0X") {
            head += 2;
        }
        out.extend(&piece[..head]);
        out.extend(std::iter::repeat_n(b'0', missing));
        out.extend(&piece[head..]);
    } else {
        out.extend(std::iter::repeat_n(b' ', missing));
        out.extend(&piece);
    }
}

fn sign(c: &Conversion, negative: bool) -> &'static str {
    match (negative, c.plus, c.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    }
}

fn integer(c: &Conversion, kind: u8, value: u64) -> Vec<u8> {
    let unused = 64 - 8 * c.bytes as u32;
    let unsigned = value << unused >> unused;
    let signed = (value << unused) as i64 >> unused;
    let (head, mut digits) = match kind {
        b'd' | b'i' => (sign(c, signed < 0), signed.unsigned_abs().to_string()),
        b'o' => (if c.alternate { "0" } else { "" }, format!("{unsigned:o}")),
        b'x' => (
            if c.alternate && unsigned != 0 {
                "0x"
            } else {
                ""
            },
            format!("{unsigned:x}"),
        ),
        b'X' => (
            if c.alternate && unsigned != 0 {
                "0X"
            } else {
                ""
            },
            format!("{unsigned:X}"),
        ),
        b'p' => ("0x", format!("{unsigned:x}")),
        _ => ("", unsigned.to_string()),
    };
    if let Some(precision) = c.precision {
        if precision == 0 && unsigned == 0 {
            digits.clear();
        }
        digits.insert_str(0, &"0".repeat(precision.saturating_sub(digits.len())));
    }
    format!("{head}{digits}").into_bytes()
}

fn float(c: &Conversion, kind: u8, value: f64) -> Vec<u8> {
    let upper = kind.is_ascii_uppercase();
    let magnitude = value.abs();
    let body = if value.is_nan() {
        "nan".into()
    } else if value.is_infinite() {
        "inf".into()
    } else {
        match kind.to_ascii_lowercase() {
            b'f' => fixed(magnitude, c.precision.unwrap_or(6), c.alternate),
            b'e' => scientific(magnitude, c.precision.unwrap_or(6), c.alternate),
            b'g' => general(c, magnitude),
            _ => hexadecimal(c, magnitude),
        }
    };
    let negative = value.is_sign_negative() && !value.is_nan();
    let text = format!("{}{body}", sign(c, negative));
    if upper { text.to_uppercase() } else { text }.into_bytes()
}

fn fixed(value: f64, precision: usize, point: bool) -> String {
    let mut text = format!("{value:.precision$}");
    if point && precision == 0 {
        text.push('.');
    }
    text
}

fn scientific(value: f64, precision: usize, point: bool) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let dot = if point && precision == 0 { "." } else { "" };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{dot}e{sign}{:02}", exponent.abs())
}

/// `%g`: whichever of `%e` and `%f` is shorter, without trailing zeros.
fn general(c: &Conversion, value: f64) -> String {
    let precision = c.precision.unwrap_or(6).max(1);
    let rounded = format!("{value:.*e}", precision - 1);
    let exponent: i32 = rounded
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    let trim = |text: String| {
        if c.alternate || !text.contains('.') {
            return text;
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= precision as i32 {
        let text = scientific(value, precision - 1, c.alternate);
        let (mantissa, rest) = text.split_once('e').unwrap_or((&text, "+00"));
        format!("{}e{rest}", trim(mantissa.to_owned()))
    } else {
        let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
        trim(fixed(value, decimals, c.alternate))
    }
}

fn hexadecimal(c: &Conversion, value: f64) -> String {
    let bits = value.to_bits();
    let (mut mantissa, exponent) = (bits & ((1 << 52) - 1), (bits >> 52) as i64);
    if value == 0.0 {
        return "0x0p+0".into();
    }
    let (mut lead, exponent) = if exponent == 0 {
        (0, -1022)
    } else {
        (1, exponent - 1023)
    };
    if let Some(precision) = c.precision.filter(|p| *p < 13) {
        let drop = 4 * (13 - precision as u32);
        let whole = (lead << 52) | mantissa;
        let half = 1u64 << (drop - 1);
        let odd = whole >> drop & 1;
        let rounded = (whole + half - 1 + odd) >> drop << drop;
        (lead, mantissa) = (rounded >> 52, rounded & ((1 << 52) - 1));
    }
    let mut digits = format!("{mantissa:013x}");
    match c.precision {
        Some(precision) if precision >= 13 => digits.push_str(&"0".repeat(precision - 13)),
        Some(precision) => digits.truncate(precision),
        None => digits.truncate(digits.trim_end_matches('0').len()),
    }
    let mut text = format!("0x{lead}");
    if !digits.is_empty() {
        text.push('.');
    }
    // Writing to a string does not fail.
    let _ = write!(text, "{digits}p{exponent:+}");
    text
}

/// `__assertfail(message, file, line, function, bytes of a character)`: says so and stops the launch.
pub(super) fn assert_fail(warp: &mut Warp, ip: *const Ins, site: &CallSite) -> *const Ins {
    let lane = warp.mask.trailing_zeros() as usize & 31;
    let part = |warp: &mut Warp, number| {
        let address = argument(warp, lane, site, number);
        let found = text(warp, ip, lane, address)?;
        Some(String::from_utf8_lossy(&found).into_owned())
    };
    let parts = (|| Some((part(warp, 0)?, part(warp, 1)?, part(warp, 3)?)))();
    let Some((condition, file, function)) = parts else {
        return std::ptr::null();
    };
    let line = argument(warp, lane, site, 2) as u32;
    let message = format!("{file}:{line}: {function}: assertion `{condition}` failed");
    warp.fail(ip, lane as u32, |site| Fault::Assertion { site, message })
}
