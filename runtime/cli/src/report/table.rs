//! Columns that line up, for people.

use super::text::printable;

/// A table's column: its heading, and on which side its cells line up.
pub enum Column {
    Left(&'static str),
    Right(&'static str),
}

/// Two spaces before each line and between columns; each row has one cell a column. Control characters in cells are escaped.
pub fn table(columns: &[Column], rows: &[Vec<String>]) -> String {
    let escape = |row: &Vec<String>| row.iter().map(|cell| printable(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(escape).collect();
    let heading = |column: &Column| match column {
        Column::Left(name) | Column::Right(name) => (*name).to_owned(),
    };
    let headings: Vec<String> = columns.iter().map(heading).collect();
    let width = |index: usize| {
        let cells = rows.iter().chain([&headings]).map(|row| row[index].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();

    let mut text = String::new();
    for row in [&headings].into_iter().chain(&rows) {
        let mut line = String::new();
        for ((column, cell), &width) in columns.iter().zip(row).zip(&widths) {
            line += &match column {
                Column::Left(_) => format!("  {cell:<width$}"),
                Column::Right(_) => format!("  {cell:>width$}"),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// A cell for a value that may be missing.
pub fn or_dash(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "100".into()], vec!["bcd".into(), "2".into()]];
        assert_eq!(table(&[Column::Left("it"), Column::Right("n")], &rows), "  it     n\n  a    100\n  bcd    2\n");
        assert_eq!(table(&[Column::Left("it")], &[vec!["a\u{1b}[0m\n".into()]]), "  it\n  a\\u{1b}[0m\\n\n");
    }
}
