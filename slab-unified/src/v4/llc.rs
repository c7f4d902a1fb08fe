//! Which last-level cache (LLC) the CPUs share: each has a shared queue of its own.
//!
//! ```text
//!   CPU -> processor's id >> bits that tell the sharers apart -> number within the node
//! ```
//! The processor says it itself (`cpuid`), so that nothing is read from files. A CPU is
//! asked once: under a hypervisor the instruction is slow. An LLC belongs to one node,
//! simulated ones included: its number is `node * PER_NODE + n`.

#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use page_alloc::os;
use page_alloc::topology::MAX_NODES;

/// LLCs of a node that are told apart.
const PER_NODE: usize = 4;
/// Numbers run below this.
pub(crate) const LLCS: usize = PER_NODE * MAX_NODES;

const MAX_CPUS: usize = 64;

/// The processor's number of each CPU's LLC plus 1; 0: not asked yet.
static OF_CPU: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];
/// The same by the numbers used here, in the order of first use.
static KNOWN: [AtomicU32; LLCS] = [const { AtomicU32::new(0) }; LLCS];
/// What tests simulate: CPU `c` has LLC `c % n` of its node. 0: nothing.
static SIMULATED: AtomicU8 = AtomicU8::new(0);

/// The LLC of the CPU that the calling thread runs on, which is of `node`. A thread that
/// moves meanwhile gets a neighbour's, which costs time and nothing else.
pub(crate) fn current(node: usize) -> usize {
    let cpu = os::current_cpu() as usize;
    let first = node % MAX_NODES * PER_NODE;
    match SIMULATED.load(Relaxed) {
        0 => {}
        n => return first + cpu % usize::from(n).min(PER_NODE),
    }
    let cell = &OF_CPU[cpu % MAX_CPUS];
    let mut name = cell.load(Relaxed);
    if name == 0 {
        name = hardware().wrapping_add(1).max(1);
        cell.store(name, Relaxed);
    }
    let known = &KNOWN[first..first + PER_NODE];
    for (n, cell) in known.iter().enumerate() {
        match cell.compare_exchange(0, name, Relaxed, Relaxed) {
            Ok(_) => return first + n,
            Err(present) if present == name => return first + n,
            Err(_) => {}
        }
    }
    // More LLCs than numbers: some share.
    first + name as usize % PER_NODE
}

/// The node that an LLC belongs to.
pub(crate) fn node_of(llc: usize) -> usize {
    llc / PER_NODE % MAX_NODES
}

/// Makes CPU `c` have LLC `c % n` of its node, for slots made from now on.
pub(crate) fn simulate(n: u8) {
    SIMULATED.store(n, Relaxed);
}

/// The number of the LLC of the CPU that this runs on, as the processor has it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn hardware() -> u32 {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    /// Deterministic cache parameters: Intel's leaf, and AMD's with the same layout.
    const LEAVES: [u32; 2] = [4, 0x8000_001d];
    let sharers = LEAVES.iter().find_map(|leaf| {
        let most = __cpuid(leaf & 0x8000_0000).eax;
        if most < *leaf {
            return None;
        }
        // Of the cache of the highest level.
        (0..8)
            .map(|n| __cpuid_count(*leaf, n).eax)
            .take_while(|eax| eax & 31 != 0)
            .max_by_key(|eax| eax >> 5 & 7)
            .map(|eax| (eax >> 14 & 0xfff) + 1)
    });
    let id = if __cpuid(0).eax >= 11 {
        __cpuid_count(11, 0).edx
    } else {
        __cpuid(1).ebx >> 24
    };
    sharers.map_or(0, |n| id >> n.next_power_of_two().trailing_zeros())
}

/// Not known: one LLC.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn hardware() -> u32 {
    0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_llc_belongs_to_one_node() {
        for node in 0..MAX_NODES {
            let llc = current(node);
            assert_eq!(node_of(llc), node);
            assert!(llc < LLCS);
        }
        assert!(OF_CPU.iter().any(|cell| cell.load(Relaxed) != 0));
    }
}
