//! The slabs of a pool that have free pages, by how many.
//!
//! A ring holds them in descending order of free pages, hence the fullest last, and `ends[c]` is where those with `c`
//! free pages end. A slab whose count changes by one moves over one boundary: it changes places with the slab at the
//! boundary, and the boundary moves by one. A full slab drops off the ring's tail and an empty one off its head. Taking a page
//! touches the ring nowhere but at that boundary, because the fullest slab already stands there.

/// A ring of slab numbers; places are absolute and taken modulo its length.
#[derive(Clone, Debug)]
pub(super) struct OpenSlabs {
    ring: Vec<u32>,
    /// Where each slab stands.
    positions: Vec<u32>,
    /// `ends[c]`: one place after the last slab with `c` free pages; those with more stand before. `ends[1]` is the
    /// tail and `ends[pages_per_slab]` the head. `ends[0]` is not used.
    ends: Vec<u32>,
}

impl OpenSlabs {
    /// An empty ring for at most `slabs` slabs of `pages_per_slab` pages.
    pub fn new(pages_per_slab: u32, slabs: u32) -> Self {
        Self {
            ring: vec![0; (slabs as usize + 1).next_power_of_two()],
            positions: vec![0; slabs as usize],
            ends: vec![0; pages_per_slab as usize + 1],
        }
    }

    fn head(&self) -> u32 {
        self.ends[self.ends.len() - 1]
    }

    fn tail(&self) -> u32 {
        self.ends[1]
    }

    /// Slabs with free pages.
    pub fn len(&self) -> usize {
        self.tail().wrapping_sub(self.head()) as usize
    }

    const fn place(&self, position: u32) -> usize {
        position as usize & (self.ring.len() - 1)
    }

    /// The slab with the fewest free pages.
    #[inline]
    pub fn fullest(&self) -> Option<u32> {
        let tail = self.tail();
        (tail != self.head()).then(|| self.ring[self.place(tail.wrapping_sub(1))])
    }

    /// Every slab, those with the most free pages first.
    pub fn sparsest_first(&self) -> impl Iterator<Item = u32> + '_ {
        let head = self.head();
        (0..self.len() as u32).map(move |step| self.ring[self.place(head.wrapping_add(step))])
    }

    /// Takes in a slab whose pages are all free. It must become the fullest, so the ring must be empty; a page must be taken
    /// from it at once.
    pub fn adopt(&mut self, slab: u32) {
        debug_assert_eq!(self.len(), 0);
        // Nowhere yet: `lower` from `pages_per_slab` puts the head before it.
        let position = self.head().wrapping_sub(1);
        let place = self.place(position);
        self.ring[place] = slab;
        self.positions[slab as usize] = position;
    }

    /// The fullest slab, which had `free_pages` free pages, has one less.
    #[inline]
    pub fn lower(&mut self, free_pages: u32) {
        let end = &mut self.ends[free_pages as usize];
        *end = end.wrapping_sub(1);
    }

    /// A slab that had `free_pages` free pages, 0 for one that was not here, has one more.
    #[inline]
    pub fn raise(&mut self, slab: u32, free_pages: u32) {
        let boundary = self.ends[free_pages as usize + 1];
        self.ends[free_pages as usize + 1] = boundary.wrapping_add(1);
        let to = self.place(boundary);
        if free_pages > 0 {
            let other = self.ring[to];
            if other == slab {
                return;
            }
            let position = self.positions[slab as usize];
            let from = self.place(position);
            self.ring[from] = other;
            self.positions[other as usize] = position;
        }
        self.ring[to] = slab;
        self.positions[slab as usize] = boundary;
    }

    /// Makes room for `slabs` slabs.
    pub fn reserve(&mut self, slabs: u32) {
        self.positions
            .resize((slabs as usize).max(self.positions.len()), 0);
        let length = (slabs as usize + 1).next_power_of_two();
        if length <= self.ring.len() {
            return;
        }
        let open = self.sparsest_first().collect::<Vec<_>>();
        let head = self.head();
        self.ring = vec![0; length];
        for (step, slab) in (0..).zip(open) {
            let position = head.wrapping_add(step);
            let place = self.place(position);
            self.ring[place] = slab;
            self.positions[slab as usize] = position;
        }
    }

    /// Whether each slab stands where it belongs, by its pool and free pages.
    pub fn audit(&self, pool: u32, record: impl Fn(u32) -> (u32, u32)) -> Result<(), String> {
        for count in 1..self.ends.len() - 1 {
            let (begin, end) = (self.ends[count + 1], self.ends[count]);
            if end.wrapping_sub(begin) as usize > self.len() {
                return Err(format!(
                    "the slabs of pool {pool} with {count} free pages overlap others"
                ));
            }
            for step in 0..end.wrapping_sub(begin) {
                let position = begin.wrapping_add(step);
                let slab = self.ring[self.place(position)];
                if record(slab) != (pool, count as u32) || self.positions[slab as usize] != position
                {
                    return Err(format!(
                        "slab {slab} stands in the wrong place of pool {pool}"
                    ));
                }
            }
        }
        Ok(())
    }
}
