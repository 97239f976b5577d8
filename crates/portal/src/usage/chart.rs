//! Geometry of the bar charts by day. Every coordinate is in percent with two decimals, so that bars stretch with the page while
//! text and lines keep their size. `templates/usage/usage_macros.html` renders them.

use super::axis::{Axis, STEPS, WHOLE, percent};
use super::calendar::{Calendar, short_day_text};
use crate::time_format::format_day;
use chancery_domain::Day;

/// Width of a bar, in percent of its day's slot; the rest is the gap.
const BAR_SHARE: u32 = 68;
/// Longer axis labels need the wider margin.
const MAX_SHORT_LABEL_CHARS: usize = 6;
/// With fewer upcoming days there is no room for their label.
const MIN_DAYS_FOR_LABEL: usize = 7;
/// Days with a label below the plot, besides the first and the last: at most seven labels.
const DATES: [i32; 5] = [5, 10, 15, 20, 25];

/// One series of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Series {
    /// Suffix of the CSS classes: `chart-…` for bars and `key-…` for the legend.
    pub(super) colour: &'static str,
    pub(super) name: &'static str,
}

/// A day's values, from the bottom up, one per series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DayValues {
    pub(super) values: Vec<u128>,
    /// The day's values as text, shown as a tooltip.
    pub(super) text: String,
}

pub(super) struct ChartSpec<'a> {
    /// Prefix of the element IDs, unique on the page.
    pub(super) id: &'static str,
    pub(super) title: String,
    /// Text alternative for screen readers.
    pub(super) description: String,
    pub(super) calendar: Calendar,
    pub(super) series: &'a [Series],
    /// One per day so far, in order.
    pub(super) days: &'a [DayValues],
    /// Formats the axis values.
    pub(super) labels: &'a dyn Fn(&[u128]) -> Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chart {
    pub(super) id: &'static str,
    pub(super) title: String,
    pub(super) description: String,
    /// Empty for a single series.
    pub(super) legend: Vec<Series>,
    /// Whether the axis labels need the wider margin.
    pub(super) is_wide: bool,
    pub(super) grid_lines: Vec<Line>,
    pub(super) days: Vec<Slot>,
    pub(super) future_days: Option<FutureDays>,
    pub(super) dates: Vec<AxisLabel>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) y: String,
    pub(super) label: String,
    pub(super) is_base: bool,
}

/// A day's slot in the plot, with its bars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) title: String,
    pub(super) x: String,
    pub(super) width: String,
    pub(super) bars: Vec<Bar>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) colour: &'static str,
    pub(super) x: String,
    pub(super) y: String,
    pub(super) width: String,
    pub(super) height: String,
}

/// The upcoming part of the month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FutureDays {
    pub(super) title: String,
    pub(super) x: String,
    pub(super) width: String,
    /// The middle of the label, if there is room for it.
    pub(super) label_x: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AxisLabel {
    pub(super) x: String,
    pub(super) text: String,
}

impl Chart {
    pub(super) fn draw(spec: ChartSpec<'_>) -> Self {
        let ChartSpec { id, title, description, calendar, series, days, labels } = spec;
        let axis = Axis::above(days.iter().map(DayValues::sum).max().unwrap_or_default());
        let labels = labels(&axis.grid_lines().collect::<Vec<_>>());
        let slots = Slots { count: calendar.length() };
        let slot = |(index, (day, values)): (usize, (Day, &DayValues))| Slot {
            title: format!("{}: {}", short_day_text(day), values.text),
            x: percent(slots.left(index)),
            width: percent(slots.width(index)),
            bars: bars(axis, slots, index, series, values),
        };
        Self {
            id,
            title,
            description,
            legend: if series.len() > 1 { series.to_vec() } else { Vec::new() },
            is_wide: labels.iter().any(|label| label.chars().count() > MAX_SHORT_LABEL_CHARS),
            grid_lines: grid_lines(labels),
            days: calendar.days_so_far().zip(days).enumerate().map(slot).collect(),
            future_days: future_days(calendar, slots),
            dates: dates(calendar, slots),
        }
    }
}

impl DayValues {
    fn sum(&self) -> u128 {
        self.values.iter().sum()
    }
}

/// The plot's width, divided evenly among the days of the month.
#[derive(Clone, Copy)]
struct Slots {
    count: usize,
}

impl Slots {
    /// Left edge of a slot, in hundredths of a percent. One past the last slot gives the end of the plot.
    fn left(self, index: usize) -> u32 {
        let count = self.count.max(1);
        let left = (index.min(count) * WHOLE as usize + count / 2) / count;
        u32::try_from(left).unwrap_or(WHOLE)
    }

    fn width(self, index: usize) -> u32 {
        self.left(index + 1) - self.left(index)
    }

    fn middle(self, index: usize) -> u32 {
        self.left(index) + self.width(index) / 2
    }
}

/// Stacks the bars without gaps: each height is the difference of two cumulative heights.
fn bars(axis: Axis, slots: Slots, index: usize, series: &[Series], values: &DayValues) -> Vec<Bar> {
    let slot = slots.width(index);
    let width = (slot * BAR_SHARE + 50) / 100;
    let x = slots.left(index) + (slot - width) / 2;
    let mut below: u128 = 0;
    let mut bars = Vec::new();
    for (series, value) in series.iter().zip(&values.values) {
        let (foot, top) = (axis.height(below), axis.height(below + value));
        below += value;
        if *value > 0 {
            bars.push(Bar {
                colour: series.colour,
                x: percent(x),
                y: percent(WHOLE - top),
                width: percent(width),
                height: percent(top - foot),
            });
        }
    }
    bars
}

fn grid_lines(labels: Vec<String>) -> Vec<Line> {
    let line = |(step, label): (u32, String)| Line {
        y: percent(WHOLE - WHOLE / STEPS * step),
        label,
        is_base: step == 0,
    };
    (0..).zip(labels).map(line).collect()
}

fn future_days(calendar: Calendar, slots: Slots) -> Option<FutureDays> {
    let text = calendar.future_days_text()?;
    let first = calendar.days_so_far().count();
    let x = slots.left(first);
    let has_room = slots.count.saturating_sub(first) >= MIN_DAYS_FOR_LABEL;
    Some(FutureDays {
        title: format!("{text}: upcoming"),
        x: percent(x),
        width: percent(WHOLE - x),
        label_x: has_room.then(|| percent(x + (WHOLE - x) / 2)),
    })
}

/// The first day with its month, every fifth day up to the 25th, and the last day.
fn dates(calendar: Calendar, slots: Slots) -> Vec<AxisLabel> {
    let (first, last) = (calendar.month.first_day(), calendar.month.last_day());
    let between = DATES.into_iter().map(|number| Day(first.0 + number - 1));
    let days = std::iter::once(first).chain(between).chain([last]);
    let date = |day: Day| AxisLabel {
        x: percent(slots.middle(usize::try_from(day.0 - first.0).unwrap_or_default())),
        text: format_day(day, if day == first { "%-d %b" } else { "%-d" }),
    };
    days.map(date).collect()
}

#[cfg(test)]
mod tests {
    use super::super::axis::short_counts;
    use super::*;
    use proptest::prelude::*;

    const TWO: [Series; 2] =
        [Series { colour: "in", name: "Input" }, Series { colour: "out", name: "Output" }];

    fn chart(month: &str, today: &str, days: &[DayValues]) -> Chart {
        let calendar = Calendar { month: month.parse().unwrap(), today: today.parse().unwrap() };
        Chart::draw(ChartSpec {
            id: "tokens",
            title: "Tokens per day".to_owned(),
            description: "Bars.".to_owned(),
            calendar,
            series: &TWO,
            days,
            labels: &short_counts,
        })
    }

    fn days(values: &[(u64, u64)]) -> Vec<DayValues> {
        let day = |(input, output): &(u64, u64)| DayValues {
            values: vec![(*input).into(), (*output).into()],
            text: format!("{input} in, {output} out"),
        };
        values.iter().map(day).collect()
    }

    /// In hundredths of a percent.
    fn number(text: &str) -> u32 {
        let (whole, hundredths) = text.strip_suffix('%').unwrap().split_once('.').unwrap();
        assert_eq!(hundredths.len(), 2, "{text}");
        whole.parse::<u32>().unwrap() * 100 + hundredths.parse::<u32>().unwrap()
    }

    #[test]
    fn chart_matches_the_sample_page() {
        let mut october = vec![(0, 0); 31];
        october[0] = (8_324_997, 1_076_122);
        october[14] = (16_988_623, 2_150_208);
        let chart = chart("2026-10", "2026-11-13", &days(&october));
        let labels: Vec<_> =
            chart.grid_lines.iter().map(|line| (line.y.as_str(), line.label.as_str())).collect();
        assert_eq!(
            labels,
            [
                ("100.00%", "0"),
                ("75.00%", "5\u{a0}M"),
                ("50.00%", "10\u{a0}M"),
                ("25.00%", "15\u{a0}M"),
                ("0.00%", "20\u{a0}M")
            ]
        );
        let first = &chart.days[0];
        assert_eq!(first.title, "Thu 1 Oct: 8324997 in, 1076122 out");
        assert_eq!((first.x.as_str(), first.width.as_str()), ("0.00%", "3.23%"));
        let bar = |bar: &Bar| [bar.x.clone(), bar.y.clone(), bar.width.clone(), bar.height.clone()];
        assert_eq!(bar(&first.bars[0]), ["0.51%", "58.38%", "2.20%", "41.62%"]);
        assert_eq!(bar(&first.bars[1]), ["0.51%", "52.99%", "2.20%", "5.39%"]);
        assert_eq!(chart.days[14].bars[1].y, "4.31%");
        assert!(chart.days[1].bars.is_empty(), "a day without usage is empty, and has its place");
        assert_eq!((chart.days.len(), chart.future_days), (31, None));
        let dates: Vec<_> = chart.dates.iter().map(|date| date.text.as_str()).collect();
        assert_eq!(dates, ["1 Oct", "5", "10", "15", "20", "25", "31"]);
    }

    #[test]
    fn chart_without_usage_has_an_axis_and_no_bars() {
        let chart = chart("2026-02", "2026-11-13", &days(&[(0, 0); 28]));
        assert!(chart.days.iter().all(|day| day.bars.is_empty()));
        assert_eq!(chart.days.len(), 28);
        let labels: Vec<_> = chart.grid_lines.iter().map(|line| line.label.as_str()).collect();
        assert_eq!(labels, ["0", "1", "2", "3", "4"]);
        assert_eq!(chart.dates.last().unwrap().text, "28");
    }

    #[test]
    fn one_huge_day_stays_within_the_plot() {
        let mut values = [(10, 10); 30];
        values[3] = (u64::MAX, u64::MAX);
        let chart = chart("2026-09", "2026-11-13", &days(&values));
        let top = |day: &Slot| number(&day.bars.last().unwrap().y);
        assert!(top(&chart.days[3]) < 3_500 && top(&chart.days[4]) == WHOLE, "{:?}", chart.days[3]);
    }

    #[test]
    fn equal_days_have_equal_bars() {
        let chart = chart("2026-09", "2026-11-13", &days(&[(700, 300); 30]));
        assert!(chart.days.iter().all(|day| day.bars[0].y == chart.days[0].bars[0].y));
        assert_eq!(chart.days[0].bars[1].y, "16.67%", "1,000 of 1,200");
    }

    #[test]
    fn future_days_are_marked() {
        let chart = chart("2026-11", "2026-11-13", &days(&[(700, 300); 13]));
        assert_eq!(chart.days.len(), 13);
        let future_days = chart.future_days.unwrap();
        assert_eq!(
            (future_days.x.as_str(), future_days.width.as_str(), future_days.label_x.as_deref()),
            ("43.33%", "56.67%", Some("71.66%"))
        );
        assert_eq!(future_days.title, "14 to 30 Nov: upcoming");
        assert_eq!(chart.dates.len(), 7, "they have their dates all the same");
        let late = self::chart("2026-11", "2026-11-27", &days(&[(1, 1); 27]));
        assert_eq!(late.future_days.unwrap().label_x, None);
        assert_eq!(self::chart("2026-11", "2026-11-30", &days(&[(1, 1); 30])).future_days, None);
    }

    #[test]
    fn long_labels_widen_the_margin_and_one_series_has_no_legend() {
        let calendar = Calendar { month: "2026-10".parse().unwrap(), today: "2026-11-13".parse().unwrap() };
        let draw = |labels: &dyn Fn(&[u128]) -> Vec<String>| {
            Chart::draw(ChartSpec {
                id: "spend",
                title: String::new(),
                description: String::new(),
                calendar,
                series: &TWO[..1],
                days: &[],
                labels,
            })
        };
        assert!(draw(&|values| values.iter().map(|value| format!("$0.000{value}")).collect()).is_wide);
        let narrow = draw(&|values| values.iter().map(|value| format!("${value}.00")).collect());
        assert!(!narrow.is_wide && narrow.legend.is_empty());
    }

    proptest! {
        #[test]
        fn bars_stay_in_their_slots_at_exact_heights(
            values in proptest::collection::vec((any::<u64>(), any::<u64>()), 28..=31),
            scale in 0_u32..64,
        ) {
            let values: Vec<_> = values.into_iter().map(|(input, output)| (input >> scale, output >> scale)).collect();
            let month = match values.len() { 28 => "2026-02", 29 => "2024-02", 30 => "2026-09", _ => "2026-10" };
            let chart = chart(month, "2026-11-13", &days(&values));
            prop_assert_eq!(chart.days.len(), values.len());
            let largest = values.iter().map(|(input, output)| u128::from(*input) + u128::from(*output)).max().unwrap();
            let end = Axis::above(largest).end();
            let mut slot_end = 0;
            for (slot, (input, output)) in chart.days.iter().zip(&values) {
                let (x, width) = (number(&slot.x), number(&slot.width));
                prop_assert_eq!(x, slot_end, "slots follow each other");
                slot_end = x + width;
                let mut reached = 0;
                for bar in &slot.bars {
                    let (bar_x, bar_width) = (number(&bar.x), number(&bar.width));
                    prop_assert!(bar_x >= x && bar_x + bar_width <= x + width);
                    let (y, height) = (number(&bar.y), number(&bar.height));
                    prop_assert_eq!(y + height + reached, WHOLE, "it stands on the one below");
                    reached += height;
                }
                // The top matches the exact share of the axis within half of the last decimal. Zero draws nothing.
                let exact = (u128::from(*input) + u128::from(*output)) * u128::from(WHOLE);
                let off = (u128::from(reached) * end).abs_diff(exact);
                prop_assert!(reached <= WHOLE && off * 2 <= end, "{} of {}", reached, end);
            }
            prop_assert_eq!(slot_end, WHOLE);
        }
    }
}
