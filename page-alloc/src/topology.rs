//! Which node a CPU belongs to.
//!
//! One node unless a topology is simulated: tests and experiments give a
//! CPU → node map at construction, before the first allocation, and everything
//! above (zones, partial lists, alien arrays) then works as on such a machine.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};

use crate::arena;
use crate::os;

/// Largest number of nodes.
pub const MAX_NODES: usize = 4;
const MAX_CPUS: usize = 64;

static NODES: AtomicUsize = AtomicUsize::new(1);
static NODE_OF: [AtomicU8; MAX_CPUS] = [const { AtomicU8::new(0) }; MAX_CPUS];
static SIMULATED: AtomicBool = AtomicBool::new(false);

/// Why a topology was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// Memory was handed out already: simulate before the first allocation.
    TooLate,
    /// No CPUs, more than 64, or a node number of [`MAX_NODES`] or more.
    OutOfRange,
}

impl core::fmt::Display for TopologyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::TooLate => "a topology must be simulated before the first allocation",
            Self::OutOfRange => "give 1 to 64 CPUs, each on a node from 0 to 3",
        })
    }
}

impl core::error::Error for TopologyError {}

/// Simulates a machine: `cpu_to_node[c]` is the node of CPU `c`; a thread on a
/// real CPU `r` counts as running on CPU `r` modulo the map's length.
///
/// # Errors
/// After the first allocation, or when a number is out of range.
pub fn simulate(cpu_to_node: &[u8]) -> Result<(), TopologyError> {
    if !(1..=MAX_CPUS).contains(&cpu_to_node.len())
        || cpu_to_node.iter().any(|n| *n as usize >= MAX_NODES)
    {
        return Err(TopologyError::OutOfRange);
    }
    if !arena::arenas().is_empty() {
        return Err(TopologyError::TooLate);
    }
    for cpu in 0..MAX_CPUS {
        NODE_OF[cpu].store(cpu_to_node[cpu % cpu_to_node.len()], Relaxed);
    }
    let nodes = cpu_to_node.iter().max().map_or(1, |n| *n as usize + 1);
    NODES.store(nodes, Relaxed);
    SIMULATED.store(true, Relaxed);
    Ok(())
}

/// Number of nodes.
#[inline]
pub fn nodes() -> usize {
    NODES.load(Relaxed)
}

/// The node of the CPU that the calling thread runs on at this moment.
pub fn current_node() -> usize {
    if nodes() == 1 {
        return 0;
    }
    NODE_OF[os::current_cpu() as usize % MAX_CPUS].load(Relaxed) as usize
}
