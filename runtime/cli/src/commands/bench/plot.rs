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

/// One chart beside the other; those without a measured case are left out.
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
    let charts = [
        Chart { title: "Decode of one sequence", x: "cached tokens", points: of("decode", |case| case.depth_tokens) },
        Chart { title: "Decode of several sequences", x: "sequences", points: of("batch", |case| case.sequences) },
        Chart { title: "Prefill", x: "tokens of the prompt", points: of("prefill", |case| case.tokens as u32) },
    ];
    let charts: Vec<Chart> = charts.into_iter().filter(|chart| !chart.points.is_empty()).collect();
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
        // A single point stands in the middle.
        let (first, last) = (f64::from(self.points[0].x), f64::from(self.points[self.points.len() - 1].x));
        let margin = if last > first { 0.04 * (last - first) } else { 1.0 };
        let rates = self.points.iter().flat_map(|point| [Some(point.tokens_per_s), point.floor]).flatten();
        let most = rates.fold(0.0, f64::max).max(1e-3);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(first - margin..last + margin, 0.0..1.1 * most)?;
        let whole = |value: &f64| if *value < 0.0 { String::new() } else { format!("{value:.0}") };
        chart.configure_mesh().x_desc(self.x).y_desc("tokens/s").x_labels(6).x_label_formatter(&whole).draw()?;
        let floor = self.points.iter().filter_map(|point| Some((f64::from(point.x), point.floor?)));
        let floor: Vec<(f64, f64)> = floor.collect();
        if !floor.is_empty() {
            chart
                .draw_series(DashedLineSeries::new(floor, 6, 4, FLOOR.stroke_width(2)))?
                .label("what the memory's bandwidth permits")
                .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], FLOOR));
        }
        let measured = || self.points.iter().map(|point| (f64::from(point.x), point.tokens_per_s));
        chart
            .draw_series(LineSeries::new(measured(), MEASURED.stroke_width(2)).point_size(4))?
            .label("measured")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], MEASURED));
        let place = SeriesLabelPosition::LowerLeft;
        chart.configure_series_labels().position(place).background_style(WHITE.mix(0.8)).border_style(FLOOR).draw()?;
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
