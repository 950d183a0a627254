//! Everything counted again.

use super::{Allocator, DRAINING, NONE};

impl Allocator {
    /// Recounts everything from the page bits and compares; for tests and self-tests.
    ///
    /// # Errors
    /// A sentence naming the first difference.
    pub fn audit(&self) -> Result<(), String> {
        let mut counted = vec![(0_u32, 0_u64, 0_u64, 0_usize); self.pools.len()];
        for index in 0..self.slabs.len() as u32 {
            let slab = &self.slabs[index as usize];
            let in_arena = self.arena.contains(index);
            if in_arena != (slab.pool == NONE && index < self.online) {
                return Err(format!(
                    "slab {index} of {} online is in the arena: {in_arena}, but its pool is {}",
                    self.online, slab.pool
                ));
            }
            let Some(pool) = self.pools.get(slab.pool as usize) else {
                continue;
            };
            let free = (0..pool.pages_per_slab)
                .filter(|&page| self.is_free(index, page))
                .count();
            if free != slab.free_pages as usize {
                return Err(format!(
                    "slab {index} counts {} free pages, its bits {free}",
                    slab.free_pages
                ));
            }
            if slab.free_pages == pool.pages_per_slab {
                return Err(format!(
                    "slab {index} is empty but still held by pool {}",
                    slab.pool
                ));
            }
            self.audit_tree(index)?;
            self.audit_holders(index, pool.pages_per_slab)?;
            let draining = slab.flags & DRAINING != 0;
            if index >= self.online && !draining {
                return Err(format!("slab {index} is offline and hands out pages"));
            }
            let count = &mut counted[slab.pool as usize];
            count.0 += 1;
            count.1 += u64::from(pool.pages_per_slab - slab.free_pages);
            if !draining {
                count.2 += u64::from(slab.free_pages);
                count.3 += usize::from(slab.free_pages > 0);
            }
        }
        for (index, pool) in self.pools.iter().enumerate() {
            let counts = (
                pool.slabs,
                pool.used_pages,
                pool.free_pages,
                pool.open.len(),
            );
            if counts != counted[index] {
                return Err(format!(
                    "pool {index} counts {counts:?} (slabs, used, free, open), its slabs {:?}",
                    counted[index]
                ));
            }
            if usize::from(self.slabs[index].pool) != index || self.is_free(index as u32, 0) {
                return Err(format!("the null page of pool {index} is not held"));
            }
            pool.open.audit(index as u32, |slab| {
                let record = &self.slabs[slab as usize];
                (u32::from(record.pool), record.free_pages)
            })?;
        }
        Ok(())
    }

    /// Whether every word of a slab's page tree says what the words below it say.
    fn audit_tree(&self, slab: u32) -> Result<(), String> {
        let words = &self.words[slab as usize * self.words_per_slab..][..self.words_per_slab];
        for (level, &start) in self.levels.iter().enumerate() {
            let end = self
                .levels
                .get(level + 1)
                .map_or(words.len(), |&end| end as usize);
            for place in 0..end - start as usize {
                let above = match level {
                    0 => self.slabs[slab as usize].root,
                    _ => words[self.levels[level - 1] as usize + place / 64],
                };
                if (above >> (place % 64) & 1 == 1) != (words[start as usize + place] != 0) {
                    return Err(format!("slab {slab} mislays free pages at level {level}"));
                }
            }
        }
        Ok(())
    }
}
