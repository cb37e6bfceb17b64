use std::collections::HashMap;
use std::path::Path;

use super::DatasetError;

/// The truth about samples, by the sample's id (its file name, or its index in a stacked array).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    by_id: HashMap<String, String>,
}

impl Labels {
    /// Reads a text file with one label a line: `id<TAB>label`, `id,label` or `id label`, split at the first tab if the
    /// line has one, else at the first comma or space. What follows is the label, so that it can be a text with spaces
    /// and commas. Empty lines and lines starting with `#` are skipped.
    ///
    /// # Errors
    /// When a line has no label, or an id is given twice.
    pub fn read(path: &Path) -> Result<Self, DatasetError> {
        let text = std::fs::read_to_string(path).map_err(|source| DatasetError::io(path, source))?;
        let mut labels = Self::default();
        for (index, line) in text.lines().enumerate() {
            let wrong = |problem: String| DatasetError::Label {
                path: path.into(),
                line: index + 1,
                problem,
            };
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let (id, label) = line
                .split_once('\t')
                .or_else(|| line.split_once([',', ' ']))
                .ok_or_else(|| wrong("expected `id<TAB>label`, `id,label` or `id label`".into()))?;
            let id = id.trim().to_owned();
            if labels.by_id.insert(id.clone(), label.trim().to_owned()).is_some() {
                return Err(wrong(format!("{id:?} has a label already")));
            }
        }
        Ok(labels)
    }

    /// The label of a sample.
    pub fn get(&self, id: &str) -> Option<&str> {
        self.by_id.get(id).map(String::as_str)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}
