//! A sample on a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Table, Wrap};

use crate::monitor::status::State;
use crate::monitor::system::{ProcessSample, Sample};
use crate::report::text::printable;
use unicorn_artifact::account::size;
use unicorn_runtime::machine::GpuActivity;

/// Lines of one GPU's block, its border included.
const GPU_LINES: u16 = 6;

/// `if_none` is shown in the table of processes while there are none.
pub fn draw(frame: &mut Frame<'_>, sample: &Sample, if_none: &str) {
    let gpus = sample.gpus.iter().map(|_| Constraint::Length(GPU_LINES));
    let parts: Vec<Constraint> = gpus.chain([Constraint::Min(3), Constraint::Length(1)]).collect();
    let areas = Layout::vertical(parts).split(frame.area());
    for (gpu, &area) in sample.gpus.iter().zip(areas.iter()) {
        draw_gpu(frame, area, gpu);
    }
    let rest = &areas[sample.gpus.len()..];
    match sample.processes.as_slice() {
        [] => {
            let block = Block::bordered().title(" unicorn-run ");
            frame.render_widget(Paragraph::new(if_none).wrap(Wrap { trim: true }).block(block), rest[0]);
        }
        processes => draw_processes(frame, rest[0], processes),
    }
    frame.render_widget(Paragraph::new(if sample.gpus.is_empty() { NO_GPU } else { HELP }), rest[1]);
}

const HELP: &str = "q quits";
const NO_GPU: &str = "no GPU with readable sensors · q quits";

fn draw_gpu(frame: &mut Frame<'_>, area: Rect, gpu: &GpuActivity) {
    let block = Block::bordered().title(format!(" {} ", gpu.name));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let lines = Layout::vertical([Constraint::Length(1); 4]).split(inner);
    let busy = gpu.busy_percent.map(|percent| (percent / 100.0, format!("{percent:.0} %")));
    let share = |used: Option<u64>, all: Option<u64>| {
        let (used, all) = used.zip(all)?;
        Some((used as f64 / all.max(1) as f64, format!("{} of {}", size(used), size(all))))
    };
    draw_bar(frame, lines[0], "busy", busy);
    draw_bar(frame, lines[1], "VRAM", share(gpu.vram_used_bytes, gpu.vram_bytes));
    draw_bar(frame, lines[2], "GTT", share(gpu.gtt_used_bytes, gpu.gtt_bytes));
    let with_unit =
        |value: Option<f64>, unit: &str| value.map_or(format!("– {unit}"), |value| format!("{value:.0} {unit}"));
    let line = format!(
        "core {}   memory {}   {}   {}",
        with_unit(gpu.core_mhz, "MHz"),
        with_unit(gpu.memory_mhz, "MHz"),
        with_unit(gpu.power_w, "W"),
        with_unit(gpu.temperature_c, "°C")
    );
    frame.render_widget(Paragraph::new(line), lines[3]);
}

/// A name and a bar; `unknown` without a value.
fn draw_bar(frame: &mut Frame<'_>, area: Rect, name: &str, part: Option<(f64, String)>) {
    let [label, bar] = Layout::horizontal([Constraint::Length(6), Constraint::Min(0)]).areas(area);
    frame.render_widget(Paragraph::new(name.to_owned()), label);
    match part {
        // For a moment, a driver may report more than the total.
        Some((part, text)) if part.is_finite() => {
            frame.render_widget(Gauge::default().ratio(part.clamp(0.0, 1.0)).label(text), bar);
        }
        _ => frame.render_widget(Paragraph::new("unknown"), bar),
    }
}

fn draw_processes(frame: &mut Frame<'_>, area: Rect, processes: &[ProcessSample]) {
    let names = ["pid", "model", "doing", "tokens/s", "tokens", "KV pages", "queue", "VRAM", "GTT", "GPU"];
    let widths = [8, 24, 8, 9, 8, 13, 6, 11, 11, 6].map(Constraint::Length);
    let rows = processes.iter().map(|process| {
        let ProcessSample { status, vram_bytes, gtt_bytes, gpu_percent } = process;
        let doing = match status.doing {
            State::Prefill => "prefill",
            State::Decode => "decode",
            State::Idle => "idle",
        };
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".into());
        Row::new([
            status.pid.to_string(),
            printable(&status.model).into_owned(),
            doing.to_owned(),
            or_dash(status.tokens_per_s.map(|rate| format!("{rate:.2}"))),
            status.tokens.to_string(),
            format!("{} of {}", status.kv_pages_used, status.kv_pages),
            status.queue.to_string(),
            or_dash(vram_bytes.map(size)),
            or_dash(gtt_bytes.map(size)),
            or_dash(gpu_percent.map(|percent| format!("{percent:.0} %"))),
        ])
    });
    let header = Row::new(names).style(Style::default().add_modifier(Modifier::BOLD));
    let table = Table::new(rows, widths).header(header).block(Block::bordered().title(" unicorn-run "));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::monitor::status::tests::status;

    fn screen(sample: &Sample, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, sample, "no status file in /some/folder")).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
    }

    fn sample() -> Sample {
        let gpu = GpuActivity {
            name: "card1".into(),
            busy_percent: Some(87.0),
            vram_used_bytes: Some(384 << 20),
            vram_bytes: Some(512 << 20),
            core_mhz: Some(2650.0),
            temperature_c: Some(63.4),
            ..GpuActivity::default()
        };
        let process =
            ProcessSample { status: status(41), vram_bytes: Some(1 << 20), gtt_bytes: None, gpu_percent: Some(80.5) };
        Sample { gpus: vec![gpu], processes: vec![process] }
    }

    #[test]
    fn every_figure_is_on_the_screen() {
        let screen = screen(&sample(), 120, 14);
        for figure in [
            "card1",
            "87 %",
            "384.00 MiB of 512.00 MiB",
            "unknown",
            "core 2650 MHz",
            "memory – MHz",
            "63 °C",
            "some model",
            "decode",
            "12.50",
            "3 of 64",
            "1.00 MiB",
            "q quits",
        ] {
            assert!(screen.contains(figure), "{figure} in\n{screen}");
        }
    }

    #[test]
    fn a_small_terminal_and_odd_figures_are_drawn() {
        let mut odd = sample();
        odd.gpus[0].busy_percent = Some(f64::NAN);
        odd.gpus[0].vram_used_bytes = Some(u64::MAX);
        odd.gpus[0].gtt_bytes = Some(0);
        odd.gpus[0].gtt_used_bytes = Some(1);
        for (width, height) in [(1, 1), (20, 4), (80, 24), (300, 80)] {
            screen(&odd, width, height);
        }
        let empty = screen(&Sample { gpus: vec![], processes: vec![] }, 60, 8);
        assert!(empty.contains("no GPU") && empty.contains("no status file in /some/folder"), "{empty}");
        assert!(!screen(&odd, 120, 14).contains("no status file"));
    }
}
