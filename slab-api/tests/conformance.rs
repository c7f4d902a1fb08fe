//! The suite itself, called as one function. (Each backend makes a test of each check.)

#[test]
fn all_checks_pass_one_after_the_other() {
    slab_api::conformance::run::<slab_unified::Unified>();
}
