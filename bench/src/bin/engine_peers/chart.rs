//! The chart of tokens per second: one panel per kind of prompt, one group of bars per number of clients.

use crate::server::Side;
use crate::tables::Load;
use chancery_bench::bar_chart::{Bar, Chart, Group, Panel};

/// In the order of their colours.
const SIDES: [Side; 3] = [Side::Chancery, Side::Llama, Side::Openvino];

pub fn of(model: &str, loads: &[Load]) -> Chart {
    let panels = loads.chunk_by(|a, b| (a.isa, a.scenario) == (b.isa, b.scenario)).map(panel);
    let has_figures =
        |side: &Side| loads.iter().flat_map(|load| &load.figures).any(|figures| figures.side == *side);
    // A side keeps its colour when another is left out.
    let last = SIDES.iter().rposition(has_figures).unwrap_or_default();
    Chart {
        title: format!("{model}: generated tokens per second, prompts included, by clients at a time"),
        series: SIDES[..=last].iter().map(Side::to_string).collect(),
        panels: panels.collect(),
    }
}

fn panel(loads: &[Load]) -> Panel {
    Panel { title: loads[0].title(), groups: loads.iter().map(group).collect() }
}

fn group(load: &Load) -> Group {
    let bars = load.figures.iter().filter_map(|figures| {
        let series = SIDES.iter().position(|side| *side == figures.side)?;
        Some(Bar { series, value: figures.tokens_per_s })
    });
    Group { label: load.clients.to_string(), bars: bars.collect() }
}
