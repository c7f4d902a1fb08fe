//! The benchmark suite.
fn main() {}
