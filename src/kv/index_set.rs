//! A set of small integers that yields its least member: words of 64 bits under words that say which words
//! below are not empty. Every operation touches one word a level, four levels for 16 million.

/// A set of integers below a fixed bound.
#[derive(Clone, Debug)]
pub(super) struct IndexSet {
    /// `levels[0]` holds the members; bit `i` of `levels[n + 1]` says that word `i` of `levels[n]` is not zero.
    levels: Vec<Vec<u64>>,
    len: u32,
}

impl IndexSet {
    /// An empty set of integers below `bound`.
    pub fn new(bound: u32) -> Self {
        let mut levels = Vec::new();
        let mut words = bound as usize;
        loop {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels, len: 0 };
            }
        }
    }

    /// Raises the bound.
    pub fn grow(&mut self, bound: u32) {
        let mut grown = Self::new(bound);
        for (place, &word) in self.levels[0].iter().enumerate() {
            let mut bits = word;
            while bits != 0 {
                grown.insert(place as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        *self = grown;
    }

    /// Members.
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Adds `index`; it must not be a member.
    pub fn insert(&mut self, index: u32) {
        debug_assert!(!self.contains(index));
        self.len += 1;
        let mut bit = index as usize;
        for level in &mut self.levels {
            let word = &mut level[bit / 64];
            let was_empty = *word == 0;
            *word |= 1 << (bit % 64);
            if !was_empty {
                return;
            }
            bit /= 64;
        }
    }

    /// Takes `index` out; it must be a member.
    pub fn remove(&mut self, index: u32) {
        debug_assert!(self.contains(index));
        self.len -= 1;
        let mut bit = index as usize;
        for level in &mut self.levels {
            let word = &mut level[bit / 64];
            *word &= !(1 << (bit % 64));
            if *word != 0 {
                return;
            }
            bit /= 64;
        }
    }

    /// The least member.
    pub fn first(&self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let word = |bit: usize, level: &Vec<u64>| bit * 64 + level[bit].trailing_zeros() as usize;
        Some(self.levels.iter().rev().fold(0, word) as u32)
    }

    /// Whether `index` is a member.
    pub fn contains(&self, index: u32) -> bool {
        let bit = index as usize;
        self.levels[0][bit / 64] & (1 << (bit % 64)) != 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn agrees_with_an_ordered_set() {
        for bound in [1, 63, 64, 65, 4_096, 4_097, 300_000] {
            let mut set = IndexSet::new(bound);
            let mut model = BTreeSet::new();
            let mut state = u64::from(bound);
            for _ in 0..20_000 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let index = ((state >> 33) % u64::from(bound)) as u32;
                if model.insert(index) {
                    set.insert(index);
                } else {
                    model.remove(&index);
                    set.remove(index);
                }
                if state.is_multiple_of(1_000) {
                    set.grow(set.levels[0].len() as u32 * 64 + 64);
                }
                assert_eq!(
                    (set.first(), set.len()),
                    (model.first().copied(), model.len() as u32)
                );
            }
        }
    }
}
