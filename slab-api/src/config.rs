//! Settings.
/// Reads the settings once.
pub fn settings() {}
