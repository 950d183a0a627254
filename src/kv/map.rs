//! A device's memory drawn to scale, before and after the carve: numbers in, an SVG document out.

use std::fmt::Write;

use super::carve::Carve;
use super::geometry::Geometry;
use crate::arena::{Grouped, HumanBytes, Ledger};

/// Who holds a piece of memory; decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// Other processes, context, modules, weights, workspace, graphs.
    Taken,
    /// Kept free on purpose.
    Headroom,
    /// A KV pool.
    Pool,
    /// In no pool: the tail below one slab.
    Tail,
    /// Not given to anybody yet.
    Free,
}

impl Holder {
    /// Fill colours; pools take turns.
    const fn colour(self, turn: usize) -> &'static str {
        const TAKEN: [&str; 3] = ["#8d99ae", "#a5b0c2", "#bcc5d3"];
        const POOLS: [&str; 5] = ["#2a6f97", "#61a5c2", "#468faf", "#89c2d9", "#014f86"];
        match self {
            Self::Taken => TAKEN[turn % TAKEN.len()],
            Self::Headroom => "#e9c46a",
            Self::Pool => POOLS[turn % POOLS.len()],
            Self::Tail => "#e76f51",
            Self::Free => "#f4f6f8",
        }
    }
}

/// A run of memory with one holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it is.
    pub label: String,
    /// Bytes.
    pub bytes: u64,
    /// Who holds it.
    pub holder: Holder,
}

impl Piece {
    fn new(label: impl Into<String>, bytes: u64, holder: Holder) -> Self {
        Self {
            label: label.into(),
            bytes,
            holder,
        }
    }
}

/// The same memory before and after the carve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryMap {
    /// Heading of the drawing.
    pub title: String,
    /// Pieces before the carve, from the bottom up.
    pub before: Vec<Piece>,
    /// Pieces after it, from the bottom up.
    pub after: Vec<Piece>,
}

impl MemoryMap {
    /// The map of a running engine, from its ledger.
    #[must_use]
    pub fn of_ledger(title: impl Into<String>, ledger: &Ledger) -> Self {
        let taken = [
            ("foreign", ledger.foreign_bytes),
            ("context", ledger.context_bytes),
            ("modules", ledger.modules_bytes),
            ("weights", ledger.weights_bytes),
            ("workspace", ledger.workspace_bytes),
            ("graphs", ledger.graphs_bytes),
        ]
        .map(|(label, bytes)| Piece::new(label, bytes, Holder::Taken));
        let pools = ledger
            .kv
            .iter()
            .map(|share| Piece::new(format!("KV {}", share.group), share.bytes, Holder::Pool));
        let mut after = taken.to_vec();
        after.extend(pools);
        after.push(Piece::new("tail", ledger.tail_bytes, Holder::Tail));
        after.push(Piece::new(
            "headroom",
            ledger.headroom_bytes,
            Holder::Headroom,
        ));
        Self::new(title, &taken, after, ledger.total_bytes)
    }

    /// The map of a plan: `taken_bytes` of the device held by whatever is not KV, the carve, pools split for sequences of
    /// `reference_tokens`.
    #[must_use]
    pub fn of_carve(
        title: impl Into<String>,
        geometry: &Geometry,
        carve: &Carve,
        reference_tokens: u32,
        taken_bytes: u64,
    ) -> Self {
        let taken = [Piece::new("all but KV", taken_bytes, Holder::Taken)];
        let slab_bytes = carve.layout().slab_bytes;
        let shares = geometry
            .groups
            .iter()
            .zip(carve.split(geometry, reference_tokens));
        let pools = shares.map(|(group, slabs)| {
            let label = format!("KV {}", group.name);
            Piece::new(label, slabs.saturating_mul(slab_bytes), Holder::Pool)
        });
        let mut after = taken.to_vec();
        after.extend(pools);
        after.push(Piece::new("tail", carve.tail_bytes, Holder::Tail));
        let total = taken_bytes.saturating_add(carve.carved_bytes);
        Self::new(title, &taken, after, total)
    }

    /// What is missing from the total, in either column, is free.
    fn new(title: impl Into<String>, taken: &[Piece], after: Vec<Piece>, total: u64) -> Self {
        let filled = |mut pieces: Vec<Piece>| {
            let sum = pieces.iter().map(|piece| piece.bytes).sum::<u64>();
            pieces.push(Piece::new("free", total.saturating_sub(sum), Holder::Free));
            pieces.retain(|piece| piece.bytes > 0);
            pieces
        };
        Self {
            title: title.into(),
            before: filled(taken.to_vec()),
            after: filled(after),
        }
    }

    /// The drawing: two columns of equal height, each piece as high as its share of the larger column's bytes.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let sum = |pieces: &[Piece]| pieces.iter().map(|piece| piece.bytes).sum::<u64>();
        let total = sum(&self.before).max(sum(&self.after));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" font-family=\"sans-serif\" \
             font-size=\"{TEXT}\">\n<title>{}</title>\n<rect width=\"{WIDTH}\" height=\"{}\" fill=\"#ffffff\"/>\n",
            TOP + HEIGHT + BOTTOM,
            escaped(&self.title),
            TOP + HEIGHT + BOTTOM
        );
        text(
            &mut svg,
            LEFT,
            22.0,
            &format!("{}, {}", self.title, HumanBytes(total)),
        );
        let columns = [
            ("before the carve", &self.before),
            ("after the carve", &self.after),
        ];
        for (place, (heading, pieces)) in columns.into_iter().enumerate() {
            let x = LEFT + place as f64 * (WIDTH - LEFT) / 2.0;
            text(&mut svg, x, 46.0, heading);
            column(&mut svg, x, pieces, total);
        }
        svg.push_str("</svg>\n");
        svg
    }
}

const WIDTH: f64 = 860.0;
const LEFT: f64 = 20.0;
const TOP: f64 = 56.0;
const HEIGHT: f64 = 640.0;
const BOTTOM: f64 = 20.0;
const COLUMN: f64 = 120.0;
const TEXT: f64 = 12.0;

/// Distance between two labels.
const LINE: f64 = 15.0;

fn column(svg: &mut String, x: f64, pieces: &[Piece], total: u64) {
    // The bottom of the column is address 0.
    let y = |bytes: u64| TOP + HEIGHT * (1.0 - bytes as f64 / total.max(1) as f64);
    let mut from = 0_u64;
    let mut middles = Vec::with_capacity(pieces.len());
    let mut turns = [0_usize; 2];
    for piece in pieces {
        let to = from.saturating_add(piece.bytes);
        let turn = &mut turns[usize::from(piece.holder == Holder::Pool)];
        let colour = piece.holder.colour(*turn);
        *turn += 1;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.3}\" width=\"{COLUMN}\" height=\"{:.3}\" fill=\"{colour}\" stroke=\"#2b2d42\" \
             stroke-width=\"0.4\"><title>{}: {} bytes</title></rect>",
            y(to),
            y(from) - y(to),
            escaped(&piece.label),
            Grouped(piece.bytes)
        );
        middles.push((y(from) + y(to)) / 2.0);
        from = to;
    }
    // Labels go beside their pieces, moved up just as far as the one below demands, then down from the top edge.
    let mut labels = middles.clone();
    for place in 1..labels.len() {
        labels[place] = labels[place].min(labels[place - 1] - LINE);
    }
    let mut ceiling = TOP;
    for label in labels.iter_mut().rev() {
        *label = label.max(ceiling);
        ceiling = *label + LINE;
    }
    for ((piece, middle), label) in pieces.iter().zip(middles).zip(labels) {
        let edge = x + COLUMN;
        let _ = writeln!(
            svg,
            "<path d=\"M{edge:.1} {middle:.3}L{:.1} {label:.3}\" stroke=\"#2b2d42\" stroke-width=\"0.5\" fill=\"none\"/>",
            edge + 18.0
        );
        let share = 100.0 * piece.bytes as f64 / total.max(1) as f64;
        let line = format!(
            "{}  {} ({share:.1} %)",
            piece.label,
            HumanBytes(piece.bytes)
        );
        text(svg, edge + 22.0, label + TEXT / 3.0, &line);
    }
}

fn text(svg: &mut String, x: f64, y: f64, line: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.3}\">{}</text>",
        escaped(line)
    );
}

/// Text with XML's special characters replaced; control characters, which XML cannot hold, are dropped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            letter if letter.is_control() => {}
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Claims, KvShare, LedgerMeter, Stage};
    use crate::driver::MemInfo;

    const MIB: u64 = 1 << 20;

    fn ledger() -> Ledger {
        let reading = |free_mib: u64| MemInfo {
            free_bytes: free_mib * MIB,
            total_bytes: 1_000 * MIB,
        };
        let mut meter = LedgerMeter::start(reading(800), 150 * MIB);
        meter.record(Stage::Modules, reading(790));
        meter.record(Stage::Arena, reading(670));
        meter.record(Stage::Graphs, reading(640));
        let share = |group: &str, mib: u64| KvShare {
            group: group.to_owned(),
            bytes: mib * MIB,
        };
        let claims = Claims {
            weights_bytes: 100 * MIB,
            workspace_bytes: 20 * MIB,
            headroom_bytes: 64 * MIB,
            kv: vec![share("full", 370), share("a<b&\"c\"", 200)],
            tail_bytes: 6 * MIB,
            unmapped_bytes: 5 * MIB,
            grain_bytes: 2 * MIB,
            ineligible: None,
        };
        meter.finish(reading(69), claims)
    }

    /// `(y, height)` of each piece of each column, from the bottom up, by the columns' left edge.
    fn rectangles(svg: &str) -> Vec<(f64, f64, f64)> {
        let attribute = |line: &str, name: &str| {
            let rest = line.split(&format!(" {name}=\"")).nth(1)?;
            rest.split('"').next()?.parse().ok()
        };
        let lines = svg.lines().filter(|line| line.contains("<rect x="));
        lines
            .map(|line| {
                let [x, y, height] = ["x", "y", "height"].map(|name| attribute(line, name));
                (x.unwrap(), y.unwrap(), height.unwrap())
            })
            .collect()
    }

    #[test]
    fn every_piece_is_as_high_as_its_bytes() {
        let map = MemoryMap::of_ledger("emulated", &ledger());
        let total = 1_000 * MIB;
        for pieces in [&map.before, &map.after] {
            assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<u64>(), total);
        }
        assert_eq!(map.before.last().map(|piece| piece.bytes), Some(640 * MIB));
        let drawn = rectangles(&map.to_svg());
        assert_eq!(drawn.len(), map.before.len() + map.after.len());
        let pieces = map.before.iter().chain(&map.after);
        for (piece, (_, _, height)) in pieces.zip(&drawn) {
            let expected = HEIGHT * piece.bytes as f64 / total as f64;
            assert!(
                (height - expected).abs() < 0.002,
                "{} {height}",
                piece.label
            );
        }
        // Each piece stands on the one before it, and columns fill the frame.
        for column in drawn.chunk_by(|a, b| a.0 == b.0) {
            for pair in column.windows(2) {
                assert!((pair[1].1 + pair[1].2 - pair[0].1).abs() < 0.002);
            }
            assert!((column[0].1 + column[0].2 - TOP - HEIGHT).abs() < 0.002);
            assert!((column.last().unwrap().1 - TOP).abs() < 0.002);
        }
    }

    #[test]
    fn labels_do_not_cover_each_other_and_names_are_escaped() {
        let svg = MemoryMap::of_ledger("a & b", &ledger()).to_svg();
        assert!(
            svg.contains("KV a&lt;b&amp;&quot;c&quot;") && svg.contains("<title>a &amp; b</title>")
        );
        assert!(!svg.contains("a<b"));
        let label = |line: &str| {
            let rest = line.strip_prefix("<text x=\"")?;
            let (x, rest) = rest.split_once("\" y=\"")?;
            Some((
                x.parse::<f64>().ok()?,
                rest.split('"').next()?.parse::<f64>().ok()?,
            ))
        };
        let labels = svg.lines().filter_map(label).filter(|at| at.1 > 50.0);
        let labels = labels.collect::<Vec<_>>();
        for column in labels.chunk_by(|a, b| a.0 == b.0) {
            assert!(
                column
                    .windows(2)
                    .all(|pair| pair[0].1 - pair[1].1 > LINE - 0.01),
                "{column:?}"
            );
        }
        for tag in ["svg", "rect", "text", "title", "path"] {
            let opened = svg.matches(&format!("<{tag}")).count();
            let closed = svg.matches(&format!("</{tag}>")).count();
            let alone = svg
                .lines()
                .filter(|l| l.starts_with(&format!("<{tag}")) && l.ends_with("/>"));
            assert_eq!(opened, closed + alone.count(), "{tag}");
        }
    }

    #[test]
    fn nothing_and_everything_can_be_drawn() {
        let empty = MemoryMap {
            title: String::new(),
            before: vec![],
            after: vec![],
        };
        assert!(empty.to_svg().ends_with("</svg>\n"));
        let piece = |bytes| Piece::new("x", bytes, Holder::Free);
        let huge = MemoryMap {
            title: "\u{1}".to_owned(),
            before: vec![piece(u64::MAX / 2)],
            after: vec![piece(1), piece(u64::MAX / 2)],
        };
        assert!(!huge.to_svg().contains("NaN"));
    }
}
