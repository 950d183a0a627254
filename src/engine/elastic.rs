//! Giving KV memory back while the engine runs, and taking it again (I12). Addresses and captured graphs stay; what requests get is the
//! same, bit for bit.

use crate::kv::map::MemoryMap;
use crate::kv::{Carve, GroupId, KvError, Policy};

use super::EngineError;
use super::serve::Engine;
use super::sizing::Pools;

/// Rounds of compaction tried for one shrinking before requests are preempted.
const MAX_ROUNDS: u32 = 64;

impl Engine {
    /// Bytes of KV in use or to be used: whole slabs with memory behind them. 0 while the engine sleeps.
    pub fn kv_bytes(&self) -> u64 {
        if self.asleep {
            return 0;
        }
        let slabs = self.runner.sequences.allocator().online_slabs();
        u64::from(slabs) * self.runner.kv.layout().slab_bytes
    }

    /// Whether [`Engine::sleep`] has given the KV memory back.
    pub fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// The device's memory as the ledger has it now, before and after the carve.
    pub fn memory_map(&self, title: impl Into<String>) -> MemoryMap {
        MemoryMap::of_ledger(title, &self.ledger)
    }

    /// Gives back all KV memory but about `kv_bytes` bytes, in whole extents; returns the bytes that the device has more of. Cached prefixes
    /// are evicted, pages moved and requests preempted as far as it takes; every accepted request still gets all it was accepted for.
    ///
    /// # Errors
    /// [`EngineError::ShrinkBelowRequest`] when a request would not fit alone, [`EngineError::KvArena`] when not even one token would,
    /// [`EngineError::Asleep`], [`EngineError::FixedPools`]; or a driver call fails, after which the engine refuses further work.
    pub fn shrink(&mut self, kv_bytes: u64) -> Result<u64, EngineError> {
        self.check_usable()?;
        self.check_awake()?;
        self.check_dynamic()?;
        let layout = self.runner.kv.layout();
        let slabs = kv_bytes / layout.slab_bytes;
        let online = self.runner.sequences.allocator().online_slabs();
        let Some(slabs) = u32::try_from(slabs).ok().filter(|slabs| *slabs < online) else {
            return Ok(0);
        };
        let carve = Carve::new(
            self.runner.kv.geometry(),
            layout,
            u64::from(slabs) * layout.slab_bytes,
        )
        .map_err(crate::kv::KvArenaError::from)?;
        let limit_tokens = carve.longest_request_tokens(self.runner.kv.geometry());
        let waiting = self.scheduler.waiting.iter();
        let waiting = waiting.map(|waiting| (waiting.id, waiting.max_tokens));
        let running = self.scheduler.running.iter();
        let running = running.map(|running| (running.id, running.max_tokens));
        if let Some((request, tokens)) = waiting
            .chain(running)
            .find(|(_, tokens)| *tokens > limit_tokens)
        {
            return Err(EngineError::ShrinkBelowRequest {
                kv_bytes,
                limit_tokens,
                request,
                tokens,
            });
        }
        let shrunk = self.shrink_to(slabs);
        self.remember_failure(shrunk)
    }

    fn shrink_to(&mut self, slabs: u32) -> Result<u64, EngineError> {
        let mut rounds = 0;
        let moves = loop {
            let runner = &mut self.runner;
            match runner.sequences.shrink(slabs, &mut runner.updates) {
                Ok(moves) => break moves,
                Err(KvError::Shrink { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if runner.evict_slabs()? {
                continue;
            }
            rounds += 1;
            if rounds <= MAX_ROUNDS && runner.compact()? {
                continue;
            }
            if runner.clear_prefixes()? {
                rounds = 0;
                continue;
            }
            if !self.preempt()? {
                return Err(EngineError::Busy { found: 0, limit: 0 });
            }
        };
        self.runner.move_pages(&moves)?;
        let given_back = self.runner.kv.shrink_to(slabs)?;
        // An extent that reaches beyond the last slab stays, and so do the slabs in it.
        let backed = self.runner.kv.backed_slabs();
        self.runner.sequences.grow(backed)?;
        self.account()?;
        Ok(given_back)
    }

    /// Takes KV memory until there are about `kv_bytes` bytes of it, or as much as the device has and the addresses reach; returns
    /// [`Engine::kv_bytes`]. Fewer bytes than there are change nothing.
    ///
    /// # Errors
    /// [`EngineError::Asleep`], [`EngineError::FixedPools`], or a driver call fails otherwise than for want of memory.
    pub fn grow(&mut self, kv_bytes: u64) -> Result<u64, EngineError> {
        self.check_usable()?;
        self.check_awake()?;
        self.check_dynamic()?;
        let kv = &mut self.runner.kv;
        let most = kv.arena().reserved_bytes() / kv.layout().slab_bytes;
        let slabs = (kv_bytes / kv.layout().slab_bytes).min(most);
        let online = self.runner.sequences.allocator().online_slabs();
        let Some(slabs) = u32::try_from(slabs).ok().filter(|slabs| *slabs > online) else {
            return Ok(self.kv_bytes());
        };
        self.gate.open();
        let backed = kv.grow_to(slabs);
        self.gate.close();
        self.runner.sequences.grow(backed?)?;
        self.account()?;
        Ok(self.kv_bytes())
    }

    /// Gives back all KV memory and keeps addresses and graphs; returns the bytes that the device has more of. Running requests start again
    /// after [`Engine::wake`], with the same result; cached prefixes are lost. Until then requests can be submitted, but not run.
    ///
    /// # Errors
    /// A driver call fails; the engine then refuses further work.
    pub fn sleep(&mut self) -> Result<u64, EngineError> {
        self.check_usable()?;
        if self.asleep {
            return Ok(0);
        }
        let slept = self.fall_asleep();
        self.remember_failure(slept)
    }

    fn fall_asleep(&mut self) -> Result<u64, EngineError> {
        while self.preempt()? {}
        self.runner.clear_prefixes()?;
        self.runner.sequences.check_asleep()?;
        let given_back = self.runner.kv.sleep()?;
        self.asleep = true;
        self.account()?;
        Ok(given_back)
    }

    /// Takes back what [`Engine::sleep`] gave away, or as much as the device still has; returns [`Engine::kv_bytes`]. Requests that
    /// then do not fit wait until [`Engine::grow`] finds more.
    ///
    /// # Errors
    /// [`EngineError::KvArena`] when the device has too little even for one token, and the engine sleeps on; or a driver call fails
    /// otherwise.
    pub fn wake(&mut self) -> Result<u64, EngineError> {
        self.check_usable()?;
        if !self.asleep {
            return Ok(self.kv_bytes());
        }
        self.gate.open();
        let backed = self.runner.kv.wake();
        self.gate.close();
        let backed = backed?;
        self.asleep = false;
        // Nothing is in use, so nothing moves.
        let runner = &mut self.runner;
        runner.sequences.shrink(backed, &mut runner.updates)?;
        runner.sequences.grow(backed)?;
        self.account()?;
        Ok(self.kv_bytes())
    }

    pub(super) fn check_awake(&self) -> Result<(), EngineError> {
        if self.asleep {
            return Err(EngineError::Asleep);
        }
        Ok(())
    }

    /// The ledger, the carve and the limits after KV has changed its size; what it gave back is free on purpose.
    fn account(&mut self) -> Result<(), EngineError> {
        let ledger = &mut self.ledger;
        let before = ledger.kv.iter().map(|share| share.bytes).sum::<u64>();
        let together = before + ledger.tail_bytes + ledger.headroom_bytes;
        let geometry = self.runner.kv.geometry();
        let mapped_bytes = self.runner.kv.arena().mapped_bytes();
        if self.asleep {
            ledger.kv.iter_mut().for_each(|share| share.bytes = 0);
            (ledger.tail_bytes, ledger.headroom_bytes) = (mapped_bytes, together - mapped_bytes);
            return Ok(());
        }
        let carve = Carve::new(geometry, self.runner.kv.layout(), mapped_bytes)
            .map_err(crate::kv::KvArenaError::from)?;
        let lengths = self.carve.capacity.iter().map(|row| row.length);
        let lengths = lengths.collect::<Vec<_>>();
        let max_model_len = self.runner.limits.max_model_len;
        let pools = Pools::new(self.policy, geometry, &carve, max_model_len, &lengths)?;
        ledger.kv = pools.shares;
        ledger.tail_bytes = carve.tail_bytes;
        ledger.headroom_bytes = together.saturating_sub(mapped_bytes);
        self.carve = pools.report;
        self.pool_tokens = pools.longest_tokens;
        self.runner.sequences.fix_pools(pools.split.as_ref());
        Ok(())
    }

    /// Refuses what would move the line between pools that a policy has drawn.
    fn check_dynamic(&self) -> Result<(), EngineError> {
        match self.policy {
            Policy::Dynamic => Ok(()),
            policy => Err(EngineError::FixedPools { policy }),
        }
    }
}

impl super::runner::Runner {
    /// Evicts cached prefixes worth a slab of each pool, those used least recently; `false` when nothing came of it.
    fn evict_slabs(&mut self) -> Result<bool, EngineError> {
        let Some(tree) = &mut self.prefixes else {
            return Ok(false);
        };
        let pools = self.sequences.allocator().layout().pools.clone();
        let mut freed = 0;
        for (group, pool) in (0..).map(GroupId).zip(&pools) {
            freed += tree.evict(&mut self.sequences, group, pool.pages_per_slab.into())?;
        }
        Ok(freed > 0)
    }
}
