//! The suite that every backend runs, with CPUs for slots, and without any.

#[test]
fn conforms() {
    slab_api::conformance::run_on_cpus::<slub::Slub>();
}
