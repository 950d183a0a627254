//! vLLM's block pool (0.33, `v1/core/block_pool.py`, `kv_cache_utils.py`): a record for each block, free blocks in a doubly
//! linked queue with the least recently freed first, reference counts. One pool serves every layer group; each group of a request has its own
//! list of blocks, and a block that a window leaves behind is replaced by the null block.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Block {
    ref_count: u32,
    previous: u32,
    next: u32,
    /// Content hash while the block is cached.
    hash: Option<u64>,
}

pub struct BlockPool {
    blocks: Vec<Block>,
    first: u32,
    last: u32,
    pub num_free: usize,
}

impl BlockPool {
    pub fn new(blocks: u32) -> Self {
        let block = |id: u32| Block {
            ref_count: 0,
            previous: id.checked_sub(1).unwrap_or(NONE),
            next: if id + 1 < blocks { id + 1 } else { NONE },
            hash: None,
        };
        let mut pool = Self {
            blocks: (0..blocks).map(block).collect(),
            first: 0,
            last: blocks - 1,
            num_free: blocks as usize,
        };
        // Block 0 is the null block.
        pool.get_new_block();
        pool
    }

    pub fn get_new_block(&mut self) -> Option<u32> {
        let id = self.first;
        if id == NONE {
            return None;
        }
        let block = &mut self.blocks[id as usize];
        // Evicted from the cache as it is reused.
        block.hash = None;
        block.ref_count = 1;
        self.first = block.next;
        match self.first {
            NONE => self.last = NONE,
            next => self.blocks[next as usize].previous = NONE,
        }
        self.num_free -= 1;
        Some(id)
    }

    pub fn free_block(&mut self, id: u32) {
        let last = self.last;
        let block = &mut self.blocks[id as usize];
        block.ref_count -= 1;
        if block.ref_count > 0 {
            return;
        }
        (block.previous, block.next) = (last, NONE);
        match last {
            NONE => self.first = id,
            last => self.blocks[last as usize].next = id,
        }
        self.last = id;
        self.num_free += 1;
    }
}

/// The blocks of one request in a full and a sliding group.
#[derive(Clone, Default)]
pub struct Request {
    pub computed_tokens: u32,
    full: Vec<u32>,
    swa: Vec<u32>,
    skipped: u32,
}

/// `KVCacheManager.allocate_slots` for one more token, and its slot in each group.
pub fn allocate_slot(
    pool: &mut BlockPool,
    request: &mut Request,
    block_size: u32,
    window: u32,
) -> Option<[u32; 2]> {
    // `remove_skipped_blocks`: from the newest skipped block back to the first that is null already.
    let skipped = (request.computed_tokens + 1).saturating_sub(window) / block_size;
    for column in (request.skipped..skipped).rev() {
        let block = std::mem::replace(&mut request.swa[column as usize], 0);
        if block != 0 {
            pool.free_block(block);
        }
    }
    request.skipped = skipped;
    let needed = (request.computed_tokens + 1).div_ceil(block_size) as usize;
    let new = needed.saturating_sub(request.full.len()) + needed.saturating_sub(request.swa.len());
    if new > pool.num_free {
        return None;
    }
    for blocks in [&mut request.full, &mut request.swa] {
        while blocks.len() < needed {
            blocks.push(pool.get_new_block()?);
        }
    }
    let (column, offset) = (
        request.computed_tokens / block_size,
        request.computed_tokens % block_size,
    );
    request.computed_tokens += 1;
    Some([&request.full, &request.swa].map(|blocks| blocks[column as usize] * block_size + offset))
}
