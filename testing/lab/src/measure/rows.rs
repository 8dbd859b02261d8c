//! Measured numbers: a table for people, a file for programs.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::format_number;

/// One line of a table.
pub struct Row {
    /// The name of the measured quantity.
    pub name: String,
    /// The measured number.
    pub value: f64,
    /// The unit; empty for a count.
    pub unit: &'static str,
}

impl Row {
    /// The number with its unit, as text.
    pub fn told(&self) -> String {
        format!("{} {}", format_number(self.value), self.unit).trim_end().to_owned()
    }
}

/// The rows of a table, printed as they are added.
#[derive(Default)]
pub struct Rows(Vec<Row>);

impl Rows {
    /// Adds a row and prints it.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        let row = Row { name: name.into(), value, unit };
        eprintln!("bench: {}: {}", row.name, row.told());
        self.0.push(row);
    }

    /// All rows.
    pub fn iter(&self) -> std::slice::Iter<'_, Row> {
        self.0.iter()
    }

    /// Prints the rows as a table.
    pub fn print(&self) {
        println!("| what | value |\n|---|--:|");
        for row in &self.0 {
            println!("| {} | {} |", row.name, row.told());
        }
    }

    /// The rows as JSON.
    pub fn json(&self) -> Value {
        let rows = self.0.iter().map(|row| json!({ "name": row.name, "value": row.value, "unit": row.unit }));
        rows.collect()
    }
}

/// Writes the numbers to a file, and prints its path.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, numbers: &Value) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let text = serde_json::to_string_pretty(numbers)? + "\n";
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    eprintln!("bench: the numbers are in {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_unit_ends_with_its_number() {
        let row = |value, unit| Row { name: "writes".to_owned(), value, unit };
        assert_eq!([row(2.0, "").told(), row(12_345.0, "MiB").told()], ["2.00", "12,345 MiB"]);
    }

    #[test]
    fn numbers_are_written_where_no_folder_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target/bench.json");
        let mut rows = Rows::default();
        rows.add("until it is Ready", 1.5, "s");
        write(&path, &json!({ "rows": rows.json() })).unwrap();
        let read: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read, json!({ "rows": [{ "name": "until it is Ready", "value": 1.5, "unit": "s" }] }));
    }
}
