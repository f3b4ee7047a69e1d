//! A benchmark as a chart: decode over the cached tokens, and throughput over the number of sequences.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

use super::report::{BenchReport, CaseStatistics};
use crate::error::CliError;
use crate::files::output_file::check_output;

/// Pixels of one chart.
const WIDTH: u32 = 640;
const HEIGHT: u32 = 400;
const MEASURED: RGBColor = RGBColor(0x3b, 0x76, 0xc4);
const FLOOR: RGBColor = RGBColor(0x88, 0x96, 0xa8);

/// Checks the file before anything is measured.
///
/// # Errors
/// When it has another ending than `.svg`, or would destroy an artifact.
pub fn check(path: &Path) -> Result<(), CliError> {
    if path.extension().is_none_or(|ending| ending != "svg") {
        return Err(CliError::at(path, "charts are SVG, expected a name that ends in .svg"));
    }
    check_output(path, "the chart", &[])
}

/// The charts side by side; those without a measured case are left out.
///
/// # Errors
/// When no case can be drawn.
pub fn svg(report: &BenchReport) -> Result<String, CliError> {
    let of = |test: &str, x: fn(&CaseStatistics) -> u32| {
        let mut points: Vec<Point> =
            report.cases.iter().filter(|case| case.test == test).map(|case| Point::of(x(case), case)).collect();
        points.sort_by_key(|point| point.x);
        points
    };
    // A floor from bandwidth alone does not bound many sequences, whose steps are limited by arithmetic.
    let together = of("batch", |case| case.sequences).into_iter().map(|point| Point { floor: None, ..point }).collect();
    let charts = [
        Chart { title: "Decode of one sequence", x: "cached tokens", points: of("decode", |case| case.depth_tokens) },
        Chart { title: "Decode of several sequences", x: "sequences", points: together },
        Chart { title: "Prefill", x: "tokens of the prompt", points: of("prefill", |case| case.tokens as u32) },
    ];
    // One length of prompts is not a curve: it is drawn only if there is nothing else.
    let only_prefill = charts[..2].iter().all(|chart| chart.points.is_empty());
    let min_points = |chart: &Chart| if chart.title == "Prefill" && !only_prefill { 2 } else { 1 };
    let charts: Vec<Chart> = charts.into_iter().filter(|chart| chart.points.len() >= min_points(chart)).collect();
    if charts.is_empty() {
        return Err(CliError::new("chart has nothing to draw: -p 0 without --depth or -s measures nothing"));
    }
    let mut text = String::new();
    draw(&mut text, report, &charts).map_err(|error| CliError::new(format!("chart cannot be drawn: {error}")))?;
    Ok(text)
}

struct Chart {
    title: &'static str,
    x: &'static str,
    points: Vec<Point>,
}

struct Point {
    x: u32,
    tokens_per_s: f64,
    floor: Option<f64>,
}

impl Point {
    fn of(x: u32, case: &CaseStatistics) -> Point {
        Point { x, tokens_per_s: case.tokens_per_s, floor: case.floor_tokens_per_s }
    }
}

fn draw(text: &mut String, report: &BenchReport, charts: &[Chart]) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::with_string(text, (WIDTH * charts.len() as u32, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let device = report.loads.first().map_or("", |load| load.load.device.as_str());
    let root = root.titled(&format!("{} on {device}", report.model), ("sans-serif", 18))?;
    for (area, chart) in root.split_evenly((1, charts.len())).iter().zip(charts) {
        chart.draw(area)?;
    }
    root.present()?;
    drop(root);
    Ok(())
}

impl Chart {
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<(), Box<dyn Error>> {
        // A single point is drawn in the middle.
        let (first, last) = (f64::from(self.points[0].x), f64::from(self.points[self.points.len() - 1].x));
        let margin = if last > first { 0.04 * (last - first) } else { 1.0 };
        let rates = self.points.iter().flat_map(|point| [Some(point.tokens_per_s), point.floor]).flatten();
        let most = rates.fold(0.0, f64::max).max(1e-3);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(72)
            .build_cartesian_2d(first - margin..last + margin, 0.0..1.1 * most)?;
        let whole = |value: &f64| if *value < 0.0 || value.fract() != 0.0 { String::new() } else { value.to_string() };
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x).y_desc("tokens/s").x_labels(6).x_label_formatter(&whole).y_label_formatter(&whole);
        mesh.disable_x_mesh().light_line_style(TRANSPARENT).bold_line_style(FLOOR.mix(0.3)).draw()?;
        let floor = self.points.iter().filter_map(|point| Some((f64::from(point.x), point.floor?)));
        let floor: Vec<(f64, f64)> = floor.collect();
        let has_floor = !floor.is_empty();
        if has_floor {
            chart
                .draw_series(DashedLineSeries::new(floor, 6, 4, FLOOR.stroke_width(2)))?
                .label("what the memory's bandwidth permits")
                .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], FLOOR.stroke_width(2)));
        }
        let measured = || self.points.iter().map(|point| (f64::from(point.x), point.tokens_per_s));
        chart
            .draw_series(LineSeries::new(measured(), MEASURED.stroke_width(2)).point_size(4))?
            .label("measured")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], MEASURED.stroke_width(2)));
        if has_floor {
            // The key is drawn where no curve is: in the middle, or below curves that are both high.
            let is_high = measured().all(|(_, rate)| rate > 0.4 * most);
            let place = if is_high { SeriesLabelPosition::LowerRight } else { SeriesLabelPosition::MiddleRight };
            chart.configure_series_labels().position(place).background_style(WHITE).border_style(FLOOR).draw()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::cases::Case;
    use super::super::measure::Measured;
    use super::super::report::LoadedFor;
    use super::*;
    use crate::report::statistics::tests::load_statistics;

    fn report(cases: &[Case]) -> BenchReport {
        let mut report = BenchReport::new(3);
        report.model = "<model>".into();
        report.loads.push(LoadedFor { sequences: 1, context_tokens: 9, load: load_statistics() });
        let measured = Measured { tokens: 64, wall: Duration::from_secs(2), gpu_seconds: None, cached_tokens: 0 };
        let statistics = |case: &Case| CaseStatistics::of_bytes(*case, &measured, 1_000_000_000, 0, Some(64.0));
        report.cases = cases.iter().map(statistics).collect();
        report
    }

    #[test]
    fn each_measured_case_is_a_point_beside_its_floor() {
        let decode = [0, 1024, 4096].map(|depth| Case::Decode { depth });
        let batch = [1, 8].map(|sequences| Case::Batch { sequences });
        let svg = svg(&report(&[&decode[..], &batch].concat())).unwrap();
        assert_eq!(svg.matches("<circle").count(), 5, "{svg}");
        for part in ["&lt;model&gt;", "Some GPU", "Decode of one sequence", "cached tokens", "sequences", "tokens/s"] {
            assert!(svg.contains(part), "{part:?} is not in {svg}");
        }
        assert!(!svg.contains("Prefill") && svg.contains(&format!("width=\"{}\"", 2 * WIDTH)), "{svg}");
    }

    #[test]
    fn one_case_is_a_chart_and_none_is_an_error() {
        assert_eq!(svg(&report(&[Case::Prefill { tokens: 64 }])).unwrap().matches("<circle").count(), 1);
        assert!(matches!(svg(&report(&[])), Err(CliError::Failed(message)) if message.contains("nothing to draw")));
        assert!(matches!(check(Path::new("chart.png")), Err(CliError::Failed(message)) if message.contains(".svg")));
    }
}
