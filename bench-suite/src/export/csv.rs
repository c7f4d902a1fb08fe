//! CSV (RFC 4180 quoting, LF line ends): one line a row and backend, the raw samples in the last column.

use crate::report::Report;
use crate::stats::Better;

const HEAD: &str = "workload,row,metric,unit,better,backend,mean,median,ci_low,ci_high,delta_pct,p,significant,\
                    rss_peak_kib,rss_rest_kib,objects,samples";

/// The report as CSV.
pub fn render(report: &Report) -> String {
    let optional = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let mut text = format!("{HEAD}\n");
    for row in &report.rows {
        let samples: Vec<String> = row.samples.iter().map(f64::to_string).collect();
        let fields = [
            row.workload.clone(),
            row.row.clone(),
            row.metric.clone(),
            row.unit.clone(),
            if row.better == Better::Higher {
                "higher"
            } else {
                "lower"
            }
            .to_owned(),
            row.backend.clone(),
            row.mean.to_string(),
            row.median.to_string(),
            optional(row.interval.map(|interval| interval.low)),
            optional(row.interval.map(|interval| interval.high)),
            optional(row.delta_pct),
            optional(row.p),
            row.significant.to_string(),
            row.rss_peak_kib.to_string(),
            row.rss_rest_kib.to_string(),
            row.objects.to_string(),
            samples.join(" "),
        ];
        text.push_str(&fields.map(quote).join(","));
        text.push('\n');
    }
    text
}

fn quote(field: String) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_separators_are_quoted() {
        assert_eq!(quote("plain".into()), "plain");
        assert_eq!(quote("a,\"b\"".into()), "\"a,\"\"b\"\"\"");
        assert_eq!(HEAD.split(',').count(), 17);
    }
}
