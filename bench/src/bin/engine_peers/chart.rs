//! The chart of tokens per second: one panel per kind of prompt, one group of bars per number of clients.

use crate::Outcome;
use crate::server::Side;
use crate::tables::{Load, Report};
use std::fmt::Write as _;
use std::path::Path;

const PANEL_WIDTH: f64 = 360.0;
const PANEL_HEIGHT: f64 = 190.0;
const COLUMNS: usize = 2;
const MARGIN: f64 = 24.0;
const HEAD: f64 = 70.0;
const PLOT_LEFT: f64 = 8.0;
const PLOT_TOP: f64 = 30.0;
const PLOT_HEIGHT: f64 = 120.0;
const BAR_WIDTH: f64 = 22.0;
const BAR_GAP: f64 = 3.0;

pub fn draw(report: &Report, path: &str) -> Outcome<()> {
    if let Some(folder) = Path::new(path).parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(std::fs::write(path, svg(&report.loads))?)
}

fn svg(loads: &[Load]) -> String {
    let panels: Vec<&[Load]> = loads.chunk_by(|a, b| (a.isa, a.scenario) == (b.isa, b.scenario)).collect();
    let rows = panels.len().div_ceil(COLUMNS);
    let width = MARGIN * 2.0 + PANEL_WIDTH * COLUMNS as f64;
    let height = HEAD + PANEL_HEIGHT * rows as f64 + MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"Generated tokens per second of Chancery, \
         llama-server and OpenVINO GenAI\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{MARGIN}\" y=\"28\" font-size=\"16\" font-weight=\"600\" fill=\"#1b2330\">Generated tokens per second, prompts \
         included, by clients at a time</text>\n"
    );
    for (index, side) in [Side::Chancery, Side::Llama, Side::Openvino].into_iter().enumerate() {
        let x = MARGIN + 140.0 * index as f64;
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"40\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"50\" fill=\"#1b2330\">{side}</text>",
            colour(side),
            x + 18.0
        );
    }
    for (index, panel) in panels.into_iter().enumerate() {
        let x = MARGIN + PANEL_WIDTH * (index % COLUMNS) as f64;
        let y = HEAD + PANEL_HEIGHT * (index / COLUMNS) as f64;
        write_panel(&mut text, panel, x, y);
    }
    text.push_str("</svg>\n");
    text
}

fn write_panel(text: &mut String, loads: &[Load], x: f64, y: f64) {
    let max_rate =
        loads.iter().flat_map(|load| &load.figures).map(|figures| figures.tokens_per_s).fold(1.0, f64::max);
    let _ = writeln!(text, "<g transform=\"translate({x} {y})\">");
    let _ = writeln!(
        text,
        "<text x=\"0\" y=\"14\" font-weight=\"600\" fill=\"#1b2330\">{}</text>",
        loads[0].title()
    );
    let floor = PLOT_TOP + PLOT_HEIGHT;
    let mut left = PLOT_LEFT;
    for load in loads {
        let first = left;
        for figures in &load.figures {
            let height = PLOT_HEIGHT * figures.tokens_per_s / max_rate;
            let top = floor - height;
            let _ = writeln!(
                text,
                "<rect x=\"{left}\" y=\"{top:.1}\" width=\"{BAR_WIDTH}\" height=\"{height:.1}\" rx=\"2\" fill=\"{}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" font-size=\"9\" text-anchor=\"middle\" fill=\"#4a5568\">{:.0}</text>",
                colour(figures.side),
                left + BAR_WIDTH / 2.0,
                top - 3.0,
                figures.tokens_per_s
            );
            left += BAR_WIDTH + BAR_GAP;
        }
        let middle = f64::midpoint(first, left - BAR_GAP);
        let _ = writeln!(
            text,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"#4a5568\">{}</text>",
            floor + 16.0,
            load.clients
        );
        left += BAR_WIDTH / 2.0;
    }
    let _ = writeln!(
        text,
        "<line x1=\"0\" x2=\"{left}\" y1=\"{floor}\" y2=\"{floor}\" stroke=\"#cbd2dc\"/>\n</g>"
    );
}

/// Colours that differ in lightness as well as in hue.
fn colour(side: Side) -> &'static str {
    match side {
        Side::Chancery => "#1f4e79",
        Side::Llama => "#d98c3f",
        Side::Openvino => "#9fb3c8",
    }
}
