//! The suite that every backend runs.

slab_api::conformance_tests!(slab_unified::Unified);
