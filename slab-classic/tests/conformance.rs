//! What every backend promises.
#![cfg(not(loom))]

slab_api::conformance_tests!(slab_classic::Classic);
