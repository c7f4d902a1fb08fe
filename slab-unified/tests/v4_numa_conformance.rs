//! The suite that every backend runs, on a simulated machine of two nodes: the historical
//! design.

#[test]
fn the_suite_holds_with_two_nodes() {
    page_alloc::topology::simulate(&[0, 1]).expect("before the first allocation");
    slab_api::conformance::run::<slab_unified::v4::UnifiedV4>();
}
