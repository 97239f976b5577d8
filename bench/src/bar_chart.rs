//! Bar charts as SVG: panels with groups of bars, one colour per series.

use crate::Outcome;
use std::fmt::Write as _;
use std::path::Path;

/// Colours that differ in lightness as well as in hue. The first is ours.
pub const COLOURS: [&str; 7] = ["#1f4e79", "#d98c3f", "#9fb3c8", "#5b8f6a", "#a8506a", "#d6c25e", "#6f6f78"];

const MIN_PANEL_WIDTH: f64 = 360.0;
const PANEL_HEIGHT: f64 = 190.0;
/// Above this width, panels are stacked.
const MAX_WIDTH: f64 = 800.0;
const MARGIN: f64 = 24.0;
const HEAD: f64 = 70.0;
const LEGEND_STEP: f64 = 140.0;
const PLOT_LEFT: f64 = 8.0;
const PLOT_TOP: f64 = 30.0;
const PLOT_HEIGHT: f64 = 120.0;
const BAR_WIDTH: f64 = 22.0;
const BAR_GAP: f64 = 3.0;

#[derive(Debug)]
pub struct Chart {
    pub title: String,
    /// Names of the series. Each has the colour of the same index.
    pub series: Vec<String>,
    pub panels: Vec<Panel>,
}

#[derive(Debug)]
pub struct Panel {
    pub title: String,
    pub groups: Vec<Group>,
}

#[derive(Debug)]
pub struct Group {
    pub label: String,
    pub bars: Vec<Bar>,
}

#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Index of the series.
    pub series: usize,
    pub value: f64,
}

pub fn write(chart: &Chart, path: &str) -> Outcome<()> {
    if let Some(folder) = Path::new(path).parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(std::fs::write(path, svg(chart))?)
}

fn svg(chart: &Chart) -> String {
    let widest = chart.panels.iter().map(Panel::width).fold(MIN_PANEL_WIDTH, f64::max);
    let columns = if 2.0 * (widest + MARGIN) <= MAX_WIDTH { 2 } else { 1 };
    let rows = chart.panels.len().div_ceil(columns);
    let legend_width = LEGEND_STEP * chart.series.len() as f64;
    let width = MARGIN * 2.0 + (widest * columns as f64).max(legend_width);
    let height = HEAD + PANEL_HEIGHT * rows as f64 + MARGIN;
    let title = escaped(&chart.title);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"{title}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{MARGIN}\" y=\"28\" font-size=\"16\" font-weight=\"600\" fill=\"#1b2330\">{title}</text>\n"
    );
    for (index, name) in chart.series.iter().enumerate() {
        let x = MARGIN + LEGEND_STEP * index as f64;
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"40\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"50\" fill=\"#1b2330\">{}</text>",
            colour(index),
            x + 18.0,
            escaped(name)
        );
    }
    for (index, panel) in chart.panels.iter().enumerate() {
        let x = MARGIN + widest * (index % columns) as f64;
        let y = HEAD + PANEL_HEIGHT * (index / columns) as f64;
        write_panel(&mut text, panel, x, y);
    }
    text.push_str("</svg>\n");
    text
}

impl Panel {
    fn width(&self) -> f64 {
        let of_group = |group: &Group| (BAR_WIDTH + BAR_GAP) * group.bars.len() as f64 + BAR_WIDTH / 2.0;
        PLOT_LEFT + self.groups.iter().map(of_group).sum::<f64>()
    }
}

fn write_panel(text: &mut String, panel: &Panel, x: f64, y: f64) {
    let bars = panel.groups.iter().flat_map(|group| &group.bars);
    let max_value = bars.map(|bar| bar.value).fold(1.0, f64::max);
    let _ = writeln!(
        text,
        "<g transform=\"translate({x} {y})\">\n<text x=\"0\" y=\"14\" font-weight=\"600\" fill=\"#1b2330\">{}</text>",
        escaped(&panel.title)
    );
    let floor = PLOT_TOP + PLOT_HEIGHT;
    let mut left = PLOT_LEFT;
    for group in &panel.groups {
        let first = left;
        for bar in &group.bars {
            let height = PLOT_HEIGHT * bar.value / max_value;
            let top = floor - height;
            let _ = writeln!(
                text,
                "<rect x=\"{left}\" y=\"{top:.1}\" width=\"{BAR_WIDTH}\" height=\"{height:.1}\" rx=\"2\" fill=\"{}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" font-size=\"9\" text-anchor=\"middle\" fill=\"#4a5568\">{}</text>",
                colour(bar.series),
                left + BAR_WIDTH / 2.0,
                top - 3.0,
                short(bar.value)
            );
            left += BAR_WIDTH + BAR_GAP;
        }
        let middle = f64::midpoint(first, left - BAR_GAP);
        let _ = writeln!(
            text,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"#4a5568\">{}</text>",
            floor + 16.0,
            escaped(&group.label)
        );
        left += BAR_WIDTH / 2.0;
    }
    let _ = writeln!(
        text,
        "<line x1=\"0\" x2=\"{left}\" y1=\"{floor}\" y2=\"{floor}\" stroke=\"#cbd2dc\"/>\n</g>"
    );
}

fn colour(series: usize) -> &'static str {
    COLOURS[series % COLOURS.len()]
}

/// A number that fits above a bar.
fn short(value: f64) -> String {
    match value {
        value if value >= 9_999.5 => format!("{:.1}k", value / 1e3),
        value if value < 9.95 => format!("{value:.2}"),
        value => format!("{value:.0}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(bars: usize) -> Chart {
        let bars = |scale: f64| (0..bars).map(|series| Bar { series, value: scale * 10.0 }).collect();
        let groups = vec![
            Group { label: "1".to_owned(), bars: bars(1.0) },
            Group { label: "32".to_owned(), bars: bars(2.0) },
        ];
        let panel = Panel { title: "whole < streamed".to_owned(), groups };
        let series = vec!["A & B".to_owned(), "C".to_owned()];
        Chart { title: "Requests".to_owned(), series, panels: vec![panel] }
    }

    #[test]
    fn bars_are_scaled_to_the_largest_value_of_their_panel() {
        let text = svg(&chart(2));
        assert_eq!(text.matches("height=\"60.0\"").count(), 2, "{text}");
        assert_eq!(text.matches("height=\"120.0\"").count(), 2, "{text}");
    }

    #[test]
    fn text_is_escaped() {
        let text = svg(&chart(2));
        assert!(text.contains("A &amp; B") && text.contains("whole &lt; streamed"), "{text}");
    }

    #[test]
    fn wide_panels_make_the_chart_wider() {
        let width = |bars| {
            let text = svg(&chart(bars));
            let (_, rest) = text.split_once(" width=\"").unwrap();
            rest.split_once('"').unwrap().0.parse::<f64>().unwrap()
        };
        assert!(width(30) > width(2));
    }

    #[test]
    fn large_values_are_abbreviated_above_their_bars() {
        let shown: Vec<String> = [0.97, 97.4, 9_999.0, 15_230.0].into_iter().map(short).collect();
        assert_eq!(shown, ["0.97", "97", "9999", "15.2k"]);
    }
}
