//! Tables in kubectl's style: headers in capitals, three spaces between columns, no lines. Pure.

use comfy_table::{ContentArrangement, Row, Table, presets};

/// Renders a header and rows; every line ends with a newline. An empty cell is shown as `<none>`, as in kubectl.
pub(super) fn render<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(Row::from(header));
    for row in rows {
        table.add_row(row.map(|cell| if cell.is_empty() { "<none>".to_owned() } else { cell }));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_three_spaces_apart_and_lines_have_no_trailing_spaces() {
        let rows = [["core-0-0".to_owned(), String::new()], ["core-0-10".to_owned(), "1".to_owned()]];
        assert_eq!(super::render(["NAME", "NUMA"], rows), "NAME        NUMA\ncore-0-0    <none>\ncore-0-10   1\n");
    }
}
