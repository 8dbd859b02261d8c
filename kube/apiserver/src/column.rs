//! The columns of tables, as kubectl shows them.

/// One column of a `Table`.
#[derive(Clone, Debug)]
pub struct Column {
    /// The heading.
    pub name: String,
    /// The JSON type (`string`, `integer`, `date`…).
    pub ty: String,
    /// The format of the value; `name` marks the name column.
    pub format: String,
    /// The description of the column.
    pub description: String,
    /// Zero for the normal view, more for `-o wide`.
    pub priority: i64,
}

impl Column {
    /// The columns of a built-in kind.
    pub fn builtin(columns: &[fleetwright_builtins::printers::Column]) -> Vec<Self> {
        let column = |column: &fleetwright_builtins::printers::Column| Self {
            name: column.name.to_string(),
            ty: column.ty.to_string(),
            format: column.format.to_string(),
            description: column.description.to_string(),
            priority: column.priority.into(),
        };
        columns.iter().map(column).collect()
    }
}
