//! The suite that every backend runs, with CPUs for slots; then the same on CPUs without
//! slots, where every operation takes the locked paths.

use page_alloc::cpu;
use slab_api::{conformance, percpu};

#[test]
fn conforms() {
    if let Err(why) = percpu::start() {
        assert!(std::env::var_os("CI").is_none(), "{why}");
        println!("skipped: {why}");
        return;
    }
    conformance::run::<slub::Slub>();
    let counts = percpu::counts();
    assert!(counts.refills > 0 && counts.flushes > 0, "{counts:?}");
    assert!(
        counts.trims > 0 || cpu::stops() > 0,
        "caches were ended: {counts:?}"
    );
    let bypasses = counts.bypasses;
    cpu::set_cpus(0);
    conformance::run::<slub::Slub>();
    assert!(
        percpu::counts().bypasses > bypasses + 1000,
        "{:?}",
        percpu::counts()
    );
}
