//! A heap that grows looks for idle memory in slabs first.

#[test]
fn growth_takes_what_is_idle_in_slabs() {
    slab_api::conformance::growth_takes_what_is_idle_in_slabs::<slab_classic::Classic>();
}
