//! The HTML report in a real browser: it loads without an error or a request, every plot draws every column, every link
//! has a target, and nothing is wider than the window. Skipped, with a word, where there is no Chromium or Chrome.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_bench-suite");

/// Looks at the page once it is there and leaves what it saw, as JSON, in place of the body.
const PROBE: &str = r##"<script>
addEventListener('load', () => {
  document.querySelectorAll('details').forEach(d => d.open = true);
  const box = e => { const b = e.getBoundingClientRect(); return [b.width, b.height]; };
  const seen = {
    errors: window.problems,
    plots: [...document.querySelectorAll('svg[data-plot]')].map(svg => ({
      kind: svg.dataset.plot, box: box(svg), label: svg.getAttribute('aria-label'),
      outside: [...svg.querySelectorAll('text')].filter(t => {
        const a = t.getBoundingClientRect(), b = svg.getBoundingClientRect();
        return a.left < b.left - 2 || a.right > b.right + 2 || a.top < b.top - 2 || a.bottom > b.bottom + 2;
      }).map(t => t.textContent),
      series: [...svg.querySelectorAll('[data-series]')].map(g => ({ name: g.dataset.series, box: box(g) })),
    })),
    dead: [...document.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute('href').slice(1))
      .filter(id => !document.getElementById(id)),
    tables: document.querySelectorAll('table').length,
    unread: [...document.querySelectorAll('h3')].filter(h => !h.querySelector('a.read')).map(h => h.textContent),
    requests: performance.getEntriesByType('resource').length,
    foreign: [...document.querySelectorAll('[src], link, image')].length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
  };
  document.body.textContent = 'SEEN' + JSON.stringify(seen) + 'NEES';
});
</script>"##;
const CATCH: &str = "<script>window.problems = []; addEventListener('error', e => problems.push(String(e.message)));</script>";

fn browser() -> Option<PathBuf> {
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ];
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|directory| names.map(|name| directory.join(name)))
        .find(|file| file.is_file())
}

fn look(browser: &Path, page: &Path, width: u32, dark: bool, home: &Path) -> Value {
    let mut command = Command::new(browser);
    command
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--no-first-run",
            "--virtual-time-budget=5000",
            "--dump-dom",
            "--hide-scrollbars",
        ])
        .arg(format!("--window-size={width},900"))
        .arg(format!(
            "--user-data-dir={}",
            home.join(format!("profile-{width}-{dark}")).display()
        ))
        .env("HOME", home)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    } else {
        command.arg("--blink-settings=preferredColorScheme=1");
    }
    let output = command
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("a browser");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = dom
        .split_once("SEEN")
        .and_then(|(_, rest)| Some(rest.split_once("NEES")?.0));
    let json =
        json.unwrap_or_else(|| panic!("the page did not load ({}): {dom:.300}", output.status));
    let json = json
        .replace("&quot;", "\"")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&json).expect("what the page saw")
}

fn names(plot: &Value) -> Vec<&str> {
    let series = plot["series"].as_array().unwrap();
    let mut names: Vec<&str> = series
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn the_report_loads_and_every_plot_has_its_series() {
    let Some(browser) = browser() else {
        eprintln!("skipped: neither chromium nor google-chrome is installed");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    // Rows that scale, latencies, maps of pages and memory over time, all from the workers' own path.
    let status = Command::new(PROGRAM)
        .current_dir(directory.path())
        .args([
            "compare",
            "selftest",
            "--backends",
            "slab,slub,unified",
            "--seed",
            "3",
            "--runs",
            "5",
        ])
        .args([
            "--json", "r.json", "--html", "r.html", "--", "-n", "12", "-v", "5", "-s", "10", "-b",
            "slub", "-d", "40",
        ])
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let html = std::fs::read_to_string(directory.path().join("r.html")).unwrap();
    assert!(!html.contains("<script"), "the report needs no script");
    let probed = directory.path().join("probed.html");
    let page = html.replacen("<head>", &format!("<head>{CATCH}"), 1);
    std::fs::write(
        &probed,
        page.replacen("</body>", &format!("{PROBE}</body>"), 1),
    )
    .unwrap();
    let mut papers = Vec::new();
    for (width, dark) in [(1280, false), (1280, true), (500, false)] {
        let seen = look(&browser, &probed, width, dark, directory.path());
        assert_eq!(
            seen["errors"].as_array().unwrap().len(),
            0,
            "{}",
            seen["errors"]
        );
        assert_eq!(
            seen["dead"].as_array().unwrap().len(),
            0,
            "links: {}",
            seen["dead"]
        );
        assert_eq!(
            seen["unread"].as_array().unwrap().len(),
            0,
            "{}",
            seen["unread"]
        );
        assert_eq!(
            (seen["requests"].as_u64(), seen["foreign"].as_u64()),
            (Some(0), Some(0))
        );
        assert!(
            seen["overflow"].as_i64().unwrap() <= 0,
            "{width}: {}",
            seen["overflow"]
        );
        assert!(seen["tables"].as_u64().unwrap() >= 3);
        let plots = seen["plots"].as_array().unwrap();
        for kind in ["bars", "lines", "cdf", "rss", "blocks"] {
            assert!(plots.iter().any(|plot| plot["kind"] == kind), "no {kind}");
        }
        for plot in plots {
            let label = &plot["label"];
            assert!(plot["box"][0].as_f64().unwrap() > 100.0, "{label}");
            assert_eq!(
                plot["outside"].as_array().unwrap().len(),
                0,
                "{label}: {}",
                plot["outside"]
            );
            if plot["kind"] != "blocks" {
                assert_eq!(names(plot), ["slab", "slub", "unified"], "{label}");
            }
            for one in plot["series"].as_array().unwrap() {
                let (w, h) = (
                    one["box"][0].as_f64().unwrap(),
                    one["box"][1].as_f64().unwrap(),
                );
                // A level line has no height.
                assert!(w.max(h) > 1.0, "{label}: {one} is not drawn");
            }
        }
        papers.push((seen["paper"].clone(), seen["ink"].clone()));
    }
    assert_ne!(papers[0], papers[1], "dark differs from light");
    assert_eq!(papers[0], papers[2]);
}
