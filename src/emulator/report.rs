//! What an emulated device has to say about itself: live objects, memory by holder, calls, counters.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::exec::{Counters, OpcodeCounts};

/// Declares [`LiveObjects`] with one count a kind of object.
macro_rules! live_objects {
    ($( $(#[$doc:meta])* $field:ident = $noun:literal; )*) => {
        /// Driver objects by kind.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        #[non_exhaustive]
        pub struct LiveObjects {
            $( $(#[$doc])* pub $field: u64, )*
        }

        impl LiveObjects {
            /// Objects of all kinds together.
            #[must_use]
            pub fn total(&self) -> u64 {
                0 $( + self.$field )*
            }

            pub(crate) fn accumulate(&mut self, other: &LiveObjects) {
                $( self.$field += other.$field; )*
            }
        }

        /// The kinds that are not zero, `2 streams, 1 graphs`, or `none`.
        impl fmt::Display for LiveObjects {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut separator = "";
                $(
                    if self.$field != 0 {
                        write!(f, "{separator}{} {}", self.$field, $noun)?;
                        separator = ", ";
                    }
                )*
                if separator.is_empty() {
                    f.write_str("none")?;
                }
                Ok(())
            }
        }
    };
}

live_objects! {
    /// References to the primary context.
    context_references = "context references";
    /// Modules.
    modules = "modules";
    /// Streams, the default stream aside.
    streams = "streams";
    /// Events.
    events = "events";
    /// Graphs.
    graphs = "graphs";
    /// Executable graphs.
    graph_execs = "executable graphs";
    /// Address reservations.
    reservations = "address reservations";
    /// Physical allocations whose handle is not released.
    physical_allocations = "physical allocations";
    /// Pieces of physical memory mapped into reservations.
    mappings = "mappings";
    /// `cuMemAlloc` allocations.
    device_allocations = "device allocations";
    /// Page-locked host buffers.
    pinned_buffers = "pinned buffers";
}

/// The state of one emulated device.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The device's name.
    pub name: String,
    /// Bytes of device memory.
    pub total_bytes: u64,
    /// Bytes nobody holds.
    pub free_bytes: u64,
    /// Bytes that other processes hold (of the profile).
    pub foreign_bytes: u64,
    /// Bytes of the context.
    pub context_bytes: u64,
    /// Bytes of modules, their global variables included.
    pub module_bytes: u64,
    /// Bytes of executable graphs.
    pub graph_bytes: u64,
    /// Bytes of physical memory: VMM allocations and `cuMemAlloc`.
    pub physical_bytes: u64,
    /// The most that all of this process held at once.
    pub peak_used_bytes: u64,
    /// Host bytes that were filled with 0xFF and are still alive.
    pub poisoned_bytes: u64,
    /// Objects alive now.
    pub live: LiveObjects,
    /// Objects that were still alive when their context was destroyed.
    pub leaked: LiveObjects,
    /// Driver calls by the name of the C function, failed ones included.
    pub calls: BTreeMap<&'static str, u64>,
    /// Counters by kernel name.
    pub kernels: BTreeMap<String, Counters>,
    /// Executions by kernel name and opcode, by warps; only with [`Profile::counters`](super::Profile).
    pub opcodes: BTreeMap<String, OpcodeCounts>,
    /// Counters of all launches of each executable graph, in order of instantiation from 0.
    pub graphs: BTreeMap<u64, Counters>,
    /// What the device would have been busy with, in microseconds. A *model* (bytes / bandwidth,
    /// multiply-adds / rate), never a measurement.
    pub modelled_busy_us: f64,
    /// The latest fault that ended a context's life; it stays when the context is gone.
    pub fault: Option<String>,
}

impl DeviceReport {
    /// Objects that are alive, or were when their context was destroyed: 0 when nothing leaked.
    #[must_use]
    pub fn live_objects(&self) -> u64 {
        self.live.total() + self.leaked.total()
    }

    /// Times this C function was called.
    #[must_use]
    pub fn calls_of(&self, call: &str) -> u64 {
        self.calls.get(call).copied().unwrap_or(0)
    }

    /// Bytes this process holds, of all kinds.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.context_bytes + self.module_bytes + self.graph_bytes + self.physical_bytes
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} bytes in use by this process (context {}, modules {}, graphs {}, physical {}); live: {}; left behind in a destroyed context: {}",
            self.name,
            self.used_bytes(),
            self.context_bytes,
            self.module_bytes,
            self.graph_bytes,
            self.physical_bytes,
            self.live,
            self.leaked,
        )
    }
}
