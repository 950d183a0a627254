//! Threads that run blocks, kept for the life of the process.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

/// A piece of work that several threads may enter at once; it ends when `work` has returned in each of them.
struct Job {
    /// Runs blocks until none are left; never unwinds.
    work: &'static (dyn Fn() + Sync),
    /// Threads that may still enter.
    seats: usize,
    /// Threads inside.
    inside: usize,
    number: u64,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    next_number: u64,
    threads: usize,
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    /// A job was added.
    added: Condvar,
    /// A thread left a job.
    left: Condvar,
}

fn pool() -> &'static Arc<Pool> {
    static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
    POOL.get_or_init(Arc::default)
}

fn lock(pool: &Pool) -> std::sync::MutexGuard<'_, State> {
    // Work never panics while the lock is held, so a poisoned state is still whole.
    pool.state
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Calls `work` on this thread and on up to `helpers` others at the same time; returns when all calls have.
///
/// # Panics
/// When one of the calls does.
pub(super) fn run(helpers: usize, work: &(dyn Fn() + Sync)) {
    if helpers == 0 {
        return work();
    }
    let failed = AtomicBool::new(false);
    run_with_helpers(helpers, &|| {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
            failed.store(true, Ordering::Relaxed);
        }
    });
    assert!(
        !failed.into_inner(),
        "a block of threads was not run to its end: the interpreter panicked"
    );
}

fn run_with_helpers(helpers: usize, work: &(dyn Fn() + Sync)) {
    let pool = pool();
    // SAFETY: only the lifetime changes. The job is removed below, and every thread inside has left it, before this
    // function returns, also if `work` unwinds.
    let work_for_all =
        unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) };
    let number = {
        let mut state = lock(pool);
        let number = state.next_number;
        state.next_number += 1;
        state.jobs.push_back(Job {
            work: work_for_all,
            seats: helpers,
            inside: 0,
            number,
        });
        while state.threads < helpers {
            state.threads += 1;
            let shared = Arc::clone(pool);
            let spawned = std::thread::Builder::new()
                .name("neap-emulator".into())
                .spawn(move || serve(&shared));
            if spawned.is_err() {
                // Fewer threads only make it slower.
                state.threads -= 1;
                break;
            }
        }
        number
    };
    if helpers == 1 {
        pool.added.notify_one()
    } else {
        pool.added.notify_all()
    }
    let guard = Finish { pool, number };
    work();
    drop(guard);
}

/// Removes a job and waits for the threads inside it.
struct Finish<'a> {
    pool: &'a Pool,
    number: u64,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let mut state = lock(self.pool);
        loop {
            let Some(position) = state.jobs.iter().position(|job| job.number == self.number) else {
                return;
            };
            state.jobs[position].seats = 0;
            if state.jobs[position].inside == 0 {
                state.jobs.remove(position);
                return;
            }
            state = self
                .pool
                .left
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

fn serve(pool: &Pool) {
    let mut state = lock(pool);
    loop {
        let Some(job) = state.jobs.iter_mut().find(|job| job.seats > 0) else {
            state = pool
                .added
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            continue;
        };
        job.seats -= 1;
        job.inside += 1;
        let (work, number) = (job.work, job.number);
        drop(state);
        work();
        state = lock(pool);
        if let Some(job) = state.jobs.iter_mut().find(|job| job.number == number) {
            job.inside -= 1;
        }
        pool.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_call_that_panics_is_not_taken_for_one_that_ends() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let failing = || std::panic::catch_unwind(|| super::run(1, &|| panic!("on purpose")));
        assert!(failing().is_err());
        std::panic::set_hook(hook);
        super::run(1, &|| {});
    }
}
