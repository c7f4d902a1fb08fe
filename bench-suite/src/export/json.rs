//! JSON: the whole report, raw samples included.

use crate::report::Report;

/// The report as indented JSON.
pub fn render(report: &Report) -> Result<String, String> {
    serde_json::to_string_pretty(report)
        .map(|text| text + "\n")
        .map_err(|e| format!("JSON: {e}"))
}
