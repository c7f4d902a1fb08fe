//! The suite that every backend runs, on the historical design.

slab_api::conformance_tests!(slab_unified::v4::UnifiedV4);
