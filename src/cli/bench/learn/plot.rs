//! Plots as SVG.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::Outcome;
use crate::cli::output;

const SIZE: (u32, u32) = (960, 480);
/// Room for the legend.
const RIGHT: u32 = 220;
const FONT: &str = "sans-serif";

/// Colours that stay apart for most eyes (Okabe and Ito, 2008).
const COLOURS: &[RGBColor] = &[
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(100, 100, 100),
    RGBColor(150, 80, 30),
    RGBColor(0, 0, 0),
    RGBColor(200, 0, 0),
];

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A disc a point.
    Circle,
    /// A triangle a point.
    Triangle,
    /// A line through the points.
    Line,
}

/// Points of one name.
#[derive(Debug, Clone)]
pub struct Series {
    /// As the legend says it.
    pub name: String,
    /// How it is drawn.
    pub mark: Mark,
    /// x, and percent.
    pub points: Vec<(f64, f64)>,
}

/// Points in groups side by side; a point's x is the number of its group.
///
/// # Errors
/// It cannot be drawn.
pub fn by_group(title: &str, groups: &[&str], series: &[Series]) -> Outcome<String> {
    let mut aside = series.to_vec();
    for (index, one) in aside.iter_mut().enumerate() {
        let shift = (index as f64 + 0.5) / series.len() as f64 - 0.5;
        one.points.iter_mut().for_each(|(x, _)| *x += 0.8 * shift);
    }
    let name = |x: &f64| {
        let is_group = (x - x.round()).abs() < 0.01 && *x > -0.4;
        let group = groups.get(x.round() as usize).filter(|_| is_group);
        group.map_or_else(String::new, |group| (*group).to_owned())
    };
    let range = -0.5..groups.len() as f64 - 0.5;
    drawn(
        title,
        range,
        &Axis {
            desc: "",
            name: &name,
        },
        &aside,
    )
}

/// Points over bytes, of which each tenfold is as far as the next.
///
/// # Errors
/// It cannot be drawn.
pub fn by_bytes(title: &str, series: &[Series]) -> Outcome<String> {
    let bytes = || {
        series
            .iter()
            .flat_map(|series| &series.points)
            .map(|(x, _)| *x)
    };
    let least = bytes().fold(f64::INFINITY, f64::min).max(1.0) / 1.5;
    let most = bytes().fold(least, f64::max) * 1.5;
    let axis = Axis {
        desc: "uplink bytes",
        name: &|x| output::bytes(*x as u64),
    };
    drawn(title, (least..most).log_scale(), &axis, series)
}

/// Lines over rounds.
///
/// # Errors
/// It cannot be drawn.
pub fn by_round(title: &str, series: &[Series]) -> Outcome<String> {
    let rounds = series.iter().map(|series| series.points.len()).max();
    let axis = Axis {
        desc: "round",
        name: &|x| format!("{x:.0}"),
    };
    drawn(title, 0.0..rounds.unwrap_or(1) as f64, &axis, series)
}

/// What stands below.
struct Axis<'a> {
    desc: &'a str,
    name: &'a dyn Fn(&f64) -> String,
}

fn drawn<X>(title: &str, x: X, axis: &Axis<'_>, series: &[Series]) -> Outcome<String>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    let percents = || {
        series
            .iter()
            .flat_map(|series| &series.points)
            .map(|(_, y)| *y)
    };
    let least = (percents().fold(100.0, f64::min) / 5.0).floor() * 5.0;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, (FONT, 17))
            .margin(10)
            .margin_right(RIGHT)
            .x_label_area_size(45)
            .y_label_area_size(55)
            .build_cartesian_2d(x, least..100.0)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_label_formatter(axis.name)
            .x_desc(axis.desc)
            .y_label_formatter(&|y| format!("{y:.0}"))
            .y_desc("accuracy, %")
            .draw()?;
        for (index, one) in series.iter().enumerate() {
            let (kind, colour) = (one.mark, COLOURS[index % COLOURS.len()]);
            let points = one.points.iter().copied();
            match kind {
                Mark::Line => chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?,
                _ => chart.draw_series(points.map(|at| mark(kind, at, colour)))?,
            };
            // The plot's own legend lies over the points.
            let at = (SIZE.0 as i32 - RIGHT as i32 + 15, 50 + 22 * index as i32);
            area.draw(&mark(kind, at, colour))?;
            area.draw(&Text::new(
                one.name.clone(),
                (at.0 + 12, at.1 - 6),
                (FONT, 13),
            ))?;
        }
        area.present()?;
    }
    Ok(svg)
}

fn mark<'a, C>(mark: Mark, at: C, colour: RGBColor) -> DynElement<'static, SVGBackend<'a>, C>
where
    C: Clone + 'static,
{
    match mark {
        Mark::Triangle => TriangleMarker::new(at, 5, colour.filled()).into_dyn(),
        Mark::Circle | Mark::Line => Circle::new(at, 4, colour.filled()).into_dyn(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(mark: Mark) -> Vec<Series> {
        let one = |name: &str, high: f64| Series {
            name: name.into(),
            mark,
            points: vec![(1.0, high), (2.0, high - 3.0), (2000.0, high - 20.0)],
        };
        vec![one("a < b", 90.0), one("c", 80.0)]
    }

    #[test]
    fn each_point_and_each_name_is_drawn_and_names_are_escaped() {
        let svg = by_bytes("bytes", &series(Mark::Circle)).unwrap();
        // One in the legend for each series.
        assert_eq!(svg.matches("<circle").count(), 6 + 2);
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
        assert!(svg.trim_end().ends_with("</svg>"));
        let svg = by_bytes("bytes", &series(Mark::Triangle)).unwrap();
        assert_eq!(svg.matches("<polygon").count(), 6 + 2);
        assert_eq!(svg, by_bytes("bytes", &series(Mark::Triangle)).unwrap());
        let svg = by_round("rounds", &series(Mark::Line)).unwrap();
        assert!(svg.matches("<polyline").count() >= 2);
    }

    #[test]
    fn groups_have_their_names_below() {
        let mut two = series(Mark::Circle);
        two.iter_mut().for_each(|series| series.points.truncate(1));
        let svg = by_group("groups", &["clean", "noise"], &two).unwrap();
        assert!(svg.contains("clean") && svg.contains("noise"));
    }
}
