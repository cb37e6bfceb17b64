/// A cell of a detector's grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    /// Place from the left, in cells.
    pub(super) column: f32,
    /// Place from the top, in cells.
    pub(super) row: f32,
    /// Pixels from cell to cell.
    pub(super) stride: f32,
}

/// The cells of an input of this width and height in pixels: stride by stride, row by row.
pub(super) fn cells((width, height): (usize, usize), strides: &[usize]) -> impl Iterator<Item = Cell> {
    strides
        .iter()
        .filter(|stride| **stride > 0)
        .flat_map(move |stride| {
            let (columns, rows) = (width / stride, height / stride);
            (0..rows).flat_map(move |row| {
                (0..columns).map(move |column| Cell {
                    column: column as f32,
                    row: row as f32,
                    stride: *stride as f32,
                })
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_come_grid_by_grid_and_row_by_row() {
        let cells: Vec<Cell> = cells((96, 64), &[8, 16, 32]).collect();
        assert_eq!(cells.len(), 12 * 8 + 6 * 4 + 3 * 2);
        let at = |place: usize| (cells[place].column, cells[place].row, cells[place].stride);
        assert_eq!(at(0), (0.0, 0.0, 8.0));
        assert_eq!(at(12), (0.0, 1.0, 8.0));
        assert_eq!(at(95), (11.0, 7.0, 8.0));
        assert_eq!(at(96 + 7), (1.0, 1.0, 16.0));
        assert_eq!(at(125), (2.0, 1.0, 32.0));
    }
}
