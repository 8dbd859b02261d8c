use std::fmt::Write;
use std::time::Duration;

use crate::{Case, ServerKind};

/// The result of a case on one server.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The failure, if any.
    pub result: Result<(), String>,
    /// The duration of the case.
    pub took: Duration,
}

/// A case and how it went on each server.
#[derive(Clone)]
pub struct Row {
    pub case: Case,
    /// In the order of the report's servers; `None` when it did not run.
    pub outcomes: Vec<Option<Outcome>>,
}

/// The results of all cases.
#[derive(Clone)]
pub struct Report {
    servers: Vec<ServerKind>,
    /// One per case.
    pub rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(cases: &[Case], servers: &[ServerKind]) -> Self {
        let rows = cases.iter().map(|case| Row { case: *case, outcomes: vec![None; servers.len()] }).collect();
        Self { servers: servers.to_vec(), rows }
    }

    pub(crate) fn add(&mut self, row: usize, server: ServerKind, outcome: Outcome) {
        let column = self.servers.iter().position(|known| *known == server);
        if let (Some(row), Some(column)) = (self.rows.get_mut(row), column) {
            row.outcomes[column] = Some(outcome);
        }
    }

    /// The number of cases that passed on every server, and of those that did not.
    pub fn counts(&self) -> (usize, usize) {
        let passed = |row: &&Row| row.outcomes.iter().all(|o| o.as_ref().is_some_and(|o| o.result.is_ok()));
        let passed = self.rows.iter().filter(passed).count();
        (passed, self.rows.len() - passed)
    }

    /// The page that is kept: what the table is, the differences on purpose, and the table.
    pub fn document(&self) -> String {
        let (passed, failed) = self.counts();
        let mut text = format!(
            "# Conformance\n\nOne suite, two servers: the embedded one and kube-apiserver {} on etcd. Made by `make generate`, held to \
             the code by `make test-real`.\n\n{passed} cases pass on both servers, {failed} do not.\n\n## Differences on purpose\n\n",
            fleetwright_apiserver::KUBERNETES_VERSION
        );
        for row in &self.rows {
            if let Some(why) = row.case.differs {
                let _ = writeln!(text, "- {}: {why}", row.case.sentence());
            }
        }
        text.push('\n');
        text.push_str(&self.table());
        text
    }

    /// The table as Markdown, which reads well in a terminal too: the same cases give the same text, so that it can be kept.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut area = "";
        for row in &self.rows {
            if row.case.area != area {
                area = row.case.area;
                let heads: Vec<_> = self.servers.iter().map(ToString::to_string).collect();
                let _ = writeln!(
                    text,
                    "\n## {area}\n\n| case | {} |\n|---|{}",
                    heads.join(" | "),
                    "---|".repeat(heads.len())
                );
            }
            let marks: Vec<_> = row.outcomes.iter().map(mark).collect();
            let differs = row.case.differs.map(|why| format!(" (differs: {why})")).unwrap_or_default();
            let _ = writeln!(text, "| {}{differs} | {} |", row.case.sentence(), marks.join(" | "));
        }
        text
    }

    /// The slowest cases.
    pub fn slowest(&self, count: usize) -> String {
        let mut all: Vec<_> = self
            .rows
            .iter()
            .flat_map(|row| self.servers.iter().zip(&row.outcomes).map(move |(server, o)| (row, server, o)))
            .filter_map(|(row, server, outcome)| Some((outcome.as_ref()?.took, server, row.case)))
            .collect();
        all.sort_by_key(|(took, ..)| std::cmp::Reverse(*took));
        let lines = all.iter().take(count);
        lines
            .map(|(took, server, case)| {
                format!("{:6.1} s {server:8} {}::{}\n", took.as_secs_f32(), case.area, case.name)
            })
            .collect()
    }
}

fn mark(outcome: &Option<Outcome>) -> &'static str {
    match outcome {
        Some(Outcome { result: Ok(()), .. }) => "ok",
        Some(_) => "FAILED",
        None => "-",
    }
}
