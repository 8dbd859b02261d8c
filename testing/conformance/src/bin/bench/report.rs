//! The table and the JSON.

use std::fmt::Write;

use fleetwright_conformance::ServerKind;
use fleetwright_lab::measure::{format_number, machine};
use serde_json::{Value, json};

/// The quantity of a number, and whether less or more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Operations in a second.
    PerSecond,
    /// Milliseconds.
    Millis,
    /// Microseconds of CPU time.
    CpuMicros,
    /// Mebibytes.
    MiB,
    /// Kibibytes.
    KiB,
}

impl Unit {
    fn text(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::Millis => "ms",
            Self::CpuMicros => "µs CPU",
            Self::MiB => "MiB",
            Self::KiB => "KiB",
        }
    }
}

struct Row {
    name: String,
    unit: Unit,
    embedded: Option<f64>,
    real: Option<f64>,
}

impl Row {
    /// The ratio between the real server and the embedded one, in any unit: more than one is in favour of the embedded one.
    fn ratio(&self) -> Option<f64> {
        let (embedded, real) = (self.embedded?, self.real?);
        let (cost, base) = if self.unit == Unit::PerSecond { (embedded, real) } else { (real, embedded) };
        (base > 0.0).then(|| cost / base)
    }
}

/// All that was measured.
pub(crate) struct Report {
    machine: Value,
    kind: ServerKind,
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(machine: Value) -> Self {
        Self { machine, kind: ServerKind::Embedded, rows: Vec::new() }
    }

    /// Sets the server of the following rows.
    pub(crate) fn begin(&mut self, kind: ServerKind) {
        self.kind = kind;
    }

    /// Notes a number, beside the other server's when that has the same row.
    pub(crate) fn add(&mut self, name: impl Into<String>, unit: Unit, value: f64) {
        let name = name.into();
        eprintln!("bench: {:8} {name}: {} {}", self.kind, format_number(value), unit.text());
        let at = match self.rows.iter().position(|row| row.name == name) {
            Some(at) => at,
            None => {
                self.rows.push(Row { name, unit, embedded: None, real: None });
                self.rows.len() - 1
            }
        };
        match self.kind {
            ServerKind::Embedded => self.rows[at].embedded = Some(value),
            ServerKind::Real => self.rows[at].real = Some(value),
        }
    }

    /// A table for people.
    pub(crate) fn markdown(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{}\n", machine::line(&self.machine));
        let _ = writeln!(out, "| what | unit | embedded | real | real / embedded |\n|---|---|--:|--:|--:|");
        for row in &self.rows {
            let cell = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), format_number);
            let ratio = row.ratio().map_or_else(|| "–".to_owned(), |ratio| format!("{}×", format_number(ratio)));
            let (embedded, real) = (cell(row.embedded), cell(row.real));
            let _ = writeln!(out, "| {} | {} | {embedded} | {real} | {ratio} |", row.name, row.unit.text());
        }
        let _ = writeln!(
            out,
            "\nThe last column is cost: how many times the time, CPU or memory of the embedded server the real one needs."
        );
        out
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "name": row.name, "unit": row.unit.text(),
                    "embedded": row.embedded, "real": row.real, "costRatio": row.ratio(),
                })
            })
            .collect();
        json!({ "machine": self.machine, "rows": rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_cost_for_rates_and_for_sizes() {
        let row = |unit| Row { name: "x".into(), unit, embedded: Some(200.0), real: Some(100.0) };
        assert_eq!(row(Unit::PerSecond).ratio(), Some(2.0));
        assert_eq!(row(Unit::MiB).ratio(), Some(0.5));
    }

    #[test]
    fn both_servers_share_a_row() {
        let mut report = Report::new(json!({}));
        report.add("gets", Unit::PerSecond, 10.0);
        report.begin(ServerKind::Real);
        report.add("gets", Unit::PerSecond, 5.0);
        assert_eq!(report.json()["rows"][0]["costRatio"], 2.0);
        assert!(report.markdown().contains("| gets | /s | 10.0 | 5.00 | 2.00× |"));
    }
}
