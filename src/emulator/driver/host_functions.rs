//! Host functions of streams, on a thread of their own.
//!
//! A host function may wait for what another thread does: for the thread that waits for the stream, or for one that is about
//! to call the driver. So it runs while nobody holds the device, and its stream waits for its end as for an event. Functions
//! of one device run one after the other, which CUDA allows for independent streams as well.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::registry;
use super::work::HostCall;

/// How long the thread that comes upon a host function waits for its end with the device in its hands: most are that short.
const BRIEF: Duration = Duration::from_millis(2);

/// A host function that was begun.
#[derive(Debug, Default)]
struct Run {
    ended: Mutex<bool>,
    end: Condvar,
}

impl Run {
    fn has_ended(&self) -> bool {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.notify_all();
    }

    /// Waits for the end; false where it does not come in time.
    fn wait(&self, time: Duration) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.end.wait_timeout_while(ended, time, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The host functions of a device.
#[derive(Debug, Default)]
pub(super) struct HostFunctions {
    /// The thread that runs them, once there are any.
    worker: Option<Sender<(HostCall, Arc<Run>)>>,
    /// Those that have not ended when last looked at, by the ticket of the work that they are part of.
    begun: HashMap<u64, Arc<Run>>,
}

impl HostFunctions {
    /// Begins the function that the work of this ticket is at, or looks after it; true when it has ended.
    pub(super) fn run(&mut self, ticket: u64, call: HostCall) -> bool {
        if let Some(run) = self.begun.get(&ticket) {
            let ended = run.has_ended();
            if ended {
                self.begun.remove(&ticket);
            }
            return ended;
        }
        let run = Arc::new(Run::default());
        if !self.send(call, &run) {
            // Without a thread it runs here, as well as it can.
            invoke(call);
            return true;
        }
        let ended = run.wait(BRIEF);
        if !ended {
            self.begun.insert(ticket, run);
        }
        ended
    }

    /// True while a function runs that has not ended.
    pub(super) fn are_running(&self) -> bool {
        self.begun.values().any(|run| !run.has_ended())
    }

    /// Hands a function to the thread; false where there is none.
    fn send(&mut self, call: HostCall, run: &Arc<Run>) -> bool {
        if self.worker.is_none() {
            let (sender, jobs) = channel::<(HostCall, Arc<Run>)>();
            let spawned = std::thread::Builder::new()
                .name("neap-host-functions".to_owned())
                .spawn(move || {
                    for (call, run) in jobs {
                        invoke(call);
                        run.finish();
                    }
                });
            self.worker = spawned.is_ok().then_some(sender);
        }
        let worker = self.worker.as_ref();
        worker.is_some_and(|worker| worker.send((call, Arc::clone(run))).is_ok())
    }
}

fn invoke(call: HostCall) {
    registry::in_host_function(|| call.function.run(call.data));
}
